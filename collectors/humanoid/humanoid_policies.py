"""The protocol of the humanoid's experts."""

from typing import Protocol

import numpy as np

from gaitforge.collectors.policies import StoredObservation, TaskPolicy


class ExpertPolicy(TaskPolicy, Protocol):
    """A policy to collect data with.

    Attributes:
        hash: changes whenever its actions do; has_value: whether it has a critic.
    """

    name: str
    hash: str
    has_value: bool

    def value(self, observation: StoredObservation) -> np.ndarray | None:
        """(N,) the critic's discounted return; None without a critic."""
        ...
