// The filter of the page, in the language of `watch`: words and conditions on fields, all of which must hold.

import { stateOf } from "./tables.js";

const CONDITION = /^([a-z%]+)(!=|>=|<=|=|>|<|~)(.*)$/;
const NUMBER = /^(-?\d+(?:\.\d+)?)(?:%|w|c|gib|g)?$/;
const COMPARE = {
  "=": (one, other) => one === other,
  "!=": (one, other) => one !== other,
  ">": (one, other) => one > other,
  ">=": (one, other) => one >= other,
  "<": (one, other) => one < other,
  "<=": (one, other) => one <= other,
};
const gibibytes = (bytes) => (bytes === undefined || bytes === null ? null : bytes / 2 ** 30);

/** The value of each field of a device with its processes: a number, a text, which may be a list with commas, or nothing. */
const DEVICE_FIELDS = {
  device: ({ key }) => key,
  name: ({ name }) => name,
  vendor: ({ vendor }) => vendor,
  kind: ({ kind }) => kind,
  state: (device) => [stateOf({ state: device.state }).word, device.word, device.state].join(","),
  note: ({ note }) => note,
  holder: ({ holders }) => holders.join(","),
  user: (_, processes) => [...new Set(processes.map(({ user }) => user))].join(","),
  uuid: ({ uuid }) => uuid,
  util: ({ values }) => values.utilization,
  "gpu%": ({ values }) => values.utilization,
  mem: ({ values }) => gibibytes(values.memory_used_bytes),
  "mem%": ({ values }) => values.memory_percent,
  power: ({ values }) => values.power_watts,
  temp: ({ values }) => values.temperature_celsius,
};
/** The same of a process. Other fields are those of its device. */
const PROCESS_FIELDS = {
  pid: ({ pid }) => pid,
  user: ({ user }) => user,
  program: ({ program }) => program,
  command: ({ command }) => command,
  device: ({ device }) => device,
  holder: ({ holder }) => holder,
  type: ({ type }) => type,
  "gpu%": ({ utilization }) => utilization,
  mem: ({ memory_bytes: bytes }) => gibibytes(bytes),
  "cpu%": () => null, // which the server does not measure
  time: ({ seconds }) => seconds,
};

const FIELDS = [...new Set([...Object.keys(DEVICE_FIELDS), ...Object.keys(PROCESS_FIELDS)])];

/** Return a condition: the name of its field, and a function that says whether a value meets it; the `error` of one that is not valid. */
function conditionOf(word, [, name, sign, value]) {
  if (!FIELDS.includes(name)) return { error: `no field ${name}: use ${FIELDS.join(", ")}` };
  const number = NUMBER.exec(value);
  if (!number && !["=", "!=", "~"].includes(sign)) return { error: `${word}: write a number after ${sign}` };
  const meets = (have) => {
    if (sign === "~") return String(have ?? "").toLowerCase().includes(value);
    if (typeof have === "number") return number !== null && COMPARE[sign](have, Number(number[1]));
    // A text may be a list: "=" then means that the value is in it.
    return ["=", "!="].includes(sign) && (have ?? "").toLowerCase().split(",").includes(value) === (sign === "=");
  };
  return { name, meets };
}

/** What the words of a filter are sought in. */
const textsOf = (device, processes) => [device.label, ...Object.values(DEVICE_FIELDS).map((field) => field(device, processes))];

/** `error`: what is wrong with a condition, which is then left out, as while it is typed; empty if all are valid. */
export class Filter {
  error = "";
  #words = [];
  #conditions = [];

  constructor(text) {
    for (const word of text.toLowerCase().split(/\s+/).filter(Boolean)) {
      const found = CONDITION.exec(word);
      const condition = found && conditionOf(word, found);
      if (condition?.error) this.error ||= condition.error;
      else if (condition) this.#conditions.push(condition);
      else this.#words.push(word);
    }
  }

  get empty() {
    return this.#words.length + this.#conditions.length === 0;
  }

  /** Whether a device is shown. Conditions that only processes have must be met by one of its processes, which `user` then is about, too. */
  device(device, processes) {
    const ofProcesses = this.#conditions.some(({ name }) => !(name in DEVICE_FIELDS));
    const [own, others] = [[], []];
    for (const condition of this.#conditions) {
      (condition.name in DEVICE_FIELDS && !(ofProcesses && condition.name === "user") ? own : others).push(condition);
    }
    return (
      this.#says([...textsOf(device, processes), ...processes.flatMap((process) => Object.values(PROCESS_FIELDS).map((field) => field(process)))]) &&
      own.every(({ name, meets }) => meets(DEVICE_FIELDS[name](device, processes))) &&
      (others.length === 0 || processes.some((process) => others.every(({ name, meets }) => meets(PROCESS_FIELDS[name](process)))))
    );
  }

  /** Whether a process is shown; its device may be unknown. */
  process(process, device) {
    const value = (name) => (name in PROCESS_FIELDS ? PROCESS_FIELDS[name](process) : device && DEVICE_FIELDS[name](device, [process]));
    const texts = Object.values(PROCESS_FIELDS).map((field) => field(process));
    return this.#says([...texts, ...(device ? textsOf(device, []) : [])]) && this.#conditions.every(({ name, meets }) => meets(value(name)));
  }

  #says(texts) {
    const text = texts.join(" ").toLowerCase();
    return this.#words.every((word) => text.includes(word));
  }
}
