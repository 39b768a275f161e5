"""The protocol of policies, expert or learned, and their inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.common.errors import amount


@dataclass
class StoredObservation:
    """Inputs of every policy before a control step, for N robots, float32.

    Attributes:
        policy: (N, D) the stored observation: all that a learned policy sees.
        reward: (N,) reward of the previous step, 0 at an episode's start, for return conditioning.
    """

    policy: np.ndarray
    reward: np.ndarray


@dataclass
class Observation(StoredObservation):
    """The legged task's observation: D is 70.

    Attributes:
        command: (N, 16) float64, the command in force, also the last block of `policy`.
        clock: (N,) float64, gait clock in cycles; for experts.
        make_privileged: computes `privileged` when it is first read.
        heights: for points (K, 2) in the heading frame, m, the trunk's heights (N, K) above the
            ground there; until the next step.
    """

    command: np.ndarray
    clock: np.ndarray
    make_privileged: Callable[[], np.ndarray]
    heights: Callable[[np.ndarray], np.ndarray]

    def of(self, rows: slice) -> "Observation":
        """Rows of this observation, with all robots' `heights`."""
        return Observation(
            self.policy[rows],
            self.reward[rows],
            self.command[rows],
            self.clock[rows],
            lambda: self.privileged[rows],
            self.heights,
        )

    @cached_property
    def privileged(self) -> np.ndarray:
        """(N, P) float32, laid out by `observations.PRIVILEGED_SLICES`."""
        return self.make_privileged()


class Memoryless:
    """Base of policies whose actions depend on the present observation only."""

    def reset(self, ids: np.ndarray) -> None:
        """Nothing to forget."""


def tell_executed(policy: object, actions: np.ndarray) -> None:
    """Give a policy with a method `executed` the actions (N, A) that were done for its own."""
    tell = getattr(policy, "executed", None)
    if tell is not None:
        tell(actions)


def actions_of(
    policy: "TaskPolicy | Policy", observation: Any, width: int | None = None
) -> np.ndarray:
    """A policy's actions (N, A) for an observation of N robots.

    Args:
        width: A, where it is known.

    Raises:
        ValueError: actions of another shape, which NumPy may stretch over the robots.
    """
    actions = policy.act(observation)
    shape = np.shape(actions)
    rows = len(observation.policy)
    if len(shape) != 2 or shape[0] != rows or (width is not None and shape[1] != width):
        name = getattr(policy, "name", type(policy).__name__)
        raise ValueError(
            f"policy {name} gave actions of shape {shape} for {amount(rows, 'robot')}; needed: "
            f"{amount(rows, 'row')}{'' if width is None else f' of {width} numbers'}"
        )
    return actions


class TaskPolicy(Protocol):
    """A policy of the Gymnasium tasks and the humanoid, which reads the stored observation only."""

    def reset(self, ids: np.ndarray) -> None:
        """Forget the history of robots `ids`: they start an episode."""
        ...

    def act(self, observation: StoredObservation) -> np.ndarray:
        """(N, A) actions of all N robots, clipped to [-1, 1] when executed."""
        ...


class Policy(Protocol):
    """A policy of the legged task."""

    name: str

    def reset(self, ids: np.ndarray) -> None:
        """As `TaskPolicy.reset`."""
        ...

    def act(self, observation: Observation) -> np.ndarray:
        """(N, 12) float32 actions: joint targets minus the default pose, in action scales."""
        ...


class RobotPolicy(Policy, Protocol):
    """A policy of the legged task that drives one robot."""

    robot: RobotCard

    def parameters(self) -> int:
        """Number of trained parameters."""
        ...
