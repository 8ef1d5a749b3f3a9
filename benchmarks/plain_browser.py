"""Chromium without debugging features, driven by its protocol.

Playwright makes each page keep the data it fetched, so that tests can read it. The page's own process holds this data,
about 7 MB more per round over the dashboard's pages. This module measures a page's memory without it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from websockets.sync.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.sync.client import ClientConnection

PATIENCE_S = 300.0
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-precise-memory-info", "--no-first-run")


class PlainPage:
    """The only page of a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._asked = 0

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._asked += 1
        self._socket.send(json.dumps({"id": self._asked, "method": method, "params": parameters}))
        while True:
            answer: dict[str, Any] = json.loads(self._socket.recv(PATIENCE_S))
            if answer.get("id") == self._asked:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def goto(self, address: str) -> None:
        """Go to an address."""
        self.send("Page.navigate", url=address)

    def evaluate(self, function: str, argument: object = None) -> Any:  # noqa: ANN401 - whatever the script gives
        """Call a JavaScript function and wait for its result."""
        call = f"({function})({json.dumps(argument)})"
        reply = self.send("Runtime.evaluate", expression=call, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(str(reply["exceptionDetails"]))
        return reply["result"].get("value")

    def until(self, function: str) -> None:
        """Wait until a JavaScript function returns a true value."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(function):
            if time.monotonic() > deadline:
                raise RuntimeError(f"never true: {function}")
            time.sleep(0.05)

    def click(self, x: int, y: int) -> None:
        """Click at a position."""
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def collect(self) -> None:
        """Collect garbage in the page."""
        self.send("HeapProfiler.collectGarbage")


@contextmanager
def plain_browser() -> Iterator[PlainPage]:
    """Start a headless browser with an empty profile, and yield its page."""
    program = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1440,900"]
        with subprocess.Popen([*command, "about:blank"], stderr=subprocess.DEVNULL) as process:
            try:
                with connect(_address(Path(profile) / "DevToolsActivePort"), max_size=None) as socket:
                    yield PlainPage(socket)
            finally:
                process.terminate()


def _address(file: Path) -> str:
    """Wait until the browser reports its port, and return the address of its page."""
    for _ in range(600):
        lines = file.read_text().split() if file.exists() else []
        if len(lines) > 1:
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json", timeout=10) as answer:
                pages = [target for target in json.load(answer) if target["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise SystemExit("the browser did not start")
