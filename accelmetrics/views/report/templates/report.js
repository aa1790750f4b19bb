// Draws a live plot in each figure, in the place of its static picture if there is one: one crosshair and one zoom over all of the same time.
/* global uPlot */
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [BEGIN, last] = data.span;
  const END = last > BEGIN ? last : BEGIN + 1;
  const HEIGHT = 200;
  const ROW = 20;
  const LABEL = 22; // letters of a row's label in the strip
  const LETTER = 7.5; // pixels, at most
  const TIME = "time";
  const STEP = "step";
  const SEVERITY = { critical: "--hot", warning: "--warm", info: "--c1" };
  const KIND = { throttle: "--hot", finding: "--c2", silence: "--c7", gap: "--c7", event: "--c0" };
  const plots = []; // live plots of the shared time
  const logged = []; // those of what the program logged, over time or steps
  const hidden = new Set(); // labels of lines that are switched off
  let zooming = false;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const shorten = (value) => (Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-4) ? value.toExponential(2) : String(Number(value.toPrecision(4))));
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  const duration = (value) => {
    const seconds = Math.abs(value);
    const sign = value < 0 ? "-" : "";
    return seconds < 60 ? `${sign}${shorten(seconds)} s` : `${sign}${Math.floor(seconds / 3600)}:${two((seconds / 60) % 60)}:${two(seconds % 60)}`;
  };
  const place = (axis, value) => {
    if (axis === TIME) return `${new Date(value * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
    return axis === STEP ? `step ${shorten(value)}` : duration(value);
  };

  /** Where the lines of a plot have points. */
  const places = (plot) => (plot.lines.some((line) => line.x) ? [...new Set(plot.lines.flatMap((line) => line.x ?? []))].sort((one, other) => one - other) : data.x);

  /** A line's least, mean and largest values at those places; null where it has none. */
  function columns(line, x) {
    const own = (name) => line[name] ?? line.mean;
    if (!line.x) return [own("low"), line.mean, own("high")];
    const at = new Map(line.x.map((value, position) => [value, position]));
    return ["low", "mean", "high"].map((name) => x.map((value) => (at.has(value) ? own(name)[at.get(value)] : null)));
  }

  /** Draw within the area of the lines. */
  function within(chart, draw) {
    const { left, top, width, height } = chart.bbox;
    chart.ctx.save();
    chart.ctx.beginPath();
    chart.ctx.rect(left, top, width, height);
    chart.ctx.clip();
    draw(chart.ctx, (seconds) => chart.valToPos(seconds + BEGIN, "x", true), chart.bbox, devicePixelRatio);
    chart.ctx.restore();
  }

  /** Shades for epochs, windows and gaps behind the lines. */
  const drawShades = (chart) =>
    within(chart, (ctx, x, { left, top, height }, ratio) => {
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      let stretches = 0;
      for (const [kind, label, begin, end] of data.marks) {
        const [from, to] = [x(begin), x(end)];
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

  /** A bar for each finding, and a dotted line where it begins. */
  const drawFindings = (chart) =>
    within(chart, (ctx, x, { top, height }, ratio) => {
      for (const [kind, , begin, end, severity] of data.marks) {
        if (kind !== "finding") continue;
        ctx.fillStyle = ctx.strokeStyle = color(SEVERITY[severity] ?? "--c0");
        ctx.fillRect(x(begin), top, Math.max(x(end) - x(begin), 2 * ratio), 4 * ratio);
        ctx.setLineDash([2 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(x(begin), top);
        ctx.lineTo(x(begin), top + height);
        ctx.stroke();
      }
    });

  const drawStrip = (chart) =>
    within(chart, (ctx, x, { top, height }, ratio) => {
      const room = height / data.strip.length;
      data.strip.forEach(([, kind, spans], row) => {
        ctx.fillStyle = color(KIND[kind]);
        for (const [begin, end, share] of spans) {
          ctx.globalAlpha = 0.25 + 0.75 * share;
          ctx.fillRect(x(begin), top + (row + 0.15) * room, Math.max(x(end) - x(begin), 1.5 * ratio), 0.7 * room);
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

  function xAxis(axis) {
    if (axis === TIME) return { ...axisLook(), space: 70, size: 42, values: (_, values, __, ___, step) => moments(values, step) };
    return { ...axisLook(), values: (_, values) => values.map((value) => (axis === STEP ? shorten(value) : duration(value))), size: 30 };
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
      const { axis, x, values, hooks, ...options } = this.describe();
      this.axis = axis;
      this.chart = null;
      this.chart = new uPlot(
        {
          ...options,
          width: this.width,
          legend: { show: false },
          tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
          cursor: { sync: axis === STEP ? undefined : { key: TIME, setSeries: false }, drag: { x: true, y: false }, points: { size: 6 } },
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

    get extent() {
      const x = this.chart.data[0];
      return this.axis === STEP ? [x[0], x[x.length - 1]] : [BEGIN, END];
    }

    zoom(from, to) {
      const [first, end] = this.extent;
      this.chart.setScale("x", { min: Math.max(from, first), max: Math.min(to, end) });
    }

    showAll() {
      this.zoom(...this.extent);
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
      const { data: held, series } = this.chart;
      const told = [];
      for (let mean = 2; mean < series.length; mean += 3) {
        const [low, value, high] = [held[mean - 1][at], held[mean][at], held[mean + 1][at]];
        if (!series[mean].show || value === null || value === undefined) continue;
        told.push(`${series[mean].label} ${shorten(value)}${low === high ? "" : ` (${shorten(low)} to ${shorten(high)})`}`);
      }
      this.readout.textContent = `${place(this.axis, held[0][at])}${told.length ? ": " : ""}${told.join(" · ")}`;
    }
  }

  /** Give all plots of the same axis the range of one. */
  function zoomed(origin, { min, max }) {
    if (zooming || min === null || min === undefined) return;
    zooming = true;
    for (const live of [...plots, ...logged]) {
      if (live !== origin && live.chart && (live.axis === STEP) === (origin.axis === STEP)) live.chart.setScale("x", { min, max });
    }
    zooming = false;
  }

  /** The range of values: from 0, but where they are far from it. */
  function bounds(least, most, top) {
    if (least === null || least === undefined) return [0, top ?? 1];
    if (top && least >= 0) return [0, most > top ? most * 1.05 : top];
    if (least >= 0 && least <= most / 2) return [0, most * 1.05 || 1];
    const margin = (most - least) * 0.05 || Math.abs(most) * 0.05 || 1;
    return [least - margin, most + margin];
  }

  /** What uPlot is told of a plot of lines. */
  function describeLines(plot) {
    const offset = plot.axis === STEP ? 0 : BEGIN;
    const own = places(plot);
    const x = own.map((value) => value + offset);
    const mean = (line) => ({
      label: line.label,
      show: !hidden.has(line.label),
      stroke: color(`--c${line.color}`),
      width: 1.4,
      dash: line.dashed ? [6, 4] : undefined,
      spanGaps: Boolean(line.x),
    });
    const edge = (line) => ({ ...mean(line), stroke: "transparent", width: 0, points: { show: false } });
    return {
      axis: plot.axis,
      x,
      values: plot.lines.flatMap((line) => columns(line, own)),
      height: HEIGHT,
      scales: {
        x: { time: plot.axis === TIME, range: (_, min, max) => (plot.axis === STEP || min !== x[0] || max !== x[x.length - 1] ? [min, max] : [BEGIN, END]) },
        y: { range: (_, least, most) => bounds(least, most, plot.top) },
      },
      axes: [xAxis(plot.axis), { ...axisLook(), size: 60, values: (_, values) => values.map(shorten) }],
      series: [{}, ...plot.lines.flatMap((line) => [edge(line), mean(line), edge(line)])],
      bands: plot.lines.flatMap((line, number) => (line.low ? [{ series: [3 * number + 3, 3 * number + 1], fill: `${color(`--c${line.color}`)}2a` }] : [])),
      hooks: plot.axis === STEP ? {} : { drawClear: [drawShades], draw: [drawFindings] },
    };
  }

  function describeStrip() {
    const rows = data.strip.map(([label]) => (label.length > LABEL ? `${label.slice(0, LABEL - 1)}…` : label));
    const x = data.x.length ? data.x.map((value) => value + BEGIN) : [BEGIN, END];
    return {
      axis: data.axis,
      x,
      values: [x.map(() => null)],
      height: ROW * rows.length + 60,
      scales: { x: { time: data.axis === TIME, range: (_, min, max) => (min !== x[0] || max !== x[x.length - 1] ? [min, max] : [BEGIN, END]) }, y: { range: [0, 1] } },
      axes: [
        xAxis(data.axis),
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

  const figure = (name) => document.querySelector(`figure[data-plot="${name}"]`);
  data.plots.forEach((plot, number) => plots.push(new Live(figure(`plots-${number}`), () => describeLines(plot))));
  if (data.strip.length) plots.push(new Live(figure("strip-0"), describeStrip));
  let bySteps = data.logged.some((one) => one.step);
  data.logged.forEach((one, number) => logged.push(new Live(figure(`logged-${number}`), () => describeLines((bySteps && one.step) || one.time))));

  const tools = document.getElementById("tools");
  if (tools) {
    tool(tools, "Zoom in", () => plots[0].scale(0.5));
    tool(tools, "Zoom out", () => plots[0].scale(2));
    tool(tools, "Show all", () => plots[0].showAll());
    addSwitches(tools);
    tools.hidden = false;
    document.getElementById("static-note").textContent = "Drag to zoom, double-click to show all. Keys in a plot: arrows, plus, minus, 0.";
  }
  const loggedTools = document.getElementById("logged-tools");
  if (loggedTools && bySteps) {
    const button = tool(loggedTools, "Over time", () => {
      bySteps = !bySteps;
      button.textContent = bySteps ? "Over time" : "Over steps";
      for (const live of logged) live.build();
    });
    loggedTools.hidden = false;
  }
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const live of [...plots, ...logged]) live.chart.setSize({ width: live.width, height: live.chart.height });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...plots, ...logged].forEach((live) => live.build()));
  document.body.dataset.drawn = String(plots.length + logged.length);
})();
