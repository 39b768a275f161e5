"""The protocol of policies, expert or learned."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np


@dataclass
class Observation:
    """What policies may read before a control step, N robots.

    Attributes:
        policy: (N, 70) float32, the stored observation: all that a learned policy sees.
        reward: (N,) float32 of the previous step, 0 at an episode's start, for return conditioning.
        command: (N, 16) float64, the command in force, also the last block of `policy`.
        clock: (N,) float64, gait clock in cycles; for experts.
        make_privileged: computes `privileged` when it is first read.
    """

    policy: np.ndarray
    reward: np.ndarray
    command: np.ndarray
    clock: np.ndarray
    make_privileged: Callable[[], np.ndarray]

    @cached_property
    def privileged(self) -> np.ndarray:
        """(N, P) float32, laid out by `observations.PRIVILEGED_SLICES`."""
        return self.make_privileged()


class Policy(Protocol):
    """Turns observations into joint actions."""

    name: str

    def reset(self, ids: np.ndarray) -> None:
        """Forget the history of robots `ids`: they start an episode."""
        ...

    def act(self, observation: Observation) -> np.ndarray:
        """(N, 12) float32 actions: joint targets minus the default pose, in action scales."""
        ...
