"""`gaitforge bench`: one figure for each step of the pipeline on this machine."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
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
from datasets import open_store, query
from flows.progress import Reporter
from flows.records.records import provenance, write_record
from learners.models.registry import PRESETS, build_network, preset
from learners.models.spaces import SPACES
from pipeline.bench.common import Rows, median, one_thread, seconds_of
from pipeline.bench.store import WIDTH, collection_figures
from pipeline.tables import show

THREADS = 2
ROBOTS = 256
STEPS = 60
BATCH, WINDOW = 64, 64


def run(arguments: argparse.Namespace, reporter: Reporter) -> None:
    """Measure one figure per step of the pipeline; prints them and writes `bench.json`."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "legged.zarr"
        rows = [*_simulation(reporter), _collection(store), *_store(store), *_learners()]
    write_record(arguments.out / "bench.json", {"rows": rows, **provenance()})
    show(rows, arguments.json)


def _row(what: str, value: float, unit: str, note: str = "") -> dict[str, object]:
    return {"what": what, "value": value, "unit": unit, "note": note}


def _rate(work: Callable[[], Any], units: int, repeats: int) -> float:
    """Units per second: the median over repeats."""
    return units / median(seconds_of(work) for _ in range(repeats))


def _simulation(reporter: Reporter) -> Iterator[dict[str, object]]:
    """Control steps per second with the expert in the loop, one simulator on two threads."""
    expert = load_expert().policy
    env = LeggedEnvironment(expert.robot, ROBOTS, THREADS)
    step, physics_s = env.physics.step, 0.0

    def timed_step(joint_targets: np.ndarray) -> None:
        nonlocal physics_s
        physics_s += seconds_of(lambda: step(joint_targets))

    env.physics.step = timed_step
    with reporter.step("bench simulation", len(TERRAINS), "terrain") as advance:
        for terrain in TERRAINS:
            specs = [EpisodeSpec(i, terrain, 4, "rush", seed=i) for i in range(ROBOTS)]
            env.reset(np.arange(ROBOTS), specs)
            observation = env.observe()
            physics_s, started = 0.0, time.perf_counter()
            for _ in range(STEPS):
                observation = env.step(expert.act(observation)).observation
            seconds = time.perf_counter() - started
            note = f"physics {physics_s / seconds:.0%} of the time"
            yield _row(f"simulate {terrain}", ROBOTS * STEPS / seconds, "steps/s", note)
            advance(1, terrain)
    env.close()


def _collection(path: Path) -> dict[str, object]:
    """Simulation, policy and writing together."""
    figures = collection_figures(path, CollectionGrid(parts=4, episodes_per_part=300), THREADS)
    note = f"writing {figures['write_share']:.0%} of a worker's time"
    return _row("collect", figures["collect_steps_per_s"], "steps/s", note)


def _store(path: Path) -> Rows:
    """Query and stream, beside one copy of every float."""
    store = open_store(path)
    selection = store.select()
    source = np.zeros((selection.steps, WIDTH), dtype=np.float32)
    target = np.ones_like(source)

    def ask() -> None:
        condition = "friction < 0.6 and success"
        query(open_store(path), skill="run", where=condition, group_by=("terrain", "level"))

    def stream() -> None:
        for _ in selection.windows(window_len=WINDOW, batch_size=1024):
            pass

    query_ms = 1000 / _rate(ask, 1, 5)
    streamed = _rate(stream, selection.steps, 3)
    copied = _rate(lambda: np.copyto(target, source), selection.steps, 5)
    note = f"{streamed / copied:.0%} of one plain copy ({copied:,.0f} steps/s)"
    size = store.info().bytes / selection.steps
    return [
        _row("query", query_ms, "ms", f"{len(selection)} episodes, store opened anew"),
        _row("stream", streamed, "steps/s", note),
        _row("size on disk", size, "bytes/step", "obs, action, reward, state"),
    ]


def _learners() -> Iterator[dict[str, object]]:
    """Training and control of the untrained legged presets: weights do not change the speed."""
    torch.set_num_threads(THREADS)
    for name, entry in PRESETS.items():
        layout, act_dim = SPACES[entry.space].layout, SPACES[entry.space].act_dim
        if layout.obs_slices != POLICY_SLICES:
            continue
        network = build_network(preset(name), layout, act_dim)
        train = _rate(
            _update_of(network, torch.randn(BATCH, WINDOW, layout.dim)), BATCH * WINDOW, 5
        )
        yield _row(f"train {name}", train, "steps/s", "64 x 64")
        yield _row(f"control {name}", _control_us(network, layout.dim), "us", "one robot")


def _update_of(network: Any, tokens: torch.Tensor) -> Callable[[], None]:
    """A forward and backward pass that has run once."""

    def update() -> None:
        network.zero_grad(set_to_none=True)
        network(tokens).square().mean().backward()

    update()
    return update


def _control_us(network: Any, width: int) -> float:
    """Median microseconds of one recurrent step with one robot on one thread."""
    with one_thread():
        state, token = network.init_state(1), torch.randn(1, width)

        def step() -> None:
            nonlocal state
            _, state = network.step(token, state)

        seconds = [seconds_of(step) for _ in range(600)]
    return median(seconds[100:]) * 1e6
