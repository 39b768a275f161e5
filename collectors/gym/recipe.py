"""From a finished training to D4RL's qualities: which policies, and what they return.

D4RL (Fu et al. 2020, Section 4) calls a policy "medium" that has about a third of the expert's
performance, and "medium-replay" the replay buffer until then. The expert is known at the end only,
so both are chosen afterwards, from the actors that the training kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.gym.batch import TaskBatch
from collectors.gym.evaluation import TaskPolicy, evaluate, evaluation_seeds
from collectors.gym.experts import RECIPE, RandomPolicy, load_actor
from collectors.gym.tasks import GymTask, find_task, package_version
from collectors.gym.training import HISTORY, TRAINING, snapshot_path
from collectors.ppo_checkpoint import replace_file

MEDIUM_SHARE = 1.0 / 3.0
"""Of the way from the random to the expert's return."""

CANDIDATES = 5
"""Actors with the best returns in training that are measured again, to be the expert."""

CANDIDATE_EPISODES, EPISODES, ENVIRONMENTS = 20, 100, 10
_CANDIDATE_SEED, _SEED = 0xCA4D, 0x2EC1


@dataclass(frozen=True)
class Measured:
    """Returns of a policy's mean action: mean and standard deviation, and the mean length."""

    mean: float
    std: float
    length: float


def choose_policies(
    out: Path, card: dict[str, Any], progress: Callable[[int], None] = lambda episodes: None
) -> dict[str, Any]:
    """Choose, measure and write the policies and the recipe of a finished training.

    Args:
        out: the training's folder.
        card: what the policies' cards are to say beside what is measured.
        progress: called with episodes that were run, `total_episodes` in all.

    Returns:
        What the recipe's file holds.

    Raises:
        ValueError: the training never got better than random.
    """
    training = json.loads((out / TRAINING).read_text())
    task = find_task(training["config"]["env"])
    history = _history(out, training["steps"])
    batch = TaskBatch(task, ENVIRONMENTS)
    try:

        def measure(policy: TaskPolicy, episodes: int, seed: int) -> Measured:
            run = evaluate(policy, batch, evaluation_seeds(episodes, seed), progress)
            returns = np.array([episode.episode_return for episode in run])
            length = float(np.mean([episode.length for episode in run]))
            return Measured(float(returns.mean()), float(returns.std()), length)

        best = sorted(history, key=lambda row: row["return"])[-CANDIDATES:]
        scores = {
            row["steps"]: measure(
                _snapshot(out, row["steps"], task), CANDIDATE_EPISODES, _CANDIDATE_SEED
            ).mean
            for row in best
        }
        steps = {"expert": max(scores, key=lambda step: scores[step])}
        measured = {
            "random": measure(RandomPolicy(batch.act_dim), EPISODES, _SEED),
            "expert": measure(_snapshot(out, steps["expert"], task), EPISODES, _SEED),
        }
        random, expert = measured["random"].mean, measured["expert"].mean
        if expert <= random:
            raise ValueError(
                f"the training in {out} reached {expert:.1f}, and a random policy {random:.1f}: "
                "there is nothing to choose; train for more steps"
            )
        steps["medium"] = first_reaching(history, random + MEDIUM_SHARE * (expert - random))
        measured["medium"] = measure(_snapshot(out, steps["medium"], task), EPISODES, _SEED)
    finally:
        batch.close()
    for quality, step in steps.items():
        _write_policy(out, quality, step, task, card, measured[quality])
    recipe = {
        "env": task.env_id,
        "returns": {name: each.mean for name, each in measured.items()},
        "return_std": {name: each.std for name, each in measured.items()},
        "lengths": {name: each.length for name, each in measured.items()},
        "episodes": EPISODES,
        "medium_step": steps["medium"],
        "expert_step": steps["expert"],
        "replay_rows": steps["medium"],
        "training": training["config"],
        "trained_steps": training["steps"],
        "wall_s": training["wall_s"],
        "simulator": package_version(task),
        **card,
    }
    _write_json(out / RECIPE, recipe)
    return recipe


def total_episodes() -> int:
    """Episodes that `choose_policies` runs."""
    return CANDIDATES * CANDIDATE_EPISODES + 3 * EPISODES


def first_reaching(history: Sequence[dict[str, Any]], wanted: float) -> int:
    """Steps of the first evaluation with at least this return, or of the best one."""
    reached = [row["steps"] for row in history if row["return"] >= wanted]
    return min(reached) if reached else max(history, key=lambda row: row["return"])["steps"]


def _history(out: Path, trained_steps: int) -> list[dict[str, Any]]:
    """Evaluations up to the last step; one that a resumed training made twice counts as it is."""
    rows = [json.loads(line) for line in (out / HISTORY).read_text().splitlines()]
    last = {row["steps"]: row for row in rows if row["steps"] <= trained_steps}
    return [last[steps] for steps in sorted(last)]


def _snapshot(out: Path, steps: int, task: GymTask) -> TaskPolicy:
    return load_actor(snapshot_path(out, steps), f"step {steps}", task)


def _write_policy(
    out: Path, quality: str, step: int, task: GymTask, card: dict[str, Any], measured: Measured
) -> None:
    source = snapshot_path(out, step)
    replace_file(out / f"{quality}.safetensors", lambda path: shutil.copyfile(source, path))
    tree = {
        "kind": "gymnasium-sac",
        "env": task.env_id,
        "quality": quality,
        "step": step,
        "return": measured.mean,
        "return_std": measured.std,
        "length": measured.length,
        "episodes": EPISODES,
        **card,
    }
    _write_json(out / f"{quality}.json", tree)


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    replace_file(path, lambda temporary: temporary.write_text(json.dumps(tree, indent=1) + "\n"))
