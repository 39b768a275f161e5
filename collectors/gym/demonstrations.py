"""Episodes of a planner (`planner`), from which a training learns beside its own experience.

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


def check_can_plan(task: GymTask) -> None:
    """Refuse a task that no planner knows.

    Raises:
        ValueError: names the tasks that one knows.
    """
    if task.env_id not in OBJECTIVES:
        raise ValueError(
            f"there are no demonstrations of {task.env_id}; a planner knows {listed(OBJECTIVES)}"
        )


def demonstrations_done(out: Path) -> int:
    """Episodes in a training's folder."""
    path = out / RECORD_FILE
    return _successes(json.loads(path.read_text())["attempts"]) if path.exists() else 0


def demonstrate(
    task: GymTask,
    count: int,
    out: Path,
    seed: int = 0,
    config: PlannerConfig | None = None,
    threads: int = 1,
    progress: Callable[[int, str], None] = lambda episodes, note: None,
) -> None:
    """Plan until `count` episodes in the folder `out` have ended in success; others are left out.

    Args:
        seed: of the episodes' starts and of the plans; config: None for the planner's defaults.
        threads: that simulate for it.
        progress: told of every attempt: whether it counts, 0 or 1, and what it returned.

    Raises:
        ValueError: as `check_can_plan`, the task's package is not installed, `out` has
            demonstrations of other settings, or more than two of three attempts fail.
    """
    check_can_plan(task)
    config = config or PlannerConfig()
    settings = {"env": task.env_id, "seed": seed, "planner": asdict(config)}
    attempts = _attempts(out, settings)
    if _successes(attempts) >= count:
        return
    out.mkdir(parents=True, exist_ok=True)
    seeds = np.random.SeedSequence([0xDE3, seed]).generate_state(MOST_ATTEMPTS * count).tolist()
    planner = Planner(task, OBJECTIVES[task.env_id], config, threads)
    try:
        buffer = _open(task, out, planner.obs_dim, planner.act_dim, _successes(attempts), count)
        while _successes(attempts) < count:
            if len(attempts) >= len(seeds):
                raise ValueError(
                    f"only {_successes(attempts)} of {len(attempts)} planned episodes of "
                    f"{task.env_id} succeeded; plan more thoroughly, with more planner.samples"
                )
            rows = buffer.rows
            attempt = _play(planner, seeds[len(attempts)], task.facts.horizon, buffer)
            if not attempt["success"]:
                buffer.rows = rows
            buffer.flush()
            attempts.append(attempt)
            record = json.dumps({**settings, "attempts": attempts}, indent=1)
            write_bytes_durably(out / RECORD_FILE, record.encode())
            progress(int(attempt["success"]), f"return {attempt['return']:,.0f}")
    finally:
        planner.close()


def open_demonstrations(task: GymTask, out: Path, obs_dim: int, act_dim: int) -> ReplayBuffer:
    """The transitions of the episodes in a training's folder.

    Raises:
        ValueError: there are none.
    """
    episodes = demonstrations_done(out)
    if episodes == 0:
        raise ValueError(f"no demonstrations in {out}; `demonstrate` makes them")
    return _open(task, out, obs_dim, act_dim, episodes, episodes)


def _open(
    task: GymTask, out: Path, obs_dim: int, act_dim: int, episodes: int, capacity: int
) -> ReplayBuffer:
    # Every episode is as long as the horizon: these tasks end in no other way.
    horizon = task.facts.horizon
    path = out / DEMONSTRATIONS_FILE
    return ReplayBuffer(path, capacity * horizon, obs_dim, act_dim, episodes * horizon)


def _attempts(out: Path, settings: dict[str, Any]) -> list[Attempt]:
    path = out / RECORD_FILE
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    attempts: list[Attempt] = record.pop("attempts")
    if record != settings:
        raise ValueError(f"{out} has demonstrations of other settings; choose another folder")
    return attempts


def _successes(attempts: list[Attempt]) -> int:
    return sum(bool(attempt["success"]) for attempt in attempts)


def _play(planner: Planner, seed: int, horizon: int, buffer: ReplayBuffer) -> Attempt:
    """Append an episode to the buffer."""
    obs, total, success = planner.reset(seed), 0.0, False
    for _ in range(horizon):
        action = planner.act()
        following, reward, terminated, truncated, info = planner.env.step(action)
        buffer.add(
            obs=obs,
            action=action,
            log_prob=np.nan,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=following,
        )
        obs, total, success = following, total + reward, bool(info["success"])
    return {"seed": seed, "return": total, "success": success}
