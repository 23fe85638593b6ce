// What has happened, the last first.

import { choice, h, syncRows } from "/dom.js";
import { clock } from "/format.js";
import { portLink } from "/overview.js";

const LEVELS = { info: 0, warning: 1, error: 2 };

export class EventsView {
  constructor() {
    this.title = "Events";
    this.query = {};
    this.least = sessionStorage.getItem("severity") ?? "info";
    this.body = h("tbody", {});
    this.none = h("p", { class: "empty" }, "Nothing has happened.");
    const options = [["info", "All"], ["warning", "Warnings and errors"], ["error", "Errors"]];
    this.element = h("div", {}, h("h1", {}, "Events"),
      h("section", { class: "card", "aria-label": "Events, the last first" },
        h("div", { class: "tools" }, choice("Severity", "severity", options, this.least, (least) => this.choose(least))),
        h("table", { class: "events" },
          h("thead", {}, h("tr", {}, ["time", "severity", "event", "of", "what happened"].map((name) => h("th", { scope: "col" }, name)))), this.body),
        this.none));
  }

  choose(least) {
    this.least = least;
    sessionStorage.setItem("severity", least);
    this.update(this.feed);
  }

  update(feed) {
    this.feed = feed;
    const shown = feed.events.filter((event) => LEVELS[event.severity] >= LEVELS[this.least]).reverse();
    this.none.hidden = shown.length > 0;
    const ports = new Set((feed.overview?.ports ?? []).map((port) => port.name));
    const cell = (...content) => h("td", {}, ...content);
    const make = (event) => {
      const whose = event.port ?? event.uplink ?? "";
      const name = ports.has(whose) ? h("a", { href: portLink(whose) }, whose) : whose;
      const left = event.suppressed ? ` (${event.suppressed} events of this port before it left out)` : "";
      return h("tr", { class: event.severity }, cell(h("time", { datetime: event.time }, clock(Date.parse(event.time)))),
        cell(h("span", { class: "badge" }, event.severity)), cell(h("code", {}, event.event)), cell(name), cell(event.text + left));
    };
    syncRows(this.body, shown, (event) => event.id, make, () => {});
  }
}
