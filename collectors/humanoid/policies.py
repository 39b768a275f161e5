"""Protocols of the humanoid's policies, expert or learned."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class TrackingObservation:
    """Of N humanoids: the stored observation (N, 2868) and the last step's reward (N,), float32."""

    policy: np.ndarray
    reward: np.ndarray


class TrackingPolicy(Protocol):
    """Maps observations to actions."""

    name: str

    def reset(self, ids: np.ndarray) -> None:
        """The humanoids `ids` start an episode: forget their history."""
        ...

    def act(self, observation: TrackingObservation) -> np.ndarray:
        """(N, 56) actions; the caller clips them to [-1, 1]."""
        ...


class ExpertPolicy(TrackingPolicy, Protocol):
    """A policy to collect data with.

    Attributes:
        hash: changes whenever its actions do; has_value: whether it has a critic.
    """

    hash: str
    has_value: bool

    def value(self, observation: TrackingObservation) -> np.ndarray | None:
        """(N,) the critic's discounted return; None without a critic."""
        ...
