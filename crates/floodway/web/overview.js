// All VMs: the heat map or a table, and those that send and receive the most.

import { choice, h, setText, syncRows } from "/dom.js";
import { last } from "/feed.js";
import { bytes, count, duration, perSecond, percent, rate, uptime } from "/format.js";
import { HeatMap, peak } from "/heat.js";

const both = (port) => port.tx.map((tx, n) => (tx === null || port.rx[n] === null ? null : tx + port.rx[n]));

const FIGURES = {
  rate: { name: "Rate", of: both, text: rate, least: 1e6, help: "bits a second, both ways" },
  drops: { name: "Drops", of: (port) => port.drops, text: perSecond, least: 10, help: "frames a second that were dropped, both ways" },
  work: { name: "Worker share", of: (port) => port.work, text: percent, least: 1, help: "share of what the port's worker did" },
  wait: { name: "vCPU wait", of: (port) => port.wait, text: percent, least: 1, help: "vCPUs that were runnable and did not run; 100 % is one vCPU all the time" },
};

const TALKERS = 8;
/** vCPUs that wait, from which on that is worth a look. */
const NOTABLE_WAIT = 0.3;
/** Lines about what is wrong. */
const MOST_WRONG = 12;

export function portLink(name) {
  return `#/ports/${encodeURIComponent(name)}`;
}

/** What a port's name is followed by if it does not run. */
export function stateText(port) {
  if (port.quarantined) return "cut off";
  return port.state === "running" ? "" : port.state;
}

/** What is wrong with a port. */
function troubles(port) {
  const link = portLink(port.name);
  const lines = port.reasons.map((drop) => ({ ...dropText(port.name, drop), link }));
  const wait = last(port.wait);
  if (wait > NOTABLE_WAIT) lines.push({ name: port.name, link, key: "wait", text: `its vCPUs wait for a CPU, ${percent(wait)}` });
  return lines;
}

function dropText(name, { direction, reason, per_s }) {
  return { name, key: `${direction} ${reason}`, text: `${perSecond(per_s)} dropped, ${direction} ${reason}` };
}

export class OverviewView {
  constructor() {
    this.title = "VMs";
    this.query = {};
    this.figure = sessionStorage.getItem("figure") ?? "rate";
    this.layout = sessionStorage.getItem("layout") ?? "map";
    this.map = new HeatMap();
    this.summary = h("dl", { class: "facts" });
    this.talkers = h("ol", { class: "talkers" });
    this.wrongList = h("ul", {});
    this.wrong = h("section", { class: "wrong verdict warning card", "aria-labelledby": "wrong", hidden: "" }, h("h2", { id: "wrong" }, "Wrong now"), this.wrongList);
    this.caption = h("caption", {});
    this.head = h("thead", {});
    this.body = h("tbody", {});
    this.table = h("table", { class: "vms" }, this.caption, this.head, this.body);
    const figures = Object.entries(FIGURES).map(([key, figure]) => [key, figure.name]);
    this.figures = choice("Figure", "figure", figures, this.figure, (key) => this.choose("figure", key));
    this.scroll = h("div", { class: "scroll" }, this.table);
    this.tools = h("div", { class: "tools" }, this.figures,
      choice("Show as", "layout", [["map", "Heat map"], ["table", "Table"]], this.layout, (key) => this.choose("layout", key)));
    this.element = h("div", {},
      h("h1", {}, "VMs of this host"), this.summary, this.wrong,
      h("div", { class: "columns" },
        h("section", { class: "card wide", "aria-label": "VMs over the last two minutes" }, this.tools, this.scroll, this.map.scale),
        h("section", { class: "card", "aria-labelledby": "talkers" }, h("h2", { id: "talkers" }, "Top talkers"), legend(), this.talkers)));
    this.columns();
  }

  choose(what, key) {
    this[what] = key;
    sessionStorage.setItem(what, key);
    this.columns();
    if (this.feed) this.update(this.feed);
  }

  /** Makes the head of the table, and forgets its rows. */
  columns() {
    const isMap = this.layout === "map";
    const figure = FIGURES[this.figure];
    const names = isMap ? ["VM", "the last two minutes", "now"] : ["VM", "from it", "to it", "drops", "worker", "vCPU wait", "delay", "stored", "repairs"];
    setText(this.caption, isMap ? `${figure.name}: ${figure.help}. The stronger the colour, the more; all VMs have the same scale.` : "Figures of the last second.");
    this.head.replaceChildren(h("tr", {}, names.map((name, n) => h("th", { scope: "col", class: n && !(isMap && n === 1) ? "number" : null }, name))));
    this.body.replaceChildren();
    this.table.classList.toggle("map", isMap);
    this.map.scale.hidden = !isMap;
    this.figures.hidden = !isMap;
    // A table may be wider than the window, and then is scrolled with arrows; strips never are.
    for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", "Table of VMs"]]) {
      if (isMap) this.scroll.removeAttribute(name);
      else this.scroll.setAttribute(name, value);
    }
  }

  update(feed) {
    this.feed = feed;
    const { overview } = feed;
    if (!overview) return;
    this.summarise(overview);
    syncRows(this.body, overview.ports, (port) => port.name, (port) => this.row(port), (row, port) => this.fill(row, port));
    if (this.layout === "map") this.map.draw(overview, FIGURES[this.figure]);
    this.rank(overview.ports);
    this.accuse(overview);
  }

  /** Says what is wrong now, so that nobody has to look for the VM. */
  accuse({ ports, uplinks }) {
    const lines = [...ports.flatMap(troubles), ...uplinks.flatMap(({ name, drops }) => drops.map((drop) => dropText(name, drop)))].slice(0, MOST_WRONG);
    this.wrong.hidden = !lines.length;
    const make = ({ name, link }) => h("li", {}, link ? h("a", { href: link }, name) : h("strong", {}, name), h("span", {}));
    syncRows(this.wrongList, lines, ({ name, key }) => `${name} ${key}`, make, (row, { text }) => setText(row.lastChild, `: ${text}`));
  }

  row(port) {
    const name = h("th", { scope: "row" }, h("a", { href: portLink(port.name) }, port.name), h("span", { class: "state" }));
    if (this.layout === "map") {
      return h("tr", {}, name, h("td", {}, this.map.strip(port.name).canvas, h("span", { class: "hidden" })), h("td", { class: "number" }));
    }
    return h("tr", {}, name, Array.from({ length: 8 }, () => h("td", { class: "number" })));
  }

  fill(row, port) {
    const state = stateText(port);
    setText(row.querySelector(".state"), state ? ` ${state}` : "");
    row.classList.toggle("idle", port.state !== "running");
    const cells = row.querySelectorAll("td");
    if (this.layout === "map") {
      const figure = FIGURES[this.figure];
      const line = figure.of(port);
      setText(cells[0].querySelector(".hidden"), `at most ${figure.text(peak(line))}`);
      setText(cells[1], figure.text(last(line)));
      return;
    }
    const texts = [rate(last(port.tx)), rate(last(port.rx)), perSecond(last(port.drops)), percent(last(port.work)), percent(last(port.wait)),
      duration(last(port.delay)), bytes(last(port.stored)), perSecond(last(port.repairs))];
    texts.forEach((text, n) => setText(cells[n], text));
    cells[2].classList.toggle("bad", last(port.drops) > 0);
    cells[4].classList.toggle("bad", last(port.wait) > 0.3);
    cells[5].classList.toggle("bad", last(port.delay) > 0.1);
  }

  summarise({ ports, workers, uplinks, switch: about }) {
    const sum = (figure) => ports.reduce((sum, port) => sum + (last(port[figure]) ?? 0), 0);
    const running = ports.filter((port) => port.state === "running").length;
    const busiest = Math.max(0, ...workers.map((worker) => worker.busy ?? 0));
    const online = ports.reduce((sum, port) => sum + port.online, 0);
    const flows = ports.reduce((sum, port) => sum + port.flows, 0);
    const facts = [
      ["ports running", `${running} of ${ports.length}`],
      ["from VMs", rate(sum("tx"))],
      ["to VMs", rate(sum("rx"))],
      ["drops", perSecond(sum("drops"))],
      ["connections offloaded", `${count(online)} of ${count(flows)}`],
      [workers.length > 1 ? `busiest of ${workers.length} workers` : "worker busy", percent(busiest)],
      ...uplinks.map((uplink) => [`uplink ${uplink.name}`, `${rate(uplink.rx_bps)} in, ${rate(uplink.tx_bps)} out`]),
      ["up", uptime(about.uptime_s)],
    ];
    syncRows(this.summary, facts, ([name]) => name, () => h("div", {}, h("dt", {}), h("dd", {})), (row, [name, value]) => {
      setText(row.firstChild, name);
      setText(row.lastChild, value);
    });
  }

  /** Lists the ports that send and receive the most. */
  rank(ports) {
    const totals = ports.map((port) => ({ name: port.name, tx: last(port.tx) ?? 0, rx: last(port.rx) ?? 0 }));
    const top = totals.filter(({ tx, rx }) => tx + rx > 0).sort((a, b) => b.tx + b.rx - a.tx - a.rx).slice(0, TALKERS);
    const most = top.length ? top[0].tx + top[0].rx : 1;
    const make = ({ name }) => h("li", {}, h("a", { href: portLink(name) }, name), h("span", { class: "number" }),
      h("span", { class: "bar", "aria-hidden": "true" }, h("span", { class: "tx" }), h("span", { class: "rx" })));
    syncRows(this.talkers, top, ({ name }) => name, make, (row, { tx, rx }) => {
      setText(row.children[1], `${rate(tx)} from, ${rate(rx)} to`);
      row.querySelector(".tx").style.setProperty("width", `${(tx / most) * 100}%`);
      row.querySelector(".rx").style.setProperty("width", `${(rx / most) * 100}%`);
    });
    if (!top.length) this.talkers.replaceChildren(h("li", { class: "empty" }, "Nobody sends anything."));
  }

  recolour() {
    if (this.feed) this.update(this.feed);
  }
}

function legend() {
  const item = (kind, text) => h("li", {}, h("span", { class: `swatch area ${kind}` }), text);
  return h("ul", { class: "legend" }, item("tx", "from the VM"), item("rx", "to it"));
}
