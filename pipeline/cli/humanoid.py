"""`gaitforge humanoid`: motion tracking of the CMU humanoid."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from collectors.humanoid.clips.motions import MOTIONS, synthetic_clip
from collectors.humanoid.clips.reference import clip_lengths, write_reference
from collectors.humanoid.clips.snippets import Snippet, cut_clip
from collectors.humanoid.data import SnippetGrid
from collectors.humanoid.experts.experts import PD
from collectors.humanoid.observation import CONTROL_DT_S
from flows.settings import override
from flows.tasks.humanoid import HumanoidPlan
from pipeline.cli.arguments import Parser, add_actions, given, names, option, positive, whole
from pipeline.cli.collect import run_collection, show_parts
from pipeline.cli.runner_arguments import add_runner
from pipeline.progress import TerminalReporter
from pipeline.tables import show

if TYPE_CHECKING:
    from flows.stages.humanoid.evaluation import HumanoidSource


def add_humanoid(parser: Parser) -> None:
    """`gaitforge humanoid ACTION`."""
    table = {
        "reference": (_add_reference, "write synthetic reference clips, or list a file's clips"),
        "train-expert": (_add_train_expert, "train an expert per snippet"),
        "collect": (_add_collect, "collect rollouts of experts, one part per snippet"),
        "evaluate": (_add_evaluate, "run a trained policy or an expert from the start of clips"),
    }
    add_actions(parser, "gaitforge humanoid reference --out clips.h5", table)


def _add_reference(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    option(which, "--out", "write synthetic clips to it", Path, metavar="FILE")
    option(which, "--list", "such a file, or cmu_2020_*.h5", Path, metavar="FILE")
    option(parser, "--motion", "motions, comma-separated (default: all)", names)
    option(parser, "--frames", "frames per clip", positive, 96)
    option(parser, "--variants", "clips per motion", positive, 1)
    parser.take("--json")
    parser.runs(
        _reference, "gaitforge humanoid reference --out clips.h5 --motion squat,step --variants 3"
    )


def _reference(arguments: argparse.Namespace) -> int:
    if arguments.out is not None:
        clips = [
            synthetic_clip(motion, arguments.frames, variant)
            for motion in arguments.motion or tuple(MOTIONS)
            for variant in range(arguments.variants)
        ]
        write_reference(arguments.out, clips)
    lengths = clip_lengths(arguments.out or arguments.list)
    rows = [
        {"clip": name, "frames": frames, "seconds": frames * CONTROL_DT_S}
        for name, frames in lengths.items()
    ]
    show(rows, arguments.json)
    return 0


def _add_snippets(parser: Parser) -> None:
    option(parser, "--reference", "file with the clips", Path, metavar="FILE", required=True)
    option(parser, "--clips", "clips, or snippets CLIP-START-END (default: all clips)", names)
    option(parser, "--snippet-frames", "frames per snippet, to cut clips into", positive, 165)
    option(parser, "--overlap", "frames that neighbouring snippets share", whole, 33)


def _snippets(arguments: argparse.Namespace) -> list[Snippet]:
    """The chosen clips, cut into snippets; a name that is a snippet's stays whole."""
    frames = clip_lengths(arguments.reference)
    found: list[Snippet] = []
    for name in arguments.clips or frames:
        if name in frames:
            found += cut_clip(name, frames[name], arguments.snippet_frames, arguments.overlap)
        else:
            found.append(Snippet.parse(name))
    return found


def _add_train_expert(parser: Parser) -> None:
    _add_snippets(parser)
    option(parser, "--steps", "control steps per snippet, in all", positive)
    parser.take("--out", "--seed", "--threads", "--set", "--json", settings="humanoids=256")
    parser.runs(
        _train_expert,
        "gaitforge humanoid train-expert --reference clips.h5 --clips step_00 --out experts",
    )


def _train_expert(arguments: argparse.Namespace) -> int:
    from collectors.humanoid.experts.training import ResidualTrainingConfig
    from flows.stages.humanoid.training import train_humanoid_expert

    config = ResidualTrainingConfig(**given(arguments, "steps", "seed", "threads"))
    config = override(config, arguments.settings)
    rows = []
    for snippet in _snippets(arguments):
        card = train_humanoid_expert(
            config, arguments.reference, snippet, arguments.out, TerminalReporter()
        )
        scores = {
            f"{name} {key}": card[name][f"normalised_{key}"]
            for name in ("pd", "expert")
            for key in ("return", "length")
        }
        rows.append({"snippet": snippet.name, **scores, "wall_s": card["wall_s"]})
    show(rows, arguments.json)
    return 0


def _add_collect(parser: Parser) -> None:
    parser.take("store")
    _add_snippets(parser)
    option(parser, "--expert", "pd, or the output folder of train-expert (default: pd)")
    option(parser, "--start-rollouts", "per snippet, from its start (default: 16)", whole)
    option(parser, "--random-rollouts", "per snippet, from random frames (default: 16)", whole)
    option(parser, "--action-noise", "standard deviation (default: 0.1)", float)
    option(parser, "--processes", "parallel simulators", positive, 1)
    add_runner(parser)
    parser.take("--seed", "--json")
    parser.runs(
        _collect,
        "gaitforge humanoid collect mocap.zarr --reference clips.h5 --clips step_00,squat_00",
    )


def _collect(arguments: argparse.Namespace) -> int:
    chosen = given(arguments, "start_rollouts", "random_rollouts", "action_noise", "seed")
    grid = SnippetGrid(tuple(snippet.name for snippet in _snippets(arguments)), **chosen)
    plan = HumanoidPlan(grid, str(arguments.reference), arguments.expert or PD, arguments.processes)
    records = run_collection(arguments, plan)
    if records is not None:
        show_parts(records, arguments.json)
    return 0


def _add_evaluate(parser: Parser) -> None:
    option(parser, "policy", "folder of a training run, pd, or a folder of experts")
    option(parser, "--reference", "file with the clips", Path, metavar="FILE", required=True)
    option(parser, "--train", "clips that were trained on", names, ())
    option(parser, "--validation", "clips that were not", names, ())
    option(parser, "--out", "also write the result as JSON", Path, metavar="FILE")
    parser.take("--checkpoint", "--set", "--json", settings="rollouts.max_steps=100")
    parser.runs(
        _evaluate,
        "gaitforge humanoid evaluate runs/bot --reference clips.h5 --train step_00 "
        "--validation step_01",
    )


def _evaluate(arguments: argparse.Namespace) -> int:
    from flows.stages.humanoid.evaluation import (
        HumanoidEvaluationPlan,
        evaluate_humanoid,
    )

    plan = HumanoidEvaluationPlan(str(arguments.reference), arguments.train, arguments.validation)
    plan = override(plan, arguments.settings)
    source = _source(arguments.policy, arguments.checkpoint)
    record = evaluate_humanoid(source, plan, TerminalReporter(), arguments.out)
    means = [
        {"group": group, "snippet": "(mean)", **record[group]}
        for group in ("train", "validation")
        if record[group] is not None
    ]
    shown = ("group", "snippet", "normalised_return", "normalised_length", "early")
    rows = [{name: row[name] for name in shown} for row in (*record["snippets"], *means)]
    show(rows, arguments.json)
    return 0


def _source(policy: str, checkpoint: str) -> HumanoidSource:
    from flows.stages.humanoid.evaluation import HumanoidSource

    folder = Path(policy)
    if (folder / "config.json").is_file():
        return HumanoidSource(folder.resolve().name, run=folder, which=checkpoint)
    return HumanoidSource(policy if policy == PD else folder.name, expert=policy)
