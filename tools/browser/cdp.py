"""Chromium without a window, driven over a pipe by the DevTools protocol. Only Python's own library is needed."""

import base64
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

# A test that waits longer than this for anything has failed.
PATIENCE = 30.0

OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
]


class Browser:
    """A browser with a profile of its own. Leaving the context ends it."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()
        # It reads from descriptor 3 and writes to 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["sh", "-c", shell, "sh", program, *OPTIONS, f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(command, pass_fds=[to_browser, from_browser], stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self.inp, False)
        self.buffer = b""
        self.number = 0
        self.answers: dict[int, dict] = {}
        self.pages: dict[str, Page] = {}

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.profile.cleanup()

    def ask(self, method: str, session: str | None = None, **parameters: object) -> dict:
        """The result of a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        number = self.number
        wait(f"an answer to {method}", lambda: self.pump() or number in self.answers, pause=0.002)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def pump(self) -> None:
        """Takes what the browser has said."""
        try:
            while more := os.read(self.inp, 1 << 20):
                self.buffer += more
        except BlockingIOError:
            pass
        *messages, self.buffer = self.buffer.split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            elif page := self.pages.get(message.get("sessionId", "")):
                page.note(message["method"], message["params"])

    def page(self, url: str, width: int = 1200, height: int = 900, **media: str) -> "Page":
        """A new page of that size; `media` are features like `prefers_color_scheme="dark"`."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        self.pages[session] = page
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"]:
            page.ask(f"{domain}.enable")
        page.resize(width, height)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        page.ask("Emulation.setEmulatedMedia", features=features)
        page.go(url)
        return page


class Page:
    """A page, and what went wrong on it."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target
        self.complaints: list[str] = []
        self.foreign: list[str] = []

    def ask(self, method: str, **parameters: object) -> dict:
        return self.browser.ask(method, self.session, **parameters)

    def note(self, event: str, parameters: dict) -> None:
        """Writes down errors, and requests to other hosts."""
        if event == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([value.get("value", value.get("description")) for value in parameters["args"]]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            entry = parameters["entry"]
            self.complaints.append(f"{entry['text']} ({entry.get('url', '')})")
        elif event == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "http://127.0.0.1:", "http://localhost:", "data:", "about:")):
                self.foreign.append(url)

    def go(self, url: str) -> None:
        """Leads to another page, and waits until it is loaded."""
        self.js("window.left = true")
        self.ask("Page.navigate", url=url)
        self.wait("the page to be loaded", "!window.left && document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def js(self, expression: str) -> object:
        """The value of an expression."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, what: str, expression: str) -> object:
        """Waits until an expression is true; its value."""
        return wait(what, lambda: self.js(f"(value => value instanceof Node || value)({expression})"))

    def press(self, key: str, shift: bool = False) -> None:
        """Presses a key and lets it go."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowLeft": 37}
        parameters = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        text = {"Enter": "\r", " ": " "}.get(key)
        self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **({"text": text} if text else {}), **parameters)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **parameters)

    def focus_by_tab(self, what: str, expression: str, most: int = 60) -> None:
        """Presses Tab until `expression`, in which `e` is the focused element, is true."""
        for _ in range(most):
            self.press("Tab")
            if self.js(f"(e => {{ return Boolean({expression}); }})(document.activeElement)"):
                return
        raise AssertionError(f"{what} is not reached by {most} times Tab")

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """Writes a PNG of the whole page, or of its upper part."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height or size["height"]), "scale": 1}
        data = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self.browser.ask("Target.closeTarget", targetId=self.target)
        self.browser.pages.pop(self.session, None)


def wait(what: str, holds, pause: float = 0.05) -> object:
    """Waits until `holds` returns what is true, and returns that."""
    deadline = time.monotonic() + PATIENCE
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE:.0f} s in vain for {what}")
        time.sleep(pause)
    return value
