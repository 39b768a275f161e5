"""Training an expert and measuring it: weights, and a card that says what they can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collectors.commands import SKILLS
from collectors.evaluation import EvaluationGrid
from collectors.ppo import ExpertTrainingConfig, train_expert
from collectors.terrains import TERRAINS
from flows.evaluate import EvaluatePlan, PolicySource, evaluate_policy
from flows.progress import Reporter
from flows.records import provenance, write_record

CARD_GRID = EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), levels=(1, 4, 8), episodes=64)
"""What the card's table is measured on: easy, middle and hard, fully randomised, held-out tiles."""


def run_expert_training(
    config: ExpertTrainingConfig, out: Path, reporter: Reporter, grid: EvaluationGrid = CARD_GRID
) -> Path:
    """Train an expert in `out`, or go on with the training there; returns its weights.

    The card lies beside the weights; `history.jsonl` gets a line an update.
    """
    out.mkdir(parents=True, exist_ok=True)
    with reporter.step("train expert", config.steps, "step") as advance:
        shown = 0

        def report(summary: dict[str, Any]) -> None:
            nonlocal shown
            note = ""
            if summary["return"] is not None:
                note = f"return {summary['return']:.2f}, success {summary['success']:.2f}"
            advance(summary["steps"] - shown, note)
            shown = summary["steps"]
            with open(out / "history.jsonl", "a") as file:
                file.write(json.dumps(summary) + "\n")

        weights, card = train_expert(config, out, report)
    # A card must be there before the policy can be loaded to be measured.
    path = weights.with_suffix(".json")
    write_record(path, card | provenance())
    plan = EvaluatePlan(grid=grid, threads=config.threads)
    evaluation = evaluate_policy(PolicySource("expert", expert=str(weights)), plan, reporter)
    write_record(path, card | provenance() | {"evaluation": evaluation.as_record()})
    return weights
