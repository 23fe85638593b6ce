// The stream of the server, and what it has said so far.

/** Samples that are kept, as the server does. */
const KEPT = 180;
/** Arrays of a port in the overview. */
const FIGURES = ["tx", "rx", "drops", "work", "wait", "run", "delay", "stored", "repairs", "saved"];
const MOST_EVENTS = 300;
/** Milliseconds until a stream that was refused is asked for again. */
const RETRY = 2000;

function extend(line, more) {
  line.push(...more);
  if (line.length > KEPT) line.splice(0, line.length - KEPT);
}

/** Adds the samples of a document with `times` and `series` to the one before. */
function merge(before, document, isSame) {
  if (document.reset || !before || !isSame(before)) return document;
  extend(before.times, document.times);
  for (const [name, values] of Object.entries(document.series)) extend(before.series[name], values);
  return { ...document, times: before.times, series: before.series };
}

export class Feed {
  constructor(token, onchange) {
    this.token = token;
    this.onchange = onchange;
    this.overview = null;
    this.port = null;
    this.flow = null;
    this.events = [];
    this.state = "connecting";
    this.problem = null;
  }

  /** Shows this from now on: fields of the query, like `{ port: "vm1" }`. */
  show(query) {
    const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
    if (this.source && text === this.query) return;
    this.query = text;
    this.port = null;
    this.flow = null;
    this.connect();
  }

  url(path) {
    const token = this.token ? `token=${encodeURIComponent(this.token)}` : "";
    return `${path}?${[this.query, token].filter(Boolean).join("&")}`;
  }

  connect() {
    this.source?.close();
    clearTimeout(this.retry);
    const source = new EventSource(this.url("/v1/stream"));
    this.source = source;
    const on = (event, take) => source.addEventListener(event, (message) => {
      this.state = "live";
      take.call(this, JSON.parse(message.data));
      this.onchange(event);
    });
    on("overview", this.takeOverview);
    on("port", (port) => { this.port = merge(this.port, port, (before) => before.name === port.name); });
    on("flow", (flow) => { this.flow = merge(this.flow, flow, () => true); });
    on("events", this.takeEvents);
    source.addEventListener("open", () => { this.problem = null; });
    source.addEventListener("error", () => this.fail(source));
  }

  async fail(source) {
    if (source !== this.source) return;
    this.state = "not connected";
    if (source.readyState === EventSource.CLOSED) {
      // It was refused, and a browser does not say why.
      this.problem = await this.reason();
      this.retry = setTimeout(() => this.connect(), RETRY);
    }
    this.onchange("connection");
  }

  async reason() {
    try {
      const query = this.token ? `?token=${encodeURIComponent(this.token)}` : "";
      const answer = await fetch(`/v1/version${query}`);
      return answer.ok ? "The server has no room for another page, or does not know what is asked for." : (await answer.json()).error;
    } catch {
      return "floodway web does not answer any more.";
    }
  }

  takeOverview(document) {
    const before = document.reset ? null : this.overview;
    const known = new Map((before?.ports ?? []).map((port) => [port.name, port]));
    const times = before?.times ?? [];
    extend(times, document.times);
    for (const port of document.ports) {
      const old = known.get(port.name);
      for (const figure of FIGURES) {
        const line = old?.[figure] ?? [];
        extend(line, port[figure]);
        port[figure] = line;
      }
    }
    this.overview = { ...document, times };
  }

  takeEvents(document) {
    if (document.reset) this.events = [];
    this.events.push(...document.events);
    this.events.splice(0, this.events.length - MOST_EVENTS);
  }
}

/** A line of values that ends with the last of `times`, filled up in front. */
export function aligned(line, times) {
  return Array(Math.max(0, times.length - line.length)).fill(null).concat(line.slice(-times.length || line.length));
}

export const last = (line) => (line.length ? line[line.length - 1] : null);
