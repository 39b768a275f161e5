"""Gymnasium's tasks: collecting the sets of D4RL with policies and a replay buffer of our own.

D4RL's recipe (Fu et al. 2020): medium and expert sets are drawn from a partially and a
fully trained policy, medium-replay is everything that the training saw up to the medium policy, and
medium-expert is both halves: a selection here. Deviation: a set of drawn episodes ends with the
first whole episode past its steps, where D4RL's cut the last one.

As in `flows.stages.collect`, committed parts are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from collectors.gym.batch import TaskBatch
from collectors.gym.data import (
    EXPERT,
    MEDIUM,
    MEDIUM_REPLAY,
    QUALITIES,
    SUCCESS_KNOWN,
    gym_schema,
    open_replay,
    part_arrays,
    part_catalog,
    quality_actor,
    replayed_episodes,
)
from collectors.gym.experts import Recipe, policies_folder, read_recipe
from collectors.gym.rollout import Episode, run_episode
from collectors.gym.tasks import GymTask, find_task
from datasets import create_store, open_store
from datasets.errors import listed
from datasets.hashing import hashed
from flows.progress import Advance, Reporter, unheard
from flows.records.activity import PartActivity
from flows.records.part_records import (
    PartCollected,
    records_folder,
    records_of_commits,
    write_part_record,
)
from flows.records.records import digest, provenance, to_tree, write_record

REPLAY_PART_STEPS = 50_000
"""After which a part of a replay buffer ends with its episode: the same cuts in every plan, so that
no two of them store an episode twice."""


@dataclass(frozen=True)
class GymPlan:
    """What to collect.

    Attributes:
        env: an environment's id of `collectors.gym.tasks`.
        policies: a finished training's folder; empty for the policies that ship, which have no
            replay buffer.
        qualities: of `gym_data.QUALITIES`, in the order of the parts.
        steps: at least so many a quality, in whole episodes; medium-replay is as long as it is.
        part_steps: after which a part ends with its episode; medium-replay is cut after
            `REPLAY_PART_STEPS`.
        seed: of everything random.
        physics: keep the simulator's state too, which medium-replay has none of.

    Raises:
        ValueError: an unknown task or quality, none or one twice, numbers that are too small, or
            physics with medium-replay.
    """

    env: str
    policies: str = ""
    qualities: tuple[str, ...] = (MEDIUM, MEDIUM_REPLAY, EXPERT)
    steps: int = 1_000_000
    part_steps: int = 50_000
    seed: int = 0
    physics: bool = False

    def __post_init__(self) -> None:
        find_task(self.env)
        if unknown := [name for name in self.qualities if name not in QUALITIES]:
            raise ValueError(f"unknown quality '{unknown[0]}'; there are {listed(QUALITIES)}")
        if not self.qualities or len(set(self.qualities)) != len(self.qualities):
            raise ValueError("a plan needs at least one quality, each of them once")
        if min(self.steps, self.part_steps) < 1 or self.seed < 0:
            raise ValueError("steps and part_steps must be at least 1, and seed not negative")
        if self.physics and MEDIUM_REPLAY in self.qualities:
            raise ValueError(
                f"{MEDIUM_REPLAY} has no simulator state to keep: collect the others with it into "
                "a store of their own"
            )

    @property
    def task(self) -> GymTask:
        """The environment's task."""
        return find_task(self.env)

    @property
    def folder(self) -> Path:
        """Of the policies; raises ValueError where none are given and none ship."""
        return policies_folder(self.env, self.policies)

    def recipe(self) -> Recipe:
        """What is known of the policies.

        Raises:
            ValueError: no finished training there, or one in another environment.
        """
        recipe = read_recipe(self.folder)
        if recipe.env != self.env:
            raise ValueError(f"{self.folder} holds policies of {recipe.env}, not of {self.env}")
        return recipe

    def parts(self) -> dict[str, GymPart]:
        """The parts by name, in the plan's order.

        A name changes with anything that changes the part's content, and with nothing else: more
        steps or qualities leave the parts of the others. No two parts share an episode, also those
        of plans with other steps.

        Raises:
            ValueError: as `recipe`, or a policy is missing.
        """
        recipe = self.recipe()
        found: dict[str, GymPart] = {}
        for quality in self.qualities:
            made_by = quality_actor(self.folder, quality)
            cut = self._replay_parts(recipe) if quality == MEDIUM_REPLAY else self._drawn_parts()
            for number, (steps, first, stop) in enumerate(cut):
                content = {
                    "env": self.env,
                    "quality": quality,
                    "policy": made_by.hash,
                    "seed": 0 if quality == MEDIUM_REPLAY else self.seed,
                    "physics": self.physics,
                    "part": (number, steps, first, stop),
                }
                name = f"{digest(content)[:7]}-{quality}-{number:04d}"
                found[name] = GymPart(name, quality, number, made_by.hash, steps, first, stop)
        return found

    def _drawn_parts(self) -> Iterator[tuple[int, int, int]]:
        for done in range(0, self.steps, self.part_steps):
            yield min(self.part_steps, self.steps - done), 0, 0

    def _replay_parts(self, recipe: Recipe) -> Iterator[tuple[int, int, int]]:
        reader = open_replay(self.folder, recipe)
        lengths = reader.episodes(reader.rows).lengths
        first = steps = 0
        for episode, length in enumerate(lengths.tolist(), start=1):
            steps += length
            if steps >= REPLAY_PART_STEPS or episode == len(lengths):
                yield steps, first, episode
                first, steps = episode, 0


@dataclass(frozen=True)
class GymPart:
    """One part of a plan.

    Attributes:
        quality: one of `gym_data.QUALITIES`; number: of the part within it.
        expert_hash: of the policy that acts, or of the medium one, which the training reached.
        steps: that it has, of medium-replay, or at least has.
        first, stop: the replay buffer's episodes that it consists of.
    """

    name: str
    quality: str
    number: int
    expert_hash: str
    steps: int
    first: int
    stop: int


def prepare_gym(plan: GymPlan, store_path: Path | str) -> dict[str, GymPart]:
    """Make the store and its record of the plan; returns the parts, see `GymPlan.parts`.

    Raises:
        ValueError: as `GymPlan.parts`, the task's package is not installed, or another schema is
            there, as with policies of another training.
    """
    parts = plan.parts()
    env = TaskBatch(plan.task, 1)
    try:
        schema = gym_schema(env, plan.recipe(), plan.physics)
    finally:
        env.close()
    create_store(store_path, schema, to_tree(asdict(plan)))
    record = {"plan": asdict(plan), "parts": list(parts), **provenance()}
    write_record(records_folder(store_path) / f"gym-{digest(plan)}.json", record)
    return parts


def collect_gym(
    plan: GymPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    processes: int = 1,
) -> list[PartCollected]:
    """Collect the parts that the store lacks, of all or of the given ones.

    Interrupted, it loses the parts in work and nothing else. Several processes may work on parts of
    one plan, also such that know nothing of each other.

    Args:
        processes: that simulate, each a part of its own; with 1 it is this one.

    Returns:
        The records of the parts that are wanted, in order.
    """
    named = prepare_gym(plan, store_path)
    wanted = list(named if parts is None else parts)
    missing = open_store(store_path).missing(wanted)
    total = sum(named[part].steps for part in wanted)
    left = sum(named[part].steps for part in missing)
    with reporter.step("collect", total, "step", total - left) as advance:
        if processes > 1 and len(missing) > 1:
            # Inside: who collects in this process needs none of it.
            from flows.stages.gym_processes import collect_in_processes

            collect_in_processes(plan, store_path, missing, min(processes, len(missing)), advance)
        else:
            collect_gym_parts(plan, store_path, missing, advance)
    return records_of_commits(open_store(store_path), store_path, wanted)


def collect_gym_parts(
    plan: GymPlan, store_path: Path | str, parts: Sequence[str], advance: Advance = unheard
) -> None:
    """Make the given parts of a prepared store, one after the other, in this process.

    One that another process commits before its turn is left out.
    """
    if not parts:
        return
    named, store = plan.parts(), open_store(store_path)
    env = TaskBatch(plan.task, 1)
    try:
        for part in parts:
            if store.missing([part]):
                collect_gym_part(plan, store_path, named[part], env, advance)
            else:
                advance(named[part].steps, named[part].quality)
    finally:
        env.close()


def collect_gym_part(
    plan: GymPlan, store_path: Path | str, part: GymPart, env: TaskBatch, advance: Advance
) -> PartCollected:
    """Make one part and commit it; one that was committed meanwhile stays as it is.

    Args:
        env: at least one environment of the plan's task.
    """
    started = time.time()
    store = open_store(store_path)
    with PartActivity(records_folder(store_path), part.name, part.steps) as activity:

        def heard(steps: int) -> None:
            activity.advance(steps)
            advance(steps, part.quality)

        episodes = _episodes(plan, part, env, heard)
        activity.writing()
        rolled_out = time.time()
        steps, per_episode = part_arrays(episodes, store.schema)
        catalog = part_catalog(
            episodes, plan.task, plan.recipe(), part.quality, part.expert_hash, part.name
        )
        made = store.write_part(part.name, steps, catalog, per_episode)
    ended = time.time()
    record = PartCollected(
        part.name, made.episodes, made.steps, made.bytes, started, ended - rolled_out, ended
    )
    write_part_record(store_path, record)
    return record


def _episodes(
    plan: GymPlan, part: GymPart, env: TaskBatch, heard: Callable[[int], None]
) -> list[Episode]:
    if part.quality == MEDIUM_REPLAY:
        reader = open_replay(plan.folder, plan.recipe())
        episodes = replayed_episodes(reader, part.first, part.stop)
        heard(part.steps)
        return episodes
    actor = quality_actor(plan.folder, part.quality)
    episodes, steps = [], 0
    drawn = plan.seed, QUALITIES.index(part.quality), part.number, part.steps
    while steps < part.steps:
        seed = int(hashed(*drawn, len(episodes))) >> 2
        episodes.append(run_episode(env, actor, seed, heard))
        steps += episodes[-1].length
    return episodes


def quality_summary(store_path: Path | str, parts: Sequence[str]) -> list[dict[str, Any]]:
    """A row a quality on the given parts of a store: sizes, mean returns and successes.

    The success is None where it is not known of an episode.
    """
    table = open_store(store_path).select(part=list(parts)).episodes()
    skills = np.array(table.column("skill").to_pylist())
    rows = []
    for quality in (name for name in QUALITIES if name in skills):
        episodes = table.filter(skills == quality)
        columns = {
            name: episodes.column(name).to_numpy()
            for name in ("length", "return", "normalised_return", "success")
        }
        rows.append(
            {
                "quality": quality,
                "parts": len(set(episodes.column("part").to_pylist())),
                "episodes": episodes.num_rows,
                "steps": int(columns["length"].sum()),
                "return": float(columns["return"].mean()),
                "normalised_return": float(columns["normalised_return"].mean()),
                "success": float(columns["success"].mean()) if _success_known(episodes) else None,
            }
        )
    return rows


def _success_known(episodes: pa.Table) -> bool:
    if SUCCESS_KNOWN not in episodes.column_names:
        return True
    return False not in episodes.column(SUCCESS_KNOWN).to_pylist()


if __name__ == "__main__":
    import sys

    from flows.direct import main

    sys.exit(main("gym"))
