"""`gaitforge bench`: one figure for each step of the pipeline on this machine."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from collectors.experts.expert import load_expert
from collectors.legged.data import CollectionGrid
from collectors.legged.environment import LeggedEnvironment
from collectors.legged.episodes import EpisodeSpec
from collectors.legged.observations import POLICY_SLICES
from collectors.scenarios.terrains import TERRAINS
from datasets import Selection, open_store, query
from flows.progress import Reporter
from flows.records.part_records import collection_rate
from flows.records.records import provenance, write_record
from flows.stages.collect import collect
from flows.tasks.legged import LeggedPlan
from learners.models.registry import PRESETS, build_network, preset
from learners.models.spaces import SPACES
from pipeline.bench.common import one_thread, seconds_of
from pipeline.tables import show

THREADS = 2
ROBOTS = 256
STEPS = 60
BATCH, WINDOW = 64, 64


def run(arguments: argparse.Namespace, reporter: Reporter) -> None:
    """Measure one figure per step of the pipeline; prints them and writes `bench.json`."""
    rows = _simulation(reporter)
    with tempfile.TemporaryDirectory() as folder:
        rows += _collection(Path(folder) / "legged.zarr", reporter)
        rows += _store(Path(folder) / "legged.zarr")
    rows += _learners()
    write_record(arguments.out / "bench.json", {"rows": rows, **provenance()})
    show(rows, arguments.json)


def _row(what: str, value: float, unit: str, note: str = "") -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit, "note": note}


def _rate(work: Callable[[], Any], units: int, repeats: int) -> float:
    """Units per second: the median over repeats."""
    return units / float(np.median([seconds_of(work) for _ in range(repeats)]))


class _TimedStep:
    """A simulator's `step` that adds up the seconds spent in it."""

    def __init__(self, step: Callable[[np.ndarray], None]):
        self._step = step
        self.seconds = 0.0

    def __call__(self, joint_targets: np.ndarray) -> None:
        started = time.perf_counter()
        self._step(joint_targets)
        self.seconds += time.perf_counter() - started


def _simulation(reporter: Reporter) -> list[dict[str, Any]]:
    """Control steps per second with the expert in the loop, one simulator on two threads."""
    expert = load_expert().policy
    env = LeggedEnvironment(expert.robot, ROBOTS, THREADS)
    rows = []
    with reporter.step("bench simulation", len(TERRAINS), "terrain") as advance:
        for terrain in TERRAINS:
            specs = [EpisodeSpec(i, terrain, 4, "rush", seed=i) for i in range(ROBOTS)]
            env.reset(np.arange(ROBOTS), specs)
            physics = _TimedStep(type(env.physics).step.__get__(env.physics))
            env.physics.step = physics
            observation = env.observe()
            started = time.perf_counter()
            for _ in range(STEPS):
                observation = env.step(expert.act(observation)).observation
            seconds = time.perf_counter() - started
            note = f"physics {physics.seconds / seconds:.0%} of the time"
            rows.append(_row(f"simulate {terrain}", ROBOTS * STEPS / seconds, "steps/s", note))
            advance(1, terrain)
    env.close()
    return rows


def _collection(path: Path, reporter: Reporter) -> list[dict[str, Any]]:
    """Simulation, policy and writing together."""
    plan = LeggedPlan(grid=CollectionGrid(parts=4, episodes_per_part=300), threads=THREADS)
    records = collect(plan, path, reporter)
    write_share = sum(r.write_s for r in records) / sum(r.ended - r.started for r in records)
    note = f"writing {write_share:.0%} of a worker's time"
    return [_row("collect", collection_rate(records), "steps/s", note)]


def _store(path: Path) -> list[dict[str, Any]]:
    """Query and stream, beside one copy of every float."""
    store = open_store(path)
    selection = store.select()
    condition = "friction < 0.6 and success"

    def ask() -> None:
        query(open_store(path), skill="run", where=condition, group_by=("terrain", "level"))

    queries = _rate(ask, 1, 5)
    streamed = _rate(lambda: _drain(selection), selection.steps, 3)
    floor = _copy_rate(selection)
    note = f"{streamed / floor:.0%} of one plain copy ({floor:,.0f} steps/s)"
    size = store.info()["bytes"] / selection.steps
    return [
        _row("query", 1000 / queries, "ms", f"{len(selection)} episodes, store opened anew"),
        _row("stream", streamed, "steps/s", note),
        _row("size on disk", size, "bytes/step", "obs, action, reward, state"),
    ]


def _drain(selection: Selection) -> None:
    for _ in selection.windows(window_len=WINDOW, batch_size=1024):
        pass


def _copy_rate(selection: Selection) -> float:
    """Steps per second of copying observations and actions within memory."""
    source = np.zeros((selection.steps, 82), dtype=np.float32)
    target = np.ones_like(source)
    return _rate(lambda: np.copyto(target, source), selection.steps, 5)


def _learners() -> list[dict[str, Any]]:
    """Training and control of the legged presets, untrained: the weights do not matter."""
    rows = []
    torch.set_num_threads(THREADS)
    for name, entry in PRESETS.items():
        layout, act_dim = SPACES[entry.space].layout, SPACES[entry.space].act_dim
        if layout.obs_slices != POLICY_SLICES:
            continue
        network = build_network(preset(name), layout, act_dim)
        tokens = torch.randn(BATCH, WINDOW, layout.dim)

        def update(network: Any = network, tokens: torch.Tensor = tokens) -> None:
            network.zero_grad(set_to_none=True)
            network(tokens).square().mean().backward()

        update()
        rows.append(_row(f"train {name}", _rate(update, BATCH * WINDOW, 5), "steps/s", "64 x 64"))
        rows.append(_row(f"control {name}", _control_us(network, layout.dim), "us", "one robot"))
    return rows


def _control_us(network: Any, width: int) -> float:
    """Median microseconds of one recurrent step with one robot on one thread."""
    with one_thread():
        state, token = network.init_state(1), torch.randn(1, width)

        def step() -> None:
            nonlocal state
            _, state = network.step(token, state)

        seconds = [seconds_of(step) for _ in range(600)]
    return float(np.median(seconds[100:])) * 1e6
