// Numbers in words, as `accelmetrics watch` writes them.

const GIB = 2 ** 30;

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number with as many digits as are read at a glance. */
export function plain(value) {
  const size = Math.abs(value);
  return value.toFixed(Number.isInteger(value) || size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export const percent = (value) => `${Math.round(value)} %`;

export function bytes(value) {
  if (value >= GIB / 10) return `${(value / GIB).toFixed(1)} GiB`;
  return `${(value / 2 ** 20).toFixed(0)} MiB`;
}

/** A part and its whole in the unit of the whole: ``45.2 of 80.0 GiB``. */
export function shareOfBytes(part, whole) {
  return whole >= GIB / 10 ? `${(part / GIB).toFixed(1)} of ${bytes(whole)}` : `${(part / 2 ** 20).toFixed(0)} of ${bytes(whole)}`;
}

export function watts(value) {
  return value >= 10000 ? `${(value / 1000).toFixed(1)} kW` : `${Math.round(value)} W`;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const clock = (date) => date.toLocaleTimeString([], { hour12: false });

const SYMBOLS = { 1: "", By: "bytes", "By/s": "bytes/s", Cel: "°C", s: "s" };

/** The symbol of a unit as the catalogue writes it. */
export const unitSymbol = (unit) => SYMBOLS[unit] ?? unit;

export const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);
