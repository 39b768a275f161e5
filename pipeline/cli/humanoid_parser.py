"""The parser of the commands on the CMU humanoid."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import (
    add_json,
    add_settings,
    add_store,
    command,
    names,
    positive,
    whole,
)
from pipeline.cli.runner_arguments import add_runner


def add_humanoid(commands: argparse._SubParsersAction) -> None:
    """`gaitforge humanoid …`."""
    humanoid = command(
        commands,
        "humanoid",
        "collect and evaluate motion tracking of the CMU humanoid (MoCapAct's task)",
        "gaitforge humanoid reference --out clips.h5",
    )
    actions = humanoid.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_reference(actions)
    _add_train_expert(actions)
    _add_collect(actions)
    _add_evaluate(actions)


def _add_reference(actions: argparse._SubParsersAction) -> None:
    reference = command(
        actions,
        "reference",
        "write synthetic reference clips, or list those of a file",
        "gaitforge humanoid reference --out clips.h5 --motion squat,step --variants 3",
    )
    which = reference.add_mutually_exclusive_group(required=True)
    which.add_argument("--out", type=Path, metavar="FILE", help="write synthetic clips to it")
    which.add_argument("--list", type=Path, metavar="FILE", help="such a file, or cmu_2020_*.h5")
    reference.add_argument("--motion", type=names, help="motions, comma-separated (default: all)")
    reference.add_argument("--frames", type=positive, default=96, help="a clip (%(default)s)")
    reference.add_argument(
        "--variants", type=positive, default=1, help="clips a motion (default: %(default)s)"
    )
    add_json(reference)
    reference.set_defaults(run="cli.humanoid_commands:reference")


def _add_train_expert(actions: argparse._SubParsersAction) -> None:
    train = command(
        actions,
        "train-expert",
        "train a snippet's expert, a correction of the PD law, or go on with a training",
        "gaitforge humanoid train-expert --reference clips.h5 --clips step_00 --out experts",
    )
    _add_snippets(train)
    train.add_argument("--out", type=Path, required=True, help="folder of the experts")
    train.add_argument("--steps", type=positive, help="control steps a snippet, in all")
    train.add_argument("--seed", type=whole, help="of everything random")
    train.add_argument("--threads", type=positive, help="that step the simulator")
    add_settings(train, "humanoids=256")
    add_json(train)
    train.set_defaults(run="cli.humanoid_commands:train_expert")


def _add_collect(actions: argparse._SubParsersAction) -> None:
    collect = command(
        actions,
        "collect",
        "collect rollouts of experts, a part a snippet, or go on with a collection",
        "gaitforge humanoid collect mocap.zarr --reference clips.h5 --clips step_00,squat_00",
    )
    add_store(collect)
    _add_snippets(collect)
    collect.add_argument("--expert", help="pd (default), or the folder of train-expert")
    collect.add_argument("--start-rollouts", type=whole, help="a snippet, from its start (16)")
    collect.add_argument("--random-rollouts", type=whole, help="a snippet, from anywhere (16)")
    collect.add_argument("--action-noise", type=float, help="standard deviation (0.1)")
    collect.add_argument("--seed", type=whole, help="random seed")
    collect.add_argument(
        "--processes", type=positive, default=1, help="parallel simulators (default: %(default)s)"
    )
    add_runner(collect, "--processes")
    add_json(collect)
    collect.set_defaults(run="cli.humanoid_commands:collect")


def _add_evaluate(actions: argparse._SubParsersAction) -> None:
    evaluate = command(
        actions,
        "evaluate",
        "run a trained policy or an expert from the start of clips",
        "gaitforge humanoid evaluate runs/bot --reference clips.h5 --train step_00 "
        "--validation step_01",
    )
    evaluate.add_argument(
        "policy", metavar="POLICY", help="folder of a training run, pd, or a folder of experts"
    )
    evaluate.add_argument(
        "--checkpoint",
        choices=("last", "best"),
        default="last",
        help="of a training run (default: %(default)s)",
    )
    evaluate.add_argument("--reference", type=Path, required=True, help="file with the clips")
    evaluate.add_argument("--train", type=names, default=(), help="clips that were trained on")
    evaluate.add_argument("--validation", type=names, default=(), help="clips that were not")
    evaluate.add_argument("--out", type=Path, metavar="FILE", help="also keep the result as JSON")
    add_settings(evaluate, "rollouts.max_steps=100")
    add_json(evaluate)
    evaluate.set_defaults(run="cli.humanoid_commands:evaluate")


def _add_snippets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reference", type=Path, required=True, help="file with the clips")
    parser.add_argument(
        "--clips", type=names, help="clips, or snippets CLIP-START-END (default: all clips)"
    )
    parser.add_argument(
        "--snippet-frames", type=positive, default=165, help="cut clips into so many (%(default)s)"
    )
    parser.add_argument(
        "--overlap", type=whole, default=33, help="frames that neighbours share (%(default)s)"
    )
