// Draws a live plot in each figure, in the place of its static picture if there is one: one crosshair, one zoom and one axis over all of them.
// Every line has points of its own. Where another line has a point and this one has none, uPlot is given undefined, which breaks no line; null does.
/* global uPlot */
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  let chosen = data.chosen; // the number of the axis in data.axes
  const axis = () => data.axes[chosen];
  const base = () => (chosen === 0 ? data.spans[0][0] : 0); // moments count from the beginning
  const extent = () => {
    const [begin, end] = data.spans[chosen];
    return [begin, end > begin ? end : begin + 1];
  };
  const HEIGHT = 180;
  const ROW = 20;
  const LABEL = 22; // letters of a row's label in the strip
  const LETTER = 7.5; // pixels, at most
  const TIME = "time";
  const STEP = "step";
  const EPOCH = "epoch";
  const OVER = { time: "Time", seconds: "Time", step: "Steps", epoch: "Epochs" };
  const KIND = { throttle: "--hot", finding: "--found", silence: "--c7", gap: "--c7", event: "--c0" };
  const plots = []; // live plots
  const hidden = new Set(); // labels of lines that are switched off
  let zooming = false;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const shorten = (value) =>
    Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-4)
      ? value.toExponential(2).replace(/\.?0*e\+?/, "e")
      : String(Number(value.toPrecision(4)));
  /** Room for the widest label of an axis of values, so that none is clipped. */
  const labelRoom = (_, labels) => Math.max(60, 20 + LETTER * Math.max(...(labels ?? [""]).map((label) => label.length)));
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  const duration = (value) => {
    const seconds = Math.abs(value);
    const sign = value < 0 ? "-" : "";
    return seconds < 60 ? `${sign}${shorten(seconds)} s` : `${sign}${Math.floor(seconds / 3600)}:${two((seconds / 60) % 60)}:${two(seconds % 60)}`;
  };
  const place = (value) => {
    if (axis() === TIME) return `${new Date(value * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
    return axis() === STEP || axis() === EPOCH ? `${axis()} ${shorten(value)}` : duration(value);
  };

  /** Where a line's points are on the chosen axis, rising, and the number of the point at each place: the last of several. */
  function placed(line) {
    const at = new Map();
    data.places[line.x][chosen].forEach((value, point) => value !== null && at.set(value + base(), point));
    return { at, x: [...at.keys()].sort((one, other) => one - other) };
  }

  /** The point of a line that is nearest to a place; undefined where it was not read there. */
  function nearest({ at, x }, value) {
    if (!x.length) return undefined;
    let [from, to] = [0, x.length - 1];
    while (to - from > 1) {
      const middle = (from + to) >> 1;
      if (x[middle] > value) to = middle;
      else from = middle;
    }
    const found = Math.abs(x[from] - value) <= Math.abs(x[to] - value) ? x[from] : x[to];
    const usual = (x[x.length - 1] - x[0]) / Math.max(x.length - 1, 1);
    return Math.abs(found - value) <= 1.5 * usual || found === value ? at.get(found) : undefined;
  }

  const column = (line, name) => line[name] ?? line.mean;

  /** Draw within the area of the lines. */
  function within(chart, draw) {
    const { left, top, width, height } = chart.bbox;
    chart.ctx.save();
    chart.ctx.beginPath();
    chart.ctx.rect(left, top, width, height);
    chart.ctx.clip();
    draw(chart.ctx, (value) => chart.valToPos(value + base(), "x", true), chart.bbox, devicePixelRatio);
    chart.ctx.restore();
  }

  /** Shades for epochs, windows and gaps behind the lines. */
  const drawShades = (chart) =>
    within(chart, (ctx, x, { left, top, height }, ratio) => {
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      let stretches = 0;
      for (const [kind, label, spans] of data.marks) {
        if (!spans[chosen]) continue;
        const [from, to] = spans[chosen].map(x);
        if (kind === "gap") {
          ctx.fillStyle = color("--edge");
          ctx.fillRect(from, top, Math.max(to - from, 1), height);
        } else if (kind === "epoch" || kind === "window") {
          ctx.fillStyle = color("--shade");
          if (stretches++ % 2 === 0) ctx.fillRect(from, top, to - from, height);
          ctx.fillStyle = color("--pale");
          if (to - from > 30 * ratio) ctx.fillText(label, Math.max(from, left) + 3 * ratio, top + height - 4 * ratio, to - from - 6 * ratio);
        }
      }
    });

  /** A bar with a name for each finding that the plot is about, and a dotted line where it begins. */
  const drawFindings = (plot) => (chart) =>
    within(chart, (ctx, x, { left, top, width, height }, ratio) => {
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "top";
      let free = -Infinity; // names do not hide each other
      for (const [kind, label, spans, about] of data.marks) {
        if (kind !== "finding" || !spans[chosen] || !about.includes(plot.name)) continue;
        const [from, to] = spans[chosen].map(x);
        ctx.fillStyle = ctx.strokeStyle = color("--found");
        ctx.fillRect(from, top, Math.max(to - from, 2 * ratio), 4 * ratio);
        ctx.setLineDash([2 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(from, top);
        ctx.lineTo(from, top + height);
        ctx.stroke();
        const room = ctx.measureText(label).width;
        const begin = Math.min(Math.max(from, left) + 3 * ratio, left + width - room - 3 * ratio);
        if (begin < free || begin < left) continue;
        ctx.fillStyle = color("--surface"); // lines do not strike the name through
        ctx.fillRect(begin - 2 * ratio, top + 5 * ratio, room + 4 * ratio, 13 * ratio);
        ctx.fillStyle = color("--found");
        ctx.fillText(label, begin, top + 6 * ratio);
        free = begin + room + 8 * ratio;
      }
    });

  const drawStrip = (chart) =>
    within(chart, (ctx, x, { top, height }, ratio) => {
      const room = height / data.strip.length;
      data.strip.forEach(([, kind, stretches], row) => {
        ctx.fillStyle = color(KIND[kind]);
        for (const [share, spans] of stretches) {
          if (!spans[chosen]) continue;
          const [from, to] = spans[chosen].map(x);
          ctx.globalAlpha = 0.25 + 0.75 * share;
          ctx.fillRect(from, top + (row + 0.15) * room, Math.max(to - from, 1.5 * ratio), 0.7 * room);
        }
      });
    });

  const axisLook = () => ({ stroke: color("--text"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--grid"), width: 1 } });

  /** Moments in UTC: the time of day, and the day below where it is another one. */
  function moments(values, step) {
    let day = "";
    return values.map((value) => {
      const [date, clock] = new Date(value * 1000).toISOString().split("T");
      const told = day === date ? "" : date;
      day = date;
      return step >= 86400 ? date.slice(5) : `${clock.slice(0, step < 60 ? 8 : 5)}${told && `\n${told}`}`;
    });
  }

  function xAxis() {
    if (axis() === TIME) return { ...axisLook(), space: 70, size: 42, values: (_, values, __, ___, step) => moments(values, step) };
    const words = axis() === STEP || axis() === EPOCH ? shorten : duration;
    return { ...axisLook(), space: 70, values: (_, values) => values.map(words), size: 30 };
  }

  /** One live plot. */
  class Live {
    constructor(figure, describe) {
      this.describe = describe;
      const title = figure.querySelector("h3").textContent;
      this.area = element("div", { className: "live", tabIndex: 0 });
      this.area.setAttribute("role", "group");
      this.area.setAttribute("aria-label", `${title}: arrow keys move the crosshair, plus and minus zoom, 0 shows all`);
      this.readout = element("p", { className: "readout" });
      figure.querySelector(".static")?.setAttribute("hidden", "");
      figure.append(this.area, this.readout);
      this.area.addEventListener("keydown", (event) => this.key(event));
      // Told aloud only where the crosshair is moved by keys, and only by the plot that has them.
      this.area.addEventListener("focus", () => this.readout.setAttribute("aria-live", "polite"));
      this.area.addEventListener("blur", () => this.readout.setAttribute("aria-live", "off"));
      this.build();
    }

    build() {
      this.chart?.destroy();
      const { x, lines, values, hooks, ...options } = this.describe();
      this.lines = lines;
      this.chart = null;
      this.chart = new uPlot(
        {
          ...options,
          width: this.width,
          legend: { show: false },
          tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
          cursor: { sync: { key: TIME, setSeries: false }, y: false, drag: { x: true, y: false }, points: { show: false } },
          hooks: {
            ...hooks,
            setCursor: [() => this.read()],
            setScale: [(chart, name) => name === "x" && zoomed(this, chart.scales.x)],
          },
        },
        [x, ...values],
        this.area,
      );
    }

    get width() {
      return Math.max(this.area.clientWidth, 200);
    }

    zoom(from, to) {
      const [first, end] = extent();
      this.chart.setScale("x", { min: Math.max(from, first), max: Math.min(to, end) });
    }

    showAll() {
      this.zoom(...extent());
    }

    /** Zoom by a factor about the crosshair, or the middle. */
    scale(by) {
      const { min, max } = this.chart.scales.x;
      const middle = this.chart.data[0][this.chart.cursor.idx] ?? (min + max) / 2;
      const half = ((max - min) * by) / 2;
      this.zoom(middle - half, middle + half);
    }

    move(by) {
      const { data: held, scales, cursor } = this.chart;
      const from = cursor.idx ?? this.chart.valToIdx((scales.x.min + scales.x.max) / 2);
      const to = Math.min(Math.max(from + by, 0), held[0].length - 1);
      this.chart.setCursor({ left: this.chart.valToPos(held[0][to], "x"), top: this.chart.over.clientHeight / 2 }, true, true);
    }

    key(event) {
      const far = event.shiftKey ? 10 : 1;
      const acts = {
        ArrowLeft: () => this.move(-far),
        ArrowRight: () => this.move(far),
        "+": () => this.scale(0.5),
        "=": () => this.scale(0.5),
        "-": () => this.scale(2),
        0: () => this.showAll(),
        Escape: () => this.showAll(),
      };
      if (!Object.hasOwn(acts, event.key)) return;
      acts[event.key]();
      event.preventDefault();
    }

    /** Say what is at the crosshair. */
    read() {
      const at = this.chart?.cursor.idx;
      if (at === null || at === undefined) {
        this.readout.textContent = "";
        return;
      }
      const where = this.chart.data[0][at];
      const told = [];
      for (const { line, points } of this.lines) {
        const point = hidden.has(line.label) ? undefined : nearest(points, where);
        const [low, value, high] = ["low", "mean", "high"].map((name) => column(line, name)[point] ?? null);
        if (value === null) continue;
        told.push(`${line.label} ${shorten(value)}${low === high ? "" : ` (${shorten(low)} to ${shorten(high)})`}`);
      }
      this.readout.textContent = `${place(where)}${told.length ? ": " : ""}${told.join(" · ")}`;
    }
  }

  /** Give all plots the range of one. */
  function zoomed(origin, { min, max }) {
    if (zooming || min === null || min === undefined) return;
    zooming = true;
    for (const live of plots) {
      if (live !== origin && live.chart) live.chart.setScale("x", { min, max });
    }
    zooming = false;
  }

  /** The range of values: from 0, but where they are far from it and the plot may begin there. */
  function bounds(least, most, top, fromZero) {
    if (least === null || least === undefined) return [0, top ?? 1];
    if (top && least >= 0) return [0, most > top ? most * 1.05 : top];
    if (least >= 0 && (fromZero || least <= most / 2)) return [0, most * 1.05 || 1];
    const margin = (most - least) * 0.05 || Math.abs(most) * 0.05 || 1;
    return [least - margin, most + margin];
  }

  const xScale = (x) => ({ time: axis() === TIME, range: (_, min, max) => (min !== x[0] || max !== x[x.length - 1] ? [min, max] : extent()) });

  /** What uPlot is told of a plot of lines. */
  function describeLines(plot) {
    const lines = plot.lines.map((line) => ({ line, points: placed(line) }));
    const all = [...new Set(lines.flatMap(({ points }) => points.x))].sort((one, other) => one - other);
    const x = all.length ? all : extent();
    const mean = (line) => ({
      label: line.label,
      show: !hidden.has(line.label),
      stroke: color(`--c${line.color}`),
      width: 1.4,
      dash: line.dashed ? [6, 4] : undefined,
    });
    const edge = (line) => ({ ...mean(line), stroke: "transparent", width: 0, points: { show: false } });
    const values = ({ line, points: { at } }) => ["low", "mean", "high"].map((name) => x.map((value) => (at.has(value) ? column(line, name)[at.get(value)] : undefined)));
    return {
      x,
      lines,
      values: lines.flatMap(values),
      height: HEIGHT,
      scales: { x: xScale(x), y: { range: (_, least, most) => bounds(least, most, plot.top, plot.zero) } },
      axes: [xAxis(), { ...axisLook(), size: labelRoom, values: (_, values) => values.map(shorten) }],
      series: [{}, ...plot.lines.flatMap((line) => [edge(line), mean(line), edge(line)])],
      bands: plot.lines.flatMap((line, number) => (line.low ? [{ series: [3 * number + 3, 3 * number + 1], fill: `${color(`--c${line.color}`)}2a` }] : [])),
      hooks: { drawClear: [drawShades], draw: [drawFindings(plot)] },
    };
  }

  function describeStrip() {
    const rows = data.strip.map(([label]) => (label.length > LABEL ? `${label.slice(0, LABEL - 1)}…` : label));
    const places = data.places.flatMap((one) => one[chosen].filter((value) => value !== null).map((value) => value + base()));
    const x = places.length ? [...new Set(places)].sort((one, other) => one - other) : extent();
    return {
      x,
      lines: [],
      values: [x.map(() => null)],
      height: ROW * rows.length + 60,
      scales: { x: xScale(x), y: { range: [0, 1] } },
      axes: [
        xAxis(),
        { ...axisLook(), size: 20 + LETTER * Math.max(...rows.map((label) => label.length)), grid: { show: false }, ticks: { show: false }, splits: () => rows.map((_, row) => 1 - (row + 0.5) / rows.length), values: () => rows },
      ],
      series: [{}, {}],
      hooks: { draw: [drawStrip] },
    };
  }

  function tool(tools, text, act) {
    const button = element("button", { type: "button", textContent: text });
    button.addEventListener("click", act);
    tools.append(button);
    return button;
  }

  /** A switch for each line that plots share; it is their legend too. */
  function addSwitches(tools) {
    const lines = new Map(data.plots.flatMap((plot) => (plot.lines.length > 1 ? plot.lines : [])).map((line) => [line.label, line]));
    for (const [label, line] of lines) {
      const button = tool(tools, "", () => {
        if (!hidden.delete(label)) hidden.add(label);
        button.setAttribute("aria-pressed", String(!hidden.has(label)));
        for (const { chart } of plots) {
          chart.series.forEach((series, number) => series.label === label && chart.setSeries(number, { show: !hidden.has(label) }));
        }
      });
      const sample = element("i");
      sample.style.color = color(`--c${line.color}`);
      if (line.dashed) sample.dataset.dashed = "";
      button.append(sample, label);
      button.setAttribute("aria-pressed", "true");
    }
  }

  /** A switch for each axis of all plots. */
  function addAxes(tools) {
    if (data.axes.length < 2) return;
    const group = element("span", { className: "choice" }, "Over");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Axis of all plots");
    tools.append(group);
    const buttons = data.axes.map((name, number) =>
      tool(group, OVER[name], () => {
        chosen = number;
        buttons.forEach((button, one) => button.setAttribute("aria-pressed", String(one === chosen)));
        for (const live of plots) live.build();
      }),
    );
    buttons.forEach((button, one) => button.setAttribute("aria-pressed", String(one === chosen)));
  }

  data.plots.forEach((plot, number) => plots.push(new Live(document.querySelector(`figure[data-plot="plots-${number}"]`), () => describeLines(plot))));
  if (data.strip.length) plots.push(new Live(document.querySelector('figure[data-plot="strip-0"]'), describeStrip));

  const tools = document.getElementById("tools");
  if (tools && plots.length) {
    addAxes(tools);
    tool(tools, "Zoom in", () => plots[0].scale(0.5));
    tool(tools, "Zoom out", () => plots[0].scale(2));
    tool(tools, "Show all", () => plots[0].showAll());
    addSwitches(tools);
    tools.hidden = false;
    document.getElementById("static-note").textContent = "Drag to zoom, double-click to show all. Keys in a plot: arrows, plus, minus, 0.";
  }
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const live of plots) live.chart.setSize({ width: live.width, height: live.chart.height });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((live) => live.build()));
  document.body.dataset.drawn = String(plots.length);
})();
