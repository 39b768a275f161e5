"""What the Prefect flows share: retries, the server, and how progress and results are shown.

Tasks are idempotent by the files that they write, so nothing is cached, and a run that died is
resumed by running it again.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx
from prefect import artifacts, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.runtime import flow_run
from prefect.tasks import exponential_backoff

from flows.progress import Advance, Reporter, no_progress
from flows.records.logs import redacted
from flows.retrying import is_passing
from flows.runners.shown_pages import file_address, view_address

RETRIES = 2
FIRST_RETRY_S = 5
JITTER = 0.5
"""A wait is drawn within this share of its length, so that tasks that met one fault spread out."""

PROGRESS_PERIOD_S = 5.0

_NO_SERVER = (httpx.TransportError, PrefectHTTPStatusError)

_LOGGERS = (None, "prefect", "prefect._internal")
"""Loggers with handlers for the terminal; None is the root."""

_reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)


def retried_task(name: str, run_name: str) -> Any:
    """A decorator: a Prefect task that retries transient errors; never cached, result not kept.

    Args:
        run_name: of each of its runs; `{argument}` stands for an argument of the function.
    """
    return task(
        name=name,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(FIRST_RETRY_S),
        retry_jitter_factor=JITTER,
        retry_condition_fn=_may_pass,
    )


def _may_pass(task: Any, task_run: Any, state: Any) -> bool:
    return isinstance(state.data, BaseException) and is_passing(state.data)


def named_after(what: str, parameter: str) -> Callable[[], str]:
    """Names a flow's run after the last part of the path in one of its parameters."""
    return lambda: f"{what} {last_name(flow_run.parameters[parameter])}"


def last_name(place: str) -> str:
    """The last part of a path or URL."""
    return Path(place.rstrip("/")).name


@contextmanager
def run_from_a_program(reporter: Reporter) -> Iterator[None]:
    """The context in which a program calls a flow; `shown_progress` then reports to `reporter`.

    Checks that a server answers, turns its loss into one line, and silences Prefect on the
    terminal.

    Raises:
        ValueError: no server answers, or it went away meanwhile.
    """
    try:
        with get_client(sync_client=True) as client:
            error, address = client.api_healthcheck(), redacted(str(client.api_url))
    except RuntimeError as failure:
        raise ValueError(f"no Prefect server could be started: {failure}") from failure
    if error is not None:
        raise ValueError(
            f"no Prefect server answers at {address}: {error}; start it with `gaitforge serve`, or "
            "unset PREFECT_API_URL for one that lives as long as this run"
        )
    consoles = [handler for name in _LOGGERS for handler in logging.getLogger(name).handlers]
    levels = [(handler, handler.level) for handler in consoles]
    for handler in consoles:
        handler.setLevel(logging.CRITICAL)
    token, lost = _reporter.set(reporter), False
    try:
        yield
    except _NO_SERVER as error:
        lost = True
        raise ValueError(
            f"the Prefect server at {address} was lost ({type(error).__name__}); committed parts "
            "stay, and the same command resumes the run"
        ) from error
    finally:
        _reporter.reset(token)
        # With the server lost, Prefect would print a page for every event that it did not take.
        for handler, level in () if lost else levels:
            handler.setLevel(level)


def shown_progress() -> Reporter:
    """The reporter of a flow's run: progress artifacts, and the calling program's or the log."""
    return ProgressArtifacts(_reporter.get() or RunLog())


class RunLog:
    """A reporter into the log of the flow's or task's run."""

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `flows.progress.Reporter.step`."""
        self.say(f"{name}: {total - done:,} of {total:,} {unit}s are left")
        yield no_progress

    def say(self, text: str) -> None:
        """See `flows.progress.Reporter.say`."""
        get_run_logger().info(text)


class ProgressArtifacts:
    """A reporter that also shows each step as a progress artifact of the flow's run."""

    def __init__(self, shown: Reporter):
        self._shown = shown

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `flows.progress.Reporter.step`."""
        with self._shown.step(name, total, unit, done) as show:
            bar = _ProgressBar(name, total, done)

            def advance(n: int, note: str) -> None:
                show(n, note)
                bar.advance(n)

            yield advance
            bar.finish()

    def say(self, text: str) -> None:
        """See `flows.progress.Reporter.say`."""
        self._shown.say(text)


class _ProgressBar:
    """A progress artifact; no longer updated once the server does not answer."""

    def __init__(self, name: str, total: int, done: int):
        self._total, self._done = max(total, 1), done
        self._lock, self._updated = threading.Lock(), time.monotonic()
        self._answers, key = True, artifact_key(name)
        create = artifacts.create_progress_artifact
        self._id = self._try(lambda: create(self._share(), key=key, description=name))

    def advance(self, n: int) -> None:
        with self._lock:
            self._done += n
            if time.monotonic() - self._updated < PROGRESS_PERIOD_S:
                return
            self._updated = time.monotonic()
        self._update(self._share())

    def finish(self) -> None:
        # Episodes may end early: fewer steps than expected are a finished step too.
        self._update(100.0)

    def _share(self) -> float:
        return min(max(100.0 * self._done / self._total, 0.0), 100.0)

    def _update(self, share: float) -> None:
        if self._id is not None:
            self._try(lambda: artifacts.update_progress_artifact(self._id, share))

    def _try(self, request: Callable[[], Any]) -> Any:
        if self._answers:
            try:
                return request()
            except _NO_SERVER:
                self._answers = False  # the loss is reported to the flow's caller
        return None


def artifact_key(name: str) -> str:
    """A name in the letters that an artifact's key may have."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def show_table(key: str, rows: Sequence[Mapping[str, Any]], description: str) -> None:
    """Rows as a table artifact."""
    table = [{name: _rounded(value) for name, value in row.items()} for row in rows]
    artifacts.create_table_artifact(table, key=artifact_key(key), description=description)


def show_markdown(key: str, text: str, description: str) -> None:
    """A text as a Markdown artifact."""
    artifacts.create_markdown_artifact(text, key=artifact_key(key), description=description)


def show_file(key: str, path: Path, description: str) -> None:
    """A link to a file; see `shown_pages.file_address`."""
    artifacts.create_link_artifact(
        file_address(path),
        link_text=str(path),
        key=artifact_key(key),
        description=description,
    )


def show_view(source: Path | str) -> None:
    """A link to a page that plays a store's or an evaluation's episodes, or else its command."""
    # An evaluation.json is named after its run.
    name = last_name(str(source))
    name = Path(source).parent.name if name.endswith(".json") else name
    key, description = artifact_key(f"episodes {name}"), "episodes to play in the browser"
    address = view_address(source)
    if address is None:
        show_markdown(key, f"`gaitforge view {source}`", description)
    else:
        artifacts.create_link_artifact(
            address, link_text=f"play episodes of {name}", key=key, description=description
        )


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
