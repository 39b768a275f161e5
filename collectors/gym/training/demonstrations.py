"""Episodes of a planner (`planner`), from which a training learns beside its own experience.

A policy can only learn from episodes that are alike: planned one by one, they grip and hold the
same thing in as many ways as there are episodes, whose mean does nothing. So the first few are
planned freely, each with its own noise, as many more follow the best one so far, and the best of
all these is the reference whose actions all others stay close to, with its noise, until it has
settled in success; from then on they stay close to what it did then, on average. Where they begin
is spread over where the task does.

They lie in the training's folder, in a file of the replay buffer's layout, `demonstrations.f32`,
the reference first; log-densities are NaN, as a planner has none. `demonstrations.json` has the
settings and what became of each attempt. It is written last, so that what was killed goes on with
the next episode.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from collectors.gym.algorithms.observation_scale import ObservationScale
from collectors.gym.algorithms.replay import ReplayBuffer
from collectors.gym.planning.adroit_objectives import OBJECTIVES
from collectors.gym.planning.planner import Planner, PlannerConfig, Reference
from collectors.gym.tasks import GymTask
from datasets.errors import listed
from datasets.files import write_bytes_durably

DEMONSTRATIONS_FILE, RECORD_FILE = "demonstrations.f32", "demonstrations.json"
_SETTLING = 30
"""Steps after a reference's first success; then the hand is where it can stay."""

_LEAST_SHARE = 0.5
"""Of the reference's return: what gets there by a detour is no example."""

_STARTS = 16
"""That are drawn for every demonstration, to choose one."""

MOST_ATTEMPTS = 3
"""For each episode that is wanted; a planner that fails more often does not know the task."""

Attempt = dict[str, Any]


def check_can_plan(task: GymTask) -> None:
    """Refuse a task that no planner knows.

    Raises:
        ValueError: names the tasks that one knows.
    """
    if task.env_id not in OBJECTIVES:
        raise ValueError(
            f"there are no demonstrations of {task.env_id}; a planner knows {listed(OBJECTIVES)}"
        )


class Demonstrations:
    """The demonstrations in a training's folder; what does not end in success is left out.

    Attributes:
        buffer: the transitions of those that count, the reference's first.
    """

    def __init__(
        self,
        task: GymTask,
        out: Path,
        count: int,
        free: int,
        seed: int = 0,
        config: PlannerConfig | None = None,
        threads: int = 1,
    ) -> None:
        """Open or begin them.

        Args:
            count: episodes that are wanted; free: attempts, at the beginning, that follow nothing;
                as many follow the best one so far, and the best of all these is the reference.
            seed: of the episodes' starts; config: None for the planner's defaults.
            threads: that simulate for it.

        Raises:
            ValueError: as `check_can_plan`, the task's package is not installed, or `out` has
                demonstrations of other settings.
        """
        check_can_plan(task)
        config = config or PlannerConfig()
        self._task, self._out, self._seed = task, out, seed
        self._count, self._free, self._searched = count, free, 2 * free
        planner = asdict(config)
        self._settings = {"env": task.env_id, "seed": seed, "free": free, "planner": planner}
        self._attempts = _read_attempts(out, self._settings)
        out.mkdir(parents=True, exist_ok=True)
        self._planner = Planner(task, OBJECTIVES[task.env_id], config, threads)
        sizes, horizon = (self._planner.obs_dim, self._planner.act_dim), task.facts.horizon
        rows, path = self.counted * horizon, out / DEMONSTRATIONS_FILE
        self.buffer = ReplayBuffer(path, max(count * horizon, rows), *sizes, rows)
        self._reference: Reference | None = None
        if rows:
            self._reference = self._to_follow()

    @property
    def attempts(self) -> int:
        """Episodes that were planned."""
        return len(self._attempts)

    @property
    def counted(self) -> int:
        """Episodes that count: the reference and those that follow it well."""
        return self._followed + (self._best is not None)

    @property
    def episodes(self) -> int:
        """To plan in all, were every one that follows the reference to succeed."""
        return self._searched + self._count - 1

    @property
    def episodes_left(self) -> int:
        """How many of them are left."""
        return max(0, self.episodes - min(self.attempts, self._searched) - self._followed)

    @property
    def _followed(self) -> int:
        return sum(attempt["counts"] for attempt in self._attempts[self._searched :])

    @property
    def _best(self) -> Attempt | None:
        """Of the attempts that look for a reference."""
        ended_well = [attempt for attempt in self._attempts[: self._searched] if attempt["counts"]]
        return max(ended_well, key=lambda attempt: attempt["return"], default=None)

    def plan(self) -> Attempt:
        """Plan one more episode, and keep it if it counts.

        Returns:
            The episode's seed and return, the step of its first success if any, and whether it
            counts: it ended in success and returned more than those before it or, once there is the
            reference, not much less than that.

        Raises:
            ValueError: none of the first attempts succeeded, so there is nothing to follow.
        """
        number = len(self._attempts)
        searching = number < self._searched
        if not searching and self._reference is None:
            raise ValueError(
                f"none of {self._searched} planned episodes of {self._task.env_id} succeeded; plan "
                "more thoroughly, with more planner.samples"
            )
        rng = np.random.default_rng([0xDE3, self._seed, number])
        seed, noise = (int(draw) for draw in rng.integers(2**31, size=2))
        if number < self._free or self._reference is None:
            follows = self._planner.no_reference(noise)
        else:
            follows = self._reference
        if not searching:
            seed = self._least_known_start(rng)
        transitions, succeeded = self._play(seed, follows)
        total = float(sum(transition["reward"] for transition in transitions))
        best = self._best
        least = -np.inf if best is None else best["return"] * (1.0 if searching else _LEAST_SHARE)
        counts = succeeded[-1] and total > least
        if counts and searching:
            self.buffer.rows = 0
        for transition in transitions if counts else []:
            self.buffer.add(**transition)
        self.buffer.flush()
        first = succeeded.index(True) if any(succeeded) else None
        attempt = {
            "seed": seed,
            "noise": follows.noise,
            "return": total,
            "first_success": first,
            "counts": counts,
        }
        self._attempts.append(attempt)
        if counts and searching:
            self._reference = self._to_follow()
        record = json.dumps({**self._settings, "attempts": self._attempts}, indent=1)
        write_bytes_durably(self._out / RECORD_FILE, record.encode())
        return attempt

    def _least_known_start(self, rng: np.random.Generator) -> int:
        """Of some starts, the seed of the one that is least like any of the demonstrations so far.

        Drawn at random, a few dozen starts leave whole regions out, where a policy then fails.
        """
        seeds = [int(draw) for draw in rng.integers(2**31, size=_STARTS)]
        seen = np.stack([self._planner.env.reset(seed=seed)[0] for seed in seeds])
        scale = ObservationScale.of(seen)
        known = self.buffer.all("obs")[:: self._task.facts.horizon].copy()
        starts, known = (scale(torch.from_numpy(each).float()) for each in (seen, known))
        return seeds[int(torch.cdist(starts, known).amin(1).argmax())]

    def _play(self, seed: int, reference: Reference) -> tuple[list[dict[str, Any]], list[bool]]:
        """An episode's transitions, and whether each was a success."""
        transitions, succeeded = [], []
        obs = self._planner.reset(seed, reference)
        for _ in range(self._task.facts.horizon):
            action = self._planner.act()
            following, reward, terminated, truncated, info = self._planner.env.step(action)
            transitions.append(
                {
                    "obs": obs,
                    "action": action,
                    "log_prob": np.nan,
                    "reward": float(reward),
                    "terminated": terminated,
                    "truncated": truncated,
                    "next_obs": following,
                }
            )
            succeeded.append(bool(info["success"]))
            obs = following
        return transitions, succeeded

    def _to_follow(self) -> Reference:
        """The best attempt until it has settled."""
        assert self._best is not None
        settling = self._best["first_success"]
        settled = settling + _SETTLING
        actions = self.buffer.all("action")[: self._task.facts.horizon]
        distances = self._distances(self._best["seed"], actions)
        return Reference(
            np.concatenate([actions[:settled], actions[settling:settled].mean(0, keepdims=True)]),
            np.append(distances[:settled], distances[settling:settled].max()),
            self._best["noise"],
        )

    def _distances(self, seed: int, actions: np.ndarray) -> np.ndarray:
        """(T,) of an episode's steps, by playing it again."""
        self._planner.reset(seed, self._planner.no_reference(0))
        distances = []
        for action in actions:
            distances.append(self._planner.distance())
            self._planner.env.step(action)
        return np.array(distances)

    def close(self) -> None:
        """Free the planner."""
        self._planner.close()


def demonstrate(
    demonstrations: Demonstrations,
    progress: Callable[[int, str], None] = lambda episodes, note: None,
) -> None:
    """Plan until the wanted number of episodes have ended in success.

    Args:
        progress: told of every attempt: whether it was one of `episodes_left`, 0 or 1, and what it
            returned.

    Raises:
        ValueError: none of the first attempts succeeds, or less than a third of the others.
    """
    while (left := demonstrations.episodes_left) > 0:
        if demonstrations.attempts >= MOST_ATTEMPTS * demonstrations.episodes:
            raise ValueError(
                f"only {demonstrations.counted} of {demonstrations.attempts} planned episodes "
                "count; plan more thoroughly, with more planner.samples"
            )
        attempt = demonstrations.plan()
        done = left - demonstrations.episodes_left
        progress(done, f"return {attempt['return']:,.0f}")


def _read_attempts(out: Path, settings: dict[str, Any]) -> list[Attempt]:
    path = out / RECORD_FILE
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    attempts: list[Attempt] = record.pop("attempts")
    if record != settings:
        raise ValueError(f"{out} has demonstrations of other settings; choose another folder")
    return attempts
