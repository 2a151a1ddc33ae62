"""A real browser in tests: headless Chromium, driven by the DevTools protocol over a web socket.

    with browser() as tab:
        tab.open(page, width=375)
        assert tab.value("document.title") == "…"
        assert not tab.errors and not tab.requests

Where no Chromium is installed, `browser` skips the test and says so.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
TIMEOUT = 800.0


class Tab:
    """One page, and what went wrong in it."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.errors: list[str] = []  # of the console, and exceptions that nobody caught
        self.requests: list[str] = []  # addresses that the page asked for, but for itself
        self._page = ""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; events that come before its answer are noted."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file, and wait until its script is done."""
        self._page = page.resolve().as_uri()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=self._page)
        self.wait_for("document.documentElement?.dataset.ready === 'yes'")

    def value(self, expression: str) -> Any:
        """What an expression gives, as JSON; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until an expression is true."""
        _poll(lambda: bool(self.value(expression)), lambda: f"{expression} in {self._page}: {self.errors}")

    def draw_everything(self) -> None:
        """Scroll through the page, so that every figure is drawn."""
        count = self.value("document.querySelectorAll('.plot').length")
        for place in range(count):
            self.value(f"document.getElementById('plot-{place}').scrollIntoView({{block: 'center'}})")
            self.wait_for(f"!!document.querySelector('#plot-{place} .main-svg')")
        self.value("window.scrollTo(0, 0)")

    def move(self, x: float, y: float) -> None:
        """The mouse, to a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What is seen, or the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        method, given = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(given["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.errors.append(json.dumps(given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.errors.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            address = given["request"]["url"]
            if address != self._page and not address.startswith(("blob:", "data:")):
                self.requests.append(address)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A new browser with an empty profile in `folder`; gone at the end."""
    websocket = pytest.importorskip("websocket")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is on the PATH")
    profile = folder / "profile"
    command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        announced = profile / "DevToolsActivePort"
        _poll(
            lambda: announced.exists() and len(announced.read_text().split()) == 2,
            lambda: "the browser did not start",
        )
        port = announced.read_text().split()[0]
        address = _first_page(int(port))
        socket = websocket.create_connection(address, timeout=TIMEOUT, suppress_origin=True)
        try:
            yield Tab(socket)
        finally:
            socket.close()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _first_page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=TIMEOUT) as answer:
        pages = json.load(answer)
    return next(str(page["webSocketDebuggerUrl"]) for page in pages if page["type"] == "page")


def _poll(condition: Callable[[], bool], describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.05)
