"""The page server of `gaitforge serve`: pages that flows registered, on loopback, read only.

/page/<id>/report.html    a registered page, or a file that it links
/view/<id>                a page that plays episodes, made when it is first opened
"""

import base64
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from html.parser import HTMLParser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote, urlsplit

from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_SERVER_API_AUTH_STRING

from gaitforge.flows.records.records import read_record
from gaitforge.flows.runners.shown_pages import PAGE, VIEW, pages_folder
from gaitforge.pipeline.serve.prefect_server import LOOPBACK

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".mp4": "video/mp4",
}
"""The only types of files that are shown, even if a page links others."""
_TEXT = "text/plain; charset=utf-8"

VIEW_EPISODES = 60

_ELSEWHERE = re.compile(r"[\w+.-]+:|/")
"""Start of a link that is not relative to its page."""

_BUSY = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>Episodes</title><p>Replaying up to {count} episodes of {source} for this page…</p>"""
_FAILED = """<!doctype html><meta charset="utf-8"><title>Episodes</title><p>{error}</p>"""


class _Refused(Exception):
    """The status and the one line that a request is answered by."""


@contextmanager
def serving_pages(port: int) -> Iterator[str]:
    """Serve pages on loopback during a `with` block; yields the server's address.

    Port 0 is any free one; ValueError if the port is taken.
    """
    try:
        server = _Server(port)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {LOOPBACK}:{port}, for pages: {error.strerror}; choose another "
            "--port, whose next one is free too"
        ) from None
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Has the folder of registered pages, and the password of Prefect's server.

    Both are read here, since other threads do not see the settings of a `with` block. Pages that
    play episodes are made by a process each, when they are first asked for.
    """

    def __init__(self, port: int):
        self._folder = pages_folder()
        self._lock = threading.Lock()
        self._makers: dict[str, subprocess.Popen[str]] = {}
        self.password = PREFECT_SERVER_API_AUTH_STRING.value() or PREFECT_API_AUTH_STRING.value()
        super().__init__((LOOPBACK, port), _Handler)

    def content(self, path: str) -> tuple[bytes, str]:
        """The content that a request's path names, and its type."""
        kind, number, *names = [*path.strip("/").split("/"), ""]
        record = read_record(self._folder / f"{number}.json") if number.isalnum() else None
        target = (record or {}).get(kind)
        if kind not in (PAGE, VIEW) or target is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "no such page; open it from a run's artifacts")
        if kind == VIEW:
            return self._view(number, target).encode(), TYPES[".html"]
        file = _shown_file(Path(target), "/".join(names[:-1]))
        if file is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "no such file")
        return file.read_bytes(), TYPES[file.suffix]

    def _view(self, number: str, source: str) -> str:
        """The page of a source's episodes, or one that waits for it or says why there is none.

        It is made anew once a later run has registered the source again.
        """
        page = self._folder / f"{number}.html"
        with self._lock:
            maker = self._makers.get(number)
            if maker is None:
                registered = (self._folder / f"{number}.json").stat().st_mtime
                if page.is_file() and page.stat().st_mtime >= registered:
                    return page.read_text()
                command = [sys.executable, "-P", "-m", "gaitforge", "view", source]
                self._makers[number] = subprocess.Popen(
                    [*command, "--out", str(page), "--limit", str(VIEW_EPISODES)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            elif maker.poll() is not None:
                del self._makers[number]
                if maker.returncode == 0:
                    return page.read_text()
                lines = maker.communicate()[1].strip().splitlines() or ["it said nothing"]
                return _FAILED.format(error=escape(lines[-1]))
        return _BUSY.format(count=VIEW_EPISODES, source=escape(source))

    def server_close(self) -> None:
        """End the processes that make pages too."""
        super().server_close()
        for maker in self._makers.values():
            maker.terminate()
            maker.wait()


def _shown_file(page: Path, name: str) -> Path | None:
    """The file of that name beside a page, if it is the page or the page links it.

    Neither hidden files nor links of the file system that leave the page's folder are shown.
    """
    parts = name.split("/")
    folder = page.parent.resolve()
    file = folder.joinpath(*parts).resolve()
    if not file.is_relative_to(folder) or file.suffix not in TYPES or not file.is_file():
        return None
    if any(part[:1] in ("", ".") for part in (*parts, *file.relative_to(folder).parts)):
        return None
    return file if name == page.name or name in _Links(page).names else None


class _Links(HTMLParser):
    """The files beside or below a page that it links or embeds."""

    def __init__(self, page: Path):
        super().__init__()
        self.names: set[str] = set()
        if page.suffix == ".html":
            self.feed(page.read_text(errors="replace"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser.handle_starttag`."""
        for name, value in attrs:
            if name in ("href", "src", "poster") and value and not _ELSEWHERE.match(value):
                self.names.add(normpath(unquote(re.split("[?#]", value)[0])))


class _Handler(BaseHTTPRequestHandler):
    """Answers GET; asks for the password of Prefect's server, if it has one."""

    def do_GET(self) -> None:
        """Send a page, or say in one line why not."""
        assert isinstance(self.server, _Server)
        try:
            self._check(self.server.password)
            answer = HTTPStatus.OK, *self.server.content(unquote(urlsplit(self.path).path))
        except _Refused as refused:
            status, why = refused.args
            answer = status, f"{why}\n".encode(), _TEXT
        except (ValueError, OSError):  # no address, or a file that cannot be read
            answer = HTTPStatus.BAD_REQUEST, b"this cannot be shown\n", _TEXT
        self._send(*answer)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""

    def _check(self, password: str | None) -> None:
        # Another site's name that leads to loopback must not read pages (DNS rebinding).
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in (LOOPBACK, "localhost"):
            raise _Refused(HTTPStatus.FORBIDDEN, "pages are for this machine")
        if password is None:
            return
        expected = "Basic " + base64.b64encode(password.encode()).decode()
        # As bytes: texts that are not ASCII cannot be compared in constant time.
        answer = self.headers.get("Authorization", "")
        if not secrets.compare_digest(answer.encode(), expected.encode()):
            raise _Refused(HTTPStatus.UNAUTHORIZED, "the user and password of Prefect's server")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="gaitforge", charset="UTF-8"')
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)
