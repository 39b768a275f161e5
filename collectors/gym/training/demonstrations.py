"""Demonstrations: episodes of a planner (MPPI) that a training clones.

A policy can only clone episodes that are alike: planned independently, they grip in as many ways as
there are episodes, and the mean of these does nothing. So a reference is searched for first: `free`
episodes are planned each with its own noise, as many more follow the best so far, and the best of
all is the reference. All others stay close to its actions, with its noise, until it has settled in
success, and from then on to the mean of its last actions. Starts are spread over the task's.

Files in the training's folder: `demonstrations.f32` in the replay buffer's layout, the reference
first, log-densities NaN; then `demonstrations.json` with the settings and every attempt, from which
an interrupted run continues. A new reference waits in `demonstrations-ATTEMPT.f32` until it is
recorded, so that no record has another one's actions.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaitforge.collectors.gym.algorithms.observation_scale import ObservationScale
from gaitforge.collectors.gym.algorithms.replay import ReplayBuffer
from gaitforge.collectors.gym.planning.adroit_objectives import OBJECTIVES
from gaitforge.collectors.gym.planning.mppi import Planner, PlannerConfig, Reference
from gaitforge.collectors.gym.tasks import GymTask
from gaitforge.datasets.errors import amount, listed
from gaitforge.datasets.files import replace_durably, write_bytes_durably
from gaitforge.datasets.interrupts import Notices, Stopped, deferred_signals

DEMONSTRATIONS_FILE, RECORD_FILE = "demonstrations.f32", "demonstrations.json"
_SETTLING = 30
"""Steps after a reference's first success until the hand is where it can stay."""

_LEAST_SHARE = 0.5
"""Of the reference's return, that an episode needs to count."""

_STARTS = 16
"""Drawn for every demonstration, to choose one."""

MOST_ATTEMPTS = 3
"""Per wanted episode, before the planner counts as unfit for the task."""

Attempt = dict[str, Any]


def check_can_plan(task: GymTask) -> None:
    """Raise ValueError for a task without a planner's objective; names those with one."""
    if task.env_id not in OBJECTIVES:
        raise ValueError(f"no planner for {task.env_id}; allowed: {listed(OBJECTIVES)}")


class Demonstrations:
    """A training folder's demonstrations; `buffer` holds those that count, the reference first."""

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
        """Open or begin them; ValueError if `out` has demonstrations of other settings.

        Args:
            count: episodes wanted; free: attempts without a reference, see the module.
            seed: of the episodes' starts; config: None for the planner's defaults.
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
        self.buffer = self._opened()
        self._reference = self._to_follow() if self.counted else None

    @property
    def attempts(self) -> int:
        """Episodes planned so far."""
        return len(self._attempts)

    @property
    def counted(self) -> int:
        """Episodes that count: the reference and those that follow it well."""
        return self._followed + (self._best is not None)

    @property
    def episodes(self) -> int:
        """Episodes to plan in all, if every one that follows the reference succeeds."""
        return self._searched + self._count - 1

    @property
    def episodes_left(self) -> int:
        """How many of these are left."""
        return max(0, self.episodes - min(self.attempts, self._searched) - self._followed)

    @property
    def _followed(self) -> int:
        return sum(attempt["counts"] for attempt in self._attempts[self._searched :])

    @property
    def _best(self) -> Attempt | None:
        """The best attempt in the search for a reference."""
        succeeded = [attempt for attempt in self._attempts[: self._searched] if attempt["counts"]]
        return max(succeeded, key=lambda attempt: attempt["return"], default=None)

    def _opened(self) -> ReplayBuffer:
        """The file of the episodes that count, where the reference now moves if it is new."""
        best = self._attempts.index(self._best) if self._best else None
        for new in self._out.glob(_reference_file("*")):
            if new.name == _reference_file(best):
                replace_durably(new, self._out / DEMONSTRATIONS_FILE)
            else:
                new.unlink()  # of an attempt that was killed before its record
        return self._file(DEMONSTRATIONS_FILE, self._count, self.counted)

    def _file(self, name: str, episodes: int, counted: int) -> ReplayBuffer:
        horizon, sizes = self._task.facts.horizon, (self._planner.obs_dim, self._planner.act_dim)
        capacity, rows = max(episodes, counted) * horizon, counted * horizon
        return ReplayBuffer(self._out / name, capacity, *sizes, rows)

    def plan(self, notices: Notices | None = None) -> Attempt:
        """Plan one more episode; ValueError if the search for a reference found none.

        Args:
            notices: of signals; one raises Stopped after the planner's step.

        Returns:
            The episode's seed, noise and return, the step of its first success if any, and whether
            it counts: it ended in success and returned more than all before it or, once there is a
            reference, at least `_LEAST_SHARE` of that.
        """
        number = len(self._attempts)
        searching = number < self._searched
        if not searching and self._reference is None:
            raise ValueError(
                f"none of {self._searched} planned episodes of {self._task.env_id} succeeded; "
                "raise planner.samples"
            )
        rng = np.random.default_rng([0xDE3, self._seed, number])
        seed, noise = (int(draw) for draw in rng.integers(2**31, size=2))
        if number < self._free or self._reference is None:
            follows = self._planner.no_reference(noise)
        else:
            follows = self._reference
        if not searching:
            seed = self._least_known_start(rng)
        transitions, succeeded = self._play(seed, follows, notices or Notices())
        total = float(sum(transition[3] for transition in transitions))
        best = self._best
        least = -np.inf if best is None else best["return"] * (1.0 if searching else _LEAST_SHARE)
        counts = succeeded[-1] and total > least
        if counts:
            new = self._file(_reference_file(number), 1, 0) if searching else self.buffer
            for transition in transitions:
                new.add(*transition)
            new.flush()
        first = succeeded.index(True) if any(succeeded) else None
        attempt = {
            "seed": seed,
            "noise": follows.noise,
            "return": total,
            "first_success": first,
            "counts": counts,
        }
        self._attempts.append(attempt)
        record = json.dumps({**self._settings, "attempts": self._attempts}, indent=1)
        write_bytes_durably(self._out / RECORD_FILE, record.encode())
        if counts and searching:
            self.buffer = self._opened()
            self._reference = self._to_follow()
        return attempt

    def check(self, notices: Notices) -> None:
        """Raise Stopped if a signal came."""
        if notices.received:
            raise Stopped(notices.received, f"{amount(self.attempts, 'planned episode')}")

    def _least_known_start(self, rng: np.random.Generator) -> int:
        """The seed, of `_STARTS`, whose start is least like those of the demonstrations so far.

        A few dozen independent starts would leave whole regions out.
        """
        seeds = [int(draw) for draw in rng.integers(2**31, size=_STARTS)]
        seen = np.stack([self._planner.env.reset(seed=seed)[0] for seed in seeds])
        scale = ObservationScale.of(seen)
        known = self.buffer.all("obs")[:: self._task.facts.horizon].copy()
        starts, known = (scale(torch.from_numpy(each).float()) for each in (seen, known))
        return seeds[int(torch.cdist(starts, known).amin(1).argmax())]

    def _play(
        self, seed: int, reference: Reference, notices: Notices
    ) -> tuple[list[tuple[Any, ...]], list[bool]]:
        """An episode's transitions as `ReplayBuffer.add` takes them, and each step's success."""
        transitions, succeeded = [], []
        obs = self._planner.reset(seed, reference)
        for _ in range(self._task.facts.horizon):
            action = self._planner.act()
            next_obs, reward, *ended, info = self._planner.env.step(action)
            transitions.append((obs, action, np.nan, float(reward), *ended, next_obs))
            succeeded.append(bool(info["success"]))
            obs = next_obs
            self.check(notices)
        return transitions, succeeded

    def _to_follow(self) -> Reference:
        """The reference: the best attempt until it has settled."""
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
        """(T,) `Planner.distance` of an episode's steps, by replaying it."""
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
    """Plan until all wanted episodes count.

    Args:
        progress: called after every attempt with 1 if it reduced `episodes_left`, else 0, and its
            return as text.

    Raises:
        ValueError: too many attempts failed.
        Stopped: (a KeyboardInterrupt) by a signal; finished attempts are recorded.
    """
    with deferred_signals() as notices:
        while (left := demonstrations.episodes_left) > 0:
            if demonstrations.attempts >= MOST_ATTEMPTS * demonstrations.episodes:
                raise ValueError(
                    f"only {demonstrations.counted} of {demonstrations.attempts} planned episodes "
                    "count; raise planner.samples"
                )
            attempt = demonstrations.plan(notices)
            done = left - demonstrations.episodes_left
            progress(done, f"return {attempt['return']:,.0f}")
            demonstrations.check(notices)


def _reference_file(attempt: int | str | None) -> str:
    return f"demonstrations-{attempt}.f32"


def _read_attempts(out: Path, settings: dict[str, Any]) -> list[Attempt]:
    path = out / RECORD_FILE
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    attempts: list[Attempt] = record.pop("attempts")
    if record != settings:
        raise ValueError(f"{out} has demonstrations of other settings; choose another folder")
    return attempts
