"""`gaitforge bench`: one figure for each step of the pipeline, by the other benchmarks' means."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gaitforge.flows.progress import Reporter
from gaitforge.pipeline.bench import learners, sim, store
from gaitforge.pipeline.bench.attention import AttentionConfig
from gaitforge.pipeline.bench.control_step import ControlStepConfig
from gaitforge.pipeline.bench.harness import Bench, Figures
from gaitforge.pipeline.bench.train_step import BASELINES, FOLDED, TrainStepConfig

Rows = Iterator[dict[str, object]]


def _learners(rounds: int, models: tuple[str, ...] = BASELINES) -> learners.LearnerBenchConfig:
    return learners.LearnerBenchConfig(
        TrainStepConfig(models, (FOLDED,), batch_size=64, rounds=rounds),
        ControlStepConfig((), (), (), seeds=1, warm_up=100, blocks=2 * rounds, export_all=False),
        AttentionConfig((), ()),
    )


@dataclass(frozen=True)
class OverviewConfig:
    """Sizes of the benchmarks that the figures are from."""

    sim: sim.SimBenchConfig
    store: store.StoreBenchConfig
    learners: learners.LearnerBenchConfig


def _measure(config: OverviewConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    simulated = sim.BENCH.measure(config.sim, folder, reporter)
    stored = store.BENCH.measure(config.store, folder, reporter)
    learned = learners.BENCH.measure(config.learners, folder, reporter)
    rows = [*_data_rows(simulated, stored), *_learner_rows(learned)]
    notes = [*simulated["notes"], *stored["notes"], *learned["notes"]]
    return {"rows": rows, "notes": notes}


def _data_rows(simulated: Figures, stored: Figures) -> Rows:
    for each in simulated["backends"]:
        robots = f"{each['robots']} standing robots"
        yield _row(f"simulate, {each['simulator']}", each["steps_per_s"], "steps/s", robots)
    writing = f"writing {stored['write_share']:.0%} of a worker's time"
    for each in simulated["collection"]:
        share = f"{each['ratio']:.0%} of bare mujoco.rollout; {writing}"
        name = f"collect, threads: {each['threads']}"
        yield _row(name, each["collect_steps_per_s"], "steps/s", share)
    copies = f"{stored['ratio_to_gather']['stream']:.0%} of one gathering copy"
    form = "obs, action, reward, state"
    yield _row("query", 1e3 * stored["catalog"]["query again"]["seconds"], "ms", "two conditions")
    yield _row("stream", stored["stream_steps_per_s"], "steps/s", copies)
    yield _row("size on disk", stored["bytes_per_step"], "bytes/step", form)


def _learner_rows(learned: Figures) -> Rows:
    for model, settings in learned["train_step_ms"].items():
        for each in settings.values():
            yield _row(f"train {model}", each["tokens_per_s"], "steps/s", "64 x 64")
    for model, settings in learned["control_step_us"].items():
        for setting, each in settings.items():
            yield _row(f"control {model}", each["median_us"], "us", f"one robot, {setting}")


def _row(what: str, value: float, unit: str, note: str) -> dict[str, object]:
    return {"what": what, "value": value, "unit": unit, "note": note}


BENCH = Bench(
    "bench.json",
    OverviewConfig(
        replace(sim.BENCH.config, robots=(256,), episodes=100, rounds=1),
        replace(store.BENCH.config, steps=500_000, parts=32, rounds=3, peers=()),
        _learners(rounds=5),
    ),
    OverviewConfig(sim.BENCH.quick, store.BENCH.quick, _learners(rounds=1, models=())),
    _measure,
    lambda record: [("One figure for each step of the pipeline", record["rows"])],
)
