"""Training an expert and measuring it: its weights, and their card."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from collectors.experts.ppo import ExpertTrainingConfig, train_expert
from collectors.experts.ppo_checkpoint import trained_steps
from collectors.legged.evaluation import EvaluationGrid
from collectors.scenarios.skills import SKILLS
from collectors.scenarios.terrains import TERRAINS
from flows.progress import Reporter, from_totals
from flows.records.records import provenance, write_record
from flows.stages.evaluate import EvaluatePlan, PolicySource, evaluate_policy

CARD_GRID = EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), levels=(1, 4, 8), episodes=200)
"""Of the card's table: easy, middle and hard levels, fully randomised, held-out tiles."""

TABLE_EVERY = 20
"""Updates between tables of success."""


def run_expert_training(
    config: ExpertTrainingConfig, out: Path, reporter: Reporter, grid: EvaluationGrid = CARD_GRID
) -> Path:
    """Train an expert in `out`, or resume the training there; returns its weights.

    The card lies beside the weights; `history.jsonl` has a line for each update.
    """
    out.mkdir(parents=True, exist_ok=True)
    done, table = trained_steps(out), _SuccessTable()
    with reporter.step("train expert", config.steps, "step", done) as advance:
        show = from_totals(advance, done)

        def report(summary: dict[str, Any]) -> None:
            note = ""
            if summary["return"] is not None:
                note = f"return {summary['return']:.2f}, success {summary['success']:.2f}"
            show(summary["steps"], note)
            table.add(summary["cells"])
            if summary["iteration"] % TABLE_EVERY == 0:
                reporter.say(table.take(summary))
            with open(out / "history.jsonl", "a") as file:
                file.write(json.dumps(summary) + "\n")

        weights, card = train_expert(config, out, report)
    # The policy needs a card to be loaded, and measured.
    path = weights.with_suffix(".json")
    write_record(path, card | provenance())
    plan = EvaluatePlan(grid=grid, threads=config.threads)
    evaluation = evaluate_policy(PolicySource("expert", expert=str(weights)), plan, reporter)
    write_record(path, card | provenance() | {"evaluation": evaluation})
    return weights


class _SuccessTable:
    """Success by terrain and skill, from the episodes of the last updates."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, cells: dict[str, list[float]]) -> None:
        """Count an update's cells: {"terrain/skill": [mean success, episodes]}."""
        for cell, (mean, count) in cells.items():
            self._sums[cell][0] += mean * count
            self._sums[cell][1] += count

    def take(self, summary: dict[str, Any]) -> str:
        """The table as text; clears it."""
        sums, self._sums = dict(self._sums), defaultdict(lambda: [0.0, 0.0])
        head = f"{summary['steps'] / 1e6:.2f} M steps, mean level {summary['level']:.1f}"
        lines = [f"success while exploring, at {head}"]
        lines.append(f"{'':<10}" + "".join(f"{skill:>9}" for skill in SKILLS))
        for terrain in TERRAINS:
            row = [sums.get(f"{terrain}/{skill}") for skill in SKILLS]
            texts = [f"{cell[0] / cell[1]:.2f}" if cell else "" for cell in row]
            lines.append(f"{terrain:<10}" + "".join(f"{text:>9}" for text in texts))
        return "\n".join(lines)
