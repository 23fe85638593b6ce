// Time series: uPlot with the theme's colours, a legend with units, and one time axis for all charts of a view.

import uPlot from "/vendor/uplot.js";
import { h, setText, theme } from "/dom.js";
import { clock } from "/format.js";

/** Seconds that charts show. */
const SPAN = 180;
/** And those that they show if less is known. */
const LEAST_SPAN = 60;
const FONT = "12px system-ui, sans-serif";

/**
 * A chart of `lines`: { name, colour (a property of the theme), fill, dash, width, help, value (text of a value) }.
 * `format` writes the values of the axis, which goes up to `least` at least; `strip` colours times by state.
 */
export class Chart {
  constructor({ title, lines, format, height = 150, log = false, least = 1, binary = false, strip = null }) {
    this.lines = lines;
    this.options = { format, height, log, least, binary, strip };
    this.values = lines.map(() => h("span", { class: "value" }));
    this.time = h("span", { class: "time" });
    const legend = lines.map((line, n) => h("li", { title: line.help ?? null }, swatch(line), `${line.name} `, this.values[n]));
    this.plot = h("div", { class: "plot", role: "img", "aria-label": title });
    this.element = h("section", { class: "chart", "aria-label": title },
      h("h3", {}, title, this.time), h("ul", { class: "legend" }, legend), this.plot);
    this.data = [[], ...lines.map(() => [])];
    this.shown = null;
    this.resize = new ResizeObserver(() => this.fit());
    this.resize.observe(this.plot);
  }

  /** Shows `columns`, one for each line; `shown` are the values for the legend if others than those that are drawn. */
  set(times, columns, shown = columns) {
    const [seconds, drawn, values] = withGaps(times, columns, shown);
    this.data = [seconds, ...drawn];
    this.shown = values;
    if (!this.chart) this.draw();
    else this.chart.setData(this.data);
    if (!this.hovered) this.legend(seconds.length - 1, false);
  }

  legend(index, hovered) {
    this.hovered = hovered;
    this.lines.forEach((line, n) => setText(this.values[n], line.value(this.shown?.[n][index])));
    setText(this.time, hovered && this.data[0][index] ? `at ${clock(this.data[0][index] * 1000)}` : "");
  }

  fit() {
    const width = Math.floor(this.plot.clientWidth);
    if (!this.chart) this.draw();
    else if (width && width !== this.chart.width) this.chart.setSize({ width, height: this.options.height });
  }

  /** Draws anew, in the colours that the theme has now. */
  draw() {
    const width = Math.floor(this.plot.clientWidth);
    if (!width || !this.shown) return;
    this.chart?.destroy();
    this.chart = new uPlot(this.uplotOptions(width), this.data, this.plot);
  }

  uplotOptions(width) {
    const { format, height, log, least, binary, strip } = this.options;
    const [ink, grid] = [theme("--muted"), theme("--grid")];
    const axis = { stroke: ink, font: FONT, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    return {
      width, height,
      padding: [strip ? 22 : 8, 26, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "time" }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: {
        x: { time: true, range: (_, oldest, newest) => timeRange(oldest, newest) },
        y: log ? { distr: 3, range: (_, low, high) => logRange(low, high) } : { range: (_, __, most) => [0, Math.max(most ?? 0, least) * 1.08] },
      },
      axes: [
        // Clear of the lowest value of the other axis, which may stand beside the first time.
        { ...axis, size: 30, gap: 9, space: 76, values: (_, splits) => splits.map((s) => clock(s * 1000)) },
        { ...axis, size: 78, space: 26, ...(log ? { splits: (_, __, low, high) => decades(low, high) } : {}), ...(binary ? { incrs: POWERS } : {}), values: (_, splits) => splits.map((v) => (v === null ? "" : short(format(v)))) },
      ],
      series: [{}, ...this.lines.map(uplotSeries)],
      hooks: {
        drawClear: strip ? [(chart) => strip(chart, this.data[0])] : [],
        setCursor: [(chart) => this.legend(chart.cursor.idx ?? this.data[0].length - 1, chart.cursor.idx !== null && chart.cursor.left >= 0)],
      },
    };
  }

  destroy() {
    this.resize.disconnect();
    this.chart?.destroy();
  }
}

/** The text of a value without zeros behind its point. */
const short = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

/** Milliseconds between two samples from which on nothing is known of the time between them. */
export const GAP = 2500;

/** Times in seconds and the lines of `all`, with a sample of which nothing is known in each gap. */
function withGaps(times, ...all) {
  const places = [];
  const seconds = times.flatMap((ms, n) => {
    const isGap = n > 0 && ms - times[n - 1] > GAP;
    places.push(...(isGap ? [null, n] : [n]));
    return isGap ? [(times[n - 1] + 1) / 1000, ms / 1000] : [ms / 1000];
  });
  const spread = (line) => places.map((place) => (place === null ? null : line[place]));
  return [seconds, ...all.map((lines) => lines.map(spread))];
}

/** From the oldest sample to the newest one: a minute at least. */
function timeRange(oldest, newest) {
  const end = newest ?? Date.now() / 1000;
  return [Math.max(end - SPAN, Math.min(oldest ?? end, end - LEAST_SPAN)), end];
}

function logRange(low, high) {
  const [from, to] = [Math.min(low ?? 1e-5, 1e-5), Math.max(high ?? 1e-2, 1e-2)];
  return [10 ** Math.floor(Math.log10(from)), 10 ** Math.ceil(Math.log10(to))];
}

function decades(low, high) {
  const [from, to] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  return Array.from({ length: to - from + 1 }, (_, n) => 10 ** (from + n));
}

/** Steps between the values of an axis of bytes. */
const POWERS = Array.from({ length: 40 }, (_, n) => 2 ** n);

function uplotSeries(line) {
  const colour = theme(line.colour);
  return {
    label: line.name,
    stroke: line.edge ? theme(line.edge) : colour,
    width: line.width ?? 1.75,
    fill: line.fill ? (line.fill === true ? colour : theme(line.fill)) : undefined,
    dash: line.dash,
    points: { show: (chart, n, from, to) => to - from < 2, size: 4, fill: colour },
  };
}

function swatch(line) {
  const element = h("span", { class: `swatch ${line.fill ? "area" : "stroke"}${line.dash ? " dashed" : ""}` });
  element.style.setProperty("--colour", `var(${line.fill && line.fill !== true ? line.fill : line.colour})`);
  element.style.setProperty("--edge", `var(${line.edge ?? line.colour})`);
  return element;
}

/**
 * Colours the times of a chart by state: a band on top with the state's name where it fits, and a tint below. `segments(times)` returns
 * [from, to, { text, colour }] in seconds.
 */
export function stateStrip(segments) {
  return (chart, times) => {
    const { ctx, bbox } = chart;
    const scale = devicePixelRatio;
    const height = 16 * scale;
    ctx.save();
    ctx.font = `600 ${11 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (const [from, to, state] of segments(times)) {
      const left = Math.max(bbox.left, chart.valToPos(from, "x", true));
      const right = Math.min(bbox.left + bbox.width, chart.valToPos(to, "x", true));
      if (right <= left) continue;
      ctx.fillStyle = theme(state.colour);
      ctx.fillRect(left, bbox.top - height - 3 * scale, right - left, height);
      ctx.globalAlpha = 0.09;
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.globalAlpha = 1;
      if (ctx.measureText(state.text).width + 8 * scale < right - left) {
        ctx.fillStyle = theme("--state-ink");
        ctx.fillText(state.text, left + 4 * scale, bbox.top - height / 2 - 3 * scale);
      }
    }
    ctx.restore();
  };
}
