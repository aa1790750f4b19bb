// The page: polls the latest reading and shows it. One request is under way at a time, none while the page is not seen.
//
// api/state    what state.py makes of a NodeView; its `sequence` rises with each reading, beyond a server's end too
// api/history  {sequence, complete, times, series: {device: {metric: [value or null]}}}: the readings after `since`, or all where `complete`,
//              of `metrics`. A gap in time is a column of nulls.

import { element, find, preferences, setAttribute, setChildren, setDescriptions, setHidden, setText } from "./document.js";
import { Detail } from "./detail.js";
import { Graphs, History, Lines, SHOWN_AT_FIRST } from "./graphs.js";
import { bytes, capital, celsius, clock, duration, isNumber, percent, plain, watts } from "./numbers.js";
import { devicesTable, processesTable, showSources, stateOf } from "./tables.js";

const PATIENCE_MS = 30_000; // until a request is given up
const LONGEST_PAUSE_MS = 30_000; // between attempts while there is no answer
const SILENCE_MS = 5_000; // without an answer until the values on the page are called old
const THEMES = ["system", "light", "dark"];

const REFUSALS = {
  401: "not signed in (401): reload the page and give the password",
  403: "this browser may not read the node (403)",
  421: "the node does not answer to this name (421): see --allowed-host",
  503: "the node has no recent reading (503)",
};

/** There is no reading; the message says why. */
class NoAnswer extends Error {}

// A request may not have the user and password that the address of the page may have.
const BASE = new URL(".", location.href);
BASE.username = BASE.password = "";

async function ask(path) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MS) });
  } catch (error) {
    throw new NoAnswer(error.name === "TimeoutError" ? "the server takes too long" : "the server cannot be reached");
  }
  if (!response.ok) throw new NoAnswer(REFUSALS[response.status] ?? `the server answered ${response.status}`);
  try {
    return await response.json();
  } catch {
    throw new NoAnswer("the answer broke off");
  }
}

class Page {
  #state = null;
  #history = new History();
  #known = null; // findings of the latest reading, to announce what is new
  #lines = new Lines(() => this.#draw());
  #graphs = new Graphs(() => this.#choose());
  #devices;
  #processes = processesTable();
  #detail;
  #timer = null;
  #polling = false;
  #paused = false;
  #redraw = false;
  #failures = 0;
  #trouble = "";
  #answered = performance.now();
  #changed = performance.now();

  constructor() {
    const colours = { box: (key) => this.#lines.box(key), update: (box, key) => this.#lines.updateBox(box, key) };
    this.#detail = new Detail(ask, (error) => this.#fail(error));
    this.#devices = devicesTable((key) => this.#detail.open(key, this.#state), colours);
    document.addEventListener("visibilitychange", () => this.pollNow());
    addEventListener("online", () => this.pollNow());
    setInterval(() => this.#showConnection(), 1000);
  }

  /** Ask again at once, if the page is seen and not asking already. */
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
      this.#fail(error);
      this.#failures += 1;
    }
    this.#polling = false;
    this.#showConnection();
    if (document.hidden || this.#paused) return;
    const interval = 1000 * (this.#state?.interval ?? 1);
    const pause = this.#failures
      ? Math.min(LONGEST_PAUSE_MS, interval * 2 ** this.#failures)
      : Math.max(interval / 4, interval - (performance.now() - began));
    this.#timer = setTimeout(() => this.pollNow(), pause);
  }

  async #read() {
    const state = await ask("api/state");
    if (state.sequence === this.#state?.sequence && !this.#redraw) {
      this.#answered = performance.now();
      return;
    }
    this.#redraw = false;
    this.#graphs.metrics = state.metrics;
    this.#history.update(await ask(`api/history?${this.#history.query(this.#graphs.shown)}`));
    this.#answered = this.#changed = performance.now();
    this.#state = state;
    this.#show(state);
    await this.#detail.update(state);
  }

  #fail(error) {
    this.#trouble = error.message;
    if (!(error instanceof NoAnswer)) console.error(error);
  }

  // What is shown

  #show(state) {
    state.rows = [...state.devices, ...state.sources.filter((source) => source.silent).map(silentRow)];
    setText(find("hostname"), state.hostname);
    document.title = `${state.hostname} · accelmetrics`;
    setText(find("version"), state.version);
    this.#showHead(state);
    this.#showFindings(state.findings);
    showNotJudged(state);
    this.#lines.update(state.devices);
    this.#showDevices(() => this.#devices.show(state.rows));
    this.#processes.show(state.processes, state.unlisted);
    setDescriptions(find("host"), Object.entries(state.host).filter(([, value]) => isNumber(value)).map(hostPair));
    showSources(state.sources);
    this.#graphs.update(this.#history, this.#lines, state.devices);
    setAttribute(find("main"), "data-sequence", state.sequence);
  }

  #draw() {
    this.#devices.showAgain();
    this.#graphs.showAgain();
  }

  #showHead({ head, timestamp, devices, findings }) {
    const limit = isNumber(head.power_limit_watts) ? ` of ${watts(head.power_limit_watts)}` : "";
    setDescriptions(find("head"), [
      ["Read at", clock(new Date(timestamp))],
      ["Devices", String(devices.length)],
      ["Power", isNumber(head.power_watts) ? watts(head.power_watts) + limit : "- not read"],
      ["Findings", String(findings.length)],
    ]);
  }

  #showFindings(findings) {
    const count = (severity) => findings.filter((finding) => finding.severity === severity).length;
    const counted = ["critical", "warning", "info"].filter(count).map((severity) => `${count(severity)} ${severity}`);
    setText(find("findings-summary"), counted.join(", ") || "nothing is wrong that a rule judges");
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

  #showDevices(show) {
    const count = show();
    const all = this.#state.rows.length;
    setText(find("shown"), all === 0 ? "no devices are found" : count === all ? "" : `${count} of ${all}`);
  }

  /** Say whether what stands here is what the node says now. */
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
    // Once: the seconds in the banner are not for a screen reader.
    if (before !== state && state === "lost") setText(find("announcer"), `The values are old: ${this.#trouble || "no new reading"}`);
    if (before === "lost" && state === "live") setText(find("announcer"), "The values are live again");
  }

  // What keys and buttons do

  /** Draw other graphs, with their history. */
  #choose() {
    this.#redraw = true;
    this.pollNow();
  }

  pause() {
    this.#paused = !this.#paused;
    setAttribute(find("pause"), "aria-pressed", this.#paused);
    this.#answered = this.#changed = performance.now();
    this.#showConnection();
    this.pollNow();
  }

  filter(words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const users = (device) => this.#state.processes.filter((process) => process.device === device.key).map((process) => process.user);
    const told = (device) => [device.key, device.label, device.name, device.vendor, stateOf(device).word, device.note, ...device.holders, ...users(device)];
    this.#devices.accepts = (device) => {
      const text = told(device).join(" ").toLowerCase();
      return wanted.every((word) => text.includes(word));
    };
    if (this.#state !== null) this.#showDevices(() => this.#devices.showAgain());
  }

  /** Draw so many seconds; 0: all that are kept. */
  span(seconds) {
    this.#graphs.span = seconds;
    this.#graphs.showAgain();
  }

  theme(name) {
    document.documentElement.dataset.theme = name;
    setText(find("theme"), `Theme: ${name}`);
    preferences.set("theme", name);
    this.#draw();
  }
}

/** Findings of one rule and of the same words as one, with all devices that it is about, since the first. */
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

/** Say which rules cannot judge devices: their silence means nothing. Those about a training run are at rest where no program logs. */
function showNotJudged({ not_judged: lacks, not_logged: unlogged }) {
  const count = new Set(lacks.flatMap(({ rules }) => rules)).size;
  setHidden(find("not-judged"), count === 0);
  setText(find("not-judged").firstElementChild, `Not judged: ${count} ${count === 1 ? "rule" : "rules"} about devices`);
  const words = (lack) => `${lack.words} (${lack.rules.join(", ")})`;
  setChildren(find("not-judged").lastElementChild, lacks.map(words), String, () => element("li"), setText);
  setHidden(find("not-logged"), unlogged === "");
  setText(find("not-logged"), `At rest: ${unlogged}`);
}

/** A source that does not answer, and that no device stands for, as a row among the devices. */
function silentRow({ name, status, detail, state, advice }) {
  const word = status.replaceAll("_", " ");
  const missing = Object.fromEntries(SHOWN_AT_FIRST.map((metric) => [metric, { reason: status, word }]));
  const note = [word, detail].filter(Boolean).join(": ");
  return { key: name, label: name, source: true, state, note, missing, values: {}, holders: [], findings: [], advice: [advice].filter(Boolean) };
}

const HOST_WORDS = { cpu: "CPU", load_1m: "Load" };
const HOST_UNITS = {
  percent,
  bytes_per_second: (value) => `${bytes(value)}/s`,
  bytes,
  celsius,
  watts,
};

/** A number of the host with its name in words, whose end says the unit. */
function hostPair([name, value]) {
  const unit = Object.keys(HOST_UNITS).find((one) => name.endsWith(`_${one}`));
  const stem = unit ? name.slice(0, -unit.length - 1) : name;
  return [HOST_WORDS[stem] ?? capital(stem.replaceAll("_", " ")), unit ? HOST_UNITS[unit](value) : plain(value)];
}

const page = new Page();
const nextTheme = () => page.theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
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
find("span").addEventListener("change", () => page.span(Number(find("span").value)));
find("shortcuts").checked = preferences.get("shortcuts", true);
find("shortcuts").addEventListener("change", () => preferences.set("shortcuts", find("shortcuts").checked));
for (const node of document.querySelectorAll(".controls")) node.hidden = false;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.theme(document.documentElement.dataset.theme));
page.theme(THEMES.includes(preferences.get("theme")) ? preferences.get("theme") : "system");
page.pollNow();
