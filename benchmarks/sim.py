"""Speed of the simulators: all back ends, the task, and collection beside bare physics."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.collection import measure_collection
from benchmarks.harness import Bench, Figures, Rows, bar
from benchmarks.sim_peers import PeerSizes, measure_peers
from benchmarks.task import TaskSizes, measure_task, task_bars
from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.collectors.physics import availability, make_backend
from gaitforge.collectors.physics.interface import PhysicsBackend
from gaitforge.collectors.physics.scene import FIRM_STANCE, ROBOT, hold, start_at
from gaitforge.collectors.scenarios.terrains import TERRAINS, make_tile
from gaitforge.collectors.simulators import backend_names
from gaitforge.flows.progress import Reporter
from gaitforge.flows.tasks.legged import LeggedPlan

RATIO_BAR = 0.90
"""Collection's speed over that of bare `mujoco.rollout`, at least."""
IPC_BAR = 0.10
"""Share of a step spent on talking to another process, at most."""
IPC_BAR_ROBOTS = 1024
_LEVEL = 2
_VARIANT = 0


@dataclass(frozen=True)
class SimBenchConfig:
    """Sizes of the measurements.

    Attributes:
        robots: batch sizes for each back end, smallest first; one whose step takes longer than
            `long_step_s` gets no larger ones.
        steps: most steps of a measurement, after `warm_up`; it ends after `enough_s` anyway.
        threads: numbers of simulators that collect in parallel, measured besides one alone.
        episodes: per part; rounds: of collection and bare physics in turn.
        task: of the task without physics; peers: of a Go2 beside other projects' simulators.
    """

    robots: tuple[int, ...] = (64, 256, 1024, 2048, 4096, 8192)
    long_step_s: float = 0.3
    steps: int = 100
    warm_up: int = 5
    enough_s: float = 5.0
    threads: tuple[int, ...] = (min(2, os.cpu_count() or 1),)
    episodes: int = 300
    rounds: int = 3
    task: TaskSizes = field(default_factory=TaskSizes)
    peers: PeerSizes = field(default_factory=PeerSizes)


def _measure(config: SimBenchConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    backends, notes = _backends(config, reporter)
    task = measure_task(config.task)
    threads = sorted({1, *config.threads})
    rounds = len(threads) * (config.rounds + 1)
    with reporter.step("bench collection", rounds, "round") as advance:
        grids = [CollectionGrid(parts=n, episodes_per_part=config.episodes) for n in threads]
        plans = [LeggedPlan(grid=grid, threads=grid.parts) for grid in grids]
        collected = [measure_collection(plan, config.rounds, folder, advance) for plan in plans]
    stages = [each.pop("stages") for each in collected]
    with reporter.step("bench peers", 1, "run") as advance:
        peers, missing = measure_peers(config.peers, folder)
        advance(1, "")
    return {
        "backends": backends,
        "task": [task],
        "collection": collected,
        "stages": stages[0],
        "peers": peers,
        "bars": [*_bars(backends, collected), *task_bars(task)],
        "notes": [*notes, *missing],
    }


def _backends(config: SimBenchConfig, reporter: Reporter) -> tuple[Rows, list[str]]:
    """Rows of the back ends that are here, and why the others are not."""
    rows = []
    notes = []
    names = backend_names()
    with reporter.step("bench simulators", len(names), "simulator") as advance:
        for name in names:
            found = availability(name)
            if not found.available:
                notes.append(f"{name}: {found.why_not}")
            else:
                try:
                    rows.extend(_sizes(name, config))
                except ValueError as error:  # a worker that died; the others go on
                    notes.append(f"{name}: {error}")
            advance(1, name)
    return rows, notes


def _sizes(name: str, config: SimBenchConfig) -> Iterator[dict[str, Any]]:
    for robots in config.robots:
        backend = make_backend(name, ROBOT, robots, max(config.threads))
        try:
            row = _rate(backend, config)
        finally:
            backend.close()
        yield row
        if row["step_ms"] > 1000 * config.long_step_s:
            return


def _rate(backend: PhysicsBackend, config: SimBenchConfig) -> dict[str, Any]:
    """Speed of stepping robots that stand on the terrains in turn.

    A back end whose physics runs in another process may count in `worker_s` the seconds that this
    process has computed; the rest of a step is communication.
    """
    tiles = [make_tile(terrain, _LEVEL, _VARIANT) for terrain in TERRAINS]
    for index in range(backend.num_robots):
        tile = tiles[index % len(tiles)]
        height = float(tile.heights.max()) + 0.4
        backend.reset(index, start_at(z=height, joint_pos=FIRM_STANCE, tile=tile))
    hold(backend, config.warm_up, FIRM_STANCE)
    worker_s = getattr(backend, "worker_s", None)
    steps = 0
    seconds = 0.0
    started = time.perf_counter()
    while steps < config.steps and seconds < config.enough_s:
        hold(backend, 1, FIRM_STANCE)
        steps = steps + 1
        seconds = time.perf_counter() - started
    ipc_share = None
    if worker_s is not None:
        ipc_share = 1.0 - (getattr(backend, "worker_s", 0.0) - worker_s) / seconds
    return {
        "simulator": backend.name,
        "version": backend.version,
        "robots": backend.num_robots,
        "steps_per_s": backend.num_robots * steps / seconds,
        "step_ms": 1000 * seconds / steps,
        "ipc_share": ipc_share,
    }


def _bars(backends: Rows, collected: Rows) -> Rows:
    """The limits beside what was measured."""
    bars = []
    for each in collected:
        name = f"collection / bare mujoco.rollout, threads: {each['threads']}"
        bars.append(bar(name, each["ratio"], least=RATIO_BAR))
    for row in backends:
        if row["ipc_share"] is not None and row["robots"] == IPC_BAR_ROBOTS:
            name = f"IPC share of a step of {row['simulator']}, robots: {row['robots']}"
            bars.append(bar(name, row["ipc_share"], most=IPC_BAR))
    return bars


def _tables(record: Figures) -> Iterator[tuple[str, Rows]]:
    yield "Control steps per second of robots that stand on every terrain", record["backends"]
    yield "The task of a step without physics, per robot, and a reset", record["task"]
    yield (
        "Collection with the default simulator beside bare mujoco.rollout, in turn",
        [{k: v for k, v in each.items() if k != "ratios"} for each in record["collection"]],
    )
    shares = [{"stage": stage, "share": share} for stage, share in record["stages"].items()]
    yield "Share of a collecting thread's time", shares
    yield "On flat ground, one thread, beside other projects' simulators", record["peers"]
    yield "Bars", record["bars"]


BENCH = Bench(
    "bench_sim.json",
    SimBenchConfig(),
    SimBenchConfig(
        robots=(4,),
        steps=2,
        warm_up=1,
        threads=(1,),
        episodes=4,
        rounds=1,
        task=TaskSizes(robots=4, resets=4, rounds=1),
        peers=PeerSizes(robots=2, seconds=0.02, rounds=1, episodes=2),
    ),
    _measure,
    _tables,
)
