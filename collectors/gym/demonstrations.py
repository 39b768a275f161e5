"""Episodes of a planner (`planner`), from which a training learns beside its own experience.

Some are played before the training begins. Others begin where the policy in training has got to,
for in states that no demonstration has seen it cannot know what to do (Ross et al. 2011, "A
Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning").

They lie in the training's folder, in a file of the replay buffer's layout, `demonstrations.f32`;
its log-densities are NaN, as a planner has none. `demonstrations.json` has the settings and what
became of each attempt. It is written last, so that what was killed goes on with the next episode.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from collectors.gym.adroit_objectives import OBJECTIVES
from collectors.gym.planner import Planner, PlannerConfig
from collectors.gym.replay import ReplayBuffer
from collectors.gym.tasks import GymTask
from datasets.errors import listed
from datasets.files import write_bytes_durably

DEMONSTRATIONS_FILE, RECORD_FILE = "demonstrations.f32", "demonstrations.json"
MOST_ATTEMPTS = 3
"""For each episode that is wanted; a planner that fails more often does not know the task."""

Attempt = dict[str, Any]
Act = Callable[[np.ndarray], np.ndarray]
"""Observation (Do,) -> action (A,), both float32."""


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
        buffer: the transitions of those that count.
    """

    def __init__(
        self,
        task: GymTask,
        out: Path,
        further: int,
        seed: int = 0,
        config: PlannerConfig | None = None,
        threads: int = 1,
    ) -> None:
        """Open or begin them.

        Args:
            further: attempts that there may be beside those that are there.
            seed: of the episodes' starts and of the plans; config: None for the planner's defaults.
            threads: that simulate for it.

        Raises:
            ValueError: as `check_can_plan`, the task's package is not installed, or `out` has
                demonstrations of other settings.
        """
        check_can_plan(task)
        config = config or PlannerConfig()
        self._task, self._out, self._seed = task, out, seed
        self._settings = {"env": task.env_id, "seed": seed, "planner": asdict(config)}
        self._attempts = _read_attempts(out, self._settings)
        out.mkdir(parents=True, exist_ok=True)
        self._planner = Planner(task, OBJECTIVES[task.env_id], config, threads)
        rows = sum(attempt["rows"] for attempt in self._attempts)
        self.buffer = ReplayBuffer(
            out / DEMONSTRATIONS_FILE,
            rows + further * task.facts.horizon,
            self._planner.obs_dim,
            self._planner.act_dim,
            rows,
        )

    @property
    def attempts(self) -> int:
        """Episodes that were planned."""
        return len(self._attempts)

    @property
    def successes(self) -> int:
        """Episodes that count."""
        return sum(bool(attempt["success"]) for attempt in self._attempts)

    def plan(self, lead: Act | None = None) -> Attempt:
        """Play one more episode, and keep it if it ends in success.

        Args:
            lead: who acts before the planner, for up to half of the episode; those steps are not
                kept.

        Returns:
            The episode's seed and return, its success, and rows: the steps of it that were kept.
        """
        number = len(self._attempts)
        rng = np.random.default_rng([0xDE3, self._seed, number])
        seed = int(rng.integers(2**31))
        led = int(rng.integers(self._task.facts.horizon // 2)) if lead else 0
        before = self.buffer.rows
        total, success = self._play(seed, lead, led)
        if not success:
            self.buffer.rows = before
        self.buffer.flush()
        rows = self.buffer.rows - before
        attempt = {"seed": seed, "led": led, "return": total, "success": success, "rows": rows}
        self._attempts.append(attempt)
        record = json.dumps({**self._settings, "attempts": self._attempts}, indent=1)
        write_bytes_durably(self._out / RECORD_FILE, record.encode())
        return attempt

    def _play(self, seed: int, lead: Act | None, led: int) -> tuple[float, bool]:
        planner, total, success = self._planner, 0.0, False
        obs = planner.reset(seed)
        for step in range(self._task.facts.horizon):
            if lead is not None and step < led:
                action = lead(obs.astype(np.float32))
                planner.hold(action)
            else:
                action = planner.act()
            following, reward, terminated, truncated, info = planner.env.step(action)
            if step >= led:
                self.buffer.add(
                    obs=obs,
                    action=action,
                    log_prob=np.nan,
                    reward=reward,
                    terminated=terminated,
                    truncated=truncated,
                    next_obs=following,
                )
            obs, total, success = following, total + reward, bool(info["success"])
        return total, success

    def close(self) -> None:
        """Free the planner."""
        self._planner.close()


def demonstrate(
    demonstrations: Demonstrations,
    count: int,
    progress: Callable[[int, str], None] = lambda episodes, note: None,
) -> None:
    """Plan until `count` episodes have ended in success.

    Args:
        progress: told of every attempt: whether it counts, 0 or 1, and what it returned.

    Raises:
        ValueError: more than two of three attempts fail.
    """
    while demonstrations.successes < count:
        if demonstrations.attempts >= MOST_ATTEMPTS * count:
            raise ValueError(
                f"only {demonstrations.successes} of {demonstrations.attempts} planned episodes "
                "succeeded; plan more thoroughly, with more planner.samples"
            )
        attempt = demonstrations.plan()
        progress(int(attempt["success"]), f"return {attempt['return']:,.0f}")


def _read_attempts(out: Path, settings: dict[str, Any]) -> list[Attempt]:
    path = out / RECORD_FILE
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    attempts: list[Attempt] = record.pop("attempts")
    if record != settings:
        raise ValueError(f"{out} has demonstrations of other settings; choose another folder")
    return attempts
