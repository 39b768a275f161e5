"""A task as another package would bring it, on which evaluating takes a moment.

Its stores are those of `gym_stores`. A point drifts where the first actions push it: who pushes
against its place is paid. An episode ends after 20 steps.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from gaitforge.collectors.policy import StoredObservation
from gaitforge.common.limits import Positive
from gaitforge.datasets import Schema
from gaitforge.flows.tasks.evaluation import Cell, EvaluationPlan, References
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.flows.tasks.policy_sources import EXPERT, PolicySource
from gaitforge.flows.tasks.registry import TASKS
from tests.flows.gym_stores import ACT_DIM, NAMES, SLICES

STEPS = 20


class PointsPlan(CollectionPlan):
    """Nothing is collected of it."""

    kind = "points"
    parallelism = "threads"
    evaluation = f"{__name__}:PointsEvaluation"


class Episode(NamedTuple):
    episode_return: float
    length: int = STEPS
    success: bool = True
    terminated: bool = False


class Pusher:
    """Pushes with a gain against the point's place: 1 is an expert, 0 does nothing."""

    def __init__(self, gain: float) -> None:
        self._gain = gain

    def reset(self, ids: np.ndarray) -> None:
        pass

    def act(self, observation: StoredObservation) -> np.ndarray:
        return -self._gain * observation.policy[:, :ACT_DIM]


@dataclass(frozen=True)
class PointsEvaluation(EvaluationPlan):
    """Episodes from starts that are drawn from a seed."""

    kind = "points"
    expert = "expert"
    baseline = "random"
    unit = "episode"
    action_limit = 1.0

    task: str = "hopper"
    episodes: Positive = 10
    environments: Positive = 5
    seed: int = 0

    @property
    def name(self) -> str:
        return self.task

    @classmethod
    def of_store(cls, schema: Schema) -> Self | None:
        attributes = schema.attributes
        task = NAMES.get(str(attributes.get("env")), schema.robot)
        if attributes.get("format") != "gymnasium" or task not in NAMES.values():
            return None
        kept = attributes.get("reference_returns")
        if not isinstance(kept, Mapping):
            return cls(task=task)
        return cls(task=task, references=References(kept["random"], kept["expert"], "the store"))

    def expert_hash(self, name: str) -> str:
        if name not in ("random", "expert"):
            raise ValueError(f"no policy '{name}'; allowed: random, expert")
        return name

    def work(self) -> int:
        return self.episodes

    def load(self, source: PolicySource, robots: int) -> tuple[Any, int]:
        if source.kind != EXPERT:
            return super().load(source, robots)
        return Pusher(float(self.expert_hash(source.place) == "expert")), 0

    def observations(self, source: PolicySource) -> list[StoredObservation]:
        return [self._observation(np.random.default_rng(self.seed), 1)]

    def roll_out(
        self, source: PolicySource, advance: Callable[[int], None]
    ) -> tuple[list[Cell], int]:
        rng = np.random.default_rng(self.seed)
        policy, parameters = self.load(source, self.episodes)
        policy.reset(np.arange(self.episodes))
        seen = self._observation(rng, self.episodes)
        returns = np.zeros(self.episodes)
        for _ in range(STEPS):
            action = np.clip(policy.act(seen), -1.0, 1.0)
            seen.policy[:, :ACT_DIM] += action
            seen.reward[:] = 2.0 - np.abs(seen.policy[:, :ACT_DIM]).mean(axis=1)
            returns += seen.reward
        advance(self.episodes)
        episodes = [Episode(float(episode_return)) for episode_return in returns]
        return [Cell({"task": self.task}, episodes)], parameters

    def _observation(self, rng: np.random.Generator, count: int) -> StoredObservation:
        width = max(stop for _, stop in SLICES[self.task].values())
        policy = rng.normal(size=(count, width)).astype(np.float32)
        return StoredObservation(policy, np.zeros(count, np.float32))


@contextmanager
def known() -> Iterator[None]:
    """The task is known in the block, before those of plug-ins."""
    TASKS[PointsPlan.kind] = f"{__name__}:PointsPlan"
    try:
        yield
    finally:
        del TASKS[PointsPlan.kind]
