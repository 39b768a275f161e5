"""Dask clients: of workers on this machine, of an existing scheduler, or of jobs in a queue.

Clusters started here are encrypted with keys of their own; a local one listens on loopback only.
"""

import logging
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.common.errors import missing_package
from gaitforge.common.files import cache_folder
from gaitforge.common.machine import usable_cores

if TYPE_CHECKING:
    from distributed import Client

LOOPBACK = "127.0.0.1"
DASHBOARD_PORT = 8787
QUEUES = ("slurm",)
JOB_MEMORY = "4GB"
_MEMORY = re.compile(r"(\d+(\.\d+)?\s*[KMGT]i?B)?")
LIFETIME_MARGIN_S = 300
"""Workers leave the queue's job this long before its limit, so that the scheduler notices."""
REPLACE_S = 2.0
"""Seconds between two looks for workers to replace."""

CONFIG = {
    # The profiler samples the stack a hundred times a second.
    "distributed.worker.profile.enabled": False,
    # A part's arrays cannot be moved to disk: a worker that spills or pauses would wait for ever.
    # One beyond its limit is restarted; `flows/runners/dask.py` decides how often.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    # A worker may take this long to restart on a busy machine; Dask's default is 15 s.
    "distributed.deploy.lost-worker-timeout": "60s",
}


@dataclass(frozen=True)
class DaskSettings:
    """A Dask cluster: of `scheduler`, of `jobqueue`, or without either on this machine.

    Attributes:
        workers: processes (or jobs in the queue) of one thread each; 0 for as many as cores.
        scheduler: address of an existing one, e.g. tcp://host:8786; its workers must have this
            package and see the store under the same path.
        jobqueue: "slurm" for workers that are jobs of it (needs dask-jobqueue).
        adaptive: start and end workers as the work needs them, `workers` at most.
        dashboard: show Dask's page on loopback.
        partition, walltime_min: of a job in the queue.
        memory: limit of a worker, e.g. 4GB, beyond which it is restarted; empty for none here and
            4GB of a job in the queue.
        connect_s: seconds to wait for an existing scheduler.
        worker_deaths: of the last part that is left, after which it is given up.
    """

    workers: int = 0
    scheduler: str = ""
    jobqueue: str = ""
    adaptive: bool = False
    dashboard: bool = False
    partition: str = ""
    walltime_min: int = 60
    memory: str = ""
    connect_s: float = 5.0
    worker_deaths: int = 4

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"{self.workers} workers: needs at least 1, or 0 for one per core")
        if self.worker_deaths < 1:
            raise ValueError(f"{self.worker_deaths} deaths of workers: needs at least 1")
        if self.scheduler and self.jobqueue:
            raise ValueError("give the address of a scheduler or a job queue, not both")
        if self.jobqueue and self.jobqueue not in QUEUES:
            raise ValueError(f"unknown job queue '{self.jobqueue}'; allowed: {', '.join(QUEUES)}")
        if self.adaptive and self.scheduler:
            raise ValueError("the workers of an existing scheduler are its own, not adaptive")
        if not _MEMORY.fullmatch(self.memory):
            raise ValueError(f"a worker's memory looks like 4GB or 500MB, not '{self.memory}'")
        if self.walltime_min * 60 <= LIFETIME_MARGIN_S:
            raise ValueError(
                f"a job of {self.walltime_min} min is too short for workers that leave "
                f"{LIFETIME_MARGIN_S // 60} min before its end"
            )


@contextmanager
def dask_client(settings: DaskSettings, most: int | None = None) -> "Iterator[Client]":
    """A client for the time of the block, also for Dask's own computations.

    Args:
        settings: which cluster; most: workers that there is work for.

    Raises:
        ValueError: Dask's distributed part (or dask-jobqueue) is not installed, or the scheduler
            cannot be reached.
    """
    try:
        import dask.config as dask_config
        import distributed
    except ImportError:
        raise ValueError(missing_package("this", "distributed", "dask")) from None
    if settings.dashboard and find_spec("bokeh") is None:
        raise ValueError(missing_package("Dask's page", "bokeh", "dask"))
    with dask_config.set(CONFIG):
        if settings.scheduler:
            with _connected(distributed, settings) as client:
                _tell_wait(f"the scheduler at {settings.scheduler} gets one", client)
                yield client
        elif settings.jobqueue:
            with _queued(settings, most) as cluster, distributed.Client(cluster) as client:
                _tell_page(settings, client)
                _tell_wait(f"{settings.jobqueue} starts one", client)
                yield client
        else:
            with _local(distributed, settings, most) as cluster, cluster.get_client() as client:
                _tell_page(settings, client)
                yield client


def _tell_page(settings: DaskSettings, client: "Client") -> None:
    if settings.dashboard:
        print(f"Dask's page: {client.dashboard_link}", file=sys.stderr, flush=True)


def _tell_wait(until: str, client: "Client") -> None:
    if not client.ncores():
        print(f"no Dask worker yet; waiting until {until}", file=sys.stderr, flush=True)


def _connected(distributed: Any, settings: DaskSettings) -> "Client":
    # It logs a lost scheduler as a traceback; `run_parts` reports it in a line.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        # First a client that is not Dask's default: a default that cannot connect stays the
        # default, and later Dask computations of this process would wait for it.
        address = settings.scheduler
        limit_s = settings.connect_s
        # A client with a malformed address fails a second time, with a traceback, when it is freed.
        distributed.comm.resolve_address(address)
        distributed.Client(address, timeout=limit_s, set_as_default=False).close()
        return distributed.Client(address, timeout=limit_s)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"no Dask scheduler answers at {settings.scheduler}: {reason}; start one with "
            "`dask scheduler`, or leave --scheduler out for workers on this machine"
        ) from None


@contextmanager
def _local(distributed: Any, settings: DaskSettings, most: int | None) -> Iterator[Any]:
    try:
        multiprocessing.get_context("spawn").Lock()  # as Dask makes them, in shared memory
    except OSError as error:
        raise ValueError(
            f"Dask's workers here need /dev/shm, which cannot be used: {error.strerror}; mount it, "
            "or use --runner local"
        ) from None
    with tempfile.TemporaryDirectory(prefix="gaitforge-dask-") as scratch:
        cluster = distributed.LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            processes=True,
            host=LOOPBACK,
            security=True,
            **_page(settings),
            local_directory=scratch,
            memory_limit=settings.memory or 0,
            # An error is a worker's lost heartbeat or connection, often as the cluster closes; what
            # fails for good is raised here.
            silence_logs=logging.CRITICAL,
        )
        asyncio_log = logging.getLogger("asyncio")
        asyncio_log.addFilter(_is_no_lost_worker)
        try:
            if settings.adaptive:
                _adapt(cluster, settings, most)
            else:
                # Not awaited: a worker that dies while it starts is replaced, too.
                cluster.scale(_worker_count(settings, most))
            _replace_lost(cluster)
            yield cluster
        finally:
            # Dask cannot close a worker that is being restarted just then; it ends with us.
            with suppress(AssertionError):
                cluster.close()
            asyncio_log.removeFilter(_is_no_lost_worker)


def _is_no_lost_worker(record: logging.LogRecord) -> bool:
    """Whether a record of asyncio is of something else than a worker that died while it started.

    Dask leaves that error unread, so that asyncio logs it as a traceback; `_replace_lost` starts
    another worker.
    """
    error = record.exc_info[1] if record.exc_info else None
    return "Nanny failed to start" not in str(error)


def _queued(settings: DaskSettings, most: int | None) -> Any:
    try:
        jobqueue: Any = import_module("dask_jobqueue")
    except ImportError:
        raise ValueError(missing_package("a job queue", "dask-jobqueue", "slurm")) from None
    lifetime_s = settings.walltime_min * 60 - LIFETIME_MARGIN_S
    shared = _shared_folder()
    cluster = jobqueue.SLURMCluster(
        queue=settings.partition or None,
        walltime=f"{settings.walltime_min // 60:02}:{settings.walltime_min % 60:02}:00",
        cores=1,
        processes=1,
        memory=settings.memory or JOB_MEMORY,
        # Workers connect from other machines: encrypted, with keys that are files of the user
        # alone and are removed with the cluster.
        security=True,
        shared_temp_directory=str(shared),
        log_directory=str(shared),
        worker_extra_args=["--lifetime", f"{lifetime_s}s", "--lifetime-stagger", "60s"],
        scheduler_options=_page(settings),
        job_script_prologue=[f"export {name}={value}" for name, value in _variables()],
    )
    if settings.adaptive:
        _adapt(cluster, settings, most)
    else:
        cluster.scale(jobs=_worker_count(settings, most))
    _replace_lost(cluster)
    return cluster


def _replace_lost(cluster: Any) -> None:
    """Start another worker for each that is lost, as long as the cluster lives.

    Dask forgets a worker that came back too late from a restart, one that died while it started,
    and a job of a queue that ended: the work would then wait for ever.
    """
    from distributed.core import Status
    from tornado.ioloop import PeriodicCallback

    def replace() -> None:
        for name, worker in list(cluster.workers.items()):
            if worker.status in (Status.closed, Status.failed):
                del cluster.workers[name]
        cluster.scale(len(cluster.worker_spec))

    # The cluster stops its callbacks when it closes.
    callback = cluster.periodic_callbacks["replace-lost"] = PeriodicCallback(
        replace, REPLACE_S * 1000
    )
    cluster.loop.add_callback(callback.start)


def _variables() -> list[tuple[str, str]]:
    """`CONFIG` as environment variables, for workers that are no children of this process."""
    return [(f"DASK_{k.upper().replace('.', '__')}", str(value)) for k, value in CONFIG.items()]


def _adapt(cluster: Any, settings: DaskSettings, most: int | None) -> None:
    if settings.adaptive:
        cluster.adapt(minimum=0, maximum=_worker_count(settings, most), interval="2s")


def _shared_folder() -> Path:
    """The folder of the jobs' logs and the cluster's keys, in the home that the machines share."""
    folder = cache_folder() / "dask-jobs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _page(settings: DaskSettings) -> dict[str, str]:
    """The address of the scheduler's page: a known port with `dashboard`, else any free one."""
    return {"dashboard_address": f"{LOOPBACK}:{DASHBOARD_PORT if settings.dashboard else 0}"}


def _worker_count(settings: DaskSettings, most: int | None) -> int:
    workers = settings.workers or usable_cores()
    return workers if most is None else max(1, min(workers, most))
