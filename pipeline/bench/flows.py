"""What orchestration costs, and how far collection scales.

Overhead: the same parts are made by a bare loop, by Dask, and by Prefect tasks over Dask, each in
one warm worker process, in turns. Figures: the ratio of the wall times, and the seconds between
the end of a part and the start of the next, which the machine's load hardly touches.

Scaling: many simulated workers sleep the recorded durations of those parts, by the scheduler and
runner of a real collection, in one process. 512 of them as 64 workers of 8 threads are the most
that a small machine holds. What a longer run or fewer parts would give is computed from the
scheduler's measured time per task (`modelled_efficiency`).
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collectors.legged.data import CollectionGrid
from datasets import open_store
from flows.progress import Reporter, Silent
from flows.records.part_records import PartCollected, part_records
from flows.records.records import provenance, write_record
from flows.runners.dask import make_part, run_parts
from flows.runners.dask_clusters import CONFIG, LOOPBACK, DaskSettings, dask_client
from flows.stages.collect import collect_part, prepare
from flows.tasks.legged import LeggedPlan
from pipeline.tables import show_one

THREADS_A_WORKER = 8
MODELLED_PARTS = (1, 2, 4, 8, 16, 32)

MakeParts = Callable[[Sequence[str]], tuple[list[PartCollected], float]]
"""The records of some parts, and the wall seconds that they took together."""


@dataclass(frozen=True)
class FlowBenchConfig:
    """What is measured.

    Attributes:
        grid: parts that are made in each way, besides one to warm up.
        simulated_workers: numbers of workers, multiples of 8; parts_per_worker: that they sleep.
        simulated_part_s: mean seconds of a sleep, long beside what the runner adds to a part.
        empty_tasks: from which the scheduler's time per task is measured.
        recorded: a store whose parts' durations are slept; None for those that were made here.
    """

    grid: CollectionGrid = field(
        default_factory=lambda: CollectionGrid(parts=41, episodes_per_part=24)
    )
    rounds: int = 4
    simulated_workers: tuple[int, ...] = (64, 512)
    parts_per_worker: int = 16
    simulated_part_s: float = 10.0
    empty_tasks: int = 2000
    recorded: Path | None = None


def run(arguments: argparse.Namespace, reporter: Reporter) -> None:
    """Measure and print the figures."""
    config = FlowBenchConfig(recorded=arguments.recorded)
    show_one(run_flow_bench(arguments.out, config, reporter), arguments.json)


def run_flow_bench(
    out: Path, config: FlowBenchConfig | None = None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Measure both; writes ``bench_flows.json`` into `out`.

    Returns:
        ``wall_s`` and ``between_parts_s`` (way -> seconds), ``overhead`` and
        ``overhead_between_parts`` (way -> share of the bare loop's wall time that is added),
        ``scheduler_s_per_task``, ``part_cv`` (spread of the durations over their mean),
        ``simulated`` (a record per number of workers; ``efficiency`` is ideal over actual time),
        ``modelled`` (parts per worker -> efficiency at the most workers) and ``limits`` (text).
    """
    config, reporter = config or FlowBenchConfig(), reporter or Silent()
    recorded = None if config.recorded is None else _recorded(config.recorded)
    out.mkdir(parents=True, exist_ok=True)
    with reporter.step("bench flows", config.grid.parts - 1, "part") as advance:
        found, made_here = _overhead(out, config, advance)
    durations = recorded or made_here
    with reporter.step("bench scaling", 1 + len(config.simulated_workers), "stage") as advance:
        per_task = _scheduler_s_per_task(config.empty_tasks)
        advance(1, "scheduler")
        simulated = []
        for workers in config.simulated_workers:
            simulated.append(_simulated(durations, workers, config))
            advance(1, f"{workers} workers")
    most = max(config.simulated_workers)
    found |= {
        "scheduler_s_per_task": per_task,
        "part_cv": float(np.std(durations) / np.mean(durations)),
        "simulated": simulated,
        "modelled": {
            str(each): modelled_efficiency(durations, most, each * most, per_task)
            for each in MODELLED_PARTS
        },
    }
    found["limits"] = _limits(most, float(np.mean(durations)), per_task)
    write_record(out / "bench_flows.json", {**found, "config": asdict(config), **provenance()})
    return found


def modelled_efficiency(
    durations: Sequence[float], workers: int, parts: int, scheduler_s_per_task: float
) -> float:
    """Ideal over actual time of parts that go, one by one, to the next free worker.

    The scheduler serves one task at a time. Part k takes `durations[k % len(durations)]` seconds.
    """
    free = [0.0] * workers
    scheduler = 0.0
    for k in range(parts):
        ready = heapq.heappop(free)
        scheduler = max(scheduler, ready) + scheduler_s_per_task
        heapq.heappush(free, scheduler + durations[k % len(durations)])
    ideal = sum(durations[k % len(durations)] for k in range(parts)) / workers
    return ideal / max(free)


def _recorded(store: Path) -> list[float]:
    """Seconds that each part of a store took, the commit included."""
    parts = part_records(store, open_store(store).parts())
    durations = [part.ended - part.started for part in parts if part.ended > part.started]
    if not durations:
        raise ValueError(f"no record of a part lies beside {store}; give one collected here")
    return durations


def _overhead(
    out: Path, config: FlowBenchConfig, advance: Callable[[int, str], None]
) -> tuple[dict[str, Any], list[float]]:
    """Wall times and gaps of the three ways, and the durations of the bare loop's parts."""
    plan = LeggedPlan(grid=config.grid, threads=1)
    first, *rest = plan.part_ids()
    wall: dict[str, float] = {}
    records: dict[str, list[PartCollected]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=out)))
        ways: dict[str, MakeParts] = {
            name: stack.enter_context(way(plan, (folder / f"{name}.zarr").resolve()))
            for name, way in (("bare", _bare), ("dask", _dask), ("prefect_dask", _prefect_dask))
        }
        for make in ways.values():
            make([first])
        for turn in range(config.rounds):
            share = rest[turn :: config.rounds]
            for name, make in ways.items():
                made, seconds = make(share)
                wall[name] = wall.get(name, 0.0) + seconds
                records.setdefault(name, []).extend(made)
            advance(len(share), "")
    between = {
        name: (wall[name] - sum(r.ended - r.started for r in made)) / len(made)
        for name, made in records.items()
    }
    a_part = wall["bare"] / len(rest)
    others = [name for name in wall if name != "bare"]
    return {
        "parts": len(rest),
        "wall_s": wall,
        "between_parts_s": between,
        "overhead": {name: wall[name] / wall["bare"] - 1 for name in others},
        "overhead_between_parts": {
            name: (between[name] - between["bare"]) / a_part for name in others
        },
    }, [record.ended - record.started for record in records["bare"]]


@contextmanager
def _bare(plan: LeggedPlan, store: Path) -> Iterator[MakeParts]:
    """A loop in a process of its own."""
    prepare(plan, store)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield lambda parts: _timed(process.submit(_loop, plan, store, parts).result)


def _timed(make: Callable[[], list[PartCollected]]) -> tuple[list[PartCollected], float]:
    started = time.perf_counter()
    return make(), time.perf_counter() - started


def _loop(plan: LeggedPlan, store: Path, parts: Sequence[str]) -> list[PartCollected]:
    return [collect_part(plan, store, part) for part in parts]


@contextmanager
def _dask(plan: LeggedPlan, store: Path) -> Iterator[MakeParts]:
    """The Dask runner's tasks on one local worker."""
    prepare(plan, store)
    with dask_client(DaskSettings(workers=1)) as client:
        work = partial(make_part, plan, str(store))
        yield lambda parts: _timed(lambda: run_parts(client, work, parts, _unfollowed))


@contextmanager
def _prefect_dask(plan: LeggedPlan, store: Path) -> Iterator[MakeParts]:
    """A Prefect task per part, each waiting for its Dask task; with a server of its own."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")  # before the import reads it
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.testing.utilities import prefect_test_harness

    prepare(plan, store)
    with (
        prefect_test_harness(server_startup_timeout=120),
        dask_client(DaskSettings(workers=1)) as client,
    ):

        @task(task_run_name="{part}", cache_policy=NO_CACHE, persist_result=False)
        def make_one(part: str) -> PartCollected:
            key = f"prefect-{part}"
            return client.submit(make_part, plan, str(store), part, key=key, pure=False).result()

        @flow(persist_result=False)
        def make_all(parts: list[str]) -> tuple[list[PartCollected], float]:
            # Timed in here: the run around it is start-up.
            return _timed(
                lambda: [each.result() for each in [make_one.submit(part) for part in parts]]
            )

        yield lambda parts: make_all(list(parts))


def _scheduler_s_per_task(tasks: int) -> float:
    """Seconds of scheduler, worker and client together for a task that does nothing."""
    with _many_workers(THREADS_A_WORKER * THREADS_A_WORKER) as client:
        run_parts(client, _Sleep((0.0,)), _names(THREADS_A_WORKER), _unfollowed)
        started = time.perf_counter()
        run_parts(client, _Sleep((0.0,)), _names(tasks), _unfollowed)
        return (time.perf_counter() - started) / tasks


def _simulated(durations: Sequence[float], workers: int, config: FlowBenchConfig) -> dict[str, Any]:
    """Parts slept by many workers, through the runner's own code."""
    scale = config.simulated_part_s / float(np.mean(durations))
    sleep = _Sleep(tuple(scale * duration for duration in durations))
    names = _names(workers * config.parts_per_worker)
    with _many_workers(workers) as client:
        run_parts(client, _Sleep((0.0,)), _names(workers), _unfollowed)
        started, busy = time.perf_counter(), time.process_time()
        slept = sum(run_parts(client, sleep, names, _unfollowed))
        seconds = time.perf_counter() - started
        busy = time.process_time() - busy
    return {
        "workers": workers,
        "parts": len(names),
        "faster_than_recorded": 1 / scale,
        "seconds": seconds,
        "cpu_share": busy / seconds,
        "efficiency": slept / workers / seconds,
        "efficiency_without_scheduler": modelled_efficiency(durations, workers, len(names), 0.0),
    }


@contextmanager
def _many_workers(count: int) -> Iterator[Any]:
    """A client of `count` threads of simulated workers, all in this process."""
    import dask.config as dask_config
    from distributed import Client, LocalCluster

    options: Any = {"dashboard_address": f"{LOOPBACK}:0", "memory_limit": 0}
    # Real workers watch their own machine; here all of them would watch this one.
    monitor = {"distributed.admin.system-monitor.interval": "60s"}
    with (
        dask_config.set(CONFIG | monitor),
        LocalCluster(
            n_workers=max(1, count // THREADS_A_WORKER),
            threads_per_worker=min(count, THREADS_A_WORKER),
            processes=False,
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@dataclass(frozen=True)
class _Sleep:
    """Sleeps as long as the named part took; returns these seconds."""

    durations: tuple[float, ...]

    def __call__(self, part: str) -> float:
        seconds = self.durations[int(part) % len(self.durations)]
        time.sleep(seconds)
        return seconds


def _names(count: int) -> list[str]:
    return [f"{k:05d}" for k in range(count)]


def _unfollowed(records: list[Any]) -> None:
    """Ignore the records."""


def _limits(workers: int, part_s: float, per_task: float) -> str:
    return (
        "The tail limits first: at the end of a run workers wait for the last parts, which costs "
        "each worker up to the longest part, so what counts is parts a worker and how alike they "
        f"are (see modelled, for {workers} workers). The scheduler serves {1 / per_task:,.0f} "
        f"parts a second and would feed about {part_s / per_task:,.0f} workers with parts of "
        f"{part_s:.1f} s. Commits are renames of separate files and do not wait for one another; "
        "the disk's bandwidth is shared by all workers."
    )
