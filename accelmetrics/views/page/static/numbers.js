// Numbers, units and lengths of time in words, by the rules of accelmetrics/schemas/text.py; a test compares the two.

const PREFIXES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const SYMBOLS = { 1: "", By: "bytes", "By/s": "bytes/s", Cel: "°C", MiBy: "MiB", GiBy: "GiB", us: "µs" };
const KILO_FROM = 10000; // watts from which on power is written in kW, together with its limit

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number with so many decimals; ties round away from zero. */
export function fixed(value, digits = 0) {
  const text = value.toFixed(digits);
  return /^-[0.]+$/.test(text) ? text.slice(1) : text;
}

/** A number in full: whole ones and large ones whole, others with two places, small ones with two figures. */
export function plain(value) {
  if (Number.isInteger(value) || Math.abs(value) >= 10000) return fixed(value);
  return Math.abs(value) < 0.1 ? String(Number(value.toPrecision(2))) : String(Number(fixed(value, 2)));
}

const figures = (value) => fixed(value, Math.max(0, 3 - String(Math.abs(Math.floor(value))).length));

/** By which power of 1024 an amount of bytes is best divided. */
function step(largest) {
  let found = PREFIXES.length - 1;
  while (found > 0 && largest < 1024 ** found) found -= 1;
  return found;
}

const ofLimit = (value, limit, scale, digits) => fixed(value / scale, digits) + (limit ? `/${fixed(limit / scale, digits)}` : "");

/** ``13 %`` of 12.5. */
export const percent = (value) => `${fixed(value)} %`;

/** ``64 °C``. */
export const celsius = (value) => `${fixed(value)} °C`;

/** An amount of memory, beside its total in the same unit: ``61.0/79.6 GiB``. */
export function memory(used, total = null) {
  const power = step(Math.max(Math.abs(used), total ?? 0));
  return `${ofLimit(used, total, 1024 ** power, power ? 1 : 0)} ${PREFIXES[power]}`;
}

/** A power, beside its limit in the same unit: ``612/700 W``, ``9.45/43.9 kW``. */
export function watts(value, limit = null) {
  if (Math.max(Math.abs(value), limit ?? 0) < KILO_FROM) return `${ofLimit(value, limit, 1, 0)} W`;
  return `${[value, ...(limit ? [limit] : [])].map((one) => figures(one / 1000)).join("/")} kW`;
}

/** A value with its unit, in full where that is not bytes: ``300.25 W``, ``79.6 GiB``, ``909 B/s``. */
export function quantity(value, unit) {
  if (unit !== "By" && unit !== "By/s") return `${plain(value)} ${unitSymbol(unit)}`.trimEnd();
  const power = step(Math.abs(value));
  return `${fixed(value / 1024 ** power, power ? 1 : 0)} ${PREFIXES[power]}${unit === "By/s" ? "/s" : ""}`;
}

/** An energy: ``312 J``, ``86.412 kWh`` from 100,000 J on. */
export const energy = (joules) => (Math.abs(joules) < 100000 ? `${fixed(joules)} J` : `${fixed(joules / 3.6e6, 3)} kWh`);

/** A value with its unit, as tables have it: ``13 %``, ``64 °C``, ``612 W``, ``1980 MHz``, ``909 B/s``. */
export function inWords(value, unit) {
  if (unit === "W") return watts(value);
  if (unit === "J") return energy(value);
  return ["%", "Cel", "MHz", "rpm"].includes(unit) ? `${fixed(value)} ${unitSymbol(unit)}` : quantity(value, unit);
}

export const bytes = (value) => memory(value);

/** A length of time, rounded down, in its largest unit: ``52 s``, ``14 min``, ``2.2 h``, ``3.5 d``. */
export function duration(seconds) {
  if (seconds < 60) return `${Math.floor(Math.max(0, seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  const [unit, size] = seconds < 2 * 86400 ? ["h", 3600] : ["d", 86400];
  return `${plain(Math.floor((seconds * 10) / size) / 10)} ${unit}`;
}

export const clock = (date) => date.toLocaleTimeString([], { hour12: false });

/** The symbol of a unit as the catalogue writes it. */
export const unitSymbol = (unit) => SYMBOLS[unit] ?? unit;

export const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);
