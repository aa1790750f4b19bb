// The page: it shows each reading when it arrives. It makes one request at a time, and none while it is hidden.
//
// api/state    what state_document makes of a NodeView; its `sequence` rises with each reading, beyond a server's end too
// api/history  {sequence, complete, times, series: {device: {metric: [value or null]}}}: the readings after `since`, or all where `complete`,
//              of `metrics`; with `span` the last seconds, with `from` and `to` that part. A gap in time is a column of nulls.
// api/updates  for each reading a line with its state and a line with the columns since the one before; an empty line where there is no news

import { address, element, find, preferences, setAttribute, setChildren, setDescriptions, setHidden, setText } from "./document.js";
import { Detail } from "./detail.js";
import { Filter } from "./filter.js";
import { Graphs, History, Lines, SHOWN_AT_FIRST } from "./graphs.js";
import { HeatMap } from "./map.js";
import { capital, clock, duration, inWords, isNumber, memory, plain, watts } from "./numbers.js";
import { devicesTable, processesTable, showSources, stateOf } from "./tables.js";

const PATIENCE_MS = 30_000; // after which a request is cancelled
const STALL_MS = 10_000; // without a byte after which a stream is cancelled: the server sends an empty line every 3 seconds
const LONGEST_PAUSE_MS = 30_000; // between attempts while there is no answer
const SILENCE_MS = 5_000; // without an answer after which the values on the page count as old
const THEMES = ["system", "light", "dark"];
const SPANS = [60, 300, 900, 3600, 10_800, 21_600, 43_200, 86_400]; // seconds that can be chosen, as far as they are kept
const SHORTEST_ZOOM = 2; // seconds

const REFUSALS = {
  401: "not signed in (401): reload the page and enter the password",
  403: "this browser may not read the node (403)",
  421: "the node does not answer under this name (421): see --allowed-host",
  503: "the node has no recent reading (503)",
};

/** An error instead of a reading; the message is shown. */
class NoAnswer extends Error {}

// A request may not have the user and password that the address of the page may have.
const BASE = new URL(".", location.href);
BASE.username = BASE.password = "";

async function request(path, signal) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), { cache: "no-cache", signal });
  } catch (error) {
    throw new NoAnswer(error.name === "TimeoutError" ? "the server takes too long" : "the server cannot be reached");
  }
  if (!response.ok) throw new NoAnswer(REFUSALS[response.status] ?? `the server answered ${response.status}`);
  return response;
}

async function ask(path) {
  const response = await request(path, AbortSignal.timeout(PATIENCE_MS));
  try {
    return await response.json();
  } catch {
    throw new NoAnswer("the answer ended early");
  }
}

/** The readings of `api/updates`. `closed`: the page has ended it itself. `held`: nothing arrived, for example because a proxy waits for the end of the answer. */
class Updates {
  closed = false;
  held = false;
  #begun = false;
  #stop = new AbortController();
  #path;
  #reader = null;
  #lines = [];
  #rest = "";

  constructor(path) {
    this.#path = path;
  }

  /** Wait for the state and the columns of the next reading; null if the node answers without a new reading. */
  async next() {
    while (this.#lines.length < 2) {
      const stall = setTimeout(() => this.#stop.abort(new DOMException("", "TimeoutError")), STALL_MS);
      try {
        this.#reader ??= (await request(this.#path, this.#stop.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
        const { value, done } = await this.#reader.read();
        if (done) throw new NoAnswer("the answer ended early");
        this.#begun = true;
        const lines = (this.#rest + value).split("\n");
        this.#rest = lines.pop();
        this.#lines.push(...lines.filter(Boolean));
        if (lines.includes("") && !this.#lines.length) return null;
      } catch (error) {
        if (error instanceof NoAnswer && !this.#stop.signal.aborted) throw error;
        const late = this.#stop.signal.reason?.name === "TimeoutError";
        this.held = late && !this.#begun;
        throw new NoAnswer(late ? "the server takes too long" : "the server cannot be reached");
      } finally {
        clearTimeout(stall);
      }
    }
    return this.#lines.splice(0, 2).map((line) => JSON.parse(line));
  }

  close() {
    this.closed = true;
    this.#stop.abort();
  }
}

class Page {
  #state = null;
  #updates = null;
  #streams = true; // until a proxy holds a stream back
  #history = new History();
  #known = null; // findings of the latest reading, so that new ones are announced
  #lines = new Lines(() => this.#draw());
  #view = { range: null, span: 0, zoom: (from, to) => this.zoom(from, to) };
  #zoomed = { asked: "", history: null }; // the history of a part of the time, in more detail
  #graphs;
  #filter = new Filter("");
  #map;
  #devices;
  #processes = processesTable();
  #detail;
  #timer = null;
  #polling = false;
  #paused = false;
  #failures = 0;
  #trouble = "";
  #answered = performance.now();
  #changed = performance.now();

  constructor() {
    const colours = { box: (key) => this.#lines.box(key), update: (box, key) => this.#lines.updateBox(box, key) };
    const open = (key) => this.#detail.open(key, this.#state);
    const number = (name) => Math.max(0, Number(address.get(name)) || 0);
    const named = (name) => (address.get(name) ?? "").split(",").filter(Boolean);
    const [from, to] = [number("from"), number("to")];
    if (from && to > from) this.#view.range = [from, to];
    this.#view.span = number("span");
    const chosen = named("metrics").length ? named("metrics") : preferences.get("graphs", []);
    this.#graphs = new Graphs(this.#view, { chosen, full: address.get("full") }, (what) => this.#chose(what));
    this.#detail = new Detail(ask, (error) => this.#fail(error));
    this.#map = new HeatMap(open);
    this.#devices = devicesTable(open, colours);
    find("filter").value = address.get("show") ?? "";
    this.#setFilter(find("filter").value);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.#updates?.close();
      this.pollNow();
    });
    addEventListener("online", () => this.pollNow());
    setInterval(() => this.#showConnection(), 1000);
  }

  /** Request a reading now, if the page is visible and no request is under way. */
  pollNow() {
    clearTimeout(this.#timer);
    if (!document.hidden && !this.#paused && !this.#polling) this.#poll();
  }

  async #poll() {
    this.#polling = true;
    const began = performance.now();
    try {
      await this.#read();
      this.#failures = 0;
      this.#trouble = "";
    } catch (error) {
      if (!this.#updates?.closed) {
        this.#fail(error);
        this.#failures += 1;
        if (this.#updates?.held) this.#streams = false;
      }
      this.#updates?.close();
      this.#updates = null;
    }
    this.#polling = false;
    this.#showConnection();
    if (document.hidden || this.#paused) return;
    const interval = 1000 * (this.#state?.interval ?? 1);
    const next = this.#streams ? 0 : Math.max(interval / 4, interval - (performance.now() - began));
    const pause = this.#failures ? Math.min(LONGEST_PAUSE_MS, interval * 2 ** this.#failures) : next;
    this.#timer = setTimeout(() => this.pollNow(), pause);
  }

  /** Take a reading. First, and after a failure, request the state, which lists the possible columns. */
  async #read() {
    let reading;
    if (this.#updates === null) {
      const state = await ask("api/state");
      this.#graphs.know(state);
      const query = this.#history.query(this.#graphs.columns, this.#view.span);
      if (this.#streams) this.#updates = new Updates(`api/updates?${query}`);
      else reading = [state, await ask(`api/history?${query}`)];
    }
    reading ??= await this.#updates.next();
    this.#answered = performance.now();
    if (reading === null) return;
    const [state, columns] = reading;
    if (state.sequence !== this.#state?.sequence) this.#changed = this.#answered;
    this.#state = state;
    this.#graphs.know(state);
    this.#history.update(columns);
    const names = this.#graphs.columns;
    await this.#readZoomed(names);
    this.#show(state);
    await this.#detail.update(state);
    if (!this.#history.continues(names, this.#view.span)) this.#updates?.close();
  }

  /** Read the zoomed part of the time in full detail. */
  async #readZoomed(columns) {
    if (this.#view.range === null) {
      this.#zoomed = { asked: "", history: null };
      return;
    }
    const [from, to] = this.#view.range.map((at) => at.toFixed(3));
    const asked = `from=${from}&to=${to}&metrics=${encodeURIComponent(columns.join(","))}`;
    if (asked === this.#zoomed.asked) return;
    const history = new History();
    history.update(await ask(`api/history?${asked}`));
    this.#zoomed = { asked, history };
  }

  #fail(error) {
    this.#trouble = error.message;
    if (!(error instanceof NoAnswer)) console.error(error);
  }

  // Content

  #show(state) {
    state.rows = [...state.devices, ...state.sources.filter((source) => source.silent).map(silentRow)];
    setText(find("hostname"), state.hostname);
    document.title = `${state.hostname} · accelmetrics`;
    setText(find("version"), state.version);
    this.#showHead(state);
    this.#showFindings(state.findings);
    showNotJudged(state);
    this.#showFiltered();
    setDescriptions(find("host"), hostPairs(state.host));
    showSources(state.sources);
    this.#showSpans(state.kept_seconds);
    setAttribute(find("main"), "data-sequence", state.sequence);
  }

  /** Show the devices and processes that match the filter, and their graphs. */
  #showFiltered() {
    const state = this.#state;
    const rows = state.rows.filter((device) => this.#filter.device(device, state.processes.filter((process) => process.device === device.key)));
    const shown = new Set(rows.map((device) => device.key));
    const devices = state.devices.filter((device) => shown.has(device.key));
    const byKey = new Map(state.devices.map((device) => [device.key, device]));
    const processes = state.processes.filter((process) => this.#filter.process(process, byKey.get(process.device)));
    this.#lines.update(devices, state.devices);
    this.#devices.show(rows);
    this.#map.show(devices);
    this.#processes.show(processes, state.unlisted_words, !this.#filter.empty);
    const all = state.rows.length;
    setText(find("shown"), this.#filter.error || (all === 0 ? "no devices are found" : rows.length === all ? "" : `${rows.length} of ${all}`));
    setHidden(find("no-devices"), all !== 0);
    setDescriptions(find("no-devices").lastElementChild, Object.entries(all === 0 ? state.absent : {}));
    setHidden(find("devices").parentElement, all === 0);
    this.#draw();
  }

  #draw() {
    if (this.#state === null) return;
    this.#devices.showAgain();
    const shown = new Set(this.#lines.all);
    const history = this.#view.range !== null && this.#zoomed.history?.times.length ? this.#zoomed.history : this.#history;
    this.#graphs.update(history, this.#lines, this.#state.devices.filter(({ key }) => shown.has(key)));
    setHidden(find("zoom-out"), this.#view.range === null);
    const at = (seconds) => clock(new Date(seconds * 1000));
    if (this.#view.range !== null) setText(find("zoom-out"), `${this.#view.range.map(at).join(" – ")}: show all`);
  }

  #showSpans(kept) {
    const choices = [0, ...SPANS.filter((seconds) => seconds <= kept)];
    if (!choices.includes(this.#view.span)) choices.push(this.#view.span);
    const make = (seconds) => element("option", { value: String(seconds), textContent: seconds ? `last ${duration(seconds)}` : `all: ${duration(kept)} at most` });
    setChildren(find("span"), choices, String, make, () => {});
    if (find("span").value !== String(this.#view.span)) find("span").value = String(this.#view.span);
  }

  #showHead({ head, timestamp, devices, findings }) {
    setDescriptions(find("head"), [
      ["Read at", clock(new Date(timestamp))],
      ["Devices", String(devices.length)],
      ...(devices.length ? [["Power", isNumber(head.power_watts) ? watts(head.power_watts, head.power_limit_watts) : "- not read"]] : []),
      ["Findings", String(findings.length)],
    ]);
  }

  #showFindings(findings) {
    const count = (severity) => findings.filter((finding) => finding.severity === severity).length;
    const counted = ["critical", "warning", "info"].filter(count).map((severity) => `${count(severity)} ${severity}`);
    setText(find("findings-summary"), counted.join(", ") || "no findings");
    const name = ({ rule, key }) => `${key} ${rule}`;
    const now = new Map(findings.map((finding) => [name(finding), finding]));
    if (this.#known !== null) {
      const begun = findings.filter((finding) => !this.#known.has(name(finding))).map(({ severity, key, message }) => `${severity}, ${key}: ${message}`);
      const over = [...this.#known.keys()].filter((one) => !now.has(one)).map((one) => `over: ${one}`);
      if (begun.length || over.length) setText(find("announcer"), [...begun, ...over].join(". "));
    }
    this.#known = now;
    const make = () => element("li", {}, element("b", { className: "mark", ariaHidden: "true" }), element("span"), element("small"));
    setChildren(find("findings"), alike(findings), ({ id }) => id, make, (line, { severity, rule, keys, message, since, advice }) => {
      const [mark, words, more] = line.children;
      setAttribute(line, "data-severity", severity);
      setText(mark, { critical: "X", warning: "!" }[severity] ?? "i");
      setText(words, [severity, keys.join(", "), message].filter(Boolean).join(": "));
      setText(more, `${rule}, since ${clock(new Date(since))}. ${advice}`);
    });
  }

  /** Show whether the values on the page are current. */
  #showConnection() {
    const now = performance.now();
    const quiet = now - this.#answered;
    const still = now - this.#changed;
    const interval = 1000 * (this.#state?.interval ?? 1);
    const old = quiet > Math.max(SILENCE_MS, 3 * interval);
    const halted = still > Math.max(SILENCE_MS, 5 * interval);
    let banner = "";
    if (this.#paused) banner = "";
    else if (this.#trouble && (old || this.#state === null || this.#failures > 1)) banner = `no answer for ${duration(quiet / 1000)}: ${this.#trouble}`;
    else if (old) banner = `no answer for ${duration(quiet / 1000)}`;
    else if (halted && this.#state !== null) banner = `no new reading for ${duration(still / 1000)}: the node answers, but reads nothing`;
    const state = this.#paused ? "paused" : banner ? "lost" : this.#state === null ? "waiting" : "live";
    const words = { paused: "paused", lost: "not connected", waiting: "waiting for the first answer", live: "live" };
    const before = find("connection").dataset.state;
    setText(find("connection"), words[state]);
    setAttribute(find("connection"), "data-state", state);
    setAttribute(document.body, "data-connection", state);
    setText(find("banner"), banner);
    setHidden(find("banner"), !banner);
    // Announced once: a screen reader need not follow the seconds in the banner.
    if (before !== state && state === "lost") setText(find("announcer"), `The values are old: ${this.#trouble || "no new reading"}`);
    if (before === "lost" && state === "live") setText(find("announcer"), "The values are live again");
  }

  // Actions of keys and buttons

  /** Store another choice of graphs in the address, and draw the graphs with their history. */
  #chose(what) {
    if (what === "full") {
      address.set("full", this.#graphs.full);
      return;
    }
    address.set("metrics", this.#graphs.chosen.join(","));
    preferences.set("graphs", this.#graphs.chosen);
    this.#readAgain();
  }

  #readAgain() {
    this.#draw();
    this.#updates?.close();
    this.pollNow();
  }

  /** Show a part of the time; without arguments all of it. */
  zoom(from, to) {
    if (from !== undefined && to - from < SHORTEST_ZOOM) [from, to] = [(from + to - SHORTEST_ZOOM) / 2, (from + to + SHORTEST_ZOOM) / 2];
    this.#view.range = from === undefined ? null : [from, to];
    address.set("from", from === undefined ? null : from.toFixed(1));
    address.set("to", from === undefined ? null : to.toFixed(1));
    this.#readAgain();
  }

  /** End the enlarged view of a graph. Return whether there was one. */
  shrink() {
    const name = this.#graphs.full;
    if (name === null || document.querySelector("dialog[open]")) return false;
    this.#graphs.fill(null);
    document.querySelector(`figure[data-key="${CSS.escape(name)}"] .fill`)?.focus();
    return true;
  }

  pause() {
    this.#paused = !this.#paused;
    setAttribute(find("pause"), "aria-pressed", this.#paused);
    this.#answered = this.#changed = performance.now();
    if (this.#paused) this.#updates?.close();
    this.#showConnection();
    this.pollNow();
  }

  filter(text) {
    this.#setFilter(text);
    address.set("show", text.trim());
    if (this.#state !== null) this.#showFiltered();
  }

  #setFilter(text) {
    this.#filter = new Filter(text);
    setAttribute(find("filter"), "aria-invalid", this.#filter.error ? "true" : null);
  }

  /** Draw the last seconds; 0 for the whole history. */
  span(seconds) {
    this.#view.span = seconds;
    address.set("span", seconds || null);
    this.zoom();
  }

  theme(name) {
    document.documentElement.dataset.theme = name;
    setText(find("theme"), `Theme: ${name}`);
    this.#draw();
  }
}

/** Merge findings with the same rule and message into one with all their devices, since the earliest. */
function alike(findings) {
  const groups = new Map();
  for (const finding of findings) {
    const { rule, severity, message, key } = finding;
    const id = [rule, severity, message].join(" ");
    if (!groups.has(id)) groups.set(id, { ...finding, id, keys: [] });
    const group = groups.get(id);
    if (key) group.keys.push(key);
    if (finding.since < group.since) group.since = finding.since;
  }
  return [...groups.values()];
}

/** List rules that cannot judge devices, since no finding of theirs does not mean that all is well. */
function showNotJudged({ not_judged: lacks, not_logged: unlogged }) {
  const count = new Set(lacks.flatMap(({ rules }) => rules)).size;
  setHidden(find("not-judged"), count === 0);
  setText(find("not-judged").firstElementChild, `Not judged: ${count} ${count === 1 ? "rule" : "rules"} about devices`);
  const words = (lack) => `${lack.words} (${lack.rules.join(", ")})`;
  setChildren(find("not-judged").lastElementChild, lacks.map(words), String, () => element("li"), setText);
  setHidden(find("not-logged"), unlogged === "");
  setText(find("not-logged"), `At rest: ${unlogged}`);
}

/** Return a row in the table of devices for a source that does not answer and has no devices. */
function silentRow({ name, status, detail, state, advice }) {
  const word = status.replaceAll("_", " ");
  const missing = Object.fromEntries(SHOWN_AT_FIRST.map((metric) => [metric, { reason: status, word }]));
  const note = [word, detail].filter(Boolean).join(": ");
  return { key: name, label: name, source: true, state, note, missing, values: {}, holders: [], findings: [], advice: [advice].filter(Boolean) };
}

const HOST_WORDS = { cpu: "CPU", load_1m: "Load", cpu_temperature: "CPU temp", cpu_power: "CPU power" };
const HOST_UNITS = { percent: "%", bytes_per_second: "By/s", bytes: "By", celsius: "Cel", watts: "W" };

/** Return the host's numbers with their names in words. The end of a name is its unit. Memory in use is shown with its total. */
function hostPairs(host) {
  const { memory_used_bytes: used, memory_total_bytes: total, ...others } = host;
  const pairs = Object.entries(others).filter(([, value]) => isNumber(value));
  const words = pairs.map(([name, value]) => {
    const unit = Object.keys(HOST_UNITS).find((one) => name.endsWith(`_${one}`));
    const stem = unit ? name.slice(0, -unit.length - 1) : name;
    return [HOST_WORDS[stem] ?? capital(stem.replaceAll("_", " ")), unit ? inWords(value, HOST_UNITS[unit]) : plain(value)];
  });
  return isNumber(used) ? [...words, ["Memory used", memory(used, total)]] : words;
}

const page = new Page();
function nextTheme() {
  const name = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  address.set("theme", name);
  preferences.set("theme", name);
  page.theme(name);
}
const showHelp = () => find("help").showModal();

const KEYS = {
  "?": showHelp,
  "/": () => find("filter").focus(),
  d: () => (document.querySelector("#devices .open") ?? find("main")).focus(),
  g: () => document.querySelector("#graphs .plot")?.focus(),
  p: () => page.pause(),
  t: nextTheme,
};

function pressed(event) {
  const typing = event.target instanceof HTMLInputElement && event.target.type !== "checkbox";
  if (event.key === "Escape" && page.shrink()) return;
  if (typing || event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const rows = [...document.querySelectorAll("#devices .open")];
    const place = rows.indexOf(document.activeElement);
    if (place < 0) return;
    rows[place + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
  } else if (KEYS[event.key] && find("shortcuts").checked) KEYS[event.key]();
  else return;
  event.preventDefault();
}

document.addEventListener("keydown", pressed);
find("pause").addEventListener("click", () => page.pause());
find("theme").addEventListener("click", nextTheme);
find("help-button").addEventListener("click", showHelp);
find("filter").addEventListener("input", () => page.filter(find("filter").value));
find("zoom-out").addEventListener("click", () => page.zoom());
find("span").addEventListener("change", () => page.span(Number(find("span").value)));
find("shortcuts").checked = preferences.get("shortcuts", true);
find("shortcuts").addEventListener("change", () => preferences.set("shortcuts", find("shortcuts").checked));
for (const node of document.querySelectorAll(".controls")) node.hidden = false;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.theme(document.documentElement.dataset.theme));
const chosenTheme = address.get("theme") ?? preferences.get("theme");
page.theme(THEMES.includes(chosenTheme) ? chosenTheme : "system");
page.pollNow();
