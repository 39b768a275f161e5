"""Training and measuring experts of the humanoid's snippets."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collectors.experts.ppo_checkpoint import trained_steps
from collectors.humanoid.clips.reference import read_clip
from collectors.humanoid.clips.snippets import Snippet
from collectors.humanoid.experts.experts import PD
from collectors.humanoid.experts.training import ResidualTrainingConfig, train_residual
from flows.progress import Reporter, from_totals
from flows.records.records import provenance, write_record
from flows.stages.humanoid.evaluation import HumanoidSource, Rollouts, evaluate_snippets


def train_humanoid_expert(
    config: ResidualTrainingConfig, reference: Path, snippet: Snippet, out: Path, reporter: Reporter
) -> dict[str, Any]:
    """Train a snippet's expert in `out/<snippet>`, or resume that; returns its card.

    `HumanoidPlan.expert = out` then finds the weights and their card, which has the evaluations of
    PD and expert from the snippet's start.
    """
    folder = out / snippet.name
    done = trained_steps(folder)
    clip = read_clip(reference, snippet.clip)
    with reporter.step(f"train {snippet.name}", config.steps, "step", done) as advance:
        show = from_totals(advance, done)

        def report(summary: dict[str, Any]) -> None:
            note = ""
            if summary["normalised_return"] is not None:
                note = f"normalised return {summary['normalised_return']:.3f}"
            show(summary["steps"], note)
            with open(folder / "history.jsonl", "a") as file:
                file.write(json.dumps(summary) + "\n")

        weights, card = train_residual(config, clip, snippet, folder, report)
    card |= provenance()
    write_record(weights.with_suffix(".json"), card)
    for name, source in (("pd", PD), ("expert", str(weights))):
        policy = HumanoidSource(name, expert=source)
        (score,) = evaluate_snippets(policy, reference, [snippet], Rollouts(), reporter)
        card[name] = asdict(score)
    write_record(weights.with_suffix(".json"), card)
    return card
