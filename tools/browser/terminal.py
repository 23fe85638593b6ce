"""A program on a terminal that tmux draws, as text and as a picture that a browser makes of it."""

import html
import re
import subprocess
import tempfile
import urllib.parse
from pathlib import Path

from cdp import Browser, wait

# Attributes of text (ECMA-48, SGR) as styles, and what ends them; the terminal's own colours are those of the theme.
STYLES = {"1": "font-weight:bold", "2": "opacity:.65", "31": "color:var(--red)", "7": "background:var(--ink);color:var(--paper)"}
ENDS = {"": STYLES, "0": STYLES, "22": ["1", "2"], "27": ["7"], "39": ["31"]}
THEMES = {"light": ("#1b1f24", "#fff", "#b3261e"), "dark": ("#e3e7eb", "#14181d", "#ff8a80")}


class Terminal:
    """A tmux server of its own with one window of `columns` by `lines`, in which `command` runs. Leaving the context ends both."""

    def __init__(self, command: list[str], columns: int, lines: int, environment: dict[str, str]) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.size = (columns, lines)
        # Not the server of who runs the test.
        self.environment = {name: value for name, value in environment.items() if name != "TMUX"} | {"LC_ALL": "C.UTF-8"}
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), *map(str, command))

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.tmux("kill-server")
        self.directory.cleanup()

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-u", "-S", str(Path(self.directory.name) / "socket"), *words]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait_for(self, what: str) -> str:
        """Waits until `what` is on the screen; the screen."""
        return wait(f"{what!r} on the screen", lambda: (text := self.text()) and what in text and text)

    def press(self, key: str) -> None:
        self.tmux("send-keys", key)

    def picture(self, browser: Browser, theme: str, path: Path) -> None:
        """Writes what is on the screen as a PNG."""
        ink, paper, red = THEMES[theme]
        columns, lines = self.size
        style = f"""
          :root {{ --ink: {ink}; --paper: {paper}; --red: {red}; }} body {{ margin: 0; background: var(--paper); color: var(--ink); }}
          pre {{ margin: 0; padding: 12px; width: {columns}ch; height: {lines * 1.25}em; font: 14px/1.25 'DejaVu Sans Mono', monospace; overflow: hidden; }}"""
        body = styled(self.tmux("capture-pane", "-p", "-e"))
        document = f"<!doctype html><meta charset=utf-8><style>{style}</style><pre>{body}</pre>"
        page = browser.page("data:text/html," + urllib.parse.quote(document))
        width, height = page.js("(r => [Math.ceil(r.right), Math.ceil(r.bottom)])(document.querySelector('pre').getBoundingClientRect())")
        page.resize(width, height)
        page.screenshot(path)
        page.close()


def styled(screen: str) -> str:
    """Text with attributes as HTML."""
    parts, on = [], []
    for n, part in enumerate(re.split(r"\x1b\[([\d;]*)m", screen)):
        if n % 2 == 0:
            style = ";".join(STYLES[code] for code in on)
            # Reversed, what is red is the ground.
            style += ";background:var(--red);color:var(--paper)" if {"7", "31"} <= set(on) else ""
            parts.append(f'<span style="{style}">{html.escape(part)}</span>' if style and part else html.escape(part))
            continue
        # Red may be said as one of 256 colours.
        for code in re.sub(r"38[;:]5[;:][19](?!\d)", "31", part).split(";"):
            on = [known for known in on if known not in ENDS.get(code, [])]
            on += [code] if code in STYLES and code not in on else []
    return "".join(parts)
