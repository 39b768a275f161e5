"""Evaluation on Gymnasium's tasks: returns, and D4RL's score (Fu et al. 2020).

The score is 100 x (return - random) / (expert - random). `d4rl_normalised` takes D4RL's reference
returns, measured on older environments; `normalised` those of our own expert and random policy.
A return-conditioned policy sees return-to-go on the scale of its training (`return_zero`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np

from gaitforge.collectors.gym import evaluation
from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.experts import RandomPolicy, load_gym_expert, read_recipe
from gaitforge.collectors.gym.tasks import find_task, package_version
from gaitforge.collectors.policies import TaskPolicy
from gaitforge.datasets.files import sha256_file
from gaitforge.datasets.formats.d4rl.tasks import TASKS as D4RL_TASKS
from gaitforge.datasets.formats.d4rl.tasks import normalised_return
from gaitforge.datasets.schema import Schema
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import kept_evaluation, read_record
from gaitforge.flows.stages.comparison.runs import Spread, mean_and_std
from gaitforge.learners.checkpoint import checkpoint_path, load_policy
from gaitforge.learners.deploy.control import LearnedPolicy

RANDOM = "random"


@dataclass(frozen=True)
class ReferenceReturns:
    """Mean returns that score 0 and 100, and their source."""

    random: float
    expert: float
    source: str = "measured"

    def __post_init__(self) -> None:
        if not (isfinite(self.random) and isfinite(self.expert) and self.expert > self.random):
            raise ValueError(
                f"the expert's return of {self.expert} is not above the random policy's of "
                f"{self.random}: returns cannot be normalised by them"
            )

    def normalised(self, value: float) -> float:
        """100 x (return - random) / (expert - random)."""
        return 100.0 * (value - self.random) / (self.expert - self.random)


def measured_references(policies: Path | str, env: str) -> ReferenceReturns:
    """The returns measured by a finished training of experts.

    Raises:
        ValueError: no such folder, its training is not finished, or it is of another task.
    """
    recipe = read_recipe(policies)
    if recipe.env != env:
        raise ValueError(f"{policies} holds policies of {recipe.env}, not of {env}")
    return ReferenceReturns(recipe.random_return, recipe.expert_return, "the experts' recipe")


def stored_references(schema: Schema) -> ReferenceReturns | None:
    """A store's attributes `reference_returns`; None without."""
    known = schema.attributes.get("reference_returns")
    if not isinstance(known, Mapping) or not {"random", "expert"} <= known.keys():
        return None
    source = "D4RL's table" if schema.attributes.get("format") == "d4rl" else "the store"
    return ReferenceReturns(float(known["random"]), float(known["expert"]), source)


@dataclass(frozen=True)
class GymSource:
    """A policy: of a training run, an expert, or (with neither) uniformly random actions.

    Attributes:
        run: folder of a training run; which: its "last" or "best" (validation loss) checkpoint.
        policies: folder of a task's policies; quality: "medium" or "expert".
    """

    name: str
    run: Path | None = None
    policies: str = ""
    quality: str = "expert"
    which: str = "last"

    def load(self, batch: TaskBatch, plan: "GymEvaluationPlan") -> TaskPolicy:
        """The policy for the environments of a batch.

        Raises:
            ValueError: no such run or expert, or one of another task.
        """
        if self.run is not None:
            return _learned(self, batch, plan)
        if not self.policies:
            return RandomPolicy(batch.act_dim, plan.seed)
        expert = load_gym_expert(self.policies, self.quality)
        if expert.task != batch.task:
            raise ValueError(
                f"{self.policies} holds policies of {expert.task.env_id}, not of "
                f"{batch.task.env_id}"
            )
        return expert

    def key(self) -> str:
        """Changes whenever the policy's weights do."""
        if self.run is not None:
            return sha256_file(checkpoint_path(self.run, self.which))[:16]
        return load_gym_expert(self.policies, self.quality).hash if self.policies else RANDOM


@dataclass(frozen=True)
class GymEvaluationPlan:
    """What to evaluate on.

    Attributes:
        env: the task's environment.
        episodes: their starts are drawn from `seed`, the same for every policy.
        environments: stepped together.
        return_target: of a return-conditioned policy, in units of the expert's return in
            `references`, or of the run's own without them, counted from the run's `return_zero`.
        references: the returns to normalise by.
        reset_every: control steps after which a trained policy's memory is cleared; 0 for never.
    """

    env: str = "Hopper-v5"
    episodes: int = 100
    environments: int = 20
    seed: int = evaluation.DEFAULT_SEED
    return_target: float = 1.0
    references: ReferenceReturns | None = None
    reset_every: int = 0

    def __post_init__(self) -> None:
        find_task(self.env)
        evaluation.evaluation_seeds(self.episodes, self.seed)
        if self.environments < 1 or not isfinite(self.return_target):
            raise ValueError(
                f"environments must be at least 1, got {self.environments}, and return_target a "
                f"finite number, got {self.return_target}"
            )
        if not isinstance(self.references, ReferenceReturns | None):
            raise ValueError(
                "references are measured returns, from the folder of a task's policies; got "
                f"{self.references}"
            )


@dataclass(frozen=True)
class GymEvaluation:
    """Means and spreads over the episodes, in whose order `returns` and `lengths` are.

    `normalised` has no numbers without reference returns; `return_` is "return" in files.
    """

    policy: str
    env: str
    episodes: int
    steps: int
    return_: Spread
    length: Spread
    success: float
    terminated: float
    normalised: Spread
    d4rl_normalised: Spread
    return_target: float
    references: ReferenceReturns | None
    simulation: str
    wall_s: float
    steps_per_s: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]


def evaluate_gym(
    source: GymSource, plan: GymEvaluationPlan, reporter: Reporter, path: Path | None = None
) -> GymEvaluation:
    """Run the plan's episodes under one policy, unless `path` already holds that evaluation.

    Raises:
        ValueError: no such run or expert, one of another task, the task's package is missing, or
            `path` holds something else than an evaluation.
    """
    key = {"weights": source.key(), "simulation": package_version(find_task(plan.env))}
    work = partial(_evaluated, source, plan, reporter)
    return kept_evaluation(path, plan, key, GymEvaluation, work)


def _evaluated(source: GymSource, plan: GymEvaluationPlan, reporter: Reporter) -> GymEvaluation:
    task = find_task(plan.env)
    seeds = evaluation.evaluation_seeds(plan.episodes, plan.seed)
    batch = TaskBatch(task, min(plan.environments, plan.episodes))
    try:
        policy = source.load(batch, plan)
        started = time.perf_counter()
        with reporter.step(f"evaluate {source.name}", plan.episodes, "episode") as advance:
            episodes = evaluation.evaluate(policy, batch, seeds, lambda n: advance(n, ""))
    finally:
        batch.close()
    wall_s = time.perf_counter() - started
    returns = [episode.episode_return for episode in episodes]
    lengths = [episode.length for episode in episodes]
    references = plan.references
    normalised = [None if references is None else references.normalised(each) for each in returns]
    return GymEvaluation(
        policy=source.name,
        env=task.env_id,
        episodes=len(episodes),
        steps=sum(lengths),
        return_=mean_and_std(returns),
        length=mean_and_std(lengths),
        success=float(np.mean([episode.success for episode in episodes])),
        terminated=float(np.mean([episode.terminated for episode in episodes])),
        normalised=mean_and_std(normalised),
        d4rl_normalised=mean_and_std([normalised_return(task.name, each) for each in returns]),
        return_target=plan.return_target,
        references=references,
        simulation=package_version(task),
        wall_s=wall_s,
        steps_per_s=sum(lengths) / wall_s,
        returns=tuple(returns),
        lengths=tuple(lengths),
    )


def _learned(source: GymSource, batch: TaskBatch, plan: GymEvaluationPlan) -> LearnedPolicy:
    assert source.run is not None, "the caller has looked"
    task = batch.task.name
    trained = (read_record(source.run / PLAN) or {}).get("robot", task)
    if trained in D4RL_TASKS and trained != task:
        raise ValueError(f"{source.run} was trained on {trained}, not on {task}")
    network = load_policy(source.run, which=source.which)
    target = plan.return_target
    if plan.references is not None:
        target *= (plan.references.expert - network.return_at(0.0)) / float(network.return_scale)
    return LearnedPolicy(
        network, len(batch), source.name, target, action_limit=1.0, reset_every=plan.reset_every
    )
