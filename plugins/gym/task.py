"""Gymnasium's tasks: D4RL's sets, collected with our own policies and replay buffer.

D4RL (Fu et al. 2020): medium and expert sets are drawn from a partially and a fully trained policy;
medium-replay is all that the training saw up to the medium policy. Deviation: a set ends with the
first whole episode past its steps, where D4RL's cut the last one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from gaitforge.collectors.policy import StoredObservation, actions_of, tell_executed
from gaitforge.common.errors import names_allowed
from gaitforge.common.hashing import hashed
from gaitforge.common.limits import Positive, Range, Whole
from gaitforge.datasets import Schema, open_store
from gaitforge.datasets.schema import joined_arrays
from gaitforge.flows.progress import Advance
from gaitforge.flows.records.records import digest
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Simulation, Workers
from gaitforge.flows.tasks.policy_sources import CLASS, ONNX, PolicySource, is_run, named_source
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.plugins.gym import data
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import GymTask, find_task
from gaitforge.plugins.gym.episodes import Episode, run_episode
from gaitforge.plugins.gym.experts import (
    GymExpert,
    RandomPolicy,
    Recipe,
    known_recipe,
    policies_folder,
)
from gaitforge.plugins.gym.onnx_file import OnnxFile
from gaitforge.plugins.gym.training.records import ReplayReader, read_training

REPLAY_PART_STEPS = 50_000
"""Minimum steps of a replay buffer's part; one for all plans, so that no two share an episode."""


@dataclass(frozen=True)
class GymPart:
    """One part of a plan.

    Attributes:
        number: of the part within its quality.
        expert_hash: of the acting policy; for medium-replay of the medium one.
        steps: minimum; for medium-replay exact.
        first, stop: range of the replay buffer's episodes.
    """

    name: str
    quality: str
    number: int
    expert_hash: str
    steps: int
    first: int
    stop: int


class DrawnPolicy:
    """Actions of a run's policy for one environment, or of a class or file; drawn if Gaussian.

    Raises:
        ValueError: no such run, class or file.
    """

    def __init__(self, source: PolicySource) -> None:
        self._std: np.ndarray | None = None
        self.hash = source.weights_hash()
        if source.kind == CLASS:
            self._mean: Any = source.policy_class()(1)
        elif source.kind == ONNX:
            self._mean = OnnxFile(source.folder, 1)
        else:
            network = source.network(None)
            if network.gaussian is not None:
                self._std = network.action_std().detach().numpy()
            self._mean = LearnedPolicy(network, 1, source.name)
            # Runs that were not told what happened drove other episodes: these have another name.
            if network.conditioned or network.layout.keeps_last_action:
                self.hash = digest([self.hash, "told what happened"])

    def reset(self, ids: np.ndarray) -> None:
        """See `TaskPolicy.reset`."""
        self._mean.reset(ids)

    def executed(self, actions: np.ndarray) -> None:
        """See `tell_executed`."""
        tell_executed(self._mean, actions)

    def draw(
        self, observation: StoredObservation, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """See `DrawingPolicy.draw`; the density is that before clipping, 0 without noise."""
        mean = actions_of(self._mean, observation)[0]
        if self._std is None:
            return np.clip(mean, -1.0, 1.0).astype(np.float32), 0.0
        noise = rng.standard_normal(len(mean), dtype=np.float32)
        density = -0.5 * np.square(noise) - np.log(self._std) - 0.5 * np.log(2 * np.pi)
        return np.clip(mean + self._std * noise, -1.0, 1.0), float(density.sum())


def one_policy(place: str) -> PolicySource | None:
    """The policy of a run's folder, an ONNX file or "module:Class"; None for anything else."""
    path = Path(place)
    is_policy = (":" in place and not path.exists()) or path.suffix == ".onnx" or is_run(path)
    return named_source(place) if place and is_policy else None


@dataclass(frozen=True)
class GymPlan(CollectionPlan):
    """What to collect of a Gymnasium task.

    Attributes:
        env: an environment's id of `gaitforge.plugins.gym.environments.tasks`.
        policies: a finished training's folder; a run's, an ONNX file, or a class as "module:Class"
            that is called with the number of environments, whose policy is the expert and has no
            recorded returns; empty for the shipped policies, which have no replay buffer.
        qualities: of `QUALITIES`, in the order of the parts.
        steps: minimum per quality, in whole episodes; medium-replay has its own length.
        part_steps: minimum per part, in whole episodes; a replay buffer is cut after
            `REPLAY_PART_STEPS`.
        seed: random seed.
        physics: store the simulator's state too, which medium-replay has none of.
        replay: folder of a training, finished or not, whose replay buffer is medium-replay; empty
            for that of `policies`.
        replay_steps: first transitions of the buffer to take, the last episode cut off there; 0
            for those until the medium policy, or for all of a `replay`. D4RL's sets (version 2) end
            at 402,000 (Hopper), 202,000 (HalfCheetah) and 302,000 (Walker2d).
        processes: of a local run.
    """

    kind = "gym"
    parallelism = "processes"
    evaluation = "gaitforge.plugins.gym.evaluation:GymEvaluation"

    env: str
    policies: str = ""
    qualities: tuple[str, ...] = (data.MEDIUM, data.MEDIUM_REPLAY, data.EXPERT)
    steps: Annotated[int, Range(1, 1_000_000_000)] = 1_000_000
    part_steps: Positive = 50_000
    seed: Whole = 0
    physics: bool = False
    replay: str = ""
    replay_steps: Whole = 0
    processes: Workers = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "env", find_task(self.env).env_id)
        if unknown := [name for name in self.qualities if name not in data.QUALITIES]:
            raise ValueError(
                f"unknown quality '{unknown[0]}'; {names_allowed(unknown[0], data.QUALITIES)}"
            )
        if not self.qualities or len(set(self.qualities)) != len(self.qualities):
            raise ValueError("a plan needs at least one quality, each of them once")
        if self.physics and data.MEDIUM_REPLAY in self.qualities:
            raise ValueError(
                f"{data.MEDIUM_REPLAY} has no simulator state to keep: collect the others with it "
                "into a store of their own"
            )

    @property
    def task(self) -> GymTask:
        """The environment's task."""
        return find_task(self.env)

    @property
    def folder(self) -> Path:
        """The policies' folder; ValueError where none is given and none ships."""
        return policies_folder(self.env, self.policies)

    @property
    def source(self) -> PolicySource | None:
        """The one policy of a run or class; None for a training's policies."""
        return one_policy(self.policies)

    def recipe(self) -> Recipe | None:
        """The record of the policies' training; None for one policy.

        Raises:
            ValueError: no such training, another task's, or a run that lacks one of the qualities.
        """
        if self.source is None:
            return known_recipe(self.env, self.policies)
        if not {*self.qualities} <= {data.RANDOM, data.EXPERT}:
            raise ValueError(f"{self.policies} is one policy; its qualities are random and expert")
        return None

    def actor(self, quality: str) -> GymExpert | RandomPolicy | DrawnPolicy:
        """The policy of a quality, see `quality_actor`. Raises ValueError if it is missing."""
        if quality == data.RANDOM:
            with closing(TaskBatch(self.task, 1)) as env:
                return RandomPolicy(env.act_dim)
        source = self.source
        return data.quality_actor(self.folder, quality) if source is None else DrawnPolicy(source)

    def parts(self) -> dict[str, GymPart]:
        """The parts by name, in the plan's order; more steps or qualities leave the others alone.

        Raises:
            ValueError: as `recipe`, or a policy is missing.
        """
        self.recipe()  # another task's policies are refused
        parts: dict[str, GymPart] = {}
        for quality in self.qualities:
            if quality == data.MEDIUM_REPLAY:
                made_by = self._replay_hash()
                cut = self._replay_parts()
            else:
                known = quality == data.RANDOM  # without an environment, which may be slow to make
                made_by = RandomPolicy.hash if known else self.actor(quality).hash
                cut = self._drawn_parts()
            for number, (steps, first, stop) in enumerate(cut):
                content = {
                    "env": self.env,
                    "quality": quality,
                    "policy": made_by,
                    "seed": 0 if quality == data.MEDIUM_REPLAY else self.seed,
                    "physics": self.physics,
                    "part": (number, steps, first, stop),
                }
                name = f"{digest(content)[:7]}-{quality}-{number:04d}"
                parts[name] = GymPart(name, quality, number, made_by, steps, first, stop)
        return parts

    def expected_steps(self) -> dict[str, int]:
        """See `CollectionPlan.expected_steps`."""
        return {name: part.steps for name, part in self.parts().items()}

    def simulator(self) -> tuple[str, str]:
        """See `CollectionPlan.simulator`: all packages and own files that simulate."""
        return data.simulator_of(self.task)

    def unknown_policy(self) -> str:
        """See `CollectionPlan.unknown_policy`."""
        source = self.source
        return "" if source is None or source.is_known else source.place

    def episode_ids(self) -> dict[str, range]:
        """See `CollectionPlan.episode_ids`."""
        first = {part: int(part[:7], 16) for part in self.parts()}
        return {part: range(unique << 32, (unique + 1) << 32) for part, unique in first.items()}

    def only(self, part: str) -> "GymPlan":
        """See `CollectionPlan.only`: the part's quality."""
        quality = part.partition("-")[2].rpartition("-")[0]
        return replace(self, qualities=(quality,)) if quality in self.qualities else self

    def schema(self) -> Schema:
        """See `CollectionPlan.schema`. A policy that does not fit the task is refused, too."""
        with closing(TaskBatch(self.task, 1)) as env:
            if self.source is not None and {*self.qualities} != {data.RANDOM}:
                env.reset([0], [self.seed])
                actor = self.actor(data.EXPERT)
                actor.reset(np.arange(1))
                env.executed(actor.draw(env.observation, np.random.default_rng(0))[0])
            return data.gym_schema(env, self.recipe(), self.physics)

    def simulate(self, threads: int = 1) -> "GymSimulation":
        """See `CollectionPlan.simulate`."""
        return GymSimulation(self)

    def _drawn_parts(self) -> Iterator[tuple[int, int, int]]:
        for done in range(0, self.steps, self.part_steps):
            yield min(self.part_steps, self.steps - done), 0, 0

    def replay_reader(self) -> ReplayReader:
        """A reader of the replay buffer; ValueError if missing, too short or another task's."""
        folder = Path(self.replay) if self.replay else self.folder
        return data.open_replay(folder, self.env, self.replay_steps)

    def _replay_hash(self) -> str:
        if not self.replay:
            return data.quality_actor(self.folder, data.MEDIUM_REPLAY).hash
        training = read_training(Path(self.replay))
        return digest(training.config if training else self.replay)[:16]

    def _replay_parts(self) -> Iterator[tuple[int, int, int]]:
        reader = self.replay_reader()
        lengths = reader.episodes(reader.rows).lengths
        first = steps = 0
        for episode, length in enumerate(lengths.tolist(), start=1):
            steps += length
            if steps >= REPLAY_PART_STEPS or episode == len(lengths):
                yield steps, first, episode
                first = episode
                steps = 0


class GymSimulation(Simulation):
    """One environment of the task."""

    def __init__(self, plan: GymPlan):
        self._plan, self._env = plan, TaskBatch(plan.task, 1)

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`."""
        plan = self._plan
        planned = self._plan.only(part).parts()[part]
        recipe = plan.recipe()
        quality = planned.quality
        expert = planned.expert_hash
        episodes = self._episodes(planned, lambda steps: advance(steps, quality))
        catalog = data.part_catalog(episodes, plan.task, recipe, quality, expert, part)
        return PartData(*joined_arrays(episodes, schema, data.INFOS), catalog)

    def close(self) -> None:
        """See `Simulation.close`."""
        self._env.close()

    def _episodes(self, part: GymPart, advance: Callable[[int], None]) -> list[Episode]:
        if part.quality == data.MEDIUM_REPLAY:
            reader = self._plan.replay_reader()
            executed = self._env.executed
            episodes = data.replayed_episodes(reader, part.first, part.stop)
            advance(part.steps)
            return [replace(episode, action=executed(episode.action)) for episode in episodes]
        actor = self._plan.actor(part.quality)
        episodes = []
        steps = 0
        drawn = self._plan.seed, data.QUALITIES.index(part.quality), part.number, part.steps
        while steps < part.steps:
            seed = int(hashed(*drawn, len(episodes))) >> 2
            actor.reset(np.arange(1))
            episodes.append(run_episode(self._env, actor, seed, advance, self._plan.physics))
            steps += episodes[-1].length
        return episodes


def quality_summary(store_path: Path | str, parts: Sequence[str]) -> list[dict[str, object]]:
    """Sizes, mean returns and success of each quality over the given parts of a store.

    The success is None where it is unknown for an episode, the normalised return of a run's policy.
    """
    table = open_store(store_path).select(part=list(parts)).episodes()
    measures = [("part", "count_distinct"), ("length", "count"), ("length", "sum")]
    measures += [("return", "mean"), ("success", "mean")]
    optional = ("normalised_return", "mean"), (data.SUCCESS_KNOWN, "all")
    measures += [measure for measure in optional if measure[0] in table.column_names]
    rows = table.group_by("quality").aggregate(measures).to_pylist()
    return [
        {
            "quality": row["quality"],
            "parts": row["part_count_distinct"],
            "episodes": row["length_count"],
            "steps": row["length_sum"],
            "return": row["return_mean"],
            "normalised_return": row.get("normalised_return_mean"),
            "success": row["success_mean"] if row.get(f"{data.SUCCESS_KNOWN}_all", True) else None,
        }
        for row in sorted(rows, key=lambda row: data.QUALITIES.index(row["quality"]))
    ]
