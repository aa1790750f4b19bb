// Map of many devices: one cell each, the worst first.

import { address, element, find, setAttribute, setChildren, setHidden, setText } from "./document.js";
import { celsius, isNumber, percent } from "./numbers.js";
import { GRAVITY, missingWord, stateOf } from "./tables.js";

const FEW = 16; // devices that a table shows well enough
const LEVELS = 5;

/** By name: the label, the metric that says why there is none, the value from 0 to 1, and its words. */
const METRICS = {
  utilization: ["utilisation", "utilization", ({ utilization }) => utilization / 100, ({ utilization }) => percent(utilization)],
  memory: ["memory", "memory_percent", ({ memory_percent: part }) => part / 100, ({ memory_percent: part }) => percent(part)],
  power: [
    "power of its limit",
    "power_watts",
    ({ power_watts: power, power_limit_watts: limit }) => power / limit,
    ({ power_watts: power, power_limit_watts: limit }) => percent((100 * power) / limit),
  ],
  temperature: [
    "temperature",
    "temperature_celsius",
    ({ temperature_celsius: degrees, slowdown_celsius: top = 90 }) => (degrees - 20) / (top - 20),
    ({ temperature_celsius: degrees }) => celsius(degrees),
  ],
};

export class HeatMap {
  #devices = [];

  /** `open(key)` shows a device in full. */
  constructor(open) {
    this.open = open;
    find("map-metric").append(...Object.entries(METRICS).map(([value, [textContent]]) => element("option", { value, textContent })));
    if (address.get("map") in METRICS) find("map-metric").value = address.get("map");
    find("map-metric").addEventListener("change", () => {
      address.set("map", find("map-metric").value);
      this.show(this.#devices);
    });
  }

  show(devices) {
    this.#devices = devices;
    setHidden(find("map"), devices.length <= FEW);
    if (devices.length <= FEW) return;
    const [, metric, part, words] = METRICS[find("map-metric").value];
    const valueOf = ({ values }) => (isNumber(part(values)) ? part(values) : -1);
    const sorted = [...devices].sort((one, other) => GRAVITY[one.state] - GRAVITY[other.state] || valueOf(other) - valueOf(one));
    const make = (device) => {
      const button = element("button", { type: "button", className: "cell", ariaHasPopup: "dialog" });
      button.append(element("b", { className: "mark", ariaHidden: "true" }), element("span"), " ", element("small"));
      button.addEventListener("click", () => this.open(device.key));
      return element("li", {}, button);
    };
    setChildren(find("map-cells"), sorted, ({ key }) => key, make, (line, device) => {
      const [button] = line.children;
      const [mark, name, number] = button.children;
      const value = valueOf(device);
      const { word, mark: sign } = stateOf(device);
      setAttribute(line, "data-state", device.state);
      setAttribute(button, "data-heat", value < 0 ? null : Math.min(LEVELS - 1, Math.floor(value * LEVELS)));
      setAttribute(button, "title", [word, device.note].filter(Boolean).join(": "));
      setText(mark, sign);
      setText(name, device.label || device.key);
      setText(number, value < 0 ? missingWord(device.missing[metric]) : words(device.values));
    });
  }
}
