// Tables that are sorted by the buttons in their headings. Rows stay the same elements as long as what they show is there.

import { element, find, setAttribute, setChildren, setHidden, setText } from "./document.js";
import { bytes, celsius, clock, duration, fixed, isNumber, memory, percent, watts } from "./numbers.js";

const TALL = 16; // rows above which a table scrolls in itself
export const GRAVITY = { bad: 0, warn: 1, missing: 2, ok: 3 };

/**
 * A table with a heading for each column.
 *
 * `columns`: by the name in `data-column`, `sort(row)` gives a number, a text or null (which stands last in either direction),
 * `ascending` says which direction comes first, `write(cell, row)` fills a cell.
 */
class SortedTable {
  #rows = [];
  #column = null;
  #ascending = false;

  constructor(table, columns, keyOf) {
    this.body = table.tBodies[0];
    this.columns = columns;
    this.keyOf = keyOf;
    this.headings = [...table.tHead.rows[0].cells];
    for (const heading of this.headings) {
      const button = element("button", { type: "button", textContent: heading.textContent });
      button.addEventListener("click", () => this.#choose(heading.dataset.column));
      heading.replaceChildren(button);
    }
  }

  #choose(name) {
    const first = Boolean(this.columns[name].ascending);
    if (this.#column !== name) [this.#column, this.#ascending] = [name, first];
    else if (this.#ascending === first) this.#ascending = !first;
    else this.#column = null; // the order that the server gave
    for (const heading of this.headings) {
      const chosen = heading.dataset.column === this.#column;
      setAttribute(heading, "aria-sort", chosen ? (this.#ascending ? "ascending" : "descending") : null);
    }
    this.show(this.#rows);
  }

  /** Show rows. */
  show(rows) {
    this.#rows = rows;
    setAttribute(this.body.parentElement.parentElement, "data-tall", rows.length > TALL ? "" : null);
    const shown = this.#sorted(rows);
    setChildren(this.body, shown, this.keyOf, () => this.#make(), (line, row) => this.#write(line, row));
  }

  showAgain() {
    this.show(this.#rows);
  }

  #sorted(rows) {
    if (this.#column === null) return rows;
    const value = this.columns[this.#column].sort;
    const sign = this.#ascending ? 1 : -1;
    return rows.toSorted((one, other) => {
      const [left, right] = [value(one), value(other)];
      if (left === null || right === null) return (left === null) - (right === null);
      if (typeof left === "string") return sign * left.localeCompare(right, "en", { numeric: true });
      return sign * (left - right);
    });
  }

  #make() {
    const line = element("tr");
    for (const heading of this.headings) {
      const cell = heading === this.headings[0] ? element("th", { scope: "row" }) : element("td");
      cell.dataset.column = heading.dataset.column;
      cell.className = heading.className;
      line.append(cell);
    }
    return line;
  }

  #write(line, row) {
    if (row.state) setAttribute(line, "data-state", row.state);
    for (const cell of line.cells) this.columns[cell.dataset.column].write(cell, row);
  }
}

const text = (words) => (cell, row) => setText(cell, words(row));
const amount = (value) => (isNumber(value) ? value : null);
const value = (name) => (device) => amount(device.values[name]);

export const missingWord = (missing) => `- ${missing?.word ?? "not read"}`;

/** Write a value, or the word for why it is missing; `of` is what it is measured against, `share` draws it as a bar. */
function measured(name, words, { of = () => "", share = false } = {}) {
  return (cell, device) => {
    if (cell.firstElementChild === null) {
      cell.append(element("span"), element("small"));
      if (share) cell.prepend(element("i", { ariaHidden: "true" }));
    }
    const value = device.values[name];
    const there = isNumber(value);
    setAttribute(cell, "data-missing", there ? null : (device.missing[name]?.reason ?? "not_read"));
    setAttribute(cell, "data-level", device.levels?.[name] ?? null);
    const [number, limit] = [...cell.children].slice(-2);
    setText(number, there ? words(value, device.values) + (device.aged ? " ?" : "") : missingWord(device.missing[name]));
    setText(limit, there ? of(device.values) : "");
    if (!share) return;
    const width = there ? `${Math.min(100, Math.max(0, Math.round(value)))}%` : "0%";
    if (cell.firstElementChild.style.width !== width) cell.firstElementChild.style.width = width;
  };
}

const ofMemory = ({ memory_used_bytes: used, memory_total_bytes: total }) =>
  isNumber(used) && isNumber(total) ? ` ${memory(used, total)}` : "";

/** Write the state as its mark and its word. */
export function writeState(cell, state) {
  if (cell.firstElementChild === null) cell.append(element("b", { className: "mark", ariaHidden: "true" }), element("span"));
  setText(cell.firstElementChild, state.mark);
  setText(cell.lastElementChild, state.word);
}

const STATES = {
  ok: { mark: "", word: "ok" },
  warn: { mark: "!", word: "warning" },
  bad: { mark: "X", word: "critical" },
  missing: { mark: "-", word: "no data" },
};
/** The mark and the word of a state. A device that does not answer has the reason as its word: lost, timed out. */
export const stateOf = ({ state, word }) => {
  const known = STATES[state] ?? { mark: "?", word: state };
  return word ? { ...known, word } : known;
};

export function devicesTable(open, colours) {
  const columns = {
    device: {
      ascending: true,
      sort: (device) => device.key,
      write(cell, device) {
        if (cell.firstElementChild === null) {
          const button = element("button", { type: "button", className: "open", ariaHasPopup: "dialog" });
          button.append(element("span", { className: "key" }), " ", element("span", { className: "name" }));
          button.addEventListener("click", () => open(device.key));
          if (!device.source) cell.append(colours.box(device.key));
          cell.append(button);
        }
        if (!device.source) colours.update(cell.firstElementChild, device.key);
        const [key, , name] = cell.lastElementChild.childNodes;
        setText(key, device.label || device.key);
        setText(name, device.name ?? "");
      },
    },
    state: {
      ascending: true,
      sort: (device) => GRAVITY[device.state] ?? 1,
      write: (cell, device) => writeState(cell, stateOf(device)),
    },
    utilization: { sort: value("utilization"), write: measured("utilization", percent, { share: true }) },
    memory: { sort: value("memory_percent"), write: measured("memory_percent", percent, { share: true, of: ofMemory }) },
    power: { sort: value("power_watts"), write: measured("power_watts", (value, { power_limit_watts: limit }) => watts(value, limit)) },
    temperature: { sort: value("temperature_celsius"), write: measured("temperature_celsius", celsius) },
    clock: { sort: value("sm_clock_mhz"), write: measured("sm_clock_mhz", (mhz) => `${fixed(mhz)} MHz`) },
    note: {
      ascending: true,
      sort: (device) => device.note || null,
      write: text((device) => [device.note, ...device.holders].filter(Boolean).join(" · ")),
    },
  };
  return new SortedTable(find("devices"), columns, (device) => device.key);
}

/** Return how long a process has run, or when it was last seen on a lost device. */
export const runningOf = ({ seconds, last_seen: seen }) =>
  seen ? `last seen ${clock(new Date(seen))}` : isNumber(seconds) ? duration(seconds) : "- unknown";

export function processesTable() {
  const number = (name, words) => ({
    sort: (process) => amount(process[name]),
    write: text((process) => (isNumber(process[name]) ? words(process[name]) : "- unknown")),
  });
  const word = (name) => ({ ascending: true, sort: (process) => process[name] || null, write: text((process) => process[name] || "-") });
  const columns = {
    pid: { ...number("pid", String), ascending: true },
    device: word("device"),
    user: word("user"),
    program: { ...word("program"), write: text((process) => process.command || process.program || `- ${process.why || "unknown"}`) },
    memory: number("memory_bytes", bytes),
    utilization: number("utilization", percent),
    seconds: { ...number("seconds", duration), write: text(runningOf) },
    holder: word("holder"),
  };
  const table = new SortedTable(find("processes"), columns, ({ pid, device }) => `${pid} ${device}`);
  return {
    show(processes, why, filtered) {
      setHidden(find("unlisted"), why.length === 0);
      setText(find("unlisted"), why.length ? `Processes are not known. ${why.join(". ")}.` : "");
      setHidden(find("processes").parentElement, processes.length === 0);
      setHidden(find("no-processes"), processes.length + why.length !== 0);
      setText(find("no-processes"), filtered ? "no process matches the filter" : "no process uses a device");
      table.show(processes);
    },
  };
}

/** Show the sources with their state and messages. */
export function showSources(sources) {
  setChildren(
    find("sources").tBodies[0],
    sources,
    (source) => source.name,
    () => element("tr", {}, element("th", { scope: "row" }), element("td"), element("td", { className: "number" }), element("td")),
    (line, source) => {
      const [name, status, read, detail] = line.cells;
      setAttribute(line, "data-state", source.state);
      setText(name, source.name);
      setText(status, [source.mark, source.status.replaceAll("_", " ")].filter(Boolean).join(" "));
      setText(read, isNumber(source.age_seconds) ? `${fixed(source.age_seconds, 1)} s ago` : "- never");
      setText(detail, [source.detail, source.advice].filter(Boolean).join(". "));
    },
  );
}
