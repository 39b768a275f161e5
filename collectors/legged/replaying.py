"""Simulate stored episodes again from their seeds and executed actions, and compare every bit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gaitforge.collectors.legged.environment import MAX_ACTION, LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec, draw_episode, driven_steps
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.legged.rollout import EpisodeRecord, EpisodeResult, Measure, run_episodes
from gaitforge.collectors.physics import is_exact
from gaitforge.collectors.policy import Memoryless, Observation
from gaitforge.collectors.robots.robot import N_JOINTS, SEVERAL, RobotCard, load_robot, stored_robot
from gaitforge.collectors.scenarios.randomisation import DRAW_NAMES, Randomisation
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.errors import listed
from gaitforge.datasets import Schema, Selection
from gaitforge.datasets.catalog.summaries import episode_name
from gaitforge.datasets.edits.split import pieces_of
from gaitforge.datasets.schema import holds_executed

_LAST_ACTION = slice(*POLICY_SLICES["last_action"])


@dataclass(frozen=True)
class StoredEpisode:
    """An episode of T steps as it was stored.

    Attributes:
        row: its catalog row.
        obs (T, 70), action (T, 12), reward (T,), final_obs (70,): as in `EpisodeRecord`.
        holds_executed: `action` is the executed one, as in the import of an export, not the
            policy's.
    """

    row: Mapping[str, Any]
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    final_obs: np.ndarray
    holds_executed: bool = False

    @cached_property
    def executed(self) -> np.ndarray:
        """(T, 12) float32: the action of each step as the next observation shows it, clipped."""
        after = np.concatenate([self.obs[1:], self.final_obs[None]])
        return after[:, _LAST_ACTION]

    def spec(self, noise: bool) -> EpisodeSpec:
        """The spec that the episode is drawn from; `noise` does not change the other draws.

        Without noise it is for the executed actions, which have it already.
        """
        spec = EpisodeSpec.of_row(self.row, noise)
        return spec if noise else replace(spec, repeated_noise=self.row.get("action_noise") or 0.0)

    def difference(self, again: EpisodeResult, robot: RobotCard) -> str:
        """The first difference between replay and stored episode, in words; empty if none."""
        assert again.record is not None, "a replay is recorded"
        for name, value in zip(DRAW_NAMES, again.draws.draws, strict=True):
            if float(value) != self.row.get(name, value):
                return f"the draw {name} is not what its seed gives"
        if again.draws.schedule is not None:
            for name, value in again.draws.schedule.columns().items():
                if value != self.row[name]:
                    return f"{name} of the schedule is not what its seed gives"
        starts = self._differing_steps(again.record, robot)
        if starts:
            name = min(starts, key=lambda field: starts[field])
            return f"{name} of step {starts[name]} differs from the stored one"
        if again.length != self.row["length"] or again.terminated != self.row["terminated"]:
            return "its end differs from the stored one"
        return ""

    def _differing_steps(self, again: EpisodeRecord, robot: RobotCard) -> dict[str, int]:
        """Array -> first step where it differs; causes come before their effects."""
        pairs = {
            "obs": (again.obs, self.obs),
            "action": (self._expected(robot), self.executed),
            "reward": (again.reward, self.reward),
            "final_obs": (again.final_obs[None], self.final_obs[None]),
        }
        starts = {}
        for name, (got, stored) in pairs.items():
            steps = min(len(got), len(stored))
            unequal = (got[:steps] != stored[:steps]).reshape(steps, -1).any(axis=1)
            if unequal.any():
                starts[name] = int(unequal.argmax()) + (len(self.obs) if name == "final_obs" else 0)
        return starts

    def _expected(self, robot: RobotCard) -> np.ndarray:
        """(T, 12) executed actions that follow from the stored ones and the drawn noise."""
        if self.holds_executed:
            return self.action
        noise = draw_episode(self.spec(True), robot).action_noise[: len(self.action)]
        noisy = self.action + noise if self.row["action_noise"] > 0 else self.action
        clipped = np.clip(noisy, -MAX_ACTION, MAX_ACTION)
        return np.where(self._driven[:, None], self.executed, clipped)

    @cached_property
    def _driven(self) -> np.ndarray:
        """(T,) whether another policy drove than the one whose actions are stored."""
        row = self.row
        if row.get("policy_hash") in (None, row["expert_hash"]):
            return np.zeros(row["length"], dtype=bool)
        return driven_steps(row["seed"], row["policy_share"], row["policy_stretch"], row["length"])


def replay_environment(
    selection: Selection, robots: int, robot: str = "", threads: int = 2
) -> LeggedEnvironment:
    """An environment like the one that made a selection's episodes, for `robots` parallel robots.

    Args:
        robot: a name or path; empty for the store's own.

    Raises:
        ValueError: not episodes of the legged task, pieces of episodes, episodes longer than the
            task's, float16, several robots, simulators or versions, a simulator that does not
            replay bit for bit, or one whose version here differs.
    """
    schema = selection.store.schema
    address = selection.store.address
    check_whole(selection)
    if "obs" not in schema.names() or schema.field("obs").slices != POLICY_SLICES:
        raise ValueError(f"{address} does not hold episodes of the legged task")
    _check_lengths(selection)
    if schema.field("obs").dtype != "float32":
        raise ValueError(f"{address} holds half floats, which no replay can equal bit for bit")
    name, version = simulator_of_selection(selection)
    if not is_exact(name):
        raise ValueError(f"{address} was made by {name}, which repeats no episode bit for bit")
    card = load_robot(robot) if robot else robot_of_selection(selection)
    randomisation = stored_randomisation(schema)
    env = LeggedEnvironment(card, robots, threads, name, randomisation=randomisation)
    if env.physics.version != version:
        here = env.physics.version
        env.close()
        raise ValueError(
            f"{address} was made by {name} {version}; version {here} cannot repeat it bit for bit, "
            "but --with-recorded-versions of verify, derive and view can"
        )
    return env


def check_whole(selection: Selection) -> None:
    """ValueError for pieces of episodes: where they begin, no simulation began."""
    pieces = pieces_of(selection)
    if pieces.any():
        first = episode_name(int(selection.episode_ids()[np.argmax(pieces)]))
        raise ValueError(
            f"{selection.store.address} holds pieces of episodes, such as {first}, which cannot be "
            "simulated again; take the store that they were cut from, or leave pieces out by "
            "--where 'seed >= 0'"
        )


def _check_lengths(selection: Selection) -> None:
    """ValueError for episodes that are longer than the task's."""
    is_long = selection.lengths > EPISODE_STEPS
    if is_long.any():
        number = int(np.argmax(is_long))
        name = episode_name(int(selection.episode_ids()[number]))
        raise ValueError(
            f"episode {name} of {selection.store.address} has {selection.lengths[number]} steps, "
            f"and the legged task's have {EPISODE_STEPS} at most: it cannot be simulated again"
        )


def simulator_of_selection(selection: Selection) -> tuple[str, str]:
    """Name and version of the simulator of a selection; ValueError for several, with the parts."""
    parts: dict[tuple[str, str], set[str]] = {}
    table = selection.episodes("simulator", "simulator_version", "part")
    for row in table.group_by(table.column_names).aggregate([]).to_pylist():
        part_names = parts.setdefault((row["simulator"], row["simulator_version"]), set())
        part_names.add(row["part"])
    if len(parts) == 1:
        return next(iter(parts))
    groups = [
        f"{' '.join(simulator)} (part {listed(sorted(part_names), 3)})"
        for simulator, part_names in sorted(parts.items())
    ]
    raise ValueError(
        f"{selection.store.address} was made by {' and '.join(groups) or 'no simulator'}, and a "
        "replay needs one version: verify and derive take --with-recorded-versions, which replays "
        "each part with its own; view takes it with --where \"simulator_version = '…'\""
    )


def stored_randomisation(schema: Schema) -> Randomisation:
    """The randomisation of a store's episodes, by its schema."""
    return Randomisation.of_schema(schema.attributes.get("randomisation", {}))


def robot_of_selection(selection: Selection) -> RobotCard:
    """The robot of a selection's episodes; ValueError for several, or one that cannot be loaded."""
    schema = selection.store.schema
    if schema.robot != SEVERAL:
        return stored_robot(schema.attributes, schema.robot)
    names = sorted(set(selection.episodes("robot").column("robot").to_pylist()))
    if len(names) != 1:
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        raise ValueError(
            f"these episodes are of {len(names)} robots ({shown}); select one: robot = '{names[0]}'"
            if names
            else "no episodes are selected"
        )
    return stored_robot(schema.attributes, names[0])


def by_robot(selection: Selection) -> list[Selection]:
    """The selection split by robot, sorted by the robots' names."""
    if selection.store.schema.robot != SEVERAL:
        return [selection]
    robots = np.array(selection.episodes("robot").column("robot").to_pylist())
    return [selection.with_rows(selection.rows[robots == name]) for name in np.unique(robots)]


def stored_episodes(selection: Selection) -> list[StoredEpisode]:
    """The episodes of a selection, read into memory."""
    rows = selection.episodes().to_pylist()
    fields = ("obs", "action", "reward", "final_obs")
    obs, action, reward, final_obs = (selection.read(field) for field in fields)
    stops = np.cumsum(selection.lengths)
    is_executed = holds_executed(selection.schema)
    steps = [slice(stop - row["length"], stop) for row, stop in zip(rows, stops, strict=True)]
    return [
        StoredEpisode(row, obs[span], action[span], reward[span], final_obs[k], is_executed)
        for k, (row, span) in enumerate(zip(rows, steps, strict=True))
    ]


def replayed(
    env: LeggedEnvironment,
    episodes: Sequence[StoredEpisode],
    measures: Mapping[str, Measure] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[StoredEpisode, EpisodeResult, str]]:
    """Simulate stored episodes again, N at a time; yields them as they end.

    The last item is what differs from the stored episode (`StoredEpisode.difference`), empty if
    every bit is the same. Episode ids must differ. `measures` and `progress` are as in
    `run_episodes`.
    """
    stored = {episode.row["episode"]: episode for episode in episodes}
    policy = Executed(env, stored)
    specs = [episode.spec(noise=False) for episode in episodes]
    results = run_episodes(env, policy, specs, record=True, progress=progress, measures=measures)
    for result in results:
        episode = stored[result.spec.index]
        yield episode, result, episode.difference(result, env.robot)


class Executed(Memoryless):
    """A policy that repeats the stored executed actions of each robot's episode."""

    name = "replay"

    def __init__(self, env: LeggedEnvironment, stored: Mapping[int, StoredEpisode]):
        self._env = env
        self._stored = stored
        shape = (env.num_robots, env.episode_steps, N_JOINTS)
        self._actions = np.zeros(shape, dtype=np.float32)
        self._rows = np.arange(env.num_robots)

    def reset(self, ids: np.ndarray) -> None:
        """See `Policy.reset`."""
        for index in ids.tolist():
            spec = self._env.specs[index]
            assert spec is not None, "an episode was started"
            executed = self._stored[spec.index].executed
            self._actions[index] = 0.0
            self._actions[index, : len(executed)] = executed

    def act(self, observation: Observation) -> np.ndarray:
        """See `Policy.act`."""
        step = np.minimum(self._env.step_count, self._env.episode_steps - 1)
        return self._actions[self._rows, step]
