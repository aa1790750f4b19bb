// Graphs: one for each metric, with a common time axis and crosshair. Missing values are gaps in the lines.
/* global uPlot */

import { element, find, setAttribute, setChildren, setHidden, setText } from "./document.js";
import { capital, clock, inWords, isNumber, plain, quantity, unitSymbol } from "./numbers.js";

const LINES = 8; // with more devices, their minimum, median and maximum are drawn, and the chosen lines
const POINTS = 600; // that the server gives at most
const SHORTEST = 30; // seconds that a graph shows at least
const HEIGHT = 150;
const AXIS = 48; // pixels for its numbers
const SHORTEST_DRAG = 5; // pixels that are a zoom and no click
const ROWS_AT_POINTER = 12;
const TWOS = Array.from({ length: 60 }, (_, power) => 2 ** power);
const CROSSHAIR = "accelmetrics";
export const SHOWN_AT_FIRST = ["utilization", "memory_percent", "power_watts", "temperature_celsius", "sm_clock_mhz"];
const HOST_AT_FIRST = ["host_cpu", "host_memory", "host_disk", "host_network"];
const TRAINING = "training"; // the graph of these, each line to a scale of its own; a graph of one of them is training_NAME
const TOGETHER = ["loss", "step_seconds", "tokens_per_second", "samples_per_second", "tokens_per_joule", "samples_per_joule"];
const LEAST_ROOM = 0.01; // above and below a line that has a scale of its own, as a part of its greatest value
const LISTED_MARKS = 3; // findings that are listed below a graph
const LIMITS = { power_watts: "power_limit_watts", temperature_celsius: "slowdown_celsius" }; // drawn as a line across
// Okabe and Ito's colours; two of them are another one on white and on black.
const COLOURS = ["--line", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "--line-pale"];

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const columnsQuery = (metrics, span) => `metrics=${encodeURIComponent(metrics.join(","))}${span ? `&span=${span}` : ""}`;

/** The history in columns of equal length: times, and a value or null for each device and metric. */
export class History {
  times = [];
  #series = new Map();
  #metrics = "";
  #asked = "";
  #sequence = 0;

  /** Return the query for the next request: everything the first time, for other metrics, and if so much was appended that it must be reduced. */
  query(metrics, span = 0) {
    this.#asked = columnsQuery(metrics, span);
    return `since=${this.continues(metrics, span) ? this.#sequence : 0}&${this.#asked}`;
  }

  /** Whether readings of these metrics can be appended. */
  continues(metrics, span = 0) {
    return columnsQuery(metrics, span) === this.#metrics && this.times.length < 2 * POINTS;
  }

  /** Add an answer: readings after the last one, or the complete history. */
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

/** The drawn lines. A box in each device's row switches its line and shows its colour. */
export class Lines {
  #chosen = null;
  #keys = [];
  #all = [];

  constructor(changed) {
    this.changed = changed;
  }

  /** Set the devices that match the filter, of all. A device keeps its colour while the filter changes. */
  update(devices, all) {
    this.#keys = devices.map((device) => device.key);
    this.#all = all.map((device) => device.key);
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
    return lookAt(this.#all.filter((one) => one === key || this.has(one)).indexOf(key));
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

/** The colour and the dashes of the line at a place. */
function lookAt(place) {
  const colour = COLOURS[place % COLOURS.length];
  return { colour: colour.startsWith("--") ? style(colour) : colour, dash: place % COLOURS.length < 4 ? undefined : [5, 3] };
}

/** Return the positions of values with a gap on either side. No line can show them, so they are drawn as points. */
function lonely(values) {
  const places = [];
  for (let i = 0; i < values.length; i++) {
    if (values[i] !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null) places.push(i);
  }
  return places;
}

/** Return minimum, median and maximum of columns at each time; null if none has a value. */
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

/** Return the lines of a device's or the host's metrics, with their names. */
export function partsOf(history, key, lines) {
  return Object.entries(lines).map(([metric, name], place) => ({ name, values: history.column(key, metric), look: lookAt(place) }));
}

/**
 * The lines of what programs log: `programs` by key, `metrics` with label and unit. Of several programs each line has the program's name.
 * `ended`: the program logs no more.
 */
function trainingLines(history, { programs, metrics }, names) {
  const named = Object.entries(programs).flatMap(([key, { name, metrics: logged }]) => names.filter((one) => logged.includes(one)).map((one) => [key, name, one]));
  const several = Object.keys(programs).length > 1;
  const logs = new Set(named.filter(([key, , name]) => isNumber(history.column(key, name).at(-1))).map(([key]) => key));
  return named.map(([key, program, name], place) => {
    const { label, unit } = metrics[name];
    const line = names.length === 1 ? program : several ? `${label}, ${program}` : label;
    return { name: line, values: history.column(key, name), look: lookAt(place), unit, scale: name, ended: !logs.has(key) };
  });
}

/** The lines of a metric: one a device; of many devices the band and the chosen ones. */
function linesOf(history, metric, lines) {
  const drawn = lines.drawn.map((key) => ({ name: key, values: history.column(key, metric), look: lines.look(key) }));
  if (!lines.banded) return drawn;
  const { least, median, greatest } = band(lines.all.map((key) => history.column(key, metric)), history.times.length);
  const edge = { colour: style("--line-pale"), hidden: true };
  return [
    { name: "greatest", values: greatest, look: edge },
    { name: "median", values: median, look: { colour: style("--ok") } },
    { name: "least", values: least, look: edge },
    ...drawn,
  ];
}

/**
 * One graph of lines with one unit.
 *
 * `view` has `range` ([from, to] in seconds, or null), `span` (seconds back from the end, 0: all), and `zoom(from, to)`, without
 * arguments to go back.
 */
export class Graph {
  #plot = null;
  #built = "";
  #rows = [];
  #limits = [];
  #marks = [];
  #data = [[]];
  #pointed = false;

  /** `fitted`: the scale goes from the least to the greatest value, of each line's own `scale` where it has one. */
  constructor({ label, unit, top, fitted = false }, view, tools = []) {
    this.unit = unit;
    this.fitted = fitted;
    this.top = top;
    this.view = view;
    const symbol = unit.startsWith("By") ? "" : unitSymbol(unit);
    this.caption = symbol ? `${label}, ${symbol}` : label;
    const keys = "arrow keys move the crosshair, + and - zoom, 0 shows all";
    this.area = element("div", { className: "plot", tabIndex: 0, ariaLabel: `${this.caption}: ${keys}` });
    this.area.setAttribute("role", "group");
    this.readout = element("p", { className: "readout" });
    this.readout.setAttribute("aria-live", "off");
    this.time = element("span");
    this.list = element("span");
    this.readout.append(this.time, " ", this.list);
    this.tip = element("div", { className: "tip", hidden: true, ariaHidden: "true" });
    const caption = element("figcaption", {}, element("h3", { textContent: this.caption }), element("span", { className: "figure-tools" }, ...tools));
    this.marks = element("p", { className: "marks", hidden: true });
    this.figure = element("figure", {}, caption, this.area, this.readout, this.marks);
    this.area.addEventListener("keydown", (event) => this.#move(event));
    this.area.addEventListener("blur", () => this.#leave());
    this.area.addEventListener("pointerenter", () => (this.#pointed = true));
    this.area.addEventListener("pointerleave", () => {
      this.#pointed = false;
      setHidden(this.tip, true);
    });
  }

  /**
   * Draw lines: `{name, values, look}`, the first three of them a band where `banded`; with `unit` and `scale` where these are a line's own,
   * and `ended` for a line that is named only where it has a value.
   * `marks`: moments with words, `{at, severity, words}`.
   */
  update(times, rows, { banded = false, limits = [], marks = [] } = {}) {
    this.#marks = marks;
    this.#rows = rows;
    this.#data = [times, ...rows.map((row) => row.values)];
    this.#limits = [...new Set(limits)].sort((one, other) => one - other);
    const built = JSON.stringify([banded, rows.map(({ name, look, scale }) => [name, look, scale]), style("--text")]);
    if (built !== this.#built) this.#build(banded);
    else this.#plot.setData(this.#data);
    this.#built = built;
    this.resize();
    this.#describe();
  }

  /** Return the drawn data as comma-separated values. */
  csv() {
    const quoted = (words) => (/[",\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words);
    const [first, last] = this.#times();
    const heading = ({ name, unit }) => (unitSymbol(unit ?? this.unit) ? `${name} (${unitSymbol(unit ?? this.unit)})` : name);
    const lines = [["time", ...this.#rows.map((row) => quoted(heading(row)))].join(",")];
    this.#data[0].forEach((at, i) => {
      if (at < first || at > last) return;
      lines.push([new Date(at * 1000).toISOString(), ...this.#rows.map(({ values }) => values[i] ?? "")].join(","));
    });
    return `${lines.join("\n")}\n`;
  }

  #build(banded) {
    this.#plot?.destroy();
    const axis = { stroke: style("--text"), grid: { stroke: style("--grid"), width: 1 }, ticks: { stroke: style("--grid"), width: 1 } };
    const scales = new Set(this.#rows.map(({ scale }) => scale ?? "y"));
    const own = scales.size > 1;
    const line = ({ look, scale }) => ({
      scale: own ? scale : "y",
      stroke: look.hidden ? "transparent" : look.colour,
      width: look.hidden ? 0 : 1.5,
      dash: look.dash,
      points: { show: false, filter: (plot, i) => lonely(plot.data[i]) },
    });
    const ofBytes = this.unit.startsWith("By");
    const values = { ...axis, size: ofBytes ? 86 : this.fitted ? 72 : AXIS, values: (_, at) => at.map((value) => (ofBytes ? quantity(value, this.unit) : plain(value))) };
    this.#plot = new uPlot(
      {
        width: this.area.clientWidth || 300,
        height: this.#height,
        legend: { show: false },
        // Where there is no axis, its room is kept: graphs below one another have the same times below one another.
        padding: [null, null, null, own ? AXIS : null],
        cursor: {
          // By time alone: another graph's values are none of this one's.
          y: false,
          sync: { key: CROSSHAIR, scales: ["x", null], filters: { pub: (type) => type === "mousemove" } },
          drag: { x: true, y: false, setScale: false, dist: SHORTEST_DRAG },
          points: { size: 6 },
          bind: { dblclick: () => () => this.view.zoom() },
        },
        scales: {
          x: { range: () => this.#times() },
          ...Object.fromEntries([...(own ? scales : ["y"])].map((scale) => [scale, { range: (_, least, most) => this.#range(least, most) }])),
        },
        axes: [
          { ...axis, values: (_, seconds) => seconds.map((at) => clock(new Date(at * 1000))), space: 80, size: 28 },
          // Lines with scales of their own have no common axis: the read-out has their values.
          ...(own ? [] : [ofBytes ? { ...values, incrs: TWOS } : values]),
        ],
        series: [{}, ...this.#rows.map(line)],
        bands: banded ? [{ series: [1, 3], fill: style("--band") }] : [],
        hooks: {
          draw: [(plot) => this.#drawLimits(plot), (plot) => this.#drawMarks(plot)],
          setCursor: [() => this.#describe()],
          setSelect: [(plot) => this.#select(plot)],
        },
      },
      this.#data,
      this.area,
    );
    this.#plot.ctx.canvas.setAttribute("role", "img");
    this.#plot.over.append(this.tip);
  }

  #select(plot) {
    const { left, width } = plot.select;
    if (width < SHORTEST_DRAG) return;
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.view.zoom(from, to);
  }

  #times() {
    if (this.view.range) return this.view.range;
    const [first, last] = [this.#data[0][0] ?? 0, this.#data[0].at(-1) ?? 0];
    return [this.view.span ? last - this.view.span : Math.min(first, last - SHORTEST), last];
  }

  #range(least, most) {
    if (isNumber(this.top)) return [0, this.top];
    if (this.fitted && isNumber(least)) {
      // What moves less than this is noise, and would fill the graph.
      const room = Math.max((most - least) * 0.05, Math.abs(most) * LEAST_ROOM) || 1;
      return [least - room, most + room];
    }
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

  /** Draw a line and a triangle for each finding. */
  #drawMarks({ ctx, bbox, valToPos, pxRatio }) {
    const [first, last] = this.#times();
    ctx.save();
    for (const { at, severity } of this.#marks) {
      if (at < first || at > last) continue;
      const [x, size] = [Math.round(valToPos(at, "x", true)), 6 * (pxRatio ?? devicePixelRatio)];
      const bottom = bbox.top + bbox.height;
      ctx.strokeStyle = ctx.fillStyle = style({ critical: "--hot", warning: "--warm" }[severity] ?? "--pale");
      ctx.setLineDash([3, 3]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bottom);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x, bottom - size);
      ctx.lineTo(x - size / 2, bottom);
      ctx.lineTo(x + size / 2, bottom);
      ctx.fill();
    }
    ctx.restore();
  }

  get #height() {
    return this.figure.dataset.full === undefined ? HEIGHT : Math.max(HEIGHT, innerHeight - 220);
  }

  resize() {
    const width = this.area.clientWidth;
    const height = this.#height;
    if (this.#plot !== null && width > 0 && (width !== this.#plot.width || height !== this.#plot.height)) this.#plot.setSize({ width, height });
  }

  destroy() {
    this.#plot?.destroy();
  }

  /** Describe the values under the crosshair, or the last ones, and the graph as a whole. */
  #describe() {
    const times = this.#data[0];
    if (!times.length) return;
    const at = Math.min(this.#plot?.cursor.idx ?? times.length - 1, times.length - 1);
    const words = (value, unit) => (isNumber(value) ? inWords(value, unit ?? this.unit) : "-");
    setText(this.time, clock(new Date(times[at] * 1000)));
    const make = () => element("span", { className: "entry" }, element("i", { ariaHidden: "true" }), element("span"), " ");
    const own = new Set(this.#rows.map(({ scale }) => scale)).size > 1;
    const [first, last] = this.#times();
    // A line without an axis has the ends of its scale beside it.
    const span = (values, unit) => {
      const read = values.filter((value, i) => isNumber(value) && times[i] >= first && times[i] <= last);
      if (!read.length) return "no value";
      return [Math.min, Math.max].map((end) => words(read.reduce((one, other) => end(one, other)), unit)).join(" to ");
    };
    const write = (entry, { name, values, look, unit }) => {
      const [swatch, text] = entry.children;
      if (swatch.style.backgroundColor !== look.colour && swatch.dataset.colour !== look.colour) {
        swatch.style.backgroundColor = swatch.dataset.colour = look.colour;
      }
      setText(text, `${name} ${words(values[at], unit)}${own ? ` (${span(values, unit)})` : ""}`);
    };
    const nameOf = ({ name }) => name;
    const named = this.#rows.filter(({ ended, values }) => !ended || isNumber(values[at]));
    setChildren(this.list, named, nameOf, make, write);
    const found = this.#marks.filter(({ at: since }) => since >= first && since <= last).map(({ at: since, words: said }) => `▲ ${clock(new Date(since * 1000))} ${said}`);
    setHidden(this.marks, found.length === 0);
    const more = found.length > LISTED_MARKS ? `${found.length - LISTED_MARKS} earlier. ` : "";
    setText(this.marks, found.length ? `${more}${found.slice(-LISTED_MARKS).join(". ")}` : "");
    const canvas = this.#plot?.ctx.canvas;
    if (canvas) setAttribute(canvas, "aria-label", `${this.caption}. ${[...this.#rows.map((row) => this.#inWords(row)), ...found].join(". ")}`);
    this.#point(named, at, make, write, nameOf);
  }

  /** Show the read-out beside the pointer, highest value first. */
  #point(rows, at, make, write, nameOf) {
    const left = this.#plot?.cursor.left ?? -1;
    const shown = this.#pointed && left >= 0 && isNumber(this.#plot?.cursor.idx);
    setHidden(this.tip, !shown);
    if (!shown) return;
    if (!this.tip.children.length) this.tip.append(element("b"), element("div"), element("small"));
    const [time, list, more] = this.tip.children;
    const value = ({ values }) => values[at] ?? -Infinity;
    const sorted = rows.some(({ scale }) => scale !== rows[0].scale) ? rows : [...rows].sort((one, other) => value(other) - value(one));
    setText(time, this.time.textContent);
    setChildren(list, sorted.slice(0, ROWS_AT_POINTER), nameOf, make, write);
    setText(more, sorted.length > ROWS_AT_POINTER ? `and ${sorted.length - ROWS_AT_POINTER} more below` : "");
    const width = this.#plot.over.clientWidth;
    this.tip.style.left = left < width / 2 ? `${left + 12}px` : "auto";
    this.tip.style.right = left < width / 2 ? "auto" : `${width - left + 12}px`;
  }

  #inWords({ name, values, unit = this.unit }) {
    const read = values.filter(isNumber);
    if (!read.length) return `${name}: no value`;
    const [least, most, gaps] = [read.reduce((a, b) => Math.min(a, b)), read.reduce((a, b) => Math.max(a, b)), values.length - read.length];
    const now = isNumber(values.at(-1)) ? `now ${inWords(values.at(-1), unit)}` : "no value now";
    const gap = gaps ? `, missing at ${gaps} of ${values.length} times` : "";
    return `${name}: ${now}, from ${inWords(least, unit)} to ${inWords(most, unit)}${gap}`;
  }

  #move(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const times = this.#data[0];
    const last = times.length - 1;
    if (last < 0) return;
    const at = this.#plot?.cursor.idx ?? last;
    const [from, to] = this.#times();
    const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    const places = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 30, PageDown: at + 30, Home: 0, End: last };
    const place = places[event.key];
    if (factor !== undefined) {
      const middle = this.#plot?.cursor.idx === null ? (from + to) / 2 : times[at];
      this.view.zoom(middle - (middle - from) * factor, Math.min(times[last], middle + (to - middle) * factor));
    } else if (event.key === "0") this.view.zoom();
    else if (place !== undefined) {
      this.readout.setAttribute("aria-live", "polite"); // only while it follows the keys: it changes with each reading
      const left = this.#plot.valToPos(times[Math.min(last, Math.max(0, place))], "x");
      this.#plot.setCursor({ left, top: this.#plot.over.clientHeight / 2 }, true, true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #leave() {
    this.readout.setAttribute("aria-live", "off");
    this.#plot?.setCursor({ left: -10, top: -10 }, true, true);
  }
}

/** All graphs, and the boxes that choose them. */
export class Graphs {
  metrics = {};
  host = {};
  training = { programs: {}, metrics: {} };
  findings = [];
  view;
  #graphs = new Map();
  #chosen;
  #full;
  #latest = null;

  /** `chosen`: the names of the graphs to draw; `full`: the one that fills the window; `changed(what)` is called when they change. */
  constructor(view, { chosen, full }, changed) {
    this.view = view;
    this.#chosen = new Set(chosen.length ? chosen : [...SHOWN_AT_FIRST, TRAINING, ...HOST_AT_FIRST]);
    this.#full = full;
    this.changed = changed;
    const resize = () => this.#graphs.forEach((graph) => graph.resize());
    new ResizeObserver(resize).observe(find("graphs"));
    addEventListener("resize", resize);
  }

  get chosen() {
    return [...this.#chosen];
  }

  get full() {
    return this.#full;
  }

  /** Take the possible graphs from a reading's state. */
  know(state) {
    this.metrics = state.metrics;
    this.host = state.host_metrics;
    this.training = { programs: state.training, metrics: state.training_metrics };
    // Those about a device are in its row, and would mark every graph of a bad day.
    const found = [...state.findings, ...state.ended].filter(({ key }) => !state.devices.some((device) => device.key === key));
    this.findings = found.map(({ rule, severity, key, message, since }) => {
      return { at: Date.parse(since) / 1000, severity, words: `${severity}: ${key && `${key}: `}${message} (${rule})` };
    });
    this.findings.sort((one, other) => one.at - other.at);
  }

  /** The names of all possible graphs. */
  get #names() {
    const logged = new Set(Object.values(this.training.programs).flatMap(({ metrics }) => metrics));
    const training = Object.keys(this.training.metrics).filter((name) => logged.has(name)).map((name) => `${TRAINING}_${name}`);
    return [...Object.keys(this.metrics), ...(training.length ? [TRAINING] : []), ...training, ...Object.keys(this.host)];
  }

  /** The names of the graphs that are drawn. */
  get shown() {
    return this.#names.filter((name) => this.#chosen.has(name));
  }

  /** The columns that the drawn graphs need. */
  get columns() {
    return [...new Set(this.shown.flatMap((name) => this.#columnsOf(name)))];
  }

  #columnsOf(name) {
    if (name === TRAINING) return TOGETHER;
    if (name.startsWith(`${TRAINING}_`)) return [name.slice(TRAINING.length + 1)];
    return this.host[name] ? Object.keys(this.host[name].lines) : [name];
  }

  update(history, lines, devices) {
    this.#latest = [history, lines, devices];
    setHidden(find("graphs-section"), history.times.length === 0 && this.view.range === null);
    if (history.times.length === 0) return;
    setChildren(find("metrics"), this.#names, String, (name) => this.#box(name), () => {});
    for (const [name, graph] of this.#graphs) {
      if (this.shown.includes(name)) continue;
      graph.destroy();
      this.#graphs.delete(name);
    }
    const filling = this.shown.includes(this.#full) ? this.#full : null;
    setAttribute(document.body, "data-full", filling);
    const figureOf = (name) => {
      this.#graphs.set(name, new Graph(this.#describe(name), this.view, this.#tools(name)));
      return this.#graphs.get(name).figure;
    };
    const draw = (figure, name) => {
      setAttribute(figure, "data-full", filling === name ? "" : null);
      setAttribute(figure.querySelector(".fill"), "aria-pressed", filling === name);
      if (this.host[name]) this.#graphs.get(name).update(history.times, partsOf(history, "host", this.host[name].lines));
      else if (name.startsWith(TRAINING)) {
        const rows = trainingLines(history, this.training, this.#columnsOf(name));
        this.#graphs.get(name).update(history.times, rows, { marks: this.findings });
      } else {
        const limits = devices.map(({ values }) => values[LIMITS[name]]).filter(isNumber);
        this.#graphs.get(name).update(history.times, linesOf(history, name, lines), { banded: lines.banded, limits });
      }
    };
    setChildren(find("graphs"), this.shown, String, figureOf, draw);
    const note = devices.length === 0 ? "" : lines.banded
      ? "The band is from the least to the greatest of the devices, the line their median. A device's box in the table draws its own."
      : "A device's box in the table shows and hides its line.";
    setText(find("graphs-note"), `${note} A gap is a time without a value. Drag to zoom, double click to go back.`.trim());
  }

  showAgain() {
    if (this.#latest !== null) this.update(...this.#latest);
  }

  /** Enlarge a graph to the window; null for none. */
  fill(name) {
    this.#full = name;
    this.changed("full");
    this.showAgain();
    this.#graphs.forEach((graph) => graph.resize());
  }

  #tools(name) {
    const { label } = this.#describe(name);
    const fill = element("button", { type: "button", className: "fill", textContent: "Fill", ariaLabel: `${label}: fill the window` });
    fill.addEventListener("click", () => this.fill(this.#full === name ? null : name));
    const save = element("button", { type: "button", className: "csv", textContent: "CSV", ariaLabel: `${label}: save as CSV` });
    save.addEventListener("click", () => {
      const address = URL.createObjectURL(new Blob([this.#graphs.get(name).csv()], { type: "text/csv" }));
      element("a", { href: address, download: `${find("hostname").textContent}-${name}.csv` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    });
    return [fill, save];
  }

  #box(name) {
    const box = element("input", { type: "checkbox", checked: this.#chosen.has(name) });
    box.addEventListener("change", () => {
      if (box.checked) this.#chosen.add(name);
      else this.#chosen.delete(name);
      this.changed("metrics");
    });
    return element("label", {}, box, ` ${this.#describe(name).label}`);
  }

  #describe(name) {
    if (name === TRAINING) return { label: "Training, each line to its own scale", unit: "", fitted: true };
    if (name.startsWith(`${TRAINING}_`)) {
      const { label, unit } = this.training.metrics[name.slice(TRAINING.length + 1)];
      return { label: `Training: ${label}`, unit, fitted: true };
    }
    const { label, unit, top } = this.metrics[name] ?? this.host[name] ?? {};
    return { label: capital(label ?? name), unit: unit ?? "", top };
  }
}
