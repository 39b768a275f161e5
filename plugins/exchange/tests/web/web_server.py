"""A web server on loopback for the files of a folder, with faults on request."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

Fault = Callable[[str, int], "int | float | str | None"]
"""(path, how often it was asked for) -> an HTTP status instead of the file, a fraction of it after
which the connection is cut, an address to which the client is redirected, or None."""


class Served:
    """What a server has answered.

    Attributes:
        address: of the folder; asked: path -> requests; sent: path -> bytes of bodies.
        tokens: the header `authorization` of each request, "" without one.
        missing: what is answered, with the status 200, for a file that is absent.
    """

    def __init__(self, folder: Path, address: str = "") -> None:
        self.folder = folder
        self.address = address
        self.asked: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.fault: Fault = lambda path, count: None
        self.ranges = True
        self.tokens: list[str] = []
        self.missing: bytes | None = None


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve a folder while the block runs."""
    served = Served(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            path = unquote(self.path.lstrip("/"))
            served.asked[path] += 1
            served.tokens.append(self.headers.get("Authorization", ""))
            fault = served.fault(path, served.asked[path])
            file = served.folder / path
            is_absent = not file.is_file()
            if isinstance(fault, int | str) or (is_absent and served.missing is None):
                self.send_response(fault if isinstance(fault, int) else 302 if fault else 404)
                if isinstance(fault, str):
                    self.send_header("Location", fault)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = served.missing or b"" if is_absent else file.read_bytes()
            first = 0
            if served.ranges and (wanted := self.headers.get("Range")):
                first = int(wanted.removeprefix("bytes=").partition("-")[0])
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}"
                )
            else:
                self.send_response(200)
            body = content[first:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if fault is not None:
                body = body[: int(len(body) * fault)]
                self.close_connection = True
            self.wfile.write(body)
            served.sent[path] += len(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slow(seconds: float) -> Fault:
    """Every answer waits."""

    def fault(path: str, count: int) -> None:
        time.sleep(seconds)

    return fault
