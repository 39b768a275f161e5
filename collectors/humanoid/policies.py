"""The protocols through which collection and evaluation see any policy, expert or learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class TrackingObservation:
    """What policies may read before a control step, N humanoids.

    policy (N, 2868) float32 is the stored observation, reward (N,) that of the step before.
    """

    policy: np.ndarray
    reward: np.ndarray


class TrackingPolicy(Protocol):
    """Anything that turns observations into the humanoid's actions."""

    name: str

    def reset(self, ids: np.ndarray) -> None:
        """The next observation of the humanoids `ids` starts an episode."""
        ...

    def act(self, observation: TrackingObservation) -> np.ndarray:
        """(N, 56) actions; what lies outside [-1, 1] is clipped."""
        ...


class ExpertPolicy(TrackingPolicy, Protocol):
    """A policy that data are collected with.

    Attributes:
        hash: changes whenever its actions do; has_value: whether it knows what it expects.
    """

    hash: str
    has_value: bool

    def value(self, observation: TrackingObservation) -> np.ndarray | None:
        """(N,) discounted return that it expects; None where it does not know."""
        ...
