"""Artifacts of a run in Prefect's page (progress, tables, texts, links, tags) and pages they link.

Keys of artifacts tell stores and runs of the same name in different folders apart.

Links lead to pages that `gaitforge serve` shows: reports, cards, and episodes to play. A browser
follows no `file://` link from a server's page, so `gaitforge serve` has a server of pages
(`pipeline/serve/serving.py`). It shows what a flow has registered, and nothing else:

    <PREFECT_HOME>/gaitforge-pages/<id>.json    {"page": FILE} or {"view": STORE or EVALUATION}
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from prefect import artifacts
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_HOME

from gaitforge.common.history import read_history
from gaitforge.flows.progress import Advance, Reporter
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.records import digest, write_record

# Addresses of pages that `gaitforge serve` shows.

# Addresses of pages that `gaitforge serve` shows.
PAGES_URL = "GAITFORGE_PAGES_URL"
"""Environment variable of served flows: the server's address."""

PAGE = "page"
VIEW = "view"


def pages_folder() -> Path:
    """Folder of the registered places."""
    return PREFECT_HOME.value() / "gaitforge-pages"


def file_address(path: Path) -> str:
    """The address of a page, which is registered; what it links is shown with it.

    A `file://` one without a server of pages, e.g. in a worker's process.
    """
    path = path.absolute()
    number = _registered(PAGE, str(path))
    return f"{number}/{quote(path.name)}" if number else path.as_uri()


def view_address(source: Path | str) -> str | None:
    """The address of a page that plays episodes, made when it is opened; None without a server.

    Args:
        source: a store or an evaluation's file, as `gaitforge view` takes it.
    """
    return _registered(VIEW, str(source.absolute() if isinstance(source, Path) else source))


def _registered(kind: str, address: str) -> str | None:
    server = os.environ.get(PAGES_URL)
    if server is None:
        return None
    record = {kind: address}
    number = digest(record)
    write_record(pages_folder() / f"{number}.json", record)
    return f"{server}/{kind}/{number}"


# Artifacts: progress, tables, texts, links and tags.

# Artifacts: progress, tables, texts, links and tags.
PROGRESS_PERIOD_S = 5.0
TABLE_PERIOD_S = 60.0
TABLE_ROWS = 60
"""Most rows of a training's table, spread over the run."""

NO_SERVER = (httpx.TransportError, PrefectHTTPStatusError)


def last_name(place: str) -> str:
    """The last part of a path or URL."""
    return Path(place.rstrip("/")).name


def artifact_key(name: str, place: Path | str | None = None) -> str:
    """A name in the letters that an artifact's key may have.

    Args:
        place: the store, run or file that it is about; its name and a digest of its address follow.
    """
    if place is not None:
        address = str(store_address(place))
        name = f"{name} {last_name(address)} {digest(address)[:6]}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


class ProgressArtifacts:
    """A reporter that also shows each step as a progress artifact of the flow's run."""

    def __init__(self, shown: Reporter):
        self._shown = shown

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `gaitforge.flows.progress.Reporter.step`."""
        with self._shown.step(name, total, unit, done) as show:
            bar = _ProgressBar(name, total, unit, done)

            def advance(n: int, note: str) -> None:
                show(n, note)
                bar.advance(n, note)

            yield advance
            bar.finish()

    def say(self, text: str) -> None:
        """See `gaitforge.flows.progress.Reporter.say`."""
        self._shown.say(text)


class _ProgressBar:
    """A progress artifact; no longer updated once the server does not answer."""

    def __init__(self, name: str, total: int, unit: str, done: int):
        self._name = name
        self._unit = unit
        self._total = max(total, 1)
        self._done = done
        self._before = done
        self._lock, self._started = threading.Lock(), time.monotonic()
        self._updated = self._started
        self._answers = True
        create = artifacts.create_progress_artifact
        key = artifact_key(name)
        self._id = self._try(lambda: create(self._share(), key=key, description=name))

    def advance(self, n: int, note: str) -> None:
        with self._lock:
            self._done += n
            if time.monotonic() - self._updated < PROGRESS_PERIOD_S:
                return
            self._updated = time.monotonic()
        self._update(self._share(), self._description(note))

    def finish(self) -> None:
        # Episodes may end early: fewer steps than expected are a finished step too.
        self._update(100.0, self._name)

    def _share(self) -> float:
        return min(max(100.0 * self._done / self._total, 0.0), 100.0)

    def _description(self, note: str) -> str:
        """The step with its note, its rate and the time that is left."""
        rate = (self._done - self._before) / (time.monotonic() - self._started)
        words = [self._name, *([note] if note else [])]
        if rate > 0:
            left = max(self._total - self._done, 0) / rate / 60
            words.append(f"{rate:,.1f} {self._unit}s/s, {left:,.0f} min left")
        return "; ".join(words)

    def _update(self, share: float, description: str) -> None:
        if self._id is not None:
            update = artifacts.update_progress_artifact
            self._try(lambda: update(self._id, share, description=description))

    def _try(self, request: Callable[[], Any]) -> Any:
        if self._answers:
            try:
                return request()
            except NO_SERVER:
                self._answers = False  # the loss is reported to the flow's caller
        return None


MOST_ROWS = 1000
"""Most rows of a table in Prefect's pages."""


def show_table(
    name: str,
    rows: Sequence[Mapping[str, object]],
    description: str,
    place: Path | str | None = None,
) -> None:
    """Rows, the first `MOST_ROWS` of them, as a table artifact; see `artifact_key`."""
    shown = rows[:MOST_ROWS]
    if len(rows) > MOST_ROWS:
        description = f"{description}: {MOST_ROWS:,} of {len(rows):,} rows"
    table = [{column: _rounded(value) for column, value in row.items()} for row in shown]
    key = artifact_key(name, place)
    artifacts.create_table_artifact(table, key=key, description=description)


def show_markdown(name: str, text: str, description: str, place: Path | str | None = None) -> None:
    """A text as a Markdown artifact; see `artifact_key`."""
    key = artifact_key(name, place)
    artifacts.create_markdown_artifact(text, key=key, description=description)


def show_file(name: str, path: Path, description: str) -> None:
    """A link to a file; see `file_address`."""
    artifacts.create_link_artifact(
        file_address(path),
        link_text=str(path),
        key=artifact_key(name, path.parent),
        description=description,
    )


def show_view(source: Path | str) -> None:
    """A link to a page that plays a store's or an evaluation's episodes, or else its command."""
    # An evaluation.json is named after its run.
    target = Path(source).parent if str(source).endswith(".json") else source
    description = "episodes to play in the browser"
    address = view_address(source)
    if address is None:
        show_markdown("episodes", f"`gaitforge view {source}`", description, target)
    else:
        artifacts.create_link_artifact(
            address,
            link_text=f"play episodes of {last_name(str(target))}",
            key=artifact_key("episodes", target),
            description=description,
        )


def tag_run(**values: str | Sequence[str]) -> None:
    """Give the flow's run tags to find it by, each "name:value"."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    listed = {name: [value] if isinstance(value, str) else value for name, value in values.items()}
    tags = {f"{name}:{value}" for name, entries in listed.items() for value in entries}
    with get_client(sync_client=True) as client, suppress(*NO_SERVER):
        client.update_flow_run(context.flow_run.id, tags={*context.flow_run.tags, *tags})


def _rounded(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


class TrainingTable:
    """A reporter that also shows a training's history as a table, renewed every minute.

    Args:
        shown: a reporter; run: the training's folder.
    """

    def __init__(self, shown: Reporter, run: Path):
        self._shown = shown
        self._run = run

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `gaitforge.flows.progress.Reporter.step`."""
        updated = time.monotonic()
        with self._shown.step(name, total, unit, done) as show:

            def advance(n: int, note: str) -> None:
                nonlocal updated
                show(n, note)
                if time.monotonic() - updated >= TABLE_PERIOD_S:
                    updated = time.monotonic()
                    self._table(total)

            yield advance
            self._table(total)

    def say(self, text: str) -> None:
        """See `gaitforge.flows.progress.Reporter.say`."""
        self._shown.say(text)

    def _table(self, total: int) -> None:
        history = read_history(self._run)
        spacing = max(1, -(-len(history) // TABLE_ROWS))
        rows = [_row(row, total) for row in history[::-1][::spacing]]
        if rows:
            with suppress(*NO_SERVER):
                show_table("training", rows, f"training of {self._run.name}", self._run)


def _row(row: Mapping[str, Any], steps: int) -> dict[str, object]:
    """A row of a training's history, as its table shows it."""
    left_s = row["elapsed_s"] / max(row["step"], 1) * (steps - row["step"])
    return {
        "step": row["step"],
        "of": steps,
        "loss": row["loss"],
        "held-out loss": row.get("validation_loss"),
        "control steps/s": row["steps_per_s"],
        "minutes": row["elapsed_s"] / 60,
        "minutes left": left_s / 60,
    }
