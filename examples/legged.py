"""From a simulator to a policy for a robot's program, in Python: collect, train, evaluate, export.

Run it from a clone or anywhere that gaitforge is installed; it takes a minute on two cores:

    python examples/legged.py runs/example

Run again, it skips what is done. A policy that walks needs more of both: `legged_plan("demo")` as
it is, and 3000 steps.
"""

import sys
from pathlib import Path

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.datasets import open_store
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.evaluate import EVALUATION, evaluate_policy
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.stages.transfer import ExportPlan, run_export
from gaitforge.flows.tasks.legged import legged_plan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import run_source
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.terminal import TerminalReporter


def main(out: Path, steps: int = 20) -> None:
    """Do all of it in the folder `out`, with so many optimiser steps."""
    reporter = TerminalReporter()
    store = out / "legged.zarr"
    run = out / "fcnet"

    episodes = {"terrains": ("flat",), "skills": ("run", "stand"), "levels": (0, 1)}
    collection = legged_plan("demo", {**episodes, "parts": 1, "episodes_per_part": 8})
    collect(collection, store, reporter)
    print(open_store(store).select(skill="run").where("return > 0"))

    training = TrainPlan(SelectPlan(), TrainConfig(model="fcnet", steps=steps, batch_size=8))
    run_training(training, store, run, reporter)

    grid = EvaluationGrid(terrains=("flat",), skills=("run", "stand"), levels=(1,), episodes=1)
    evaluation = LeggedEvaluation(grid=grid)
    scores = evaluate_policy(run_source(run), evaluation, reporter, run / EVALUATION)
    print(f"return {scores.return_:.2f}, {scores.success:.0%} of the episodes succeed")

    exported = run_export(ExportPlan(), run, out / "exported", reporter)
    print(f"for a robot's program: {exported.folder}, {sorted(exported.sizes)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
