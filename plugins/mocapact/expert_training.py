"""Training and measuring experts of the humanoid's snippets."""

from pathlib import Path
from typing import Any

from gaitforge.collectors.experts.ppo_algorithm import trained_steps
from gaitforge.flows.progress import Reporter, from_totals
from gaitforge.flows.records.records import provenance, training_lock, write_record
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.tasks.policy_sources import EXPERT, PolicySource
from gaitforge.plugins.mocapact.evaluation import HumanoidEvaluation
from gaitforge.plugins.mocapact.humanoid.clips.reference import ReferenceClip, read_clip
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.experts.experts import PD, WEIGHTS
from gaitforge.plugins.mocapact.humanoid.experts.train_residual import (
    ResidualTrainingConfig,
    train_residual,
)


def card_file(out: Path, snippet: Snippet) -> Path:
    """The card of a snippet's expert."""
    return (out / snippet.name / WEIGHTS).with_suffix(".json")


def train_humanoid_expert(
    config: ResidualTrainingConfig, reference: Path, snippet: Snippet, out: Path, reporter: Reporter
) -> dict[str, Any]:
    """Train a snippet's expert in `out/<snippet>`, or resume that; returns its card.

    `HumanoidPlan.expert = out` then finds the weights and their card, which has the evaluations of
    PD and expert from the snippet's start.

    Raises:
        ValueError: another process trains it, or as `train_residual`.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    clip = read_clip(reference, snippet.clip)
    with training_lock(out / snippet.name):
        weights, card = _train(config, clip, snippet, out / snippet.name, reporter)
        card |= provenance()
        write_record(weights.with_suffix(".json"), card)
        plan = HumanoidEvaluation(str(reference), (snippet.name,))
        for name, location in ((PD, PD), (EXPERT, str(weights))):
            evaluation = evaluate_policy(PolicySource(name, EXPERT, location), plan, reporter)
            (card[name],) = evaluation.cells
        write_record(weights.with_suffix(".json"), card)
    return card


def _train(
    config: ResidualTrainingConfig,
    clip: ReferenceClip,
    snippet: Snippet,
    folder: Path,
    reporter: Reporter,
) -> tuple[Path, dict[str, Any]]:
    done = trained_steps(folder)
    with reporter.step(f"train {snippet.name}", config.steps, "step", done) as advance:
        show = from_totals(advance, done)

        def report(row: dict[str, Any]) -> None:
            note = ""
            if row["normalised_return"] is not None:
                mean = row["normalised_return"]
                length = row["normalised_length"]
                note = f"normalised return {mean:.3f}, length {length:.3f}"
            show(row["steps"], note)

        return train_residual(config, clip, snippet, folder, report)
