"""The parsers of `gaitforge gym evaluate` and `gaitforge gym compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import (
    add_json,
    add_settings,
    command,
    names,
    numbers,
    positive,
    store_address,
    whole,
)


def add_gym_evaluation(actions: argparse._SubParsersAction) -> None:
    """`evaluate` and `compare`, among the actions of `gaitforge gym`."""
    _add_evaluate(actions)
    _add_compare(actions)


def _add_evaluate(actions: argparse._SubParsersAction) -> None:
    evaluate = command(
        actions,
        "evaluate",
        "run a trained policy, an expert or a random policy in a task",
        "gaitforge gym evaluate runs/fcnet --env Hopper-v5 --policies runs/hopper "
        "--return-target 1.15",
    )
    evaluate.add_argument(
        "policy",
        metavar="POLICY",
        help="folder of a training run or of a task's policies; medium or expert, which ship; or "
        "random",
    )
    evaluate.add_argument("--env", required=True, help="such as Hopper-v5")
    evaluate.add_argument(
        "--policies",
        default="",
        help="folder of a task's policies, whose measured returns normalise (default: of POLICY, "
        "else those that ship)",
    )
    evaluate.add_argument(
        "--quality",
        choices=("medium", "expert"),
        default="expert",
        help="of a folder of policies (default: %(default)s)",
    )
    evaluate.add_argument("--episodes", type=positive, help="default: 100")
    evaluate.add_argument("--seed", type=whole, help="of the episodes' starts")
    evaluate.add_argument(
        "--return-target",
        type=float,
        help="of a return-conditioned policy, in units of the expert's return (default: 1)",
    )
    evaluate.add_argument(
        "--checkpoint",
        choices=("last", "best"),
        default="last",
        help="of a training run (default: %(default)s)",
    )
    evaluate.add_argument("--out", type=Path, metavar="FILE", help="also keep the result as JSON")
    add_settings(evaluate, "environments=50")
    add_json(evaluate)
    evaluate.set_defaults(run="cli.gym_evaluation_commands:evaluate")


def _add_compare(actions: argparse._SubParsersAction) -> None:
    compare = command(
        actions,
        "compare",
        "train return-conditioned models on sets of a task's store and evaluate them, or go on",
        "gaitforge gym compare hopper.zarr --env Hopper-v5 --steps 20000 --out runs/hopper-compare",
    )
    compare.add_argument("store", type=store_address)
    compare.add_argument("--env", help="default: Hopper-v5")
    compare.add_argument("--out", type=Path, required=True, help="folder of the comparison")
    compare.add_argument(
        "--policies", help="the task's experts, whose measured returns normalise; else the store's"
    )
    compare.add_argument(
        "--models", type=names, help="of this call, see gaitforge models (default: fcnet,dt)"
    )
    compare.add_argument(
        "--sets",
        type=names,
        dest="only",
        help="of this call (default: medium,medium-replay,medium-expert); two processes may work "
        "in one folder on sets of their own",
    )
    compare.add_argument("--seeds", type=numbers, help="of this call, a run each (default: 0-2)")
    compare.add_argument("--steps", type=positive, help="optimiser steps of every run")
    compare.add_argument("--batch-size", type=positive, help="windows a step")
    compare.add_argument("--device", help="cpu or cuda")
    compare.add_argument("--episodes", type=positive, help="to evaluate a run on (default: 100)")
    add_settings(compare, """'own={"dt":{"model_overrides":{"context_len":20}}}'""")
    add_json(compare)
    compare.set_defaults(run="cli.gym_evaluation_commands:compare")
