"""From a finished training to D4RL's qualities: which policies, and what they return.

D4RL (Fu et al. 2020) calls a policy "medium" whose training was stopped early, at about a third of
the expert's score (Chen et al. 2021), and "medium-replay" the replay buffer until then. The expert
is known at the end only, so both are chosen afterwards, from the actors that the training kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.gym.batch import TaskBatch
from collectors.gym.evaluation import TaskPolicy, evaluate, evaluation_seeds
from collectors.gym.experts import RECIPE, RandomPolicy, load_actor
from collectors.gym.tasks import GymTask, find_task, package_version
from collectors.gym.training.record import read_training
from collectors.gym.training.training import snapshot_path
from datasets.files import write_bytes_durably

MEDIUM_SHARE = 1.0 / 3.0
"""Of the way from the random to the expert's return: medium."""

CANDIDATES = 5
"""Actors that are measured again, to be the expert or medium: a training's own evaluations are of
few episodes, and the hand either succeeds, which returns thousands, or does not."""

CANDIDATE_EPISODES, EPISODES, ENVIRONMENTS = 50, 100, 10
_CANDIDATE_SEED, _SEED = 0xCA4D, 0x2EC1


@dataclass(frozen=True)
class Measured:
    """Returns of a policy's mean action: mean and sample standard deviation, and mean length."""

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
        progress: called with episodes that were run, at most `total_episodes` in all.

    Returns:
        What the recipe's file holds.

    Raises:
        ValueError: no training in `out`, none of its evaluations is known, or it never got better
            than random.
    """
    training = read_training(out)
    if training is None or not training.history:
        raise ValueError(f"{out} has no evaluations of a training to choose policies by")
    task, history = find_task(training.config["env"]), training.history
    batch = TaskBatch(task, ENVIRONMENTS)
    try:

        def measure(policy: TaskPolicy, episodes: int, seed: int) -> Measured:
            run = evaluate(policy, batch, evaluation_seeds(episodes, seed), progress)
            returns = np.array([episode.episode_return for episode in run])
            length = float(np.mean([episode.length for episode in run]))
            return Measured(float(returns.mean()), float(returns.std(ddof=1)), length)

        def measure_again(step: int) -> float:
            actor = _snapshot(out, step, task)
            return measure(actor, CANDIDATE_EPISODES, _CANDIDATE_SEED).mean

        best = sorted(history, key=lambda row: row["return"])[-CANDIDATES:]
        scores = {row["steps"]: measure_again(row["steps"]) for row in best}
        steps = {"expert": max(scores, key=lambda step: scores[step])}
        measured = {
            "random": measure(RandomPolicy(batch.act_dim), EPISODES, _SEED),
            "expert": measure(_snapshot(out, steps["expert"], task), EPISODES, _SEED),
        }
        random, expert = measured["random"].mean, measured["expert"].mean
        if not expert > random:
            raise ValueError(
                f"the training in {out} reached {expert:.1f}, and a random policy {random:.1f}: "
                "there is nothing to choose; train for more steps"
            )
        trained = [row for row in history if row["steps"] > training.config["random_steps"]]
        candidates = medium_candidates(trained or history, random, expert, steps["expert"])
        steps["medium"] = choose_medium(candidates, random, expert, measure_again)
        measured["medium"] = measure(_snapshot(out, steps["medium"], task), EPISODES, _SEED)
    finally:
        batch.close()
    # The recipe makes the policies, and those of an earlier end of this training go first.
    (out / RECIPE).unlink(missing_ok=True)
    algorithm = "ppo" if training.config.get("demonstrations") else "sac"
    for quality, step in steps.items():
        named = {"kind": f"gymnasium-{algorithm}", "env": task.env_id, "quality": quality}
        _write_policy(out, quality, step, {**named, **card}, measured[quality])
    recipe = {
        "env": task.env_id,
        "returns": {name: each.mean for name, each in measured.items()},
        "return_std": {name: each.std for name, each in measured.items()},
        "lengths": {name: each.length for name, each in measured.items()},
        "episodes": EPISODES,
        "medium_step": steps["medium"],
        "expert_step": steps["expert"],
        "replay_rows": steps["medium"],
        "training": training.config,
        "trained_steps": training.steps,
        "wall_s": training.wall_s,
        "simulator": package_version(task),
        **card,
    }
    _write_json(out / RECIPE, recipe)
    return recipe


def total_episodes() -> int:
    """Episodes that `choose_policies` runs at most."""
    return 2 * CANDIDATES * CANDIDATE_EPISODES + 3 * EPISODES


def medium_candidates(
    history: Sequence[dict[str, Any]], random: float, expert: float, expert_step: int
) -> list[int]:
    """Steps of the evaluations to be medium: those nearest to `MEDIUM_SHARE`, the nearest first.

    Evaluations after the expert's do not count: a policy that fell back from it is no half-trained
    one.

    Args:
        history: {"steps", "return"} of every evaluation, in order of time.
        random, expert: their mean returns.
        expert_step: steps of the expert's evaluation.

    Returns:
        `CANDIDATES` of them, or as many as there are.
    """
    rows = [row for row in history if row["steps"] <= expert_step] or list(history)
    away = {row["steps"]: _away(row["return"], random, expert) for row in rows}
    return sorted(away, key=lambda step: away[step])[:CANDIDATES]


def choose_medium(
    candidates: Sequence[int], random: float, expert: float, measure_again: Callable[[int], float]
) -> int:
    """The candidate whose return, measured again, is nearest to `MEDIUM_SHARE`.

    Not the first above a third in time: returns jump, and that one may be nearly an expert.
    """
    return min(candidates, key=lambda step: _away(measure_again(step), random, expert))


def _away(value: float, random: float, expert: float) -> float:
    """How far a return's share is from `MEDIUM_SHARE`."""
    return abs((value - random) / (expert - random) - MEDIUM_SHARE)


def _snapshot(out: Path, steps: int, task: GymTask) -> TaskPolicy:
    return load_actor(snapshot_path(out, steps), f"step {steps}", task)


def _write_policy(
    out: Path, quality: str, step: int, card: dict[str, Any], measured: Measured
) -> None:
    weights = snapshot_path(out, step).read_bytes()
    write_bytes_durably(out / f"{quality}.safetensors", weights)
    tree = {
        **card,
        "step": step,
        "return": measured.mean,
        "return_std": measured.std,
        "length": measured.length,
        "episodes": EPISODES,
    }
    _write_json(out / f"{quality}.json", tree)


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    write_bytes_durably(path, (json.dumps(tree, indent=1) + "\n").encode())
