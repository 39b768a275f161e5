"""Evaluation on Gymnasium's tasks, with D4RL's score (Fu et al. 2020).

The score is 100 x (return - random) / (expert - random) by the returns of our own expert and random
policy, or by those that a store keeps; `d4rl_score` takes D4RL's reference returns, measured on
older environments. A return-conditioned policy sees return-to-go on the scale of its training.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Self

import numpy as np

from gaitforge.collectors.policy import StoredObservation, TaskPolicy
from gaitforge.common.limits import Positive
from gaitforge.common.trust import naming
from gaitforge.datasets import Schema, Selection
from gaitforge.flows.records.part_records import plan_records
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import read_record
from gaitforge.flows.tasks.evaluation import Cell, EvaluationPlan, References
from gaitforge.flows.tasks.policy_sources import EXPERT, ONNX, RUN, PolicySource
from gaitforge.plugins.gym.d4rl.d4rl_tasks import normalised_return
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import TASKS, check_task, find_task, package_version
from gaitforge.plugins.gym.episodes import DEFAULT_SEED, evaluate, evaluation_seeds
from gaitforge.plugins.gym.experts import (
    RandomPolicy,
    known_recipe,
    load_gym_expert,
    policies_folder,
)
from gaitforge.plugins.gym.onnx_file import OnnxFile
from gaitforge.plugins.gym.task import one_policy

RANDOM = "random"


@dataclass(frozen=True)
class GymEvaluation(EvaluationPlan):
    """What to evaluate policies of a Gymnasium task on.

    Attributes:
        env: an environment's id of `gaitforge.plugins.gym.environments.tasks`.
        policies: folder of the task's policies "medium" and "expert", whose returns score 0 and 100
            unless `references` do; empty for the shipped policies.
        episodes: their starts are drawn from `seed`, the same for every policy.
        environments: stepped together.
    """

    kind = "gym"
    expert = "expert"
    baseline = RANDOM
    unit = "episode"
    action_limit = 1.0

    env: str = "Hopper-v5"
    policies: str = ""
    episodes: int = 100
    environments: Positive = 20
    seed: int = DEFAULT_SEED

    def __post_init__(self) -> None:
        super().__post_init__()
        check_task(self.env)
        evaluation_seeds(self.episodes, self.seed)

    def __str__(self) -> str:
        return f"{self.env}, {self.episodes} episodes"

    @property
    def name(self) -> str:
        """Name of the task, D4RL's if it has one."""
        return find_task(self.env).name

    @classmethod
    def of_store(cls, schema: Schema) -> Self | None:
        """See `EvaluationPlan.of_store`; with the references that the store keeps."""
        env = schema.attributes.get("env")
        if schema.attributes.get("format") != "gymnasium" or not isinstance(env, str):
            # Another one's file names its task, as D4RL's do; a name in our own is no such sign.
            env = next((env for env, task in TASKS.items() if task.name == schema.robot), None)
        if env is None:
            return None
        kept = schema.attributes.get("reference_returns")
        if not isinstance(kept, Mapping) or not {"random", "expert"} <= kept.keys():
            return cls(env=env)
        source = "D4RL's table" if schema.attributes.get("format") == "d4rl" else "the store"
        references = References(float(kept["random"]), float(kept["expert"]), source)
        return cls(env=env, references=references)

    def check_code(self) -> None:
        """See `EvaluationPlan.check_code`."""
        find_task(self.env)

    def known_references(self) -> References | None:
        """See `EvaluationPlan.known_references`."""
        if self.references is not None:
            return self.references
        if (recipe := known_recipe(self.env, self.policies)) is None:
            return None
        return References(recipe.random_return, recipe.expert_return, "the experts' recipe")

    def scoring_expert(self, among: Selection) -> str:
        """See `EvaluationPlan.scoring_expert`: a run, class or file that collected the episodes."""
        if self.known_references() is not None:
            return ""
        places = [
            str(record["plan"].get("policies", "")) for record in plan_records(among.store.address)
        ]
        with naming(among.store.address):
            return next(filter(one_policy, places), "")

    def versions(self) -> Mapping[str, str]:
        """See `EvaluationPlan.versions`."""
        return {"simulation": package_version(find_task(self.env))}

    def expert_hash(self, name: str) -> str:
        """See `EvaluationPlan.expert_hash`."""
        if name == RANDOM:
            return RANDOM
        return load_gym_expert(policies_folder(self.env, self.policies), name).hash

    def work(self) -> int:
        """See `EvaluationPlan.work`."""
        return self.episodes

    def roll_out(
        self, source: PolicySource, advance: Callable[[int], None]
    ) -> tuple[list[Cell], int]:
        """See `EvaluationPlan.roll_out`."""
        task = find_task(self.env)
        seeds = evaluation_seeds(self.episodes, self.seed)
        with closing(TaskBatch(task, min(self.environments, self.episodes))) as batch:
            policy, parameters = self.load(source, len(batch))
            episodes = evaluate(policy, batch, seeds, advance)
        measures = {}
        if task.own is None:
            published = [
                normalised_return(task.name, episode.episode_return) for episode in episodes
            ]
            measures["d4rl_score"] = float(np.mean(published))
        if not all(episode.success_known for episode in episodes):
            measures["success_known"] = float(
                np.mean([episode.success_known for episode in episodes])
            )
        return [Cell({"env": self.env}, episodes, measures)], parameters

    def observations(self, source: PolicySource) -> list[StoredObservation]:
        """See `EvaluationPlan.observations`."""
        with closing(TaskBatch(find_task(self.env), 1)) as batch:
            return [batch.observation]

    def load(self, source: PolicySource, robots: int) -> tuple[TaskPolicy, int]:
        """See `EvaluationPlan.load`; experts, ONNX files and the random policy, too."""
        task = find_task(self.env)
        if source.kind == RUN:
            trained = (read_record(source.folder / PLAN) or {}).get("robot", task.name)
            if trained != task.name and trained in (entry.name for entry in TASKS.values()):
                raise ValueError(f"{source.place} was trained on {trained}, not on {task.name}")
        if source.kind == ONNX:
            return OnnxFile(source.folder, robots), 0
        if source.kind != EXPERT:
            return super().load(source, robots)
        if source.place == RANDOM:
            with closing(TaskBatch(task, 1)) as batch:
                return RandomPolicy(batch.act_dim, self.seed), 0
        folder = policies_folder(self.env, self.policies)
        expert = load_gym_expert(folder, source.place)
        if expert.task != task:
            raise ValueError(f"{folder} holds policies of {expert.task.env_id}, not of {self.env}")
        return expert, expert.parameters()
