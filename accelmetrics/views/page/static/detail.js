// One device in full: what it is, what is wrong with it, every value, and why the others are missing.

import { element, find, setAttribute, setChildren, setDescriptions, setText } from "./document.js";
import { stateOf } from "./tables.js";

const IDENTITY = [
  ["name", "Model"],
  ["vendor", "Vendor"],
  ["uuid", "UUID"],
  ["pci_bus_id", "PCI address"],
  ["serial", "Serial"],
  ["parent", "Part of"],
];

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

export class Detail {
  #key = null;
  #values = textTable("Values", ["Metric", "Value"]);
  #missing = textTable("Missing", ["Metric", "Why", "Detail"]);

  /** `ask(path)` fetches a document, `failed(error)` is told why it did not. */
  constructor(ask, failed) {
    this.ask = ask;
    this.failed = failed;
    this.dialog = find("detail");
    this.state = element("p");
    this.advice = element("ul");
    this.findings = element("ul");
    this.identity = element("dl");
    find("detail-body").append(this.state, this.findings, this.advice, this.identity, this.#values.table, this.#missing.table);
    this.dialog.addEventListener("close", () => {
      this.#key = null;
    });
  }

  /** Show a device until the dialog is closed. */
  async open(key, state) {
    this.#key = key;
    this.#values.update([]);
    this.#missing.update([]);
    await this.update(state, () => this.dialog.showModal());
  }

  /** Show a reading's values of the device, where one is shown. */
  async update(state, shown = () => {}) {
    const key = this.#key;
    const device = state.rows.find((one) => one.key === key);
    if (device === undefined) return;
    this.#write(device, state.findings);
    shown();
    try {
      const snapshot = await this.ask("api/snapshot");
      if (key === this.#key) this.#writeValues(key, snapshot);
    } catch (error) {
      this.failed(error);
    }
  }

  #write(device, findings) {
    setText(find("detail-title"), [device.label || device.key, device.name].filter(Boolean).join("  "));
    const { mark, word } = stateOf(device);
    setAttribute(this.state, "data-state", device.state);
    setText(this.state, [mark, word, device.note, ...device.holders].filter(Boolean).join(" · "));
    setChildren(this.advice, device.advice ?? [], String, () => element("li"), (line, words) => setText(line, words));
    const own = device.findings.map((place) => findings[place]).filter(Boolean);
    setChildren(
      this.findings,
      own,
      ({ rule }) => rule,
      () => element("li"),
      (line, { severity, rule, message }) => setText(line, `${severity} ${rule}: ${message}`),
    );
  }

  #writeValues(key, snapshot) {
    const identity = snapshot.devices.find((one) => one.key === key) ?? {};
    setDescriptions(this.identity, IDENTITY.filter(([name]) => identity[name]).map(([name, term]) => [term, String(identity[name])]));
    const of = (table) => Object.entries(table).filter(([name]) => name.startsWith(`${key}.`)).sort(([one], [other]) => (one < other ? -1 : 1));
    const short = (name) => name.slice(key.length + 1);
    this.#values.update(of(snapshot.metrics).map(([name, value]) => [short(name), String(value)]));
    this.#missing.update(of(snapshot.unavailable).map(([name, why]) => [short(name), why.reason.replaceAll("_", " "), why.detail ?? ""]));
  }
}
