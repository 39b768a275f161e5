"""D4RL's qualities from a finished training: chosen policies and their returns.

D4RL (Fu et al. 2020) calls a policy "medium" whose training was stopped early, at about a third of
the expert's score (Chen et al. 2021), and "medium-replay" the replay buffer until then. Both are
chosen at the end, among the actors that the training saved.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.policy import TaskPolicy
from gaitforge.common.files import write_bytes_durably
from gaitforge.common.history import read_history
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import GymTask, find_task, package_version
from gaitforge.plugins.gym.episodes import evaluate, evaluation_seeds
from gaitforge.plugins.gym.experts import RECIPE, RandomPolicy, load_actor
from gaitforge.plugins.gym.training.records import Row, TrainingRecord, read_training
from gaitforge.plugins.gym.training.train import snapshot_path

MEDIUM_SHARE = 1.0 / 3.0
"""Medium's return, as a share of the way from random to expert."""

CANDIDATES = 5
"""Actors measured again to choose each policy: a training evaluates few episodes, and an episode
of the hand returns thousands or nothing."""

CANDIDATE_EPISODES = 50
EPISODES = 100
ENVIRONMENTS = 10
_CANDIDATE_SEED = 0xCA4D
_SEED = 0x2EC1


@dataclass(frozen=True)
class Measured:
    """Returns of a policy's mean action: mean and sample standard deviation, and mean length."""

    mean: float
    std: float
    length: float


Measure = Callable[[TaskPolicy, int, int], Measured]
"""(policy, episodes, seed) -> its returns."""


def choose_policies(
    out: Path,
    algorithm: str,
    card: Mapping[str, object],
    progress: Callable[[int], None] = lambda episodes: None,
) -> dict[str, Any]:
    """Choose, measure and write a finished training's policies and recipe; returns the latter.

    Args:
        algorithm: its name in the policies' cards, such as "sac".
        card: further entries of the policies' cards and the recipe.
        progress: called with the number of episodes that ended, at most `total_episodes` in all.

    Raises:
        ValueError: no training in `out`, no evaluation, or none better than random.
    """
    training = read_training(out)
    trained = training.steps if training else 0
    history = [row for row in read_history(out) if row["steps"] <= trained]
    if training is None or not history:
        raise ValueError(f"{out} has no evaluations of a training to choose policies by")
    task = find_task(training.config["env"])
    with closing(TaskBatch(task, ENVIRONMENTS)) as batch:

        def measure(policy: TaskPolicy, episodes: int, seed: int) -> Measured:
            run = evaluate(policy, batch, evaluation_seeds(episodes, seed), progress)
            returns = np.array([episode.episode_return for episode in run])
            length = float(np.mean([episode.length for episode in run]))
            return Measured(float(returns.mean()), float(returns.std(ddof=1)), length)

        steps, measured = _choose(training, history, out, measure, RandomPolicy(batch.act_dim))
    # The recipe commits the policies: an older one of this training is removed before they change.
    (out / RECIPE).unlink(missing_ok=True)
    for quality, step in steps.items():
        named = {"kind": f"gymnasium-{algorithm}", "env": task.env_id, "quality": quality}
        _write_policy(out, quality, step, {**named, **card}, measured[quality])
    recipe = {
        "env": task.env_id,
        "returns": {name: result.mean for name, result in measured.items()},
        "return_std": {name: result.std for name, result in measured.items()},
        "lengths": {name: result.length for name, result in measured.items()},
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


def _choose(
    training: TrainingRecord,
    history: Sequence[Row],
    out: Path,
    measure: Measure,
    random_policy: TaskPolicy,
) -> tuple[dict[str, int], dict[str, Measured]]:
    """Steps of the expert and medium policies, and returns of both and of the random policy."""
    task = find_task(training.config["env"])

    def measure_again(step: int) -> float:
        return measure(_snapshot(out, step, task), CANDIDATE_EPISODES, _CANDIDATE_SEED).mean

    best = sorted(history, key=lambda row: row["return"])[-CANDIDATES:]
    scores = {row["steps"]: measure_again(row["steps"]) for row in best}
    steps = {"expert": max(scores, key=lambda step: scores[step])}
    measured = {
        "random": measure(random_policy, EPISODES, _SEED),
        "expert": measure(_snapshot(out, steps["expert"], task), EPISODES, _SEED),
    }
    random = measured["random"].mean
    expert = measured["expert"].mean
    if not expert > random:
        raise ValueError(
            f"the training in {out} returns {expert:.1f}, a random policy {random:.1f}: "
            "train for more steps"
        )
    trained = [row for row in history if row["steps"] > training.config.get("random_steps", 0)]
    candidates = medium_candidates(trained or history, random, expert, steps["expert"])
    steps["medium"] = choose_medium(candidates, random, expert, measure_again)
    measured["medium"] = measure(_snapshot(out, steps["medium"], task), EPISODES, _SEED)
    return steps, measured


def medium_candidates(
    history: Sequence[Row], random: float, expert: float, expert_step: int
) -> list[int]:
    """Steps of the `CANDIDATES` evaluations nearest to `MEDIUM_SHARE`, the nearest first.

    Evaluations after the expert's do not count: a policy that got worse is not half-trained.

    Args:
        history: {"steps", "return"} of every evaluation, in order of time.
    """
    rows = [row for row in history if row["steps"] <= expert_step] or list(history)
    away = {row["steps"]: _away(row["return"], random, expert) for row in rows}
    return sorted(away, key=lambda step: away[step])[:CANDIDATES]


def choose_medium(
    candidates: Sequence[int], random: float, expert: float, measure_again: Callable[[int], float]
) -> int:
    """The candidate whose return, measured again, is nearest to `MEDIUM_SHARE`.

    The first one above a third would not do: returns jump, and it may be nearly an expert.
    """
    return min(candidates, key=lambda step: _away(measure_again(step), random, expert))


def _away(value: float, random: float, expert: float) -> float:
    """Distance of a return's share from `MEDIUM_SHARE`."""
    return abs((value - random) / (expert - random) - MEDIUM_SHARE)


def _snapshot(out: Path, steps: int, task: GymTask) -> TaskPolicy:
    return load_actor(snapshot_path(out, steps), f"step {steps}", task)


def _write_policy(
    out: Path, quality: str, step: int, card: Mapping[str, object], measured: Measured
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


def _write_json(path: Path, tree: Mapping[str, object]) -> None:
    write_bytes_durably(path, (json.dumps(tree, indent=1) + "\n").encode())
