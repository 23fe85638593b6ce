// Routes, the token, the theme, and the line that says whether the page is up to date.

import { setText } from "/dom.js";
import { EventsView } from "/events.js";
import { Feed } from "/feed.js";
import { FlowView } from "/flow.js";
import { OverviewView } from "/overview.js";
import { PortView } from "/port.js";

const main = document.getElementById("main");
const feed = new Feed(token(), () => requestUpdate());
let view = null;
let scheduled = false;

/** The token of the URL that was opened, or of an earlier one. It is taken out of the address, so that nobody reads it there. */
function token() {
  const found = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (found) {
    // By host and port, which cookies are not.
    localStorage.setItem("token", found[1]);
    history.replaceState(null, "", "#/");
  }
  return localStorage.getItem("token");
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  if (parts[0] === "events") return new EventsView();
  if (parts[0] === "ports" && parts[2] === "flows" && parts[4]) return new FlowView(parts[1], parts[3], parts[4], parts[5]);
  if (parts[0] === "ports" && parts[1]) return new PortView(parts[1]);
  return new OverviewView();
}

function show(isFirst) {
  view?.destroy?.();
  view = route();
  main.replaceChildren(view.element);
  document.title = `${view.title} · Floodway`;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.dataset.view === (view instanceof EventsView ? "events" : "overview");
    if (isHere) link.setAttribute("aria-current", location.hash === link.hash || !location.hash ? "page" : "true");
    else link.removeAttribute("aria-current");
  }
  feed.show(view.query);
  if (!isFirst) {
    // What was focused is gone; a reader of screens begins with the new view.
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  requestUpdate();
}

/** Updates the page once for all that has arrived until it is drawn. */
function requestUpdate() {
  if (scheduled) return;
  scheduled = true;
  const update = () => {
    scheduled = false;
    connection();
    view.update(feed);
  };
  if (document.hidden) setTimeout(update, 500);
  else requestAnimationFrame(update);
}

function connection() {
  const problem = feed.problem ?? feed.overview?.problem ?? null;
  const box = document.getElementById("problem");
  setText(box, problem ?? "");
  box.hidden = !problem;
  const line = document.getElementById("connection");
  const state = feed.state === "live" && problem ? "no answer" : feed.state;
  setText(line, state);
  line.dataset.state = state;
}

const THEMES = { "": ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

function setTheme(name) {
  localStorage.setItem("theme", name);
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  const button = document.getElementById("theme");
  setText(button, THEMES[name][0]);
  button.setAttribute("aria-label", `Colours: ${THEMES[name][1]}`);
  button.title = `Colours: ${THEMES[name][1]}`;
  view?.recolour?.();
}

document.getElementById("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(localStorage.getItem("theme") ?? "") + 1) % names.length]);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.recolour?.());
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) location.reload();
  else show(false);
});
document.addEventListener("visibilitychange", () => requestUpdate());

setTheme(THEMES[localStorage.getItem("theme") ?? ""] ? (localStorage.getItem("theme") ?? "") : "");
show(true);
