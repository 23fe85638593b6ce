"""`floodway web` in Chromium and `floodway top` in tmux, beside a switch with VMs that are busy: see tools/test-web."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from cdp import Browser, Page, wait
from png import squeeze
from terminal import Terminal

SIZES = {"wide": (1200, 900), "narrow": (390, 844)}
THEMES = ["light", "dark"]
# Columns and lines: the least that `floodway top` is made for, and a large terminal.
TERMINALS = [(80, 24), (132, 43)]
# What batch1 does wrong, as `floodway diagnose` says it.
SPOOFED = "spoofed_mac: the guest sends from a MAC address that is not the port\\'s"
HEADING = "document.querySelector('h1')?.textContent"


class Host:
    """A busy host and the server of its page."""

    def __init__(self, programs: Path, connections: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        command = [programs / "examples/busy_host", self.directory.name, str(connections)]
        self.host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.host.stdout.readline() == "ready\n", "the host did not start"
        control = Path(self.directory.name) / "control.sock"
        command = [programs / "floodway", "web", "--listen", "127.0.0.1:0", "--control", control]
        self.web = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.web.stdout.readline().removeprefix("the page is at ").strip()
        self.base, self.token = self.url.split("/#token=")
        self.floodway = [programs / "floodway"]
        self.environment = {**os.environ, "FLOODWAY_CONTROL": str(control)}

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self.web, self.host]:
            process.terminate() if process is self.web else process.stdin.close()
            process.wait()
        self.directory.cleanup()

    def ask(self, *words: str) -> object:
        """What `floodway ... --json` prints."""
        output = subprocess.run([*self.floodway, *words, "--json"], env=self.environment, check=True, capture_output=True)
        return json.loads(output.stdout)

    def first(self, event: str, **query: str) -> dict:
        """The first document of a kind in a new stream."""
        query = urllib.parse.urlencode({**query, "token": self.token})
        with urllib.request.urlopen(f"{self.base}/v1/stream?{query}", timeout=30) as stream:
            kind = None
            for line in stream:
                line = line.decode().strip()
                kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
                if line.startswith("data: ") and kind == event:
                    return json.loads(line.removeprefix("data: "))
        raise AssertionError(f"no {event}")

    def stream(self, **query: str) -> subprocess.Popen:
        """A stream that is read, as by a page, until it is terminated."""
        query = urllib.parse.urlencode({**query, "token": self.token})
        return subprocess.Popen(["curl", "-sN", f"{self.base}/v1/stream?{query}"], stdout=subprocess.DEVNULL)

    def flow(self) -> str:
        """The route of the connection of `flow_query`."""
        query = self.flow_query()
        return "#/ports/web1/flows/" + "/".join(urllib.parse.quote(query[end], safe="") for end in ["guest", "peer"])

    def flow_query(self) -> dict[str, str]:
        """A connection that is offloaded and has bytes under way."""
        def busiest() -> dict | None:
            flows = [flow for flow in self.ask("flows", "web1") if flow["tx"] != "OFFLINE" and flow["in_flight"] > 0]
            return max(flows, key=lambda flow: flow["held"] + flow["in_flight"], default=None)
        flow = wait("an offloaded connection", busiest)
        return {"port": "web1", "guest": flow["guest"], "peer": flow["peer"]}


def check_page(page: Page, name: str) -> None:
    """What must hold of every view."""
    widths = page.js("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1], f"{name}: {widths[0]} pixels wide in a window of {widths[1]}"
    assert page.js("document.querySelectorAll('h1').length") == 1, f"{name}: not one heading"
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    roles = {node.get("role", {}).get("value") for node in nodes if not node.get("ignored")}
    assert {"main", "navigation", "banner", "heading"} <= roles, f"{name}: {sorted(filter(None, roles))}"
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in ("button", "link", "radio", "table", "image", "region") and not node.get("ignored"):
            has_caption = role == "table"
            assert node.get("name", {}).get("value") or has_caption, f"{name}: a {role} without a name: {node}"


# Text and what is behind it, of which WCAG wants a contrast of 4.5.
CONTRAST = """(() => {
  const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const light = (hex) => [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16) / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const contrast = (a, b) => { const [x, y] = [light(of(a)), light(of(b))].sort((x, y) => y - x); return (x + 0.05) / (y + 0.05); };
  const pairs = ["--ink", "--muted", "--accent", "--good", "--warn", "--bad"].flatMap((text) => [[text, "--card"], [text, "--page"]]);
  const states = ["active", "no-buffer", "loss", "leaving", "offline"].map((state) => ["--state-ink", `--state-${state}`]);
  return [...pairs, ...states].map(([a, b]) => [a, b, contrast(a, b)]).filter(([, , ratio]) => ratio < 4.5);
})()"""


def views(host: Host) -> dict[str, tuple[str, str]]:
    """Routes, and what is true when a view is complete."""
    drawn = "document.querySelectorAll('.plot canvas').length"
    return {
        "vms": ("#/", "document.querySelectorAll('table.map tbody tr').length === 9 && document.querySelector('.wrong').textContent.includes('spoofed_mac')"),
        "port": ("#/ports/web1", f"{drawn} === 4 && document.querySelectorAll('.scroll tbody a').length > 1"),
        "faulty": ("#/ports/batch1", f"{drawn} === 4 && document.querySelector('.finding')?.textContent.includes('{SPOOFED}')"),
        "flow": (host.flow(), f"{drawn} === 2 && document.querySelector('.sentence').textContent.length > 20"),
        "events": ("#/events", "document.querySelectorAll('.events tbody tr').length > 5"),
    }


def test_views(browser: Browser, host: Host, out: Path) -> None:
    """Every view in both sizes and themes: complete, without errors, without overflow; with screenshots."""
    for size, (width, height) in SIZES.items():
        for theme in THEMES:
            page = browser.page(host.url, width, height, prefers_color_scheme=theme)
            for name, (route, complete) in views(host).items():
                page.js(f"location.hash = {json.dumps(route)}")
                page.wait(f"{name}, {size}", f"document.getElementById('connection').dataset.state === 'live' && ({complete})")
                # Two more samples, so that lines are drawn.
                time.sleep(2.2)
                check_page(page, f"{name}, {size}, {theme}")
                page.screenshot(out / f"{name}-{size}-{theme}.png")
            page.js("location.hash = '#/'")
            page.js("document.querySelector('input[value=table]').click()")
            page.wait("the table", "document.querySelectorAll('table.vms:not(.map) tbody td').length === 72")
            check_page(page, f"table, {size}, {theme}")
            page.screenshot(out / f"table-{size}-{theme}.png")
            assert page.js(CONTRAST) == [], f"{theme}: too little contrast: {page.js(CONTRAST)}"
            assert page.complaints == [], f"{size}, {theme}: {page.complaints}"
            assert page.foreign == [], page.foreign
            page.close()


def make_pictures(browser: Browser, host: Host, out: Path) -> None:
    """The pictures of the guide, when there is a past to show."""
    page = browser.page(host.url, 1200, 900, prefers_color_scheme="light")
    route = host.flow()
    # Connections have a past from when their port is first shown.
    page.js("location.hash = '#/ports/web1'")
    time.sleep(170)
    for name, route, height in [("flow", route, 1000), ("port", "#/ports/batch1", 960), ("vms", "#/", 690)]:
        page.js(f"location.hash = {json.dumps(route)}")
        time.sleep(12 if name == "port" else 4)
        path = out / f"web-{name}.png"
        page.screenshot(path, height)
        path.write_bytes(squeeze(path.read_bytes()))
        assert path.stat().st_size < 150_000, f"{path} is too large for the guide: {path.stat().st_size} bytes"


def test_keyboard(browser: Browser, host: Host) -> None:
    """Every view and control is reached with the keyboard alone."""
    page = browser.page(host.url)
    page.wait("VMs", "document.querySelectorAll('table tbody a').length === 9")
    page.press("Tab")
    assert page.js("document.activeElement.className") == "skip", "the first stop skips to the content"
    page.focus_by_tab("the theme", "e.id === 'theme'")
    for theme in ["light", "dark", ""]:
        page.press("Enter")
        assert (page.js("document.documentElement.dataset.theme") or "") == theme
    page.focus_by_tab("the figure", "e.name === 'figure'")
    page.press("ArrowRight")
    page.wait("drops", "document.querySelector('caption').textContent.startsWith('Drops')")
    page.press("ArrowLeft")
    page.focus_by_tab("a VM", "e.textContent === 'web1' && e.closest('table')")
    page.press("Enter")
    page.wait("the port", f"{HEADING}?.startsWith('web1')")
    assert page.js("document.activeElement.id") == "main", "a new view is where one goes on"
    page.wait("connections", "document.querySelector('.scroll tbody a')")
    page.focus_by_tab("a connection", "e.hash?.includes('/flows/')")
    page.press("Enter")
    page.wait("the connection", f"{HEADING}?.includes('→')")
    page.focus_by_tab("the explanation", "e.tagName === 'SUMMARY'")
    page.press("Enter")
    assert page.js("document.querySelector('details').open")
    page.press("Tab", shift=True)
    for _ in range(40):
        if page.js("document.activeElement.dataset?.view") == "events":
            break
        page.press("Tab", shift=True)
    page.press("Enter")
    page.wait("events", f"{HEADING} === 'Events' && document.querySelectorAll('.events tbody tr').length > 5")
    assert page.complaints == [], page.complaints
    page.close()


def test_top(browser: Browser, host: Host, out: Path) -> None:
    """`floodway top` names all VMs and what is wrong, in both sizes; with screenshots."""
    names = [port["name"] for port in host.ask("status")["ports"]]
    for columns, lines in TERMINALS:
        command = [*host.floodway, "top", "--sort", "drops"]
        with Terminal(command, columns, lines, host.environment) as terminal:
            # The first port, which is the worst then, is selected and shown closely.
            wait("rates", lambda: re.search(r"PORT.*\n.batch1 ", terminal.text()))
            for _ in names:
                terminal.press("Up")
            terminal.wait_for("spoofed_mac")
            # Some of the minute that it shows.
            time.sleep(8)
            screen = terminal.text()
            assert [name for name in names if name not in screen] == [], screen
            for theme in THEMES:
                terminal.picture(browser, theme, out / f"top-{columns}x{lines}-{theme}.png")


def test_past(host: Host) -> None:
    """A page that is opened has the past at once, also that of a connection whose port was looked at before."""
    overview = host.first("overview")
    assert overview["reset"] and len(overview["times"]) > 10, len(overview["times"])
    rates = [port for port in overview["ports"] if port["name"] == "web1"][0]["tx"]
    assert len(rates) == len(overview["times"]) and sum(rate is not None for rate in rates) > 10
    query = host.flow_query()
    stream = host.stream(port="web1")
    time.sleep(4)
    flow = host.first("flow", **query)
    stream.terminate()
    stream.wait()
    assert flow["reset"] and len(flow["times"]) > 1, flow


def test_token(browser: Browser, host: Host) -> None:
    """Without the token a page says what to do, and nothing about the switch."""
    page = browser.page(host.base + "/")
    text = page.wait("a reason", "document.getElementById('problem').textContent")
    assert "open the URL that floodway web has printed" in text, text
    assert "web1" not in page.js("document.body.textContent")
    page.close()


def test_motion(browser: Browser, host: Host) -> None:
    """Nothing moves for who wants less motion."""
    page = browser.page(host.url, prefers_reduced_motion="reduce")
    page.wait("talkers", "document.querySelector('.bar .tx')")
    assert page.js("getComputedStyle(document.querySelector('.bar .tx')).transitionProperty") == "none"
    page.close()


def cpu(tasks: list[Path]) -> float:
    """Seconds for which threads have run, by the scheduler's clock."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(host: Host, seconds: float, **query: str) -> tuple[float, float]:
    """Shares of a core that the server takes, and the switch's control thread, with a page that shows `query`; without one for None."""
    pid = host.ask("status")["switch"]["pid"]
    control = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text() == "control\n"]
    measured = [list(Path(f"/proc/{host.web.pid}/task").iterdir()), control]
    stream = host.stream(**query) if query else None
    time.sleep(2)
    before = [cpu(tasks) for tasks in measured]
    time.sleep(seconds)
    after = [cpu(tasks) for tasks in measured]
    if stream:
        stream.terminate()
        stream.wait()
    return tuple((b - a) / seconds for a, b in zip(before, after))


def report_cost(host: Host, seconds: float, most: float) -> None:
    """Prints what the page costs, and checks it against `most`, in shares of a core."""
    known = sum(port["offload"]["flows"] for port in host.ask("status")["ports"])
    print(f"CPU, per cent of a core, over {seconds:.0f} s each; 9 ports, {known} connections known:")
    for name, query in [("no page", {}), ("a port", {"port": "web1"}), ("a connection", host.flow_query())]:
        web, control = measure(host, seconds, **query)
        print(f"  {name:<13} floodway web {web * 100:.2f}, the switch's control thread {control * 100:.2f}")
        assert web + control <= most, f"{name}: more than {most * 100:.0f} % of a core"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", required=True)
    parser.add_argument("--programs", type=Path, required=True, help="directory of floodway and examples/busy_host")
    parser.add_argument("--out", type=Path, required=True, help="where screenshots go")
    parser.add_argument("--connections", type=int, default=20, help="quiet connections of each VM")
    parser.add_argument("--warm-up", type=float, default=15, help="seconds before the first page is opened")
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY", help="make the pictures of the guide there, and nothing else")
    parser.add_argument("--cost", type=float, metavar="SECONDS", help="measure what the page costs, and nothing else")
    parser.add_argument("--most", type=float, default=0.01, help="what it may cost, in shares of a core")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with Host(arguments.programs, arguments.connections) as host:
        time.sleep(arguments.warm_up)
        if arguments.cost:
            report_cost(host, arguments.cost, arguments.most)
            return
        if arguments.pictures:
            with Browser(arguments.chromium) as browser:
                make_pictures(browser, host, arguments.pictures)
            return
        test_past(host)
        with Browser(arguments.chromium) as browser:
            try:
                test_token(browser, host)
                test_views(browser, host, arguments.out)
                test_keyboard(browser, host)
                test_motion(browser, host)
                test_top(browser, host, arguments.out)
            except Exception:
                for page in list(browser.pages.values()):
                    page.screenshot(arguments.out / "failed.png")
                    print(f"complaints: {page.complaints}", file=sys.stderr)
                raise
    print(f"all views in {len(SIZES)} sizes and {len(THEMES)} themes; screenshots are in {arguments.out}")


if __name__ == "__main__":
    sys.exit(main())
