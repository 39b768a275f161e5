"""A page in a headless Chromium, driven through its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    *("--disable-background-networking", "--no-first-run", "--remote-debugging-port=0"),
)
LIMIT_S = 60.0


class Page:
    """An open page; `faults` are errors on its console, `requests` the addresses it asked for."""

    def __init__(self, socket: Connection):
        self._socket = socket
        self._number = 0
        self.faults: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=LIMIT_S))
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._hear(message.get("method"), message.get("params"))

    def value(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + LIMIT_S
        while not self.value(expression):
            assert time.monotonic() < end, f"never: {expression}; {self.faults}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        self.value(f"document.dispatchEvent(new KeyboardEvent('keydown', {{key: {key!r}}}))")

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def dark(self, on: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def open(self, address: str, ready: bool = True) -> None:
        self.call("Page.navigate", url=address)
        if ready:
            self.wait("document.body?.dataset.state === 'ready'")

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.faults.append(str(params["exceptionDetails"]))
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.faults.append(params["entry"]["text"])
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.faults.append(str(params["args"]))
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextmanager
def browser(width: int = 1280, height: int = 800) -> Iterator[Page]:
    """A page in a Chromium of its own, which ends with it."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(
        prefix="gaitforge-chromium-", ignore_cleanup_errors=True
    ) as home:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={home}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(_address(Path(home), process), max_size=None) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    page.call(f"{domain}.enable")
                page.size(width, height)
                yield page
        finally:
            process.terminate()
            process.wait(20)


def _address(home: Path, process: subprocess.Popen[bytes]) -> str:
    """The address of the blank page's debugger."""
    import httpx

    port_file = home / "DevToolsActivePort"
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and process.poll() is None:
        lines = port_file.read_text().split() if port_file.is_file() else []
        if len(lines) == 2:
            pages = httpx.get(f"http://127.0.0.1:{lines[0]}/json").json()
            return next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        time.sleep(0.05)
    raise RuntimeError("Chromium did not start")
