"""Helpers of the Prefect flows: retries, the server, the ends of runs, and reporters.

Tasks are idempotent by the files that they write, so nothing is cached, and a run that died is
resumed by running it again.

Prefect's settings on this machine are here too: a folder for its database, and ways past proxies.
"""

import errno
import ipaddress
import logging
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec
from urllib.parse import urlsplit
from uuid import UUID

from prefect import get_run_logger, task
from prefect.assets import Asset, materialize
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType, TaskRun
from prefect.settings import PREFECT_API_URL, PREFECT_HOME
from prefect.states import Cancelled
from prefect.tasks import exponential_backoff

from gaitforge.common.interrupts import Interrupted
from gaitforge.common.locks import exclusive_lock
from gaitforge.common.redaction import redacted
from gaitforge.flows.progress import Advance, Reporter, no_progress
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.runners.artifacts import NO_SERVER, ProgressArtifacts
from gaitforge.flows.runners.slurm.jobs import cancel_job, read_job
from gaitforge.flows.stages.collect import is_passing

# Prefect's settings on this machine.
ROOM_BYTES = 16 * 1024**2
"""What a server's database and log take at least; a first start writes about half of it."""


def check_prefect_home() -> None:
    """Make the folder of a server that starts here.

    ValueError where it cannot be written, its disk is full, or it takes no SQLite database.
    """
    home = PREFECT_HOME.value()
    advice = "set PREFECT_HOME to another folder"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home) as probe:
            # Written, as a quota does not show in the disk's free bytes.
            probe.write(bytes(ROOM_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"Prefect's folder {home} has no room: {error.strerror} (a server needs "
                f"{ROOM_BYTES // 1024**2} MB); make room, or {advice}"
            ) from None
        raise ValueError(f"Prefect cannot write {home}: {error.strerror}; {advice}") from None
    try:
        with tempfile.TemporaryDirectory(dir=home) as folder:
            database = sqlite3.connect(Path(folder, "probe.db"), timeout=5.0)
            with closing(database):
                database.execute("PRAGMA journal_mode=WAL")  # as Prefect's own
                database.execute("CREATE TABLE probe (number INTEGER)")
                database.commit()
    except (sqlite3.Error, OSError) as error:
        raise ValueError(
            f"Prefect's folder {home} takes no SQLite database ({error}); {advice} on a local disk"
        ) from None


@contextmanager
def first_start() -> Iterator[None]:
    """Start one server at a time in Prefect's folder.

    Each start migrates the database, and two of a new one at a time fail.
    """
    with exclusive_lock(PREFECT_HOME.value() / ".gaitforge-start.lock"):
        yield


def bypass_proxies(host: str = "") -> None:
    """Reach this machine and `host` without a proxy, also from processes that start later.

    A server elsewhere that PREFECT_API_URL names is reached by the user's proxy; ValueError if
    that is a SOCKS proxy and the package for it is missing.
    """
    server = urlsplit(PREFECT_API_URL.value() or "").hostname or "localhost"
    listed = ",".join(os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    if "*" in listed:  # no proxy for any host
        return
    direct = ["127.0.0.1", "localhost", "::1", host, server if is_loopback(server) else ""]
    names = ",".join(dict.fromkeys(name.strip() for name in listed + direct if name.strip()))
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = names
    # Without that package httpx makes no client at all, not even for hosts without a proxy.
    for name, proxy in list(os.environ.items()) if find_spec("socksio") is None else ():
        if name.lower().endswith("_proxy") and proxy.lower().startswith("socks"):
            if not is_loopback(server):
                raise ValueError(f"{name} is a SOCKS proxy; it needs: pip install 'httpx[socks]'")
            print(f"without 'httpx[socks]', {name} is not used", file=sys.stderr, flush=True)
            del os.environ[name]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Helpers of the flows.
RETRIES = 2
FIRST_RETRY_S = 5
JITTER = 0.5
"""A wait is drawn within this share of its length, so that tasks that met one fault spread out."""

_LOGGERS = (None, "prefect", "prefect._internal")
"""Loggers with handlers for the terminal; None is the root."""

SLURM_JOB = "slurm-job:"
"""Start of the tag of a task run that waits for a job, before the job's folder."""

P = ParamSpec("P")

_reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)


def retried_task(name: str, run_name: str) -> Any:
    """A decorator: a Prefect task that retries transient errors; never cached, result not kept.

    Args:
        run_name: of each of its runs; `{argument}` stands for an argument of the function.
    """
    decorator = task(name=name, task_run_name=run_name, **_retried())
    return lambda function: decorator(_stoppable(function))


def making(maker: Any, product: Path | str, *sources: Path | str) -> Any:
    """The task that makes a store or run, for Prefect's assets, which show where data came from.

    Args:
        maker: of `retried_task`; product: the address of what it makes; sources: of what it reads.
    """
    assets: list[Asset | str] = [asset_key(source) for source in sources]
    names = {"name": maker.name, "task_run_name": maker.task_run_name}
    return materialize(asset_key(product), asset_deps=assets, **names, **_retried())(maker.fn)


def asset_key(place: Path | str) -> str:
    """The key of a store's or run's asset: its address as a URL."""
    address = store_address(place)
    return address if isinstance(address, str) else address.as_uri()


def _retried() -> dict[str, Any]:
    return {
        "cache_policy": NO_CACHE,
        "persist_result": False,
        "retries": RETRIES,
        "retry_delay_seconds": exponential_backoff(FIRST_RETRY_S),
        "retry_jitter_factor": JITTER,
        "retry_condition_fn": _may_pass,
    }


def _stoppable(function: Callable[P, Any]) -> Callable[P, Any]:
    """A task's function that ends as cancelled, not as failed, when it is stopped."""

    @wraps(function)
    def run(*arguments: P.args, **named: P.kwargs) -> Any:
        try:
            return function(*arguments, **named)
        except Interrupted:
            return Cancelled(message="stopped; nothing of it was committed")

    return run


def _may_pass(task: Any, task_run: Any, state: Any) -> bool:
    return isinstance(state.data, BaseException) and is_passing(state.data)


@contextmanager
def run_from_a_program(reporter: Reporter) -> Iterator[None]:
    """The context in which a program calls a flow; `shown_progress` then reports to `reporter`.

    Checks that a server answers, turns its loss into one line, and silences Prefect on the
    terminal.

    Raises:
        ValueError: no server answers or can be started, or it went away meanwhile.
    """
    starts_one = not PREFECT_API_URL.value()
    if starts_one:
        check_prefect_home()
    bypass_proxies()
    try:
        with (
            first_start() if starts_one else nullcontext(),
            get_client(sync_client=True) as client,
        ):
            error = client.api_healthcheck()
            address = redacted(str(client.api_url))
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
    token = _reporter.set(reporter)
    lost = False
    try:
        yield
    except NO_SERVER as error:
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
        """See `gaitforge.flows.progress.Reporter.step`."""
        self.say(f"{name}: {total - done:,} of {total:,} {unit}s are left")
        yield no_progress

    def say(self, text: str) -> None:
        """See `gaitforge.flows.progress.Reporter.say`."""
        get_run_logger().info(text)


def end_tasks(flow: Any, flow_run: Any, state: Any) -> None:
    """A flow's `on_cancellation`: cancels its Slurm jobs, and shows its open tasks as cancelled."""
    with get_client(sync_client=True) as client:
        for task_run in _open_tasks(client, flow_run.id):
            folders = [tag.removeprefix(SLURM_JOB) for tag in task_run.tags if SLURM_JOB in tag]
            for folder in folders:
                cancel_job(read_job(Path(folder)))
            message = "the job was cancelled" if folders else "the run was cancelled"
            with suppress(*NO_SERVER):
                client.set_task_run_state(task_run.id, Cancelled(message=message), force=True)


def _open_tasks(client: SyncPrefectClient, run: UUID) -> list[TaskRun]:
    """The tasks of a flow's run that have not ended, or only by the end of their process."""
    types = [StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED, StateType.CRASHED]
    state = TaskRunFilterState(type=TaskRunFilterStateType(any_=types))
    return client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])),
        task_run_filter=TaskRunFilter(state=state),
    )


FLOW_OPTIONS: dict[str, Any] = {"persist_result": False, "on_cancellation": [end_tasks]}
"""Options of every flow: its result is not kept, and a cancel ends its tasks and jobs."""


class WrongInputInOneLine(logging.Filter):
    """Logs a ValueError, whose message says what was wrong, once and without its traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._last: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, ValueError):
            return True
        if error is self._last:  # of the task, and now of its flow
            return False
        self._last = error
        record.msg = " ".join(str(error).split())
        record.args = ()
        record.exc_info = record.exc_text = None
        return True


_ONE_LINE = WrongInputInOneLine()
for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_ONE_LINE)
