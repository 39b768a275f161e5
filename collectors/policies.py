"""The one protocol through which collectors see any policy, expert or learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass
class Observation:
    """What policies may read before a control step, N robots.

    Attributes:
        policy: (N, 70) float32, the stored observation: all that a learned policy sees.
        reward: (N,) float32, the reward of the step before; 0 at an episode's start.
            Return-conditioned policies count it.
        command: (N, 16) float64, the command in force, also the last block of `policy`.
        clock: (N,) float64, gait clock in cycles; private to experts.
        make_privileged: computes the (N, P) float32 private block, so that nobody pays who does not
            read it.
    """

    policy: np.ndarray
    reward: np.ndarray
    command: np.ndarray
    clock: np.ndarray
    make_privileged: Callable[[], np.ndarray]
    _privileged: np.ndarray | None = field(default=None, repr=False)

    @property
    def privileged(self) -> np.ndarray:
        """(N, P) float32, laid out by `observations.PRIVILEGED_SLICES`."""
        if self._privileged is None:
            self._privileged = self.make_privileged()
        return self._privileged


class Policy(Protocol):
    """Anything that turns observations into joint actions."""

    name: str

    def reset(self, ids: np.ndarray) -> None:
        """Forget the history of the robots `ids`: their next observation starts an episode."""
        ...

    def act(self, observation: Observation) -> np.ndarray:
        """(N, 12) float32 actions: joint targets minus the default pose, in action scales."""
        ...
