"""Turn a finished training run into a policy that ships: `python -m recipes.ship RUN NAME`.

The policy gets a folder in `learners/assets/`, with what a run's folder has: the weights that act,
as the run has them, bit for bit; its settings and plan; and a card.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.common.files import new_folder, write_bytes_durably
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import provenance, read_record, to_tree
from gaitforge.flows.stages.dataset_plan import dataset_plan
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.status import RUN_CONFIG
from gaitforge.flows.tasks.evaluation import PolicyEvaluation
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import run_source, trained_robot
from gaitforge.learners.checkpoint import (
    policy_from,
    read_checkpoint,
    save_checkpoint,
)
from gaitforge.learners.run_files import CARD, SHIPPED
from gaitforge.pipeline.cli.parsing.options import add_options, option
from gaitforge.pipeline.cli.parsing.parser import WRONG_INPUT, Parser
from gaitforge.pipeline.cli.parsing.values import positive
from gaitforge.pipeline.process_setup import prepare_process
from gaitforge.pipeline.terminal import TerminalReporter

LICENCE = "Apache-2.0"
LEVELS = (1, 4, 8)
EPISODES = 20
_PROGRESS_OF_A_RUN = ("stream", "stopped")
"""Entries of a checkpoint's card that only a run which goes on needs."""

_CELL = ("terrain", "skill", "level", "episodes")
_MEASURES = ("return", "return_ci95", "success", "success_ci95", "survival", "vx_error")
_FEW = 0.9
"""A cell with a smaller share of successes, or of episodes without a fall, is a limit."""


def ship(
    run: Path, target: Path, store: Path | str, plan: LeggedEvaluation, reporter: Reporter
) -> None:
    """Write a run's policy as one that ships into the new folder `target`.

    Args:
        store: what the run was trained on; plan: what the card's results are measured on.

    Raises:
        ValueError: no finished run, `target` exists, or the store is another than the run's.
    """
    if target.exists():
        raise ValueError(f"{target} exists; remove it to make the policy anew")
    tensors, card = read_checkpoint(run)
    if not card.get("finished"):
        raise ValueError(f"{run} has not finished; train it to its end first")
    trained = read_record(run / PLAN) or {}
    info = open_store(store).info()
    if info.hash != trained.get("dataset"):
        raise ValueError(f"{store} is not the dataset that {run} was trained on")
    learned_from = {
        "dataset": info.hash,
        "steps": info.steps,
        "episodes": info.episodes,
        "plan": _without_folders(dataset_plan(store), Path(store).absolute().parent),
    }
    target.parent.mkdir(exist_ok=True)
    with new_folder(target) as folder:
        kept = {name: value for name, value in card.items() if name not in _PROGRESS_OF_A_RUN}
        save_checkpoint(folder, policy_from(tensors, card), None, kept)
        for name in (RUN_CONFIG, PLAN):
            write_bytes_durably(folder / name, (run / name).read_bytes())
        source = replace(run_source(folder), name=target.name)
        evaluation = evaluate_policy(source, plan, reporter)
        record = _card(target.name, kept, trained, learned_from, plan, evaluation)
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write_bytes_durably(folder / CARD, text.encode())


def _card(
    name: str,
    kept: Mapping[str, Any],
    trained: Mapping[str, Any],
    learned_from: Mapping[str, Any],
    plan: LeggedEvaluation,
    evaluation: PolicyEvaluation,
) -> dict[str, Any]:
    """The card: what was learned from what, the results of every cell, and the limits."""
    progress = kept["progress"]
    versions = ("git_revision", "versions", "machine")
    cells = [{key: cell[key] for key in (*_CELL, *_MEASURES)} for cell in evaluation.cells]
    return to_tree(
        {
            "name": name,
            "licence": LICENCE,
            "robot": trained["robot"],
            "model": kept["model"]["kind"],
            "parameters": kept["parameters"],
            "learned_from": learned_from,
            "training": {
                "objective": kept["train_config"]["objective"],
                "updates": progress["step"],
                "control_steps": progress["control_steps"],
                "validation_loss": progress["validation_loss"],
                "seconds": round(progress["train_s"]),
                **{key: trained[key] for key in versions},
            },
            "limits": limits(trained["robot"], cells),
            "results": {
                "return": evaluation.return_,
                "return_ci95": evaluation.return_ci95,
                "success": evaluation.success,
                "success_ci95": evaluation.success_ci95,
                "survival": evaluation.survival,
                "episodes": evaluation.episodes,
                "cells": cells,
                "plan": asdict(plan),
                **provenance(),
            },
        }
    )


def limits(robot: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a policy cannot do, or does badly, in words."""
    lines = [f"Trained and measured in simulation, on {robot} alone; it has driven no real robot."]
    for cell in cells:
        fallen = 1.0 - cell["survival"]
        if cell["success"] >= _FEW and fallen <= 1.0 - _FEW:
            continue
        where = f"{cell['terrain']}, {cell['skill']}, level {cell['level']}"
        falls = f", falls in {fallen:.0%}" if fallen else ""
        of = f"of {cell['episodes']} episodes"
        lines.append(f"{where}: succeeds in {cell['success']:.0%}{falls} {of}.")
    return lines


def _without_folders(tree: Any, folder: Path) -> Any:
    """A plan whose paths are relative to the store's folder; others lose their folders."""
    if isinstance(tree, dict):
        return {key: _without_folders(value, folder) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_folders(value, folder) for value in tree]
    if not (isinstance(tree, str) and Path(tree).is_absolute()):
        return tree
    path = Path(tree)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def build_parser() -> Parser:
    """The parser of the command line."""
    parser = Parser(prog="python -m recipes.ship", description=__doc__)
    add_options(
        parser,
        option("run", "folder of a finished training run", Path),
        option("name", "the shipped policy's name, e.g. fcnet-aliengo"),
        option("--store", "what it was trained on (default: beside the runs, as a demo has it)"),
        option("--episodes", "episodes of every cell of the card's results", positive, EPISODES),
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the policy that ships; returns the exit code."""
    prepare_process()
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        _ship(arguments)
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_INPUT
    return 0


def _ship(arguments: argparse.Namespace) -> None:
    run = arguments.run
    target = SHIPPED / arguments.name
    recorded = read_record(run / PLAN) or {}
    store = arguments.store or run.parent.parent / recorded.get("store", "")
    grid = EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), LEVELS, arguments.episodes)
    plan = LeggedEvaluation(grid=grid, robot=trained_robot(run))
    ship(run, target, store, plan, TerminalReporter())
    for file in sorted(target.iterdir()):
        print(f"{file} ({file.stat().st_size:,} bytes)")


if __name__ == "__main__":
    sys.exit(main())
