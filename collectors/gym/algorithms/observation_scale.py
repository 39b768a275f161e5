"""Observations in units of their spread, for networks that learn faster so; kept actors do without.

An observation of the Adroit hand has radians and metres of things that move by millimetres. The
policies that are kept take observations as they are: the scale goes into their first layer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from collectors.gym.algorithms.networks import Actor

_LEAST_SPREAD = 0.01
"""In radians or metres; what moves less is not blown up further."""


class ObservationScale:
    """(x - mean) / spread, by component."""

    def __init__(self, mean: Tensor, spread: Tensor) -> None:
        """Both (Do,) float32, the spread positive."""
        self._mean, self._spread = mean, spread

    @classmethod
    def unchanged(cls, obs_dim: int) -> ObservationScale:
        """The scale that leaves observations as they are."""
        return cls(torch.zeros(obs_dim), torch.ones(obs_dim))

    @classmethod
    def of(cls, observations: np.ndarray) -> ObservationScale:
        """The scale in which observations (n, Do) have mean 0 and a standard deviation near 1."""
        mean = observations.mean(axis=0, dtype=np.float64)
        spread = observations.std(axis=0, dtype=np.float64) + _LEAST_SPREAD
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(spread).float())

    def __call__(self, observations: Tensor) -> Tensor:
        """(B, Do) -> (B, Do)."""
        return (observations - self._mean) / self._spread

    def weights_for_unscaled(self, actor: Actor) -> dict[str, Tensor]:
        """State of an actor that does with an observation what `actor` does with it scaled."""
        state = {name: value.clone() for name, value in actor.state_dict().items()}
        state["layer0.weight"] /= self._spread
        state["layer0.bias"] -= state["layer0.weight"] @ self._mean
        return state
