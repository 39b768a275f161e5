"""Replay of legged episodes from their seeds, stored draws and stored actions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.legged.driving import driven_steps
from collectors.legged.environment import MAX_ACTION, LeggedEnvironment
from collectors.legged.episodes import EpisodeSpec
from collectors.legged.observations import POLICY_SLICES
from collectors.physics import is_exact
from collectors.robots.robot import N_JOINTS, load_robot
from collectors.scenarios.randomisation import DRAW_NAMES
from datasets import Selection
from flows.progress import Reporter

ROBOTS = 64
_LAST_ACTION = slice(*POLICY_SLICES["last_action"])


@dataclass(frozen=True)
class ReplayFault:
    """An episode that did not repeat, and the first field and step that differ."""

    part: str
    episode: int
    what: str

    def __str__(self) -> str:
        return f"part {self.part}: episode {self.episode}: {self.what}"


def replay_legged(
    store_path: Path | str,
    selection: Selection,
    count: int,
    seed: int,
    reporter: Reporter,
    robot: str = "",
) -> list[ReplayFault]:
    """See `flows.stages.replay.replay`."""
    count = min(count, len(selection))
    chosen = np.sort(np.random.default_rng(seed).choice(len(selection), count, replace=False))
    columns = selection.episodes().take(chosen).to_pylist()
    simulator = _one(columns, "simulator"), _one(columns, "simulator_version")
    if not is_exact(simulator[0]):
        raise ValueError(
            f"{store_path} was made by {simulator[0]}, which repeats no episode bit for bit"
        )
    card = load_robot(robot or selection.store.schema.robot)
    steps = max((row["length"] for row in columns), default=1)
    env = LeggedEnvironment(card, min(ROBOTS, max(count, 1)), backend=simulator[0])
    faults: list[ReplayFault] = []
    try:
        if env.physics.version != simulator[1]:
            raise ValueError(
                f"{store_path} was made by {simulator[0]} {simulator[1]}; "
                f"version {env.physics.version} cannot repeat it bit for bit"
            )
        total = sum(row["length"] for row in columns)
        with reporter.step("replay", total, "step") as advance:
            for first in range(0, count, env.num_robots):
                rows = columns[first : first + env.num_robots]
                batch = _Batch(env, selection, chosen[first : first + env.num_robots], rows)
                faults += batch.run(steps, lambda n: advance(n, ""))
    finally:
        env.close()
    return faults


def _one(rows: list[dict[str, Any]], column: str) -> str:
    values = sorted({row[column] for row in rows})
    if len(values) != 1:
        raise ValueError(f"a replay needs one {column}; the store holds {', '.join(values) or '-'}")
    return values[0]


class _Batch:
    """Up to `ROBOTS` stored episodes, run side by side."""

    def __init__(
        self,
        env: LeggedEnvironment,
        selection: Selection,
        indices: np.ndarray,
        rows: list[dict[str, Any]],
    ):
        self._env = env
        self._rows = rows
        self._stored = [selection.episode(int(index)) for index in indices]
        self._driven = [_driven(row) for row in rows]
        self._faults: dict[int, str] = {}

    def run(self, steps: int, advance: Any) -> list[ReplayFault]:
        """Step them to the end of the longest; returns the faults."""
        env = self._env
        ids = np.arange(len(self._rows))
        env.reset(ids, [_spec(row) for row in self._rows])
        for i, row in enumerate(self._rows):
            self._check_draws(i, row)
        observation = env.observe().policy
        for step in range(steps):
            action = np.zeros((env.num_robots, N_JOINTS), dtype=np.float32)
            running = [i for i in ids.tolist() if step < self._rows[i]["length"]]
            if not running:
                break
            for i in running:
                self._compare(i, step, "obs", observation[i], self._stored[i]["obs"][step])
                action[i] = self._executed(i, step)
            transition = env.step(action)
            observation = transition.observation.policy
            for i in running:
                reward = self._stored[i]["reward"][step]
                self._compare(i, step, "reward", transition.reward[i], reward)
                if step + 1 == self._rows[i]["length"]:
                    final = self._stored[i]["final_obs"]
                    self._compare(i, step + 1, "final_obs", observation[i], final)
                    ended = bool(transition.terminated[i])
                    self._compare(i, step, "terminated", ended, self._rows[i]["terminated"])
            advance(len(running))
        return [
            ReplayFault(str(self._rows[i]["part"]), int(self._rows[i]["episode"]), what)
            for i, what in sorted(self._faults.items())
        ]

    def _executed(self, i: int, step: int) -> np.ndarray:
        """The executed action: the policy's plus the noise drawn from the seed, or a driver's."""
        draws = self._env.episode_draws[i]
        action = self._stored[i]["action"][step]
        if draws is not None and self._rows[i]["action_noise"] > 0:
            action = action + draws.action_noise[step]
        after = self._stored[i]["obs"][step + 1 :]
        known = after[0] if len(after) else self._stored[i]["final_obs"]
        if self._driven[i][step]:
            return known[_LAST_ACTION]
        clipped = np.clip(action, -MAX_ACTION, MAX_ACTION)
        self._compare(i, step, "action", clipped, known[_LAST_ACTION])
        return action

    def _check_draws(self, i: int, row: dict[str, Any]) -> None:
        draws = self._env.episode_draws[i]
        for k, name in enumerate(DRAW_NAMES):
            if draws is not None and float(draws.draws[k]) != row[name]:
                self._faults.setdefault(i, f"the draw {name} is not what its seed gives")

    def _compare(self, i: int, step: int, what: str, got: Any, stored: Any) -> None:
        if not np.array_equal(got, stored):
            self._faults.setdefault(i, f"{what} of step {step} differs from the stored one")


def _driven(row: dict[str, Any]) -> np.ndarray:
    """(T,) whether another policy than the one of the stored actions drove."""
    if row.get("policy_hash") in (None, row["expert_hash"]):
        return np.zeros(row["length"], dtype=bool)
    return driven_steps(row["seed"], row["policy_share"], row["policy_stretch"], row["length"])


def _spec(row: dict[str, Any]) -> EpisodeSpec:
    names = ("episode", "terrain", "level", "skill", "seed")
    return EpisodeSpec(*(row[name] for name in names), action_noise=row["action_noise"])
