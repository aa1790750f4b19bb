// Details of one device: problems, numbers in groups with graphs, processes, missing values with reasons.

import { element, find, setAttribute, setChildren, setDescriptions, setHidden, setText } from "./document.js";
import { Graph, History, partsOf } from "./graphs.js";
import { bytes, capital, inWords, isNumber, memory, percent, watts } from "./numbers.js";
import { missingWord, runningOf, stateOf } from "./tables.js";

const IDENTITY = [
  ["name", "Model"],
  ["vendor", "Vendor"],
  ["uuid", "UUID"],
  ["pci_bus_id", "PCI address"],
  ["serial", "Serial"],
  ["parent", "Part of"],
];
const SPAN = 900; // seconds of a group's graph at most

/** By title: the numbers of a group, the unit of its graph and the lines in it. */
const GROUPS = {
  Utilisation: {
    values: ["utilization", "memory_activity_percent", "encoder_percent", "decoder_percent", "cores_allocated"],
    graph: { unit: "%", top: 100, lines: ["utilization", "memory_activity_percent", "encoder_percent", "decoder_percent"] },
  },
  Memory: { values: ["memory_percent", "memory_used_bytes"], graph: { unit: "%", top: 100, lines: ["memory_percent"] } },
  Power: { values: ["power_watts", "energy_joules"], graph: { unit: "W", lines: ["power_watts"] } },
  Temperature: {
    values: ["temperature_celsius", "memory_temperature_celsius", "hotspot_temperature_celsius", "slowdown_celsius", "fan_percent", "fan_rpm"],
    graph: { unit: "Cel", lines: ["temperature_celsius", "memory_temperature_celsius", "hotspot_temperature_celsius"] },
  },
  Clocks: { values: ["sm_clock_mhz", "max_sm_clock_mhz", "memory_clock_mhz"], graph: { unit: "MHz", lines: ["sm_clock_mhz", "memory_clock_mhz"] } },
  Links: {
    values: ["pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second", "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second"],
    graph: {
      unit: "By/s",
      lines: ["pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second", "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second"],
    },
  },
  Errors: { values: ["corrected_errors", "uncorrected_errors", "last_xid", "xid_errors"] },
};
const DRAWN = Object.values(GROUPS).flatMap(({ graph }) => graph?.lines ?? []);

/** Numbers that are shown with another one. */
const BESIDE = {
  memory_used_bytes: (value, { memory_total_bytes: total }) => memory(value, total),
  power_watts: (value, { power_limit_watts: limit }) => watts(value, limit),
};

/** Make a table of rows of texts; `update` changes it in place. */
function textTable(caption, headings) {
  const cells = headings.map((heading) => element("th", { scope: "col", textContent: heading }));
  const body = element("tbody");
  const table = element("table", {}, element("caption", { textContent: caption }), element("thead", {}, element("tr", {}, ...cells)), body);
  const update = (rows) => {
    const make = () => element("tr", {}, element("th", { scope: "row" }), ...headings.slice(1).map(() => element("td")));
    setChildren(body, rows, ([key]) => key, make, (line, row) => row.forEach((words, i) => setText(line.cells[i], words)));
    table.hidden = rows.length === 0;
  };
  return { table, update };
}

const setLines = (list, texts) => setChildren(list, texts, String, () => element("li"), setText);

/** A metric's name as words: ``fanSpeed`` is ``fan speed``. Numbered links are one: ``nvlink.7.state`` is ``nvlink * state``. */
const spelled = (name) =>
  name.replace(/\.\d+(?=\.|$)/g, ".*").replaceAll(/[._]/g, " ").replaceAll(/([a-z0-9])([A-Z])/g, (_, one, next) => `${one} ${next.toLowerCase()}`);

export class Detail {
  #key = null;
  #history = new History();
  #view = { range: null, span: 0, zoom: () => {} };
  #groups = new Map();
  #processes = textTable("Processes", ["PID", "User", "Program", "Memory", "Util", "Running"]);
  #values = textTable("Values", ["Metric", "Value"]);
  #missing = textTable("Reasons", ["Metric", "Why", "Detail"]);

  /** `ask(path)` fetches a document, `failed(error)` is called with an error. */
  constructor(ask, failed) {
    this.ask = ask;
    this.failed = failed;
    this.dialog = find("detail");
    this.state = element("p");
    this.advice = element("ul");
    this.findings = element("ul");
    this.identity = element("dl");
    this.groups = element("div", { id: "detail-groups" });
    this.noProcesses = element("p");
    this.lacking = element("ul");
    this.lackingTitle = element("h3", { textContent: "Missing, and why" });
    const raw = element("details", { id: "detail-raw" }, element("summary", { textContent: "All keys in full digits" }));
    raw.append(this.#values.table, this.#missing.table);
    const lists = [this.noProcesses, this.#processes.table, this.lackingTitle, this.lacking, this.identity, raw];
    find("detail-body").append(this.state, this.findings, this.advice, this.groups, ...lists);
    this.dialog.addEventListener("close", () => {
      this.#key = null;
      for (const { graph } of this.#groups.values()) graph?.destroy();
      this.#groups.clear();
      this.groups.replaceChildren();
    });
    addEventListener("resize", () => this.#groups.forEach(({ graph }) => graph?.resize()));
  }

  /** Show a device until the dialog is closed. */
  async open(key, state) {
    this.#key = key;
    this.#history = new History();
    this.#values.update([]);
    this.#missing.update([]);
    await this.update(state, () => this.dialog.showModal());
  }

  /** Show the values of a reading, if the dialog is open. */
  async update(state, shown = () => {}) {
    const key = this.#key;
    const device = state.rows.find((one) => one.key === key);
    if (device === undefined) return;
    this.#write(device, state);
    shown();
    try {
      const snapshot = await this.ask("api/snapshot");
      if (key === this.#key) this.#writeValues(device, snapshot);
      if (device.source || key !== this.#key) return;
      this.#history.update(await this.ask(`api/history?${this.#history.query(DRAWN, SPAN)}&devices=${encodeURIComponent(key)}`));
      if (key === this.#key) this.#draw(device);
    } catch (error) {
      this.failed(error);
    }
  }

  #write(device, state) {
    setText(find("detail-title"), [device.label || device.key, device.name].filter(Boolean).join("  "));
    const { mark, word } = stateOf(device);
    setAttribute(this.state, "data-state", device.state);
    const own = device.findings.map((place) => state.findings[place]).filter(Boolean);
    const found = new Set(own.map(({ message }) => message));
    const notes = (device.notes ?? [device.note]).filter((note) => !found.has(note));
    setText(this.state, [mark, word, ...notes, ...device.holders].filter(Boolean).join(" · "));
    setLines(this.advice, (device.advice ?? []).filter((words) => own.every(({ advice }) => advice !== words)));
    setLines(this.findings, own.map(({ severity, rule, message, advice }) => `${severity}: ${message} (${rule}). ${advice}`));
    this.#writeGroups(device, state.names);
    const processes = state.processes.filter((one) => one.device === device.key);
    const of = (value, words) => (isNumber(value) ? words(value) : "- unknown");
    this.#processes.update(
      processes.map((one) => [
        String(one.pid),
        one.user || "-",
        one.command || one.program || `- ${one.why || "unknown"}`,
        of(one.memory_bytes, bytes),
        of(one.utilization, percent),
        runningOf(one),
      ]),
    );
    const why = state.unlisted[device.key];
    setText(this.noProcesses, why ? `Processes are not known: ${why}` : "No process holds it.");
    setHidden(this.noProcesses, processes.length > 0 || Boolean(device.source));
  }

  /** Write the groups in which the device has a value. */
  #writeGroups(device, names) {
    const given = Object.keys(GROUPS).filter((title) => GROUPS[title].values.some((name) => isNumber(device.values[name])));
    const titleOf = (name) => capital(names[name]?.label ?? name);
    const make = (title) => {
      const { graph } = GROUPS[title];
      const made = graph && new Graph({ label: title, unit: graph.unit, top: graph.top }, this.#view);
      const list = element("dl");
      const links = element("p");
      this.#groups.set(title, { graph: made, list, links, titleOf });
      return element("section", {}, ...(made ? [] : [element("h3", { textContent: title })]), list, links, ...(made ? [made.figure] : []));
    };
    setChildren(this.groups, given, String, make, (_, title) => {
      const { list, links } = this.#groups.get(title);
      const shown = GROUPS[title].values.filter((name) => isNumber(device.values[name]));
      const words = (name) => (BESIDE[name] ?? ((value) => inWords(value, names[name]?.unit ?? "1")))(device.values[name], device.values);
      setDescriptions(list, shown.map((name) => [titleOf(name), words(name) + (device.aged ? " ?" : "")]));
      const more = { Links: device.links, Clocks: device.throttled.length ? [`throttled by: ${device.throttled.join(", ")}`] : [], Errors: device.errors };
      setText(links, (more[title] ?? []).join(" · "));
      setHidden(links, links.textContent === "");
    });
  }

  #draw(device) {
    for (const [title, { graph, titleOf }] of this.#groups) {
      if (graph === undefined) continue;
      const lines = GROUPS[title].graph.lines.filter((name) => isNumber(device.values[name]) || isNumber(device.last[name]));
      const named = Object.fromEntries(lines.map((name) => [name, titleOf(name)]));
      const limit = { Power: device.values.power_limit_watts, Temperature: device.values.slowdown_celsius }[title];
      graph.update(this.#history.times, partsOf(this.#history, device.key, named), { limits: isNumber(limit) ? [limit] : [] });
    }
  }

  #writeValues({ key, source, missing }, snapshot) {
    const identity = snapshot.devices.find((one) => one.key === key) ?? {};
    setDescriptions(this.identity, IDENTITY.filter(([name]) => identity[name]).map(([name, term]) => [term, String(identity[name])]));
    const of = (table) => Object.entries(table).filter(([name]) => name.startsWith(`${key}.`)).sort(([one], [other]) => (one < other ? -1 : 1));
    const short = (name) => name.slice(key.length + 1);
    this.#values.update(of(snapshot.metrics).map(([name, value]) => [short(name), String(value)]));
    const gaps = of(snapshot.unavailable).map(([name, why]) => [short(name), why.reason.replaceAll("_", " "), why.detail ?? ""]);
    this.#missing.update(gaps);
    const alike = new Map();
    for (const [name, reason] of gaps) alike.set(reason, (alike.get(reason) ?? new Set()).add(spelled(name)));
    setLines(this.lacking, [...alike].map(([reason, names]) => `${reason}: ${[...names].join(", ")}`));
    if (source) setLines(this.lacking, Object.entries(missing).slice(0, 1).map(([, why]) => missingWord(why)));
    setHidden(this.lackingTitle, this.lacking.children.length === 0);
  }
}
