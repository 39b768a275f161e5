"""What the `gaitforge humanoid` commands do."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from collectors.humanoid.clips.motions import MOTIONS, synthetic_clip
from collectors.humanoid.clips.reference import clip_lengths, write_reference
from collectors.humanoid.clips.snippets import Snippet, cut_clip
from collectors.humanoid.data import SnippetGrid
from collectors.humanoid.experts.experts import PD
from collectors.humanoid.observation import CONTROL_DT_S
from datasets import open_store
from flows.records.part_records import records_of_commits
from flows.runners.registry import find_runner
from flows.stages.humanoid.evaluation import (
    HumanoidEvaluationPlan,
    HumanoidSource,
    evaluate_humanoid,
    evaluate_humanoid_once,
)
from flows.stages.humanoid.training import train_humanoid_expert
from flows.tasks.humanoid import HumanoidPlan
from pipeline.cli.collected import show_collected
from pipeline.cli.jobs_commands import show_submitted
from pipeline.cli.plan_choices import with_chosen
from pipeline.cli.runner_arguments import runner_settings
from pipeline.cli.settings import override
from pipeline.progress import TerminalReporter
from pipeline.tables import show


def reference(arguments: argparse.Namespace) -> int:
    """Write synthetic clips, or list a file's."""
    if arguments.out is not None:
        motions = arguments.motion or tuple(MOTIONS)
        clips = [
            synthetic_clip(motion, arguments.frames, variant)
            for motion in motions
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


def train_expert(arguments: argparse.Namespace) -> int:
    """Train the experts of the snippets, one after the other."""
    from collectors.humanoid.experts.training import (
        ResidualTrainingConfig,
    )  # brings torch and rsl-rl

    chosen = {name: getattr(arguments, name) for name in ("steps", "seed", "threads")}
    config = override(with_chosen(ResidualTrainingConfig(), chosen), arguments.settings)
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


def collect(arguments: argparse.Namespace) -> int:
    """Collect the missing parts of a plan."""
    chosen = {
        "start_rollouts": arguments.start_rollouts,
        "random_rollouts": arguments.random_rollouts,
        "action_noise": arguments.action_noise,
        "seed": arguments.seed,
    }
    snippets = tuple(snippet.name for snippet in _snippets(arguments))
    grid = SnippetGrid(snippets)
    grid = replace(grid, **{name: value for name, value in chosen.items() if value is not None})
    plan = HumanoidPlan(grid, str(arguments.reference), arguments.expert or PD, arguments.processes)
    made = find_runner(arguments.runner)(
        plan, arguments.store, TerminalReporter(), None, runner_settings(arguments)
    )
    if not isinstance(made, list):  # handed to a queue
        show_submitted(made, arguments.json)
        return 0
    records = records_of_commits(open_store(arguments.store), arguments.store, plan.part_ids())
    rows = [
        {
            "part": record.part,
            "episodes": record.episodes,
            "steps": record.steps,
            "bytes": record.bytes,
            "seconds": record.ended - record.started,
        }
        for record in records
    ]
    show_collected(rows, records, arguments.json)
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a policy on clips; prints a row a clip and the means."""
    plan = HumanoidEvaluationPlan(str(arguments.reference), arguments.train, arguments.validation)
    plan = override(plan, arguments.settings)
    source = _source(arguments.policy, arguments.checkpoint)
    record = (
        evaluate_humanoid(source, plan, TerminalReporter())
        if arguments.out is None
        else evaluate_humanoid_once(source, plan, arguments.out, TerminalReporter())
    )
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
    folder = Path(policy)
    if (folder / "config.json").is_file():
        return HumanoidSource(folder.resolve().name, run=folder, which=checkpoint)
    return HumanoidSource(policy if policy == PD else folder.name, expert=policy)


def _snippets(arguments: argparse.Namespace) -> list[Snippet]:
    """The clips that are asked for, cut; what is named as a snippet stays whole."""
    frames = clip_lengths(arguments.reference)
    found: list[Snippet] = []
    for name in arguments.clips or frames:
        if name in frames:
            found += cut_clip(name, frames[name], arguments.snippet_frames, arguments.overlap)
        else:
            found.append(Snippet.parse(name))
    return found
