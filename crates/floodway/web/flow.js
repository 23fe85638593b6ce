// A connection: where its bytes are, and what the offload does for it.

import { Chart, GAP, stateStrip } from "/charts.js";
import { h, setText } from "/dom.js";
import { bytes, clock, duration, rate } from "/format.js";
import { portLink } from "/overview.js";
import { REASON, RX, TX } from "/states.js";

const UNKNOWN = { text: "unknown", colour: "--muted", meaning: "" };

/** Lines from top to bottom; areas are drawn on top of each other, so the highest comes first. */
const LINES = [
  { name: "granted", colour: "--granted", edge: "--granted-edge", fill: true, width: 1, value: bytes, help: "what the guest may still send ahead, and has not" },
  { name: "held by the switch", colour: "--held", fill: true, value: bytes, help: "sent by the guest, waits in the switch for room on the network" },
  { name: "in flight", colour: "--in-flight", fill: true, value: bytes, help: "on the network, not acknowledged yet; the switch keeps a copy" },
  { name: "congestion window", colour: "--ink", width: 2, value: bytes, help: "what may be in flight at once" },
];

export class FlowView {
  constructor(port, guest, peer, vlan) {
    this.title = `${guest} to ${peer}`;
    this.query = { port, guest, peer, vlan };
    this.badge = h("span", { class: "badge coloured" });
    this.sentence = h("p", { class: "sentence" });
    this.path = new Path();
    this.segments = [];
    this.picture = new Chart({ title: "Where the bytes are", format: bytes, height: 330, least: 16384, binary: true, lines: LINES, strip: stateStrip(() => this.segments) });
    this.rtt = new Chart({ title: "Round-trip time on the network", format: duration, height: 120, least: 1e-3, lines: [
      { name: "smoothed RTT, without the guest", colour: "--vermilion", value: duration }] });
    this.facts = h("dl", { class: "facts" });
    this.element = h("div", {},
      h("p", { class: "crumbs" }, h("a", { href: "#/" }, "VMs"), " / ", h("a", { href: portLink(port) }, port), " / connection"),
      h("h1", { class: "ends" }, h("span", {}, guest), h("span", { class: "arrow", "aria-label": "to" }, "→"), h("span", {}, peer), vlan ? ` vlan ${vlan} ` : " ", this.badge),
      this.sentence, this.path.element,
      h("div", { class: "card" }, this.picture.element, stateLegend(), this.rtt.element),
      h("section", { class: "card", "aria-label": "Figures" }, this.facts), help());
  }

  update(feed) {
    const { flow } = feed;
    if (!flow) return;
    const { times, series, now } = flow;
    const bps = this.throughput(feed, flow);
    const add = (...lines) => times.map((_, n) => lines.reduce((sum, line) => (sum === null || line[n] === null ? null : sum + line[n]), 0));
    this.segments = segments(times, series.tx, flow.tx_states);
    const { in_flight: inFlight, held, granted, cwnd } = series;
    this.picture.set(times, [add(inFlight, held, granted), add(inFlight, held), inFlight, cwnd], [granted, held, inFlight, cwnd]);
    this.rtt.set(times, [series.srtt_us.map((us) => (us === null ? null : us / 1e6))]);
    const state = now ? (TX[now.tx] ?? UNKNOWN) : { ...UNKNOWN, text: flow.problem ? "unknown" : "ended" };
    setText(this.badge, state.text);
    this.badge.style.setProperty("--colour", `var(${state.colour})`);
    setText(this.sentence, flow.problem ?? (now ? sentence(now) : ended(times, cwnd)));
    this.announce(state, now);
    this.path.update(now);
    this.list(now, bps);
  }

  /** What the port sends now, as the connection's own rate is not counted. */
  throughput(feed) {
    const port = feed.overview?.ports.find((port) => port.name === this.query.port);
    return port?.tx[port.tx.length - 1] ?? null;
  }

  /** Tells readers of screens when the state changes, and only then. */
  announce(state, now) {
    if (this.announced === state.text) return;
    if (this.announced) setText(document.getElementById("live"), `${state.text}: ${now ? state.meaning : "the connection has ended"}`);
    this.announced = state.text;
  }

  list(now, bps) {
    if (!now) return;
    const facts = [
      ["why this state", REASON[now.reason] ?? now.reason],
      ["slow-start threshold", now.ssthresh >= 2 ** 30 ? "none yet" : bytes(now.ssthresh)],
      ["receive side", RX[now.rx] ?? now.rx],
      ["acknowledged for the guest, and not yet by it", bytes(now.kept)],
      ["all that the VM sends", rate(bps)],
    ];
    if (this.facts.childElementCount !== facts.length) {
      this.facts.replaceChildren(...facts.map(() => h("div", {}, h("dt", {}), h("dd", {}))));
    }
    facts.forEach(([name, value], n) => {
      setText(this.facts.children[n].firstChild, name);
      setText(this.facts.children[n].lastChild, value);
    });
  }

  recolour() {
    this.picture.draw();
    this.rtt.draw();
  }

  destroy() {
    this.picture.destroy();
    this.rtt.destroy();
  }
}

/** The way of the bytes from the guest to its peer, with how many are where. */
class Path {
  constructor() {
    const place = (kind, title, text) => h("li", { class: kind }, h("span", { class: "what" }, title), h("span", { class: "much" }, "–"), h("span", { class: "note" }, text));
    this.places = [
      place("granted", "the guest may still send", "granted: without waiting for the network"),
      place("held", "waits in the switch", "held: sent ahead by the guest"),
      place("in-flight", "on the network", "in flight"),
    ];
    this.notes = this.places.map((element) => element.querySelector(".note"));
    this.much = this.places.map((element) => element.querySelector(".much"));
    this.element = h("ol", { class: "path", "aria-label": "Where the bytes are now, from the guest to its peer" }, this.places);
  }

  update(now) {
    const amounts = now ? [now.granted, now.held, now.in_flight] : [null, null, null];
    amounts.forEach((amount, n) => setText(this.much[n], bytes(amount)));
    setText(this.notes[2], now ? `in flight: of a window of ${bytes(now.cwnd)}` : "in flight");
  }
}

/** What is going on, in one sentence. */
export function sentence(flow) {
  const [inFlight, held, granted, cwnd] = [flow.in_flight, flow.held, flow.granted, flow.cwnd].map(bytes);
  const ahead = flow.held > 0 ? `; ${held} more have been sent ahead by the guest and wait in the switch` : "";
  switch (flow.tx) {
    case "ACTIVE":
      if (!flow.in_flight && !flow.held) return `The connection is quiet: nothing is under way, and the guest may send ${granted} without waiting for the network.`;
      return `The switch runs congestion control for the guest: ${inFlight} of a window of ${cwnd} are on the network${ahead}, and the guest may send another ${granted} even if it gets no CPU when ACKs arrive.`;
    case "NO_BUFFER":
      return `The guest has sent as far ahead as it may: ${inFlight} of a window of ${cwnd} are on the network and ${held} wait in the switch, until acknowledged bytes make room.`;
    case "PACKET_LOSS":
      return `Bytes were lost on the network. The switch sends them again in the guest's place (${inFlight} in flight, ${held} held); the guest hears nothing of it.`;
    case "LEAVING":
      return `The connection is on its way off the offload: the switch sends the ${held} that it holds, and grants no more.`;
    case "OFFLINE":
      return `The switch passes this connection through, and the guest's own congestion control decides: ${REASON[flow.reason] ?? flow.reason}.`;
    default:
      return `State ${flow.tx}.`;
  }
}

function ended(times, cwnd) {
  let n = cwnd.length - 1;
  while (n >= 0 && cwnd[n] === null) n -= 1;
  return n < 0 ? "The switch knows no such connection, or not any more." : `The connection has ended; it was last seen at ${clock(times[n])}.`;
}

/** Times of one state each: [from, to, state], in seconds. */
function segments(times, states, names) {
  const found = [];
  states.forEach((position, n) => {
    if (position === null) return;
    const next = times[n + 1] - times[n] <= GAP ? times[n + 1] : times[n];
    const [from, to] = [times[n], next].map((ms) => ms / 1000);
    const state = TX[names[position]] ?? UNKNOWN;
    const before = found[found.length - 1];
    if (before && before[2] === state && before[1] === from) before[1] = to;
    else found.push([from, to, state]);
  });
  return found;
}

function stateLegend() {
  const item = (state) => {
    const swatch = h("span", { class: "swatch area" });
    swatch.style.setProperty("--colour", `var(${state.colour})`);
    return h("li", {}, swatch, h("strong", {}, state.text), ` ${state.meaning}`);
  };
  return h("ul", { class: "legend states", "aria-label": "States" }, Object.values(TX).map(item));
}

function help() {
  return h("details", { class: "card" }, h("summary", {}, "How to read the picture"),
    h("p", {}, "Without the offload a guest may have as much under way as its congestion window allows, and each ACK that lets it send more waits until the guest runs. " +
      "With it, the switch keeps the network busy: what is in flight stays under the congestion window (the line), and what the guest has sent ahead lies above (held). " +
      "The granted part is what the guest may still send before it hears anything from the network."),
    h("p", {}, "A loss shows as a band of its own colour: the window shrinks and grows again while the guest goes on sending into the switch. " +
      "Samples are taken once a second while a page shows the connection or its port; what happens in between is not seen."));
}
