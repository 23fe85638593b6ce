// A port: rates, delay, drops, its share of the worker, its connections, and what is wrong with it.

import { Chart } from "/charts.js";
import { h, setText, syncRows } from "/dom.js";
import { aligned } from "/feed.js";
import { bytes, count, duration, perSecond, percent, rate } from "/format.js";
import { stateText } from "/overview.js";
import { REASON, TX } from "/states.js";

const line = (name, colour, value, more = {}) => ({ name, colour, value, ...more });

function charts() {
  return {
    rate: new Chart({ title: "Rate", format: rate, least: 1e5, lines: [
      line("from the VM", "--blue", rate, { fill: "--blue-faint" }), line("to the VM", "--orange", rate)] }),
    delay: new Chart({ title: "Queue delay of frames to the VM", format: duration, log: true, lines: [
      line("99th percentile", "--vermilion", duration), line("median", "--blue", duration, { dash: [5, 4] })] }),
    drops: new Chart({ title: "Drops", format: perSecond, least: 4, lines: [
      line("frames dropped, both ways", "--vermilion", perSecond, { fill: "--vermilion-faint" })] }),
    share: new Chart({ title: "CPU", format: percent, least: 0.1, lines: [
      line("share of its worker", "--blue", percent, { fill: "--blue-faint" }), line("vCPUs that wait", "--orange", percent, { help: "100 % is one vCPU that is runnable and does not run" })] }),
  };
}

export class PortView {
  constructor(name) {
    this.name = name;
    this.title = name;
    this.query = { port: name };
    this.charts = charts();
    this.state = h("span", { class: "badge" });
    this.about = h("p", { class: "about" });
    this.verdict = h("section", { class: "verdict card", "aria-label": "Diagnosis" });
    this.drops = h("tbody", {});
    this.flows = h("tbody", {});
    this.flowsText = h("p", { class: "about" });
    this.element = h("div", {},
      h("p", { class: "crumbs" }, h("a", { href: "#/" }, "VMs"), " / ", name),
      h("h1", {}, name, " ", this.state), this.about, this.verdict,
      h("div", { class: "charts" }, Object.values(this.charts).map((chart) => h("div", { class: "card" }, chart.element))),
      h("section", { class: "card", "aria-labelledby": "drops" }, h("h2", { id: "drops" }, "Drops by reason"),
        table(["reason", "frames", "now", "since the switch started"], this.drops, [2, 4])),
      h("section", { class: "card", "aria-labelledby": "connections" }, h("h2", { id: "connections" }, "Connections"), this.flowsText,
        table(["guest", "peer", "state", "in flight", "window", "held", "granted", "RTT", "why this state"], this.flows, [3, 8])));
  }

  update(feed) {
    const { overview, port: close } = feed;
    const port = overview?.ports.find((port) => port.name === this.name);
    if (port) this.updateCharts(overview, port);
    if (!close) return;
    if (close.problem) return this.fail(close.problem);
    const { facts, times, series } = close;
    // All charts begin with the first sample of the port, also where less is known.
    const first = overview?.times.slice(0, 1).filter((time) => time < times[0]) ?? [];
    const line = (values) => [...first.map(() => null), ...values];
    this.charts.delay.set([...first, ...times], [line(series.delay_p99), line(series.delay_p50)]);
    this.describe(facts, port);
    this.judge(facts);
    this.listDrops(facts.drops, port?.reasons ?? []);
    this.listFlows(facts.connections);
  }

  fail(problem) {
    this.verdict.className = "verdict card error";
    this.verdict.replaceChildren(h("p", {}, problem));
  }

  updateCharts({ times }, port) {
    const line = (figure) => aligned(port[figure], times);
    this.charts.rate.set(times, [line("tx"), line("rx")]);
    this.charts.drops.set(times, [line("drops")]);
    this.charts.share.set(times, [line("work"), line("wait")]);
  }

  describe(facts, port) {
    setText(this.state, (port && stateText(port)) || facts.state);
    this.state.dataset.state = facts.state;
    const vcpu = facts.vcpu ? `, vCPUs: ${facts.vcpu.policy}` : "";
    const network = facts.network ? `, network ${facts.network}` : "";
    const waiting = facts.pending_frames ? `, ${count(facts.pending_frames)} frames wait for the guest's buffers` : "";
    setText(this.about, `${facts.mac ?? "no fixed address"}${network}, worker ${facts.worker}, ${facts.queue_pairs} of ${facts.queue_pairs_offered} queue pairs${vcpu}${waiting}`);
  }

  judge({ severity, findings }) {
    const text = JSON.stringify(findings);
    if (this.judged === text) return;
    this.judged = text;
    this.verdict.className = `verdict card ${severity}`;
    if (!findings.length) {
      this.verdict.replaceChildren(h("p", {}, h("strong", {}, "Nothing is wrong"), " with this port, as far as the switch can tell."));
      return;
    }
    this.verdict.replaceChildren(...findings.map((finding) => h("div", { class: "finding" },
      h("p", {}, h("strong", {}, finding.severity), ": ", finding.problem), command(finding.command))));
  }

  listDrops(drops, rates) {
    const now = ({ direction, reason }) => rates.find((rate) => rate.direction === direction && rate.reason === reason)?.per_s ?? 0;
    const make = () => h("tr", {}, h("th", { scope: "row" }, h("code", {})), h("td", {}), h("td", { class: "number" }), h("td", { class: "number" }));
    syncRows(this.drops, drops, ({ direction, reason }) => `${direction} ${reason}`, make, (row, drop) => {
      setText(row.querySelector("code"), drop.reason);
      const texts = [drop.direction === "rx" ? "to the VM" : "from the VM", perSecond(now(drop)), count(drop.frames)];
      texts.forEach((text, n) => setText(row.children[n + 1], text));
      row.children[2].classList.toggle("bad", now(drop) > 0);
    });
    if (!drops.length) this.drops.replaceChildren(h("tr", {}, h("td", { colspan: 4, class: "empty" }, "Nothing was dropped.")));
  }

  listFlows(connections) {
    const { transmit, receive, known, online, listed } = connections;
    const on = [transmit && "transmit", receive && "receive"].filter(Boolean).join(" and ");
    const more = known > listed.length ? ` The ${listed.length} with the most bytes under way are listed.` : "";
    setText(this.flowsText, on ? `Offload of ${on}: ${count(known)} connections known, ${count(online)} online.${more}` : "The TCP offload is off for this port.");
    const make = (flow) => h("tr", {}, h("th", { scope: "row" }, h("a", { href: flowLink(flow) }, flow.guest)), h("td", {}, flow.peer),
      h("td", {}, h("span", { class: "badge" })), Array.from({ length: 5 }, () => h("td", { class: "number" })), h("td", {}));
    syncRows(this.flows, listed, (flow) => `${flow.guest} ${flow.peer} ${flow.vlan}`, make, fillFlow);
  }

  recolour() {
    Object.values(this.charts).forEach((chart) => chart.draw());
  }

  destroy() {
    Object.values(this.charts).forEach((chart) => chart.destroy());
  }
}

function fillFlow(row, flow) {
  const state = TX[flow.tx];
  const badge = row.querySelector(".badge");
  setText(badge, state?.text ?? flow.tx);
  badge.style.setProperty("--colour", `var(${state?.colour ?? "--muted"})`);
  badge.classList.add("coloured");
  const rtt = flow.srtt_us === null ? null : flow.srtt_us / 1e6;
  const texts = [bytes(flow.in_flight), bytes(flow.cwnd), bytes(flow.held), bytes(flow.granted), duration(rtt), REASON[flow.reason] ?? flow.reason];
  texts.forEach((text, n) => setText(row.children[n + 3], text));
}

export function flowLink(flow) {
  const parts = [flow.port, "flows", flow.guest, flow.peer, ...(flow.vlan ? [flow.vlan] : [])];
  return `#/ports/${parts.map(encodeURIComponent).join("/")}`;
}

function command(text) {
  const button = h("button", { type: "button", class: "quiet", onclick: async () => {
    await navigator.clipboard?.writeText(text);
    setText(button, "copied");
    setTimeout(() => setText(button, "copy"), 1500);
  } }, "copy");
  return h("p", { class: "command" }, "Run next: ", h("code", {}, text), " ", button);
}

/** A table that can be scrolled; columns `from` to `to` are numbers. */
function table(names, body, [from, to]) {
  const head = names.map((name, n) => h("th", { scope: "col", class: n >= from && n < to ? "number" : null }, name));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${names.join(", ")}` }, h("table", {}, h("thead", {}, h("tr", {}, head)), body));
}

