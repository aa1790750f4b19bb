// Graphs of what was read: one for each metric, one time axis and one crosshair over all. What is missing is a gap in the line.
/* global uPlot */

import { element, find, preferences, setAttribute, setChildren, setHidden, setText } from "./document.js";
import { capital, clock, isNumber, plain, unitSymbol } from "./numbers.js";

const LINES = 8; // with more devices than that their least, median and greatest are drawn, and those lines that are chosen
const POINTS = 600; // that the server gives at most
const SHORTEST = 30; // seconds that a graph shows at least
const HEIGHT = 150;
const CROSSHAIR = "accelmetrics";
export const SHOWN_AT_FIRST = ["utilization", "memory_percent", "power_watts", "temperature_celsius", "sm_clock_mhz"];
const LIMITS = { power_watts: "power_limit_watts", temperature_celsius: "slowdown_celsius" }; // drawn as a line across
// Okabe and Ito's colours; two of them are another one on white and on black.
const COLOURS = ["--line", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "--line-pale"];

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** What was read, in columns of one length: times, and for each device and metric a value or null. */
export class History {
  times = [];
  #series = new Map();
  #metrics = "";
  #asked = "";
  #sequence = 0;

  /** What to ask for: all of it the first time, for other metrics, and when so much was added that it is time to thin it out. */
  query(metrics) {
    this.#asked = metrics.join(",");
    const since = this.#asked === this.#metrics && this.times.length < 2 * POINTS ? this.#sequence : 0;
    return `since=${since}&metrics=${encodeURIComponent(this.#asked)}`;
  }

  /** Take an answer: what is newer than the last one, or everything. */
  update({ sequence, complete, times, series }) {
    if (complete) {
      this.times = [];
      this.#series = new Map();
    }
    const [known, more] = [this.times.length, times.length];
    this.#metrics = this.#asked;
    this.#sequence = sequence;
    this.times = this.times.concat(times);
    for (const [key, columns] of Object.entries(series)) {
      if (!this.#series.has(key)) this.#series.set(key, new Map());
      for (const name of Object.keys(columns)) if (!this.#series.get(key).has(name)) this.#series.get(key).set(name, new Array(known).fill(null));
    }
    for (const [key, metrics] of this.#series) {
      for (const [name, column] of metrics) metrics.set(name, column.concat(series[key]?.[name] ?? new Array(more).fill(null)));
    }
  }

  column(key, metric) {
    return this.#series.get(key)?.get(metric) ?? new Array(this.times.length).fill(null);
  }
}

/** The lines that are drawn, chosen by a box in each device's row that is their key too. */
export class Lines {
  #chosen = null;
  #keys = [];

  constructor(changed) {
    this.changed = changed;
  }

  update(devices) {
    this.#keys = devices.map((device) => device.key);
  }

  get all() {
    return this.#keys;
  }

  get banded() {
    return this.#keys.length > LINES;
  }

  get drawn() {
    return this.#keys.filter((key) => this.has(key));
  }

  has(key) {
    return this.#chosen === null ? !this.banded : this.#chosen.has(key);
  }

  look(key) {
    const place = this.drawn.indexOf(key);
    const colour = COLOURS[place % COLOURS.length];
    return { colour: colour.startsWith("--") ? style(colour) : colour, dash: place % COLOURS.length < 4 ? undefined : [5, 3] };
  }

  box(key) {
    const box = element("input", { type: "checkbox", className: "line", ariaLabel: `draw ${key}` });
    box.addEventListener("change", () => {
      this.#chosen ??= new Set(this.drawn);
      if (box.checked) this.#chosen.add(key);
      else this.#chosen.delete(key);
      this.changed();
    });
    return box;
  }

  updateBox(box, key) {
    const drawn = this.has(key);
    if (box.checked !== drawn) box.checked = drawn;
    const colour = drawn ? this.look(key).colour : "";
    if (box.dataset.colour !== colour) box.style.accentColor = box.dataset.colour = colour;
  }
}

/** Where a line would not be seen: values with a gap on either side, which are drawn as points. */
function lonely(values) {
  const places = [];
  for (let i = 0; i < values.length; i++) {
    if (values[i] !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null) places.push(i);
  }
  return places;
}

/** Least, median and greatest of columns at each time, null where none has a value. */
export function band(columns, length) {
  const [least, median, greatest] = [new Array(length), new Array(length), new Array(length)];
  const row = new Float64Array(columns.length);
  for (let i = 0; i < length; i++) {
    let count = 0;
    for (const column of columns) if (column[i] !== null) row[count++] = column[i];
    if (count === 0) {
      least[i] = median[i] = greatest[i] = null;
      continue;
    }
    const values = row.subarray(0, count).sort();
    least[i] = values[0];
    greatest[i] = values[count - 1];
    median[i] = (values[(count - 1) >> 1] + values[count >> 1]) / 2;
  }
  return { least, median, greatest };
}

/** One metric of all devices. */
class Graph {
  #plot = null;
  #built = "";
  #names = [];
  #limits = [];
  #span = 0;
  #data = [[]];

  constructor(name, { label, unit, top }) {
    this.name = name;
    this.top = top;
    this.limit = LIMITS[name];
    const symbol = unitSymbol(unit);
    this.caption = symbol ? `${label}, ${symbol}` : label;
    this.area = element("div", { className: "plot", tabIndex: 0, role: "group", ariaLabel: `${this.caption}: arrow keys move the crosshair` });
    this.area.setAttribute("role", "group");
    this.readout = element("p", { className: "readout" });
    this.readout.setAttribute("aria-live", "off");
    this.figure = element("figure", {}, element("figcaption", {}, element("h3", { textContent: this.caption })), this.area, this.readout);
    this.area.addEventListener("keydown", (event) => this.#move(event));
    this.area.addEventListener("blur", () => this.#leave());
  }

  /** Draw what there is. */
  update(history, lines, devices, span) {
    this.#span = span;
    const columns = lines.all.map((key) => history.column(key, this.name));
    const { least, median, greatest } = lines.banded ? band(columns, history.times.length) : {};
    const bands = lines.banded ? { greatest, least, median } : {};
    this.#names = [...Object.keys(bands), ...lines.drawn];
    this.#data = [history.times, ...Object.values(bands), ...lines.drawn.map((key) => history.column(key, this.name))];
    const limits = devices.map(({ values }) => values[this.limit]).filter(isNumber);
    this.#limits = [...new Set(limits)].sort((one, other) => one - other);
    const built = JSON.stringify([lines.banded, lines.drawn, style("--text")]);
    if (built !== this.#built) this.#build(lines);
    else this.#plot.setData(this.#data);
    this.#built = built;
    this.#describe();
  }

  #build(lines) {
    this.#plot?.destroy();
    const axis = { stroke: style("--text"), grid: { stroke: style("--grid"), width: 1 }, ticks: { stroke: style("--grid"), width: 1 } };
    const line = (look) => ({ stroke: look.colour, width: 1.5, dash: look.dash, points: { show: false, filter: (plot, i) => lonely(plot.data[i]) } });
    const edge = { ...line({ colour: "transparent" }), width: 0 };
    const bands = lines.banded ? [edge, edge, line({ colour: style("--ok") })] : [];
    this.#plot = new uPlot(
      {
        width: this.area.clientWidth || 300,
        height: HEIGHT,
        legend: { show: false },
        cursor: { sync: { key: CROSSHAIR }, drag: { x: false, y: false }, points: { size: 6 } },
        scales: { x: { range: () => this.#times() }, y: { range: (_, least, most) => this.#range(least, most) } },
        axes: [{ ...axis, values: (_, seconds) => seconds.map((at) => clock(new Date(at * 1000))), space: 80, size: 28 }, { ...axis, size: 48 }],
        series: [{}, ...bands, ...lines.drawn.map((key) => line(lines.look(key)))],
        bands: lines.banded ? [{ series: [1, 2], fill: style("--band") }] : [],
        hooks: { draw: [(plot) => this.#drawLimits(plot)], setCursor: [() => this.#describe()] },
      },
      this.#data,
      this.area,
    );
    this.#plot.ctx.canvas.setAttribute("role", "img");
  }

  #times() {
    const [first, last] = [this.#data[0][0] ?? 0, this.#data[0].at(-1) ?? 0];
    return [this.#span ? last - this.#span : Math.min(first, last - SHORTEST), last];
  }

  #range(least, most) {
    if (isNumber(this.top)) return [0, this.top];
    const greatest = Math.max(most ?? 0, this.#limits.at(-1) ?? 0);
    return [Math.min(0, least ?? 0), greatest > 0 ? greatest * 1.05 : 1];
  }

  #drawLimits({ ctx, bbox, valToPos }) {
    if (!this.#limits.length) return;
    ctx.save();
    ctx.strokeStyle = style("--limit");
    ctx.setLineDash([6, 4]);
    for (const limit of new Set([this.#limits.at(0), this.#limits.at(-1)])) {
      const at = Math.round(valToPos(limit, "y", true));
      ctx.beginPath();
      ctx.moveTo(bbox.left, at);
      ctx.lineTo(bbox.left + bbox.width, at);
      ctx.stroke();
    }
    ctx.restore();
  }

  resize() {
    const width = this.area.clientWidth;
    if (this.#plot !== null && width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
  }

  destroy() {
    this.#plot?.destroy();
  }

  /** Say in words what stands under the crosshair, or at the end, and what the graph shows. */
  #describe() {
    const times = this.#data[0];
    if (!times.length) return;
    const at = this.#plot?.cursor.idx ?? times.length - 1;
    const words = this.#names.map((name, i) => `${name} ${isNumber(this.#data[i + 1][at]) ? plain(this.#data[i + 1][at]) : "-"}`);
    setText(this.readout, `${clock(new Date(times[at] * 1000))}  ${words.join("  ")}`);
    const canvas = this.#plot?.ctx.canvas;
    if (canvas) setAttribute(canvas, "aria-label", `${this.caption}. ${this.#names.map((name, i) => this.#inWords(name, this.#data[i + 1])).join(". ")}`);
  }

  #inWords(name, values) {
    const read = values.filter(isNumber);
    if (!read.length) return `${name}: no value`;
    const [least, most, gaps] = [read.reduce((a, b) => Math.min(a, b)), read.reduce((a, b) => Math.max(a, b)), values.length - read.length];
    const now = isNumber(values.at(-1)) ? `now ${plain(values.at(-1))}` : "no value now";
    return `${name}: ${now}, from ${plain(least)} to ${plain(most)}${gaps ? `, missing at ${gaps} of ${values.length} times` : ""}`;
  }

  #move(event) {
    const last = this.#data[0].length - 1;
    const at = this.#plot?.cursor.idx ?? last;
    const places = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 30, PageDown: at + 30, Home: 0, End: last };
    const place = places[event.key];
    if (place === undefined || last < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.readout.setAttribute("aria-live", "polite"); // only while it follows the keys: it changes with each reading
    const left = this.#plot.valToPos(this.#data[0][Math.min(last, Math.max(0, place))], "x");
    this.#plot.setCursor({ left, top: this.#plot.over.clientHeight / 2 }, true, true);
  }

  #leave() {
    this.readout.setAttribute("aria-live", "off");
    this.#plot?.setCursor({ left: -10, top: -10 }, true, true);
  }
}

/** All graphs, and the boxes that choose which there are. */
export class Graphs {
  metrics = {};
  span = 0;
  #graphs = new Map();
  #chosen = new Set(preferences.get("graphs", SHOWN_AT_FIRST));
  #latest = null;

  /** `changed` is called when other metrics are chosen. */
  constructor(changed) {
    this.changed = changed;
    new ResizeObserver(() => this.#graphs.forEach((graph) => graph.resize())).observe(find("graphs"));
  }

  /** The metrics that are drawn. */
  get shown() {
    return Object.keys(this.metrics).filter((name) => this.#chosen.has(name));
  }

  update(history, lines, devices) {
    this.#latest = [history, lines, devices];
    setHidden(find("graphs-section"), history.times.length === 0);
    if (history.times.length === 0) return;
    setChildren(find("metrics"), Object.keys(this.metrics), String, (name) => this.#box(name), () => {});
    for (const [name, graph] of this.#graphs) {
      if (this.shown.includes(name)) continue;
      graph.destroy();
      this.#graphs.delete(name);
    }
    const figureOf = (name) => {
      this.#graphs.set(name, new Graph(name, this.#describe(name)));
      return this.#graphs.get(name).figure;
    };
    setChildren(find("graphs"), this.shown, String, figureOf, (_, name) => this.#graphs.get(name).update(history, lines, devices, this.span));
    const note = lines.banded
      ? "The band is from the least to the greatest of all devices, the line their median. A device's box in the table draws its own."
      : "A device's box in the table shows and hides its line.";
    setText(find("graphs-note"), `${note} A gap is a time without a value.`);
  }

  showAgain() {
    if (this.#latest !== null) this.update(...this.#latest);
  }

  #box(name) {
    const box = element("input", { type: "checkbox", checked: this.#chosen.has(name) });
    box.addEventListener("change", () => {
      if (box.checked) this.#chosen.add(name);
      else this.#chosen.delete(name);
      preferences.set("graphs", [...this.#chosen]);
      this.changed();
    });
    return element("label", {}, box, ` ${this.#describe(name).label}`);
  }

  #describe(name) {
    const { label, unit, top } = this.metrics[name] ?? {};
    return { label: capital(label ?? name), unit: unit ?? "", top };
  }
}
