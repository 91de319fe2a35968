// Curves of the last minutes.

import { h, colour, text, attribute } from "./dom.js";
import { ms, rate } from "./format.js";

/* global uPlot */

const HEIGHT = 194;
const LONGEST_S = 300;
const SHORTEST_S = 60;
const SMOOTHED = 5; // seconds; single ones jump

const sum = (seconds, of) => seconds.reduce((total, second) => total + of(second), 0);

/** For every second the mean per second of it and those before. */
export function smoothed(history, of) {
  return history.map((second, at) => {
    const from = history.slice(Math.max(0, at - SMOOTHED + 1), at + 1).filter((each) => second.t - each.t < SMOOTHED * 1500);
    return sum(from, of) / Math.max(0.1, sum(from, (each) => each.span));
  });
}

/** A null where the page did not look, so that no line is drawn across. */
function withGaps(history) {
  const filled = [];
  for (const second of history) {
    const before = filled.at(-1);
    if (before && second.t - before.t > 5000) filled.push({ t: before.t + 1000, gap: true }, { t: second.t - 1000, gap: true });
    filled.push(second);
  }
  return filled;
}

const TTFT = {
  format: ms,
  series: [
    { label: "median", stroke: "--blue", width: 2, points: true },
    { label: "95th percentile", stroke: "--amber", width: 1.5, points: true },
    { label: "median with a pull", stroke: "--teal", width: 0, points: true, size: 7 },
  ],
  data: (history) => ["p50_ms", "p95_ms", "pulled_p50_ms"].map((name) => history.map((each) => each[name] ?? null)),
  bridged: true, // seconds without a request are no gap
};

const TOKENS = {
  format: rate,
  series: [
    { label: "prompt, computed", stroke: "--violet", fill: "--violet-soft", width: 1.5, beyond: 1 },
    { label: "prompt, reused", stroke: "--teal", fill: "--teal-soft", width: 1.5 },
    { label: "generated", stroke: "--amber", width: 2 },
  ],
  data: (history) => {
    const computed = (each) => Math.max(0, each.prompt - each.cached);
    const reused = smoothed(history, (each) => each.cached);
    const prompt = smoothed(history, (each) => computed(each) + each.cached);
    return [prompt, reused, smoothed(history, (each) => each.generated)];
  },
};

class Chart {
  constructor(place, kind) {
    this.place = place;
    this.kind = kind;
    this.values = kind.series.map(() => h("b", {}, "–"));
    const keys = kind.series.map((series, at) => {
      const swatch = h("i", { class: "swatch", "aria-hidden": "true" });
      swatch.style.setProperty("background", `var(${series.stroke})`);
      return h("li", {}, swatch, series.label, " ", this.values[at]);
    });
    this.canvas = h("div", { role: "img", "aria-label": "no data yet" });
    place.append(this.canvas, h("ul", { class: "legend" }, keys));
    this.data = [[], ...kind.series.map(() => [])];
    this.draw();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  draw() {
    this.plot?.destroy();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const font = "12px system-ui, sans-serif";
    this.plot = new uPlot(
      {
        width: Math.max(120, this.canvas.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        padding: [10, 30, 0, 0],
        cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
        scales: { x: { time: true, range: (_, from, to) => this.span(from, to) }, y: { range: (_, __, most) => [0, (most || 1) * 1.1] } },
        axes: [
          { ...axis, font, size: 28, gap: 8, space: 70, values: (_, at) => at.map((each) => new Date(each * 1000).toLocaleTimeString("en-GB")) },
          { ...axis, font, size: 64, values: (_, at) => at.map((each) => this.kind.format(each)) },
        ],
        series: [
          {},
          ...this.kind.series.map((series) => ({
            label: series.label,
            stroke: colour(series.stroke),
            fill: series.fill && colour(series.fill),
            width: series.width,
            spanGaps: Boolean(this.kind.bridged),
            points: { show: Boolean(series.points), size: series.size ?? 4, fill: colour(series.stroke) },
          })),
        ],
        hooks: { setCursor: [() => this.say()] },
      },
      this.data,
      this.canvas,
    );
  }

  span(from, to) {
    if (to == null) return [0, SHORTEST_S];
    return [to - Math.min(LONGEST_S, Math.max(SHORTEST_S, to - from)), to];
  }

  resize() {
    const width = this.canvas.clientWidth;
    if (width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  show(history) {
    const seconds = this.kind.bridged ? history : withGaps(history);
    const series = this.kind.data(seconds.map((each) => (each.gap ? { ...EMPTY, t: each.t } : each)));
    for (const values of series) seconds.forEach((each, at) => each.gap && (values[at] = null));
    this.data = [seconds.map((each) => each.t / 1000), ...series];
    this.plot.setData(this.data);
    this.say();
  }

  /** The values under the pointer, else the latest there are. */
  say() {
    const idx = this.plot?.cursor.idx;
    const shown = this.kind.series.map((series, at) => {
      const values = this.data[at + 1];
      const of = (list, index) => (index == null ? list.findLast((each) => each != null) : list[index]);
      const value = of(values, idx);
      return value != null && series.beyond ? value - (of(this.data[at + 2], idx) ?? 0) : value;
    });
    shown.forEach((value, at) => text(this.values[at], value == null ? "–" : this.kind.format(value)));
    const told = this.kind.series.map((series, at) => `${series.label} ${this.values[at].textContent}`);
    if (idx == null) attribute(this.canvas, "aria-label", `Curves of the last minutes. Now: ${told.join(", ")}`);
  }
}

const EMPTY = { span: 1, prompt: 0, cached: 0, generated: 0 };

export class Charts {
  constructor(ttft, tokens) {
    this.all = [new Chart(ttft, TTFT), new Chart(tokens, TOKENS)];
  }

  show(history) {
    for (const chart of this.all) chart.show(history);
  }

  /** Colours are other ones. */
  redraw() {
    for (const chart of this.all) chart.draw();
  }
}
