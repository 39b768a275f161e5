"""What flows under Prefect share: how a task is tried again, and how progress and results show.

Prefect watches and records; correctness does not lean on it. Tasks are idempotent by the files that
they leave, so nothing is cached, and a run that died is resumed by running it again.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import httpx
from prefect import Task, get_run_logger, task
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.tasks import exponential_backoff

from flows.progress import Advance, Reporter, unheard
from flows.records.logs import redacted
from flows.runners.retrying import is_passing

RETRIES = 2
FIRST_RETRY_S = 5
JITTER = 0.5
"""A wait is drawn within this share of its length, so that tasks that met one fault part ways."""

PROGRESS_PERIOD_S = 5.0

_NO_SERVER = (httpx.TransportError, PrefectHTTPStatusError)

_LOGGERS = (None, "prefect", "prefect._internal")
"""Those that have handlers of their own for the terminal; None is the root."""

Result = TypeVar("Result")


def make_task(work: Callable[..., Result], name: str, run_name: str) -> Task[..., Result]:
    """A task that is tried again where that may help, keeps no result, and is never cached.

    Args:
        run_name: of each of its runs; `{argument}` stands for an argument of `work`.
    """
    options: Any = task(
        name=name,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(FIRST_RETRY_S),
        retry_jitter_factor=JITTER,
        retry_condition_fn=_may_pass,
    )
    return options(work)


def run_stage(name: str, work: Callable[[], Result]) -> Result:
    """A named piece of work as a task, in this thread: a `flows.stages.demo.Stage`."""
    return make_task(work, name.split()[0], name)()


def _may_pass(task: Any, task_run: Any, state: Any) -> bool:
    return isinstance(state.data, BaseException) and is_passing(state.data)


@contextmanager
def prefect_server() -> Iterator[None]:
    """Around the call of a flow by a program with a voice of its own.

    The server answers before it, losing it is one clear line, and what Prefect would tell the
    terminal is kept to the server.

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
    try:
        yield
    except _NO_SERVER as error:
        # The levels stay: a page would follow for every event that the server did not take.
        raise ValueError(
            f"the Prefect server at {address} was lost ({type(error).__name__}); what is committed "
            "stays, and the same command goes on from here"
        ) from error
    except BaseException:
        _restore(levels)
        raise
    _restore(levels)


def _restore(levels: Sequence[tuple[logging.Handler, int]]) -> None:
    for handler, level in levels:
        handler.setLevel(level)


class RunLog:
    """A reporter into the log of the flow's or task's run."""

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `flows.progress.Reporter.step`."""
        self.say(f"{name}: {total - done:,} of {total:,} {unit}s are left")
        yield unheard

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
    """A progress artifact. Once the server does not answer it is left as it is."""

    def __init__(self, name: str, total: int, done: int):
        self._total, self._done = max(total, 1), done
        self._lock = threading.Lock()
        self._told = time.monotonic()
        self._id: UUID | None = None
        self._answers = True
        self._tell(lambda: self._create(name))

    def advance(self, n: int) -> None:
        with self._lock:
            self._done += n
            if time.monotonic() - self._told < PROGRESS_PERIOD_S:
                return
            self._told = time.monotonic()
        self._update(100.0 * self._done / self._total)

    def finish(self) -> None:
        # Episodes that end early leave steps over; the step is finished all the same.
        self._update(100.0)

    def _create(self, name: str) -> None:
        share = 100.0 * self._done / self._total
        made = create_progress_artifact(min(share, 100.0), key=artifact_key(name), description=name)
        assert isinstance(made, UUID)
        self._id = made

    def _update(self, share: float) -> None:
        known = self._id
        if known is not None:
            self._tell(lambda: update_progress_artifact(known, min(max(share, 0.0), 100.0)))

    def _tell(self, tell: Callable[[], Any]) -> None:
        if not self._answers:
            return
        try:
            tell()
        except _NO_SERVER:
            # The work goes on; only who waits for its result hears of the loss.
            self._answers = False


def artifact_key(name: str) -> str:
    """A name in the letters that an artifact's key may have."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def show_table(key: str, rows: Sequence[Mapping[str, Any]], description: str) -> None:
    """Rows as a table artifact."""
    table = [{name: _rounded(value) for name, value in row.items()} for row in rows]
    create_table_artifact(table, key=artifact_key(key), description=description)


def show_markdown(key: str, text: str, description: str) -> None:
    """A text as a Markdown artifact."""
    create_markdown_artifact(text, key=artifact_key(key), description=description)


def show_file(key: str, path: Path, description: str) -> None:
    """A link to a file; browsers follow it on the machine where the file is."""
    create_link_artifact(
        path.absolute().as_uri(),
        link_text=str(path),
        key=artifact_key(key),
        description=description,
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
