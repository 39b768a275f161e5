"""`gaitforge humanoid`: motion tracking of the CMU humanoid."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge.common.files import sha256_file
from gaitforge.flows.records.records import digest, read_record
from gaitforge.pipeline.cli.collect import collection_work, part_rows
from gaitforge.pipeline.cli.parsing.options import (
    JSON,
    LOG,
    MIX_VERSIONS,
    OUT,
    PROCESSES,
    SEED,
    STORE,
    THREADS,
    Container,
    add_options,
    needs,
    option,
    option_values,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.values import names, positive, uses, whole
from gaitforge.pipeline.cli.work import CommandWork, Result, work
from gaitforge.pipeline.terminal import show

if TYPE_CHECKING:
    from gaitforge.plugins.mocapact.humanoid.clips.reference import ReferenceClip
    from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet


def _add_reference_file(parser: Container) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    add_options(which, option("--out", "write clips to it", Path, metavar="FILE"))
    add_options(
        which, option("--list", "a file made by --out, or cmu_2020_*.h5", Path, metavar="FILE")
    )


@command(
    "gaitforge humanoid reference --out clips.h5 --motion squat,step --variants 3",
    _add_reference_file,
    option("--motion", "motions, comma-separated (default: all)", names),
    option("--frames", "frames per clip", positive, 96),
    option("--variants", "clips per motion", positive, 1),
    option(
        "--rollouts", "write the clips that a MoCapAct file's rollouts saw", Path, metavar="FILE"
    ),
    JSON,
    needs("sim"),
)
def _reference(arguments: argparse.Namespace) -> Callable[[], None]:
    """Write reference clips, synthetic ones or those of MoCapAct's rollouts, or list a file's."""
    uses(arguments, "out", "list", "json")
    if arguments.out is not None:
        uses(arguments, "rollouts")
        if arguments.rollouts is None:
            uses(arguments, "motion", "frames", "variants")
    return partial(_write_or_list, arguments)


def _write_or_list(arguments: argparse.Namespace) -> None:
    from gaitforge.plugins.mocapact.humanoid.clips.reference import clip_lengths, write_reference
    from gaitforge.plugins.mocapact.humanoid.observation import CONTROL_DT_S

    if arguments.out is not None:
        write_reference(arguments.out, _clips(arguments))
    lengths = clip_lengths(arguments.out or arguments.list)
    rows = [
        {"clip": name, "frames": frames, "seconds": frames * CONTROL_DT_S}
        for name, frames in lengths.items()
    ]
    show(rows, arguments.json)


def _clips(arguments: argparse.Namespace) -> "list[ReferenceClip]":
    """The clips that a MoCapAct file's rollouts saw, or synthetic ones."""
    from gaitforge.plugins.mocapact.humanoid.clips.motions import MOTIONS, synthetic_clip
    from gaitforge.plugins.mocapact.humanoid.walker import load_mocapact

    if arguments.rollouts is not None:
        load_mocapact("h5py")
        from gaitforge.plugins.mocapact.humanoid.clips.observed import observed_clips

        return observed_clips(arguments.rollouts)
    return [
        synthetic_clip(motion, arguments.frames, variant)
        for motion in arguments.motion or tuple(MOTIONS)
        for variant in range(arguments.variants)
    ]


_REFERENCE = option("--reference", "file with the clips", Path, metavar="FILE", required=True)
_SNIPPETS = (
    _REFERENCE,
    option("--clips", "clips, or snippets CLIP-START-END (default: all clips)", names),
    option("--snippet-frames", "frames per snippet, to cut clips into", positive, 165),
    option("--overlap", "frames that neighbouring snippets share", whole, 33),
)


def _snippets(arguments: argparse.Namespace) -> "list[Snippet]":
    """The snippets of the chosen clips, and the snippets that are chosen by their own names."""
    from gaitforge.plugins.mocapact.humanoid.clips.reference import clip_lengths
    from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet, cut_clip

    frames = clip_lengths(arguments.reference)
    snippets: list[Snippet] = []
    for name in arguments.clips or frames:
        if name in frames:
            snippets += cut_clip(name, frames[name], arguments.snippet_frames, arguments.overlap)
        else:
            snippets.append(Snippet.parse(name))
    return snippets


@work(
    "gaitforge humanoid train-expert --reference clips.h5 --clips step_00 --out experts",
    *_SNIPPETS,
    option("--steps", "control steps per snippet, in all", positive),
    OUT,
    SEED,
    THREADS,
    option("--stage", "do only this stage", metavar="NAME"),
    LOG,
    setting("humanoids=256"),
    JSON,
    needs("sim", "learn"),
)
def _train_expert(arguments: argparse.Namespace) -> CommandWork:
    """Train an expert per snippet, a stage each."""
    from gaitforge.flows.stages.stage import RecordedStage
    from gaitforge.plugins.mocapact.expert_training import card_file, train_humanoid_expert
    from gaitforge.plugins.mocapact.humanoid.experts.train_residual import ResidualTrainingConfig

    config = planned(ResidualTrainingConfig(), arguments, "steps", "seed", "threads")
    reference = arguments.reference
    out = arguments.out
    snippets = _snippets(arguments)

    def result(_: object) -> Result:
        rows = []
        for snippet in snippets:
            card = read_record(card_file(out, snippet)) or {}
            scores = {
                f"{name} {key}": card[name][f"normalised_{key}"]
                for name in ("pd", "expert")
                for key in ("return", "length")
            }
            rows.append({"snippet": snippet.name, **scores, "wall_s": card["wall_s"]})
        return Result(rows, rows, title="experts", about=out)

    stages = [
        RecordedStage(
            f"train {snippet.name}",
            digest([config, snippet, sha256_file(reference)]),
            run=partial(train_humanoid_expert, config, reference, snippet, out),
            outputs=(card_file(out, snippet),),
        )
        for snippet in snippets
    ]
    return CommandWork(out, stages, result, arguments.words)


@work(
    "gaitforge humanoid collect mocap.zarr --reference clips.h5 --clips step_00,squat_00",
    STORE,
    *_SNIPPETS,
    option("--expert", "pd, or the output folder of train-expert (default: pd)"),
    option("--start-rollouts", "rollouts per snippet from its start (default: 16)", whole),
    option("--random-rollouts", "rollouts per snippet from random frames (default: 16)", whole),
    option("--action-noise", "standard deviation of the noise on actions (default: 0.1)", float),
    PROCESSES,
    SEED,
    MIX_VERSIONS,
    JSON,
    needs("sim", "learn"),
    alone=True,
)
def _collect(arguments: argparse.Namespace) -> CommandWork:
    """Collect rollouts of experts, one part per snippet."""
    from gaitforge.plugins.mocapact.humanoid.experts.experts import PD
    from gaitforge.plugins.mocapact.humanoid.snippet_grid import SnippetGrid
    from gaitforge.plugins.mocapact.task import HumanoidPlan

    values = option_values(arguments, "start_rollouts", "random_rollouts", "action_noise", "seed")
    grid = SnippetGrid(tuple(snippet.name for snippet in _snippets(arguments)), **values)
    plan = HumanoidPlan(grid, str(arguments.reference), arguments.expert or PD, arguments.processes)
    return collection_work(arguments, plan, part_rows)


humanoid_command = actions(
    "humanoid", "gaitforge humanoid reference --out clips.h5", _reference, _train_expert, _collect
)
