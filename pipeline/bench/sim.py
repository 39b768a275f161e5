"""Speed of the simulators: every back end that is here, and collection beside bare physics."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from collectors.legged.data import CollectionGrid
from collectors.physics import availability, make_backend
from collectors.physics.contract.scene import FIRM_STANCE, ROBOT, hold, start_at
from collectors.physics.interface import PhysicsBackend
from collectors.scenarios.randomisation import nominal_draws
from collectors.scenarios.terrains import TERRAINS, make_tile
from collectors.simulators import BACKENDS
from flows.progress import Reporter, Silent
from flows.records.records import provenance, to_tree, write_record
from flows.tasks.legged import LeggedPlan
from pipeline.bench.collection import measure_collection
from pipeline.tables import table

RECORD_NAME = "bench_sim.json"
RATIO_BAR = 0.85
"""Collection's speed over that of bare `mujoco.rollout`, at least."""
IPC_BAR = 0.10
"""Share of a step that goes into talking to another process, at most."""
IPC_BAR_ROBOTS = 1024
_LEVEL, _VARIANT = 2, 0
_QUIET_LOAD = 0.5


@dataclass(frozen=True)
class SimBenchConfig:
    """What is measured.

    Attributes:
        robots: sizes of the batches that each back end steps, smallest first; a back end whose step
            takes `long_step_s` gets no larger ones.
        steps: of each measurement at most, after `warm_up`; it ends after `enough_s` anyway.
        threads: how many simulators collect at once, one measurement each, beside that of one.
        episodes: of a part; rounds: of collection and bare physics in turn.
    """

    robots: tuple[int, ...] = (64, 256, 1024, 2048, 4096, 8192)
    long_step_s: float = 0.3
    steps: int = 100
    warm_up: int = 5
    enough_s: float = 5.0
    threads: tuple[int, ...] = field(default_factory=lambda: (min(2, os.cpu_count() or 1),))
    episodes: int = 300
    rounds: int = 3


QUICK = SimBenchConfig(robots=(4,), steps=2, warm_up=1, threads=(1,), episodes=4, rounds=1)
"""Shows that everything runs; its figures say nothing."""


def run_sim_bench(
    out: Path, config: SimBenchConfig | None = None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Measure everything.

    Args:
        out: folder for ``bench_sim.json``.
        config: what is measured; None for the sizes that the figures are quoted at.
        reporter: told which step is in work.

    Returns:
        ``backends`` (a row a back end and size), ``collection`` (a row a number of threads),
        ``stages`` (stage -> share of a collecting thread's time), ``bars`` and ``notes``.

    Raises:
        ValueError: the folder cannot be written.
    """
    config, reporter = config or SimBenchConfig(), reporter or Silent()
    load = os.getloadavg()[0]
    backends, notes = _backends(config, reporter)
    threads = sorted({1, *config.threads})
    with (
        tempfile.TemporaryDirectory() as folder,
        reporter.step("bench collection", len(threads) * (config.rounds + 1), "round") as advance,
    ):
        collected = [
            measure_collection(_plan(config, count), config.rounds, Path(folder), advance)
            for count in threads
        ]
    stages = collected[0].pop("stages")
    notes.append(
        f"load average {load:.1f} before, on {os.cpu_count()} cores"
        + (": the machine was busy, judge by the ratios" if load > _QUIET_LOAD else "")
    )
    figures = {"backends": backends, "collection": collected, "stages": stages}
    record = to_tree(
        figures
        | {"bars": _bars(backends, collected), "notes": notes, "config": asdict(config)}
        | provenance()
    )
    write_record(out / RECORD_NAME, record)
    return record


def show_sim_bench(record: Mapping[str, Any], as_json: bool) -> None:
    """Print the record as JSON, or as tables and notes."""
    if as_json:
        print(json.dumps(record, indent=1))
        return
    for title, rows in _tables(record):
        print(f"{title}\n{table(rows)}\n")
    for note in record["notes"]:
        print(note)


def _plan(config: SimBenchConfig, threads: int) -> LeggedPlan:
    """A part for each thread."""
    grid = CollectionGrid(parts=threads, episodes_per_part=config.episodes)
    return LeggedPlan(grid=grid, threads=threads)


def _backends(config: SimBenchConfig, reporter: Reporter) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of the back ends that are here, and why the others are not."""
    rows, notes = [], []
    with reporter.step("bench simulators", len(BACKENDS), "simulator") as advance:
        for name in BACKENDS:
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
    """A row of how fast robots are stepped that stand on the terrains in turn.

    A back end whose physics another process does may say in `worker_s` how many seconds that
    process has spent on it so far; the rest of a step is what talking to it costs.
    """
    tiles = [make_tile(terrain, _LEVEL, _VARIANT) for terrain in TERRAINS]
    for index in range(backend.num_robots):
        tile = tiles[index % len(tiles)]
        start = start_at(z=float(tile.heights.max()) + 0.4, joint_pos=FIRM_STANCE)
        backend.reset(index, tile, (), nominal_draws(), start)
    hold(backend, config.warm_up, FIRM_STANCE)
    worker_s, steps, seconds = getattr(backend, "worker_s", None), 0, 0.0
    started = time.perf_counter()
    while steps < config.steps and seconds < config.enough_s:
        hold(backend, 1, FIRM_STANCE)
        steps, seconds = steps + 1, time.perf_counter() - started
    row = {
        "simulator": backend.name,
        "version": backend.version,
        "robots": backend.num_robots,
        "steps_per_s": backend.num_robots * steps / seconds,
        "step_ms": 1000 * seconds / steps,
        "ipc_share": None,
    }
    if worker_s is not None:
        row["ipc_share"] = 1.0 - (getattr(backend, "worker_s", 0.0) - worker_s) / seconds
    return row


def _bars(backends: list[dict[str, Any]], collected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was asked for beside what was measured."""
    rows = [
        {
            "bar": f"collection / bare mujoco.rollout, threads: {each['threads']}",
            "asked": f"at least {RATIO_BAR}",
            "measured": each["ratio"],
            "met": each["ratio"] >= RATIO_BAR,
        }
        for each in collected
    ]
    rows += [
        {
            "bar": f"IPC share of a step of {row['simulator']}, robots: {row['robots']}",
            "asked": f"at most {IPC_BAR}",
            "measured": row["ipc_share"],
            "met": row["ipc_share"] <= IPC_BAR,
        }
        for row in backends
        if row["ipc_share"] is not None and row["robots"] == IPC_BAR_ROBOTS
    ]
    return rows


def _tables(record: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield "Control steps a second of robots that stand on every terrain", record["backends"]
    yield (
        "Collection with the default simulator beside bare mujoco.rollout, in turn",
        [{k: v for k, v in each.items() if k != "ratios"} for each in record["collection"]],
    )
    shares = [{"stage": stage, "share": share} for stage, share in record["stages"].items()]
    yield "Share of a collecting thread's time", shares
    yield "Bars", record["bars"]
