"""Training a Gymnasium task's policies and measuring them, see `collectors.gym`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collectors.gym.experts import RECIPE
from collectors.gym.recipe import choose_policies, total_episodes
from collectors.gym.training import HISTORY, GymTrainingConfig, train_gym, trained_gym_steps
from flows.progress import Reporter
from flows.records import provenance, read_record


def run_gym_training(config: GymTrainingConfig, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Train in `out`, or go on with the training there, and choose and measure its policies.

    `history.jsonl` gets a line an evaluation. A finished training whose steps are enough returns at
    once; with more steps it goes on, and its policies are chosen anew.

    Returns:
        What `recipe.json` holds.

    Raises:
        ValueError: the task's package is not installed, another training is in `out`, or this one
            never got better than random.
    """
    known = read_record(out / RECIPE)
    if known is not None and known.get("trained_steps", 0) >= config.steps:
        return known
    done, note = trained_gym_steps(out), ""
    with reporter.step(f"train {config.env}", config.steps, "step", done) as advance:

        def report(summary: dict[str, Any]) -> None:
            nonlocal note
            note = f"return {summary['return']:.0f}"
            with open(out / HISTORY, "a") as file:
                file.write(json.dumps(summary) + "\n")

        train_gym(config, out, report, lambda steps: advance(steps, note))
    with reporter.step("measure policies", total_episodes(), "episode") as advance:
        return choose_policies(out, provenance(), lambda episodes: advance(episodes, ""))
