"""Scores of trained policies: 100 is the expert's return; 0 a random policy's, or a return of 0."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.tasks import TASKS, GymTask
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.policies import StoredObservation
from gaitforge.datasets import open_store
from gaitforge.datasets.dataset import Store
from gaitforge.datasets.errors import listed
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.stages.evaluate import PolicyEvaluation, control_latency, evaluate_policy
from gaitforge.flows.stages.gym import evaluation as gym
from gaitforge.flows.stages.suites.plan import SuitePlan
from gaitforge.flows.tasks.policies import PolicySource

LEGGED = "legged"


@dataclass(frozen=True)
class Score:
    """A policy's mean return over `episodes`, its score, and its median control step."""

    return_: float
    score: float
    success: float
    episodes: int
    control_us: float


class Scorer(Protocol):
    """Scores the policies of one store's task.

    Attributes:
        task: its name; zero, expert: the returns that score 0 and 100.
    """

    task: str
    zero: float
    expert: float

    def evaluate(
        self,
        run: Path,
        share: float | None,
        path: Path,
        reporter: Reporter,
        which: str = "last",
    ) -> Score:
        """The score of a training run's policy; evaluated once, and kept in `path`.

        Args:
            share: the return that is asked for, in units of the expert's above `zero`.
            which: checkpoint of the run.
        """
        ...


class GymScorer:
    """Scores policies of a Gymnasium task by the reference returns of its store."""

    def __init__(self, plan: SuitePlan, store: Store, task: GymTask) -> None:
        known = gym.stored_references(store.schema)
        if known is None:
            raise ValueError(
                f"{store.address} has no reference returns of a random policy and an expert, by "
                "which scores are normalised; gaitforge gym collect and import d4rl store them"
            )
        self.task, self.zero, self.expert = task.name, known.random, known.expert
        self._plan = replace(plan.gym, env=task.env_id, references=known)
        self._task = task

    def evaluate(
        self,
        run: Path,
        share: float | None,
        path: Path,
        reporter: Reporter,
        which: str = "last",
    ) -> Score:
        """See `Scorer.evaluate`."""
        plan = self._plan if share is None else replace(self._plan, return_target=share)
        source = gym.GymSource(run.name, run=run, which=which)
        found = gym.evaluate_gym(source, plan, reporter, path)
        mean, score = found.return_.mean, found.normalised.mean
        assert mean is not None, "an evaluation has episodes"
        assert score is not None, "and references"
        return Score(mean, score, found.success, found.episodes, self._control_us(source, plan))

    def _control_us(self, source: gym.GymSource, plan: gym.GymEvaluationPlan) -> float:
        batch = TaskBatch(self._task, 1)
        try:
            obs = np.zeros((1, batch.obs_dim), np.float32)
            observation = StoredObservation(obs, np.zeros(1, np.float32))
            return control_latency(source.load(batch, plan), [observation])[0]
        finally:
            batch.close()


class LeggedScorer:
    """Scores policies of legged robots by an expert on the same episodes; `prepare` comes first."""

    task, zero = LEGGED, 0.0

    def __init__(self, plan: SuitePlan, out: Path) -> None:
        self._plan, self._source = plan, PolicySource("expert", expert=plan.expert)
        self.record = out / "evaluate" / "expert.json"

    def prepare(self, reporter: Reporter) -> PolicyEvaluation:
        """Evaluate the expert, unless that is done."""
        return evaluate_policy(self._source, self._plan.legged, reporter, self.record)

    @cached_property
    def expert(self) -> float:
        """The expert's mean return."""
        return self.prepare(Silent()).return_

    def evaluate(
        self,
        run: Path,
        share: float | None,
        path: Path,
        reporter: Reporter,
        which: str = "last",
    ) -> Score:
        """See `Scorer.evaluate`."""
        plan = (
            self._plan.legged if share is None else replace(self._plan.legged, return_target=share)
        )
        found = evaluate_policy(PolicySource(run.name, run, which=which), plan, reporter, path)
        episodes = sum(cell.episodes for cell in found.cells)
        score = 100.0 * found.return_ / self.expert
        return Score(found.return_, score, found.success, episodes, found.latency_us_median)


def find_scorer(plan: SuitePlan, store_path: Path | str, out: Path) -> GymScorer | LeggedScorer:
    """The scorer of a store's task.

    Raises:
        ValueError: no store, one of a task that the suite does not take or that is not simulated
            here, or without rewards.
    """
    store = open_store(store_path)
    if "reward" not in store.schema.names("step"):
        raise ValueError(f"{store.address} has no rewards, from which a suite's learners learn")
    tasks = {task.name: task for task in TASKS.values()} if plan.tasks != LEGGED else {}
    if plan.tasks != "gym" and store.schema.field("obs").slices == POLICY_SLICES:
        return LeggedScorer(plan, out)
    if store.schema.robot in tasks:
        return GymScorer(plan, store, tasks[store.schema.robot])
    legged = ["legged robots"] if plan.tasks != "gym" else []
    raise ValueError(
        f"{store.address} is of {store.schema.robot or 'an unknown task'}; the suite takes stores "
        f"of {listed([*legged, *tasks])}"
    )
