// The heat map: a strip of time for each VM, coloured by one figure, on one scale for all.

import { h, setText, theme } from "/dom.js";
import { clock } from "/format.js";
import { aligned } from "/feed.js";

/** Samples across a strip: two minutes. */
const CELLS = 120;

/** Steps of a scale. */
const STEPS = 28;

/** Colours from nothing to most, between those of the theme. */
function ramp() {
  const stops = Array.from({ length: 7 }, (_, n) => theme(`--heat-${n}`));
  const parts = stops.map((hex) => [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16)));
  return Array.from({ length: STEPS }, (_, step) => {
    const place = (step / (STEPS - 1)) * (parts.length - 1);
    const [low, high] = [parts[Math.floor(place)], parts[Math.ceil(place)]];
    return `rgb(${low.map((part, n) => Math.round(part + (high[n] - part) * (place % 1))).join(" ")})`;
  });
}

/** The colour of `share`, 0 to 1. Its root is taken, so that little is seen beside much; what is more than nothing never looks like nothing. */
function heatColour(colours, share) {
  return colours[share > 0 ? Math.min(STEPS - 1, 3 + Math.round(Math.sqrt(share) * (STEPS - 4))) : 0];
}

/** One strip. */
export class Strip {
  constructor() {
    this.canvas = h("canvas", { class: "strip", "aria-hidden": "true", height: 22, width: CELLS * 4 });
  }

  draw(values, most, colours) {
    const { canvas } = this;
    const pen = canvas.getContext("2d");
    const width = canvas.width / CELLS;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    values.forEach((value, n) => {
      if (value === null || value === undefined) return;
      pen.fillStyle = heatColour(colours, Math.min(1, value / most));
      pen.fillRect((CELLS - values.length + n) * width, 0, width, canvas.height);
    });
  }
}

/** Strips of ports under a figure: { name, of (port to its line), text (of a value), least (of the scale) }. */
export class HeatMap {
  constructor() {
    this.strips = new Map();
    this.cells = h("span", { class: "cells", "aria-hidden": "true" });
    this.most = h("span", {});
    this.readout = h("span", { class: "readout" });
    this.scale = h("p", { class: "scale" }, h("span", {}, "0"), this.cells, this.most, h("span", { class: "unknown" }, "not known"), this.readout);
  }

  strip(name) {
    if (!this.strips.has(name)) {
      const strip = new Strip();
      strip.canvas.addEventListener("pointermove", (event) => this.read(name, event));
      strip.canvas.addEventListener("pointerleave", () => setText(this.readout, ""));
      this.strips.set(name, strip);
    }
    return this.strips.get(name);
  }

  /** Draws all ports of `overview` anew. */
  draw(overview, figure) {
    this.overview = overview;
    this.figure = figure;
    const colours = ramp();
    const lines = overview.ports.map((port) => aligned(figure.of(port), overview.times).slice(-CELLS));
    const most = lines.reduce((most, line) => line.reduce((a, b) => Math.max(a, b ?? 0), most), figure.least);
    overview.ports.forEach((port, n) => this.strip(port.name).draw(lines[n], most, colours));
    setText(this.most, figure.text(most));
    this.cells.style.setProperty("background", `linear-gradient(90deg, ${colours.join(", ")})`);
    const names = new Set(overview.ports.map((port) => port.name));
    for (const name of this.strips.keys()) if (!names.has(name)) this.strips.delete(name);
  }

  read(name, event) {
    const port = this.overview?.ports.find((port) => port.name === name);
    if (!port) return;
    const box = event.target.getBoundingClientRect();
    const back = CELLS - 1 - Math.floor(((event.clientX - box.left) / box.width) * CELLS);
    const { times } = this.overview;
    const line = aligned(this.figure.of(port), times);
    const at = times.length - 1 - back;
    setText(this.readout, at < 0 ? "" : `${name} at ${clock(times[at])}: ${this.figure.text(line[at])}`);
  }
}

/** The most of a line in the strip's time; null if nothing is known. */
export function peak(line) {
  const values = line.slice(-CELLS).filter((value) => value !== null);
  return values.length ? Math.max(...values) : null;
}

