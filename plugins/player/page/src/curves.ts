/** Time series beside the view; a line in each moves with the time. */
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { at, element, index, type Loaded, made } from "./page.ts";

const COLOURS = [
  "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f",
  "#bcbd22", "#9467bd", "#17becf", "#e377c2", "#2ca02c", "#ff7f0e", "#5254a3", "#ad494a",
];
const AT_FIRST = ["velocity", "trunk height", "reward terms of a step", "torque", "action"];
const SHOWN_AT_FIRST = 3;
const HEIGHT_PX = 150;
/** Of a chart with more curves, only the largest of an episode are drawn until others are chosen. */
const MOST_CURVES = 12;
const LARGEST = 4;

interface Plot {
  chart: number;
  plot: uPlot;
  now: HTMLElement;
}

export class Curves {
  private readonly box = element("charts");
  private readonly chosen: Set<number>;
  private plots: Plot[] = [];
  /** Number of a chart of many curves -> the names of those that were chosen in its legend. */
  private readonly picked = new Map<number, Set<string>>();
  private loaded?: Loaded;
  private time = 0;

  /** seek is called with a time in s where a chart is pressed. */
  constructor(private readonly seek: (time: number) => void) {
    const names = index.charts.map((chart) => chart.name);
    const first = AT_FIRST.map((name) => names.indexOf(name)).filter((k) => k >= 0);
    this.chosen = new Set(first.slice(0, SHOWN_AT_FIRST));
    names.forEach((name, k) => {
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = this.chosen.has(k);
      box.addEventListener("change", () => {
        if (box.checked) this.chosen.add(k);
        else this.chosen.delete(k);
        this.build();
      });
      const label = made("label", ` ${name}`);
      label.prepend(box);
      element("chooser").append(label);
    });
    let width = 0;
    new ResizeObserver(() => {
      if (this.box.clientWidth === width) return;
      width = this.box.clientWidth;
      for (const { plot } of this.plots) plot.setSize({ width, height: HEIGHT_PX });
      this.move(this.time);
    }).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
  }

  /** Draws another episode. */
  show(loaded: Loaded): void {
    this.loaded = loaded;
    this.build();
  }

  /** Moves the lines to a time in s, and the values in the legends too unless told otherwise. */
  move(time: number, values = true): void {
    this.time = time;
    const step = Math.min(Math.floor(time / index.dt + 1e-6), (this.loaded?.series.rows ?? 1) - 1);
    for (const { plot, now } of this.plots) {
      now.style.transform = `translateX(${plot.valToPos(time, "x")}px)`;
      if (values) plot.setLegend({ idx: step }, false);
    }
  }

  private build(): void {
    for (const { plot } of this.plots) plot.root.remove(), plot.destroy();
    this.plots = [];
    if (!this.loaded) return;
    for (const k of [...this.chosen].sort((a, b) => a - b)) this.plots.push(this.plot(this.loaded, k));
    this.move(this.time);
  }

  private plot(loaded: Loaded, number: number): Plot {
    const chart = index.charts[number];
    const first = index.charts.slice(0, number).reduce((n, each) => n + each.curves.length, 0);
    const steps = Array.from({ length: loaded.series.rows }, (_, step) => step);
    const data = chart.curves.map((_, c) => steps.map((step) => at(loaded, step, first + c)));
    const ink = getComputedStyle(document.body).getPropertyValue("--ink");
    const line = getComputedStyle(document.body).getPropertyValue("--line");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
    const unit = chart.unit === "1" ? "" : ` (${chart.unit})`;
    const many = chart.curves.length > MOST_CURVES;
    const drawn = this.picked.get(number) ?? new Set(many ? largest(chart.curves, data) : chart.curves);
    const options: uPlot.Options = {
      title: chart.name + unit,
      width: this.box.clientWidth,
      height: HEIGHT_PX,
      scales: { x: { time: false, range: [0, loaded.duration] } },
      axes: [{ ...axis, size: 28 }, { ...axis, size: 52 }],
      legend: { live: true },
      focus: { alpha: 0.25 },
      cursor: { drag: { x: false, y: false }, focus: { prox: 12 }, points: { show: false } },
      series: [
        { label: "time", value: (_, v) => `${(v ?? 0).toFixed(2)} s` },
        ...chart.curves.map((name, k, all) => ({ ...curve(name, k, all), show: drawn.has(name) })),
      ],
      hooks: {
        setSeries: [
          (_, k, { show }) => {
            if (k === null || show === undefined) return; // it came into focus only
            if (show) drawn.add(chart.curves[k - 1]);
            else drawn.delete(chart.curves[k - 1]);
            this.picked.set(number, drawn);
          },
        ],
      },
    };
    const plot = new uPlot(options, [steps.map((step) => step * index.dt), ...data], this.box);
    if (many && !this.picked.has(number)) {
      const others = `The ${LARGEST} largest of ${chart.curves.length} in this episode; press a name to add or remove it.`;
      plot.root.append(made("p", others, "hint"));
    }
    const now = made("div", "", "now");
    plot.over.append(now);
    const pressed = (event: PointerEvent) => {
      if (event.buttons !== 1) return;
      this.seek(plot.posToVal(event.clientX - plot.over.getBoundingClientRect().left, "x"));
    };
    plot.over.addEventListener("pointerdown", pressed);
    plot.over.addEventListener("pointermove", pressed);
    // Leaving a chart brings the values at the time back.
    plot.over.addEventListener("pointerleave", () => this.move(this.time));
    return { chart: number, plot, now };
  }
}

/** The names of the curves with the largest mean size. */
function largest(names: string[], data: number[][]): string[] {
  const size = (values: number[]) => values.reduce((sum, value) => sum + Math.abs(value), 0);
  const sizes = data.map(size);
  return [...names.keys()].sort((a, b) => sizes[b] - sizes[a]).slice(0, LARGEST).map((k) => names[k]);
}

/** A commanded value is dashed, in the colour of the actual one, which comes next. */
function curve(label: string, k: number, all: string[]): uPlot.Series {
  const pairs = all.some((name) => name.startsWith("commanded"));
  const colour = COLOURS[(pairs ? k >> 1 : k) % COLOURS.length];
  const value = (_: uPlot, v: number | null) => (v == null ? "" : v.toPrecision(3));
  const dash = label.startsWith("commanded") ? [5, 4] : undefined;
  return { label, value, dash, stroke: colour, width: 1.5, points: { show: false } };
}
