"""D4RL's Adroit sets "human" and "cloned" (Fu et al. 2020), with our planner in place of people.

A task for `gaitforge collect`, into the store that `gaitforge gym collect` gives "expert":
"human" has the planner's demonstrations; "cloned" has them again, and as many episodes of a policy
that was cloned from them. Deviation: D4RL's 25 demonstrations are a person's, by a glove.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from gaitforge.common.hashing import hashed
from gaitforge.common.limits import Positive, Whole
from gaitforge.datasets import Schema
from gaitforge.datasets.schema import joined_arrays
from gaitforge.flows.progress import Advance
from gaitforge.flows.records.records import digest
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Simulation, Workers
from gaitforge.plugins.gym import data
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import GymTask, find_task
from gaitforge.plugins.gym.episodes import Episode, run_episode
from gaitforge.plugins.gym.experts import GymExpert, known_recipe
from gaitforge.plugins.gym.task import GymPlan
from recipes.adroit import demonstrations
from recipes.adroit.config import AdroitConfig, recommended
from recipes.adroit.observation_scale import ObservationScale
from recipes.adroit.on_policy import action_noise
from recipes.adroit.ppo import PPO

HUMAN = "human"
CLONED = "cloned"


@dataclass(frozen=True)
class AdroitSets(CollectionPlan):
    """What to collect of door, hammer or relocate.

    Attributes:
        env: its environment's id.
        demonstrations: of the planner; seed: of all randomness.
        free_demonstrations, samples: see `AdroitConfig` and `PlannerConfig`.
        processes: of a local run; each plans the demonstrations for itself.
    """

    kind = "recipes.adroit.sets:AdroitSets"
    parallelism = "processes"
    work = "plan"
    evaluation = GymPlan.evaluation

    env: str = "AdroitHandDoor-v1"
    demonstrations: Positive = 25
    free_demonstrations: Positive = AdroitConfig.free_demonstrations
    samples: Positive = 16
    seed: Whole = 0
    processes: Workers = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        recommended(self.env)

    @property
    def task(self) -> GymTask:
        """The environment's task."""
        return find_task(self.env)

    @property
    def config(self) -> AdroitConfig:
        """The settings of planner and imitation: the shipped policies' with the plan's own."""
        config = recommended(self.env)
        return replace(
            config,
            demonstrations=self.demonstrations,
            free_demonstrations=self.free_demonstrations,
            planner=replace(config.planner, samples=self.samples),
            seed=self.seed,
        )

    def expected_steps(self) -> dict[str, int]:
        """See `CollectionPlan.expected_steps`."""
        steps = self.demonstrations * self.task.facts.horizon
        name = digest(self.config)[:7]
        return {f"{name}-{HUMAN}-0000": steps, f"{name}-{CLONED}-0000": 2 * steps}

    def schema(self) -> Schema:
        """See `CollectionPlan.schema`; the one of `gaitforge gym collect`."""
        with closing(TaskBatch(self.task, 1)) as env:
            return data.gym_schema(env, known_recipe(self.env), physics=False)

    def simulate(self, threads: int = 1) -> "AdroitSimulation":
        """See `CollectionPlan.simulate`."""
        return AdroitSimulation(self, threads)


class AdroitSimulation(Simulation):
    """The planner's episodes, made once, and the policy that imitates them."""

    def __init__(self, plan: AdroitSets, threads: int) -> None:
        self._config = replace(plan.config, threads=threads)
        self._task = plan.task

    @cached_property
    def _demonstrations(self) -> list[Episode]:
        planned = demonstrations.planned(
            self._config, lambda number, note: self._advance(number * self._share, note)
        )
        return [_stored(each) for each in planned]

    @property
    def _share(self) -> int:
        """Steps that the progress has for each planned episode: those searched count, too."""
        steps = self._config.demonstrations * self._task.facts.horizon
        return steps // demonstrations.planned_episodes(self._config)

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`."""
        self._advance = advance
        quality = part.split("-")[1]
        there = "_demonstrations" in vars(self)
        episodes = list(self._demonstrations)
        made_by = f"mppi-{digest(self._config.planner)[:7]}"
        told = 0 if there else self._share * demonstrations.planned_episodes(self._config)
        advance(sum(each.length for each in episodes) - told, quality)
        if quality == CLONED:
            clone = self._clone()
            made_by = clone.hash
            with closing(TaskBatch(self._task, 1)) as env:
                for number in range(len(episodes)):
                    seed = int(hashed(self._config.seed, 0xC10, number)) >> 2
                    episodes.append(run_episode(env, clone, seed, lambda n: advance(n, CLONED)))
        recipe = known_recipe(self._task.env_id)
        catalog = data.part_catalog(episodes, self._task, recipe, quality, made_by, digest(part))
        return PartData(*joined_arrays(episodes, schema, data.INFOS), catalog)

    def _clone(self) -> GymExpert:
        """A policy that imitates the demonstrations, as the shipped policies' training begins."""
        config = self._config
        settings = self._config.ppo
        obs = np.concatenate([each.obs for each in self._demonstrations])
        action = np.concatenate([each.action for each in self._demonstrations])
        scale = ObservationScale.of(obs)
        std = torch.from_numpy(action_noise(config.env, action.shape[1], config.noise))
        algorithm = PPO(settings, obs.shape[1], std, 1.0, config.seed)
        rng = np.random.default_rng([0xC10, config.seed])
        noise = torch.Generator().manual_seed(0)
        for _ in range(settings.imitations * settings.imitation_updates):
            rows = rng.integers(len(obs), size=settings.imitation_batch_size)
            batch = [torch.from_numpy(each[rows]) for each in (obs, action)]
            algorithm.imitate(scale(batch[0]), batch[1], noise)
        weights = scale.weights_for_unscaled(algorithm.actor)
        arrays: dict[str, Any] = {name: value.numpy() for name, value in weights.items()}
        return GymExpert(CLONED, self._task, arrays, digest(config)[:16])


def _stored(planned: demonstrations.Episode) -> Episode:
    """A planned episode as a store has it; a planner's actions have no density."""
    arrays: dict[str, Any] = {
        name: getattr(planned, name).astype(np.float32)
        for name in ("obs", "action", "reward", "final_obs")
    }
    return Episode(
        seed=planned.seed,
        **arrays,
        log_prob=np.zeros(len(planned.reward), np.float32),
        terminated=False,
        truncated=True,
        success=bool(planned.success.any()),
    )
