"""Cost of orchestration, and scaling of collection.

Overhead: a bare loop, Dask, and Prefect tasks over Dask collect the same parts in turns, each in
one warm worker process. Figures: the ratio of the wall times, and the seconds between the end of a
part and the start of the next, which other load hardly changes.

Scaling: many simulated workers in one process sleep the recorded durations of those parts, with the
scheduler and runner of a real collection. A small machine holds 512 of them, as 64 workers of 8
threads.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Bench
from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.common.errors import amount
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Advance, Reporter
from gaitforge.flows.records.part_records import PartCollected, part_records
from gaitforge.flows.runners.dask import make_part, run_parts
from gaitforge.flows.runners.dask_clusters import CONFIG, LOOPBACK, DaskSettings, dask_client
from gaitforge.flows.stages.collect import collect_part, prepare
from gaitforge.flows.tasks.legged import LeggedPlan

THREADS_A_WORKER = 8

Made = tuple[list[PartCollected], float]
"""The records of some parts, and the wall seconds that they took together."""
MakeParts = Callable[[Sequence[str]], Made]


@dataclass(frozen=True)
class FlowBenchConfig:
    """Sizes of the measurement.

    Attributes:
        grid: parts collected in each way, one of them to warm up.
        simulated_workers: numbers of workers, multiples of 8; each sleeps parts_per_worker parts.
        simulated_part_s: mean seconds of a sleep, much longer than what the runner adds to a part.
        recorded: a store whose parts' durations are slept; None for the parts collected here.
    """

    grid: CollectionGrid
    rounds: int = 4
    simulated_workers: tuple[int, ...] = (64, 512)
    parts_per_worker: int = 16
    simulated_part_s: float = 10.0
    recorded: Path | None = None


def _measure(config: FlowBenchConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    """The figures by name.

    Overheads are shares of the bare loop's wall time; `efficiency` is ideal over actual time.
    """
    recorded = None if config.recorded is None else _recorded(config.recorded)
    with reporter.step("bench flows", config.grid.parts - 1, "part") as advance:
        found, made_here = _overhead(folder.resolve(), config, advance)
    durations = recorded or made_here
    simulated = []
    with reporter.step("bench scaling", len(config.simulated_workers), "stage") as advance:
        for workers in config.simulated_workers:
            simulated.append(_simulated(durations, workers, config))
            advance(1, amount(workers, "worker"))
    return found | {"simulated": simulated}


def _recorded(store: Path) -> list[float]:
    """Seconds that each part of a store took, the commit included."""
    parts = part_records(store, open_store(store).parts())
    durations = [part.ended - part.started for part in parts if part.ended > part.started]
    if not durations:
        raise ValueError(f"no record of a part lies beside {store}; give one collected here")
    return durations


def _overhead(
    folder: Path, config: FlowBenchConfig, advance: Advance
) -> tuple[dict[str, object], list[float]]:
    """Wall times and gaps of the three ways, and the durations of the bare loop's parts."""
    plan = LeggedPlan(grid=config.grid, threads=1)
    first, *rest = plan.part_ids()
    wall = dict.fromkeys(WAYS, 0.0)
    busy: dict[str, list[float]] = {name: [] for name in WAYS}
    with ExitStack() as stack:
        ways = {
            name: stack.enter_context(way(plan, folder / f"{name}.zarr"))
            for name, way in WAYS.items()
        }
        for make in ways.values():
            make([first])
        for turn in range(config.rounds):
            share = rest[turn :: config.rounds]
            for name, make in ways.items():
                made, seconds = make(share)
                wall[name] += seconds
                busy[name] += [record.ended - record.started for record in made]
            advance(len(share), "")
    between = {name: (wall[name] - sum(busy[name])) / len(rest) for name in WAYS}
    added = {name: len(rest) * (between[name] - between["bare"]) for name in WAYS}
    return {
        "parts": len(rest),
        "wall_s": wall,
        "between_parts_s": between,
        "overhead_between_parts": {name: added[name] / wall["bare"] for name in ORCHESTRATED},
    }, busy["bare"]


@contextmanager
def _bare(plan: LeggedPlan, store: Path) -> Iterator[MakeParts]:
    """A loop in a process of its own."""
    prepare(plan, store)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield lambda parts: _timed(process.submit(_loop, plan, store, parts).result)


def _timed(make: Callable[[], list[PartCollected]]) -> Made:
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
        yield lambda parts: _timed(lambda: run_parts(client, work, parts, lambda records: None))


@contextmanager
def _prefect_dask(plan: LeggedPlan, store: Path) -> Iterator[MakeParts]:
    """A Prefect task per part, each waiting for its Dask task; with a server of its own."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")  # before the import reads it
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from gaitforge.pipeline.serve.prefect_server import prefect_api

    prepare(plan, store)
    home = store.with_suffix(".prefect")
    home.mkdir()
    with (
        temporary_settings({PREFECT_HOME: home}, restore_defaults={PREFECT_API_URL}),
        prefect_api(port=0),
        dask_client(DaskSettings(workers=1)) as client,
    ):

        @task(task_run_name="{part}", cache_policy=NO_CACHE, persist_result=False)
        def make_one(part: str) -> PartCollected:
            key = f"prefect-{part}"
            return client.submit(make_part, plan, str(store), part, key=key, pure=False).result()

        @flow(persist_result=False)
        def make_all(parts: list[str]) -> Made:
            # Timed in here: the run around it is start-up.
            return _timed(lambda: [each.result() for each in make_one.map(parts)])

        yield lambda parts: make_all(list(parts))


ORCHESTRATED = {"dask": _dask, "prefect_dask": _prefect_dask}
WAYS = {"bare": _bare, **ORCHESTRATED}


def _sleep(durations: Sequence[float], part: str) -> float:
    """Sleep as long as the numbered part took; returns these seconds."""
    seconds = durations[int(part) % len(durations)]
    time.sleep(seconds)
    return seconds


def _sleep_parts(client: Any, count: int, durations: Sequence[float] = (0.0,)) -> float:
    """Have many workers sleep through parts; returns the seconds slept in all of them."""
    names = [f"{k:05d}" for k in range(count)]
    return sum(run_parts(client, partial(_sleep, durations), names, lambda records: None))


def _simulated(
    durations: Sequence[float], workers: int, config: FlowBenchConfig
) -> dict[str, object]:
    """Simulated workers sleep through parts, with the runner of a real collection."""
    scale = config.simulated_part_s / float(np.mean(durations))
    parts = workers * config.parts_per_worker
    with _many_workers(workers) as client:
        _sleep_parts(client, workers)
        started = time.perf_counter()
        slept = _sleep_parts(client, parts, [scale * duration for duration in durations])
        seconds = time.perf_counter() - started
    efficiency = slept / workers / seconds
    return {"workers": workers, "parts": parts, "seconds": seconds, "efficiency": efficiency}


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


BENCH = Bench(
    "bench_flows.json",
    FlowBenchConfig(CollectionGrid(parts=41, episodes_per_part=24)),
    FlowBenchConfig(
        CollectionGrid(parts=3, episodes_per_part=4),
        rounds=1,
        simulated_workers=(16,),
        parts_per_worker=4,
        simulated_part_s=0.5,
    ),
    _measure,
)
