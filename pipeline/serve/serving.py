"""`gaitforge serve`: the deployed flows with a Prefect server, and a server of pages.

`serve_flows` serves a Prefect server, the flows' forms and a schedule, until Ctrl-C.

The page server shows pages that flows registered, on loopback, read only:

    /page/<id>/report.html    a registered page, or a file that it links
    /view/<id>                a page that plays episodes, made when it is first opened
"""

import asyncio
import base64
import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from posixpath import normpath
from typing import Any
from urllib.parse import unquote, urlsplit

from prefect import Flow
from prefect import serve as serve_deployments
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.schedules import Cron, Schedule
from prefect.server.schemas.schedules import CronSchedule
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_SERVER_API_AUTH_STRING
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from gaitforge.common.errors import amount
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.flows.records.records import read_record
from gaitforge.flows.runners.artifacts import PAGE, PAGES_URL, VIEW, pages_folder
from gaitforge.flows.runners.prefect_stages import SITE
from gaitforge.flows.settings import sets
from gaitforge.flows.tasks.legged import legged_plan
from gaitforge.pipeline.serve.prefect_server import LOOPBACK, check_host, prefect_api
from gaitforge.pipeline.terminal import fields_of

# The page server.
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


# The deployed flows.
NAME = "gaitforge"
"""Name of every deployment: Prefect lists them as FLOW/NAME, e.g. collect/gaitforge."""


@dataclass(frozen=True)
class ServePlan:
    """Plan of serving: collection, schedule and server.

    Attributes:
        store: the default store of collect/gaitforge.
        schedule: when to collect, as cron's five fields; empty for never.
        new_every_day: use the day as the seed.
        preset, threads, settings: defaults of the collection.
        slurm: settings of all Slurm jobs that runs ask for, see `flows/runners/prefect_stages.py`.
        collecting: fields of `SlurmForm` for the collections; empty for this machine.
        host, port, expose: the server to start if PREFECT_API_URL names none.
    """

    store: Path | str | None
    schedule: str
    timezone: str
    new_every_day: bool
    preset: str
    threads: int | None
    settings: list[str]
    slurm: Mapping[str, object]
    collecting: Mapping[str, object]
    host: str
    port: int
    expose: bool


def serve_flows(
    plan: ServePlan, flows: Mapping[str, Flow[..., Any]], alone: Container[str]
) -> None:
    """Serve flows, by their names, until interrupted.

    Args:
        alone: flows that run one at a time: two collections would compete for the cores.

    Raises:
        ValueError: an address that is not to be exposed, a wrong schedule or collection, or a
            server that does not answer.
    """
    check_host(plan.host, plan.expose)
    collecting = _collecting(plan)
    schedule = _schedule(plan)
    pages_port = plan.port + 1 if plan.port else 0
    with serving_pages(pages_port) as pages, prefect_api(plan.host, plan.port) as url:
        os.environ[PAGES_URL] = pages
        os.environ[SITE] = json.dumps(dict(plan.slurm))
        os.environ["PYTHONSAFEPATH"] = "1"  # a run's `python -m` imports nothing of this folder
        deployments = [
            _deployment(
                flows[name], collecting if name == "collect" else {}, schedule, name in alone
            )
            for name in flows
        ]
        print(f"Prefect: {url.removesuffix('/api')}")
        print(f"pages of reports and episodes: {pages}, as the runs' artifacts link them")
        print(f"serving {', '.join(f'{name}/{NAME}' for name in flows)}")
        if schedule is not None:
            into = collecting["store"]
            by = " by Slurm jobs" if plan.collecting else ""
            when = f"'{schedule.cron}' ({schedule.timezone})"
            print(f"collect/{NAME} runs at {when} into {into}{by}")
        print("Ctrl-C stops all of it", flush=True)
        serve_deployments(*deployments, print_starting_message=False)


def _collecting(plan: ServePlan) -> dict[str, object]:
    """The default parameters of collect/gaitforge; wrong values are refused here."""
    values: dict[str, object] = fields_of(plan, "preset", "threads", "settings", "new_every_day")
    if plan.threads is None:
        del values["threads"]
    if plan.collecting:
        values["slurm"] = dict(plan.collecting)
    legged_plan(plan.preset, {"threads": plan.threads or 0}, plan.settings)  # raises
    if plan.new_every_day and sets(plan.settings, "seed"):
        raise ValueError("with --new-every-day the day is the seed: drop --set grid.seed")
    if plan.store is None:
        return values
    store = str(plan.store)
    return values | {"store": store if is_bucket_url(store) else os.path.abspath(store)}


def _schedule(plan: ServePlan) -> Schedule | None:
    if not plan.schedule:
        return None
    if plan.store is None:
        raise ValueError("a schedule needs --store, where it collects into")
    try:
        # Prefect also takes six, of which the last are seconds.
        if (fields := len(plan.schedule.split())) != 5:
            raise ValueError(f"it has {amount(fields, 'field')}")
        # Raises where no date ever comes.
        asyncio.run(CronSchedule(cron=plan.schedule, timezone=plan.timezone).get_dates(1))
    except ValueError as error:
        invalid = isinstance(error, ValidationError)
        reason = error.errors()[0]["msg"].removeprefix("Value error, ") if invalid else error
        raise ValueError(
            f"cannot schedule '{plan.schedule}' in {plan.timezone}: {reason}; five "
            "fields are wanted, as '0 2 * * *' for every night at two"
        ) from None
    return Cron(plan.schedule, timezone=plan.timezone)


def _deployment(
    deployed: Flow[..., Any], parameters: dict[str, object], schedule: Schedule | None, alone: bool
) -> Any:
    limit = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
    return deployed.to_deployment(
        NAME,
        parameters=parameters,
        schedule=schedule if deployed.name == "collect" else None,
        concurrency_limit=limit if alone else None,
        tags=[NAME],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
