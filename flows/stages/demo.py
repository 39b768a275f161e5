"""The whole road at small scale: collect, describe, train, evaluate, sum up.

The road is written once as calls of stages through a `Stage`: called directly it is plain functions
in this process, and `flows.runners.prefect` passes one that makes every call a Prefect task.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from collectors.experts.expert import load_expert
from collectors.legged.data import COLLECTION_PRESETS
from collectors.legged.evaluation import EvaluationGrid
from collectors.scenarios.skills import SKILLS
from collectors.scenarios.terrains import TERRAINS
from collectors.timing import EPISODE_STEPS
from flows.progress import Reporter
from flows.records.part_records import collection_rate, part_records
from flows.records.records import provenance, read_record, to_tree, write_record
from flows.stages.collect import CollectPlan, collect
from flows.stages.evaluate import EvaluatePlan, PolicySource, evaluate_once
from flows.stages.overview import dataset_overview
from flows.stages.train import SelectPlan, TrainPlan, run_training
from learners.training.config import TrainConfig
from learners.training.train import TrainResult

Stage = Callable[[str, Callable[[], Any]], Any]
"""stage(name, work) runs a named piece of work and returns its result."""

Collecting = Callable[[CollectPlan, Path, Reporter], Any]
"""collecting(plan, store, reporter) makes the parts that the store lacks."""

STORE = "legged.zarr"
SUMMARY = "summary.json"
WALL = "wall.json"
EXPERT_CARD = "expert.json"


# Whole episodes a window: every step is learned with the history that it has in control. A minute
# of two cores each.
_FCNET_BUDGET = {"steps": 3000, "batch_size": 8, "window_len": EPISODE_STEPS, "peak_lr": 8e-3}
_BOT_BUDGET = {"steps": 600, "batch_size": 6, "window_len": EPISODE_STEPS, "peak_lr": 5e-3}


def _training(model: str, objective: str, **settings: Any) -> TrainPlan:
    return TrainPlan(SelectPlan(), TrainConfig(model=model, objective=objective, **settings))


@dataclass(frozen=True)
class DemoPlan:
    """The demo's stages. Sizes fit two cores, six minutes and 4 GiB."""

    collect: CollectPlan = field(
        default_factory=lambda: CollectPlan(grid=COLLECTION_PRESETS["demo"])
    )
    fcnet: TrainPlan = field(default_factory=lambda: _training("fcnet", "bc", **_FCNET_BUDGET))
    bot: TrainPlan = field(default_factory=lambda: _training("bot", "bc", **_BOT_BUDGET))
    fcnet_rc: TrainPlan = field(
        default_factory=lambda: _training("fcnet", "return", **_FCNET_BUDGET)
    )
    evaluate: EvaluatePlan = field(
        default_factory=lambda: EvaluatePlan(
            grid=EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), levels=(4,), episodes=20),
            robots=240,
        )
    )

    def learned(self) -> dict[str, TrainPlan]:
        """The policies that are trained, by name."""
        return {"fcnet": self.fcnet, "bot": self.bot, "fcnet_rc": self.fcnet_rc}


def direct(name: str, work: Callable[[], Any]) -> Any:
    """A stage as a plain call."""
    return work()


def run_demo(
    plan: DemoPlan,
    out: Path,
    reporter: Reporter,
    stage: Stage = direct,
    collecting: Collecting = collect,
) -> dict[str, Any]:
    """Run or go on with the demo in `out`; returns what `summary.json` holds.

    Raises:
        ValueError: `out` cannot be written, or holds a demo of another plan.
    """
    _claim(plan, out)
    store = out / STORE
    stage = _clocked(stage, out)
    stage("collect", lambda: collecting(plan.collect, store, reporter))
    write_record(out / EXPERT_CARD, load_expert(plan.collect.expert).card)
    overview = stage("describe", lambda: _describe(store, out / "dataset.json"))
    trained: dict[str, TrainResult] = {}
    for name, training in plan.learned().items():
        folder = out / "train" / name
        trained[name] = stage(
            f"train {name}", partial(run_training, training, store, folder, reporter)
        )
    sources = [PolicySource("expert", expert=plan.collect.expert)]
    sources += [PolicySource(name, out / "train" / name) for name in trained]
    evaluations = {}
    for source in sources:
        path = out / "evaluate" / f"{source.name}.json"
        work = partial(evaluate_once, source, plan.evaluate, path, reporter)
        evaluations[source.name] = stage(f"evaluate {source.name}", work)
    summary = _summary(plan, store, overview, trained, evaluations)
    wall = sum(entry["seconds"] for entry in read_record(out / WALL) or [])
    summary |= {
        "wall_s": wall,
        "command": f"gaitforge demo --out {out.name if out.is_absolute() else out}",
    }
    write_record(out / SUMMARY, summary)
    return to_tree(summary)


def _claim(plan: DemoPlan, out: Path) -> None:
    """Write the plan, or check that the one in the folder is this one."""
    known = read_record(out / "plan.json")
    mine = to_tree(asdict(plan))
    if known is not None and known["plan"] != mine:
        raise ValueError(
            f"{out} holds a demo with other settings; choose another --out or remove it"
        )
    if known is None:
        write_record(out / "plan.json", {"plan": mine, **provenance()})


def _describe(store: Path, path: Path) -> dict[str, Any]:
    overview = dataset_overview(store)
    write_record(path, overview)
    return overview


def _summary(
    plan: DemoPlan,
    store: Path,
    overview: dict[str, Any],
    trained: dict[str, TrainResult],
    evaluations: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    card = load_expert(plan.collect.expert).card
    train_s: dict[str, float | None] = {name: result.train_s for name, result in trained.items()}
    train_s["expert"] = card.get("wall_s")
    expert_return = evaluations["expert"]["return"]
    policies = {
        name: {
            "return": record["return"],
            "return_fraction": record["return"] / expert_return,
            "success": record["success"],
            "survival": record["survival"],
            "parameters": record["parameters"],
            "train_s": train_s[name],
            "latency_us_median": record["latency_us_median"],
            "latency_us_p99": record["latency_us_p99"],
        }
        for name, record in evaluations.items()
    }
    parts = part_records(store, plan.collect.part_ids())
    steps_per_s = collection_rate(parts)
    return {
        "dataset": overview["info"],
        # Every ground is a height field here, flat ones included: one rate serves both names.
        "collect": {"steps_per_s": steps_per_s, "terrain_steps_per_s": steps_per_s},
        "policies": policies,
        "cells": [cell for record in evaluations.values() for cell in record["cells"]],
        **provenance(),
    }


def _clocked(stage: Stage, out: Path) -> Stage:
    """Add every stage's seconds to a file: a resumed demo's time is that of all its runs."""

    def run(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        try:
            return stage(name, work)
        finally:
            known = read_record(out / WALL) or []
            seconds = round(time.perf_counter() - started, 3)
            write_record(out / WALL, [*known, {"stage": name, "seconds": seconds}])

    return run


if __name__ == "__main__":
    import sys

    from flows.direct import main

    sys.exit(main("demo"))
