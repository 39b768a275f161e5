"""Observation normalisation during training; saved policies have it folded into `layer0`."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from gaitforge.plugins.gym.training.sac import Actor

_LEAST_SPREAD = 0.01
"""Added to every standard deviation, in radians or metres."""


@dataclass(frozen=True)
class ObservationScale:
    """(x - mean) / spread, per component; both (Do,) float32, the spread positive."""

    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, observations: np.ndarray) -> Self:
        """The scale that gives observations (n, Do) mean 0 and a standard deviation near 1."""
        mean = observations.mean(axis=0, dtype=np.float64)
        spread = observations.std(axis=0, dtype=np.float64) + _LEAST_SPREAD
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(spread).float())

    def __call__(self, observations: Tensor) -> Tensor:
        """(B, Do) -> (B, Do)."""
        return (observations - self.mean) / self.spread

    def weights_for_unscaled(self, actor: Actor) -> dict[str, Tensor]:
        """`actor`'s state dict for raw observations: the scale folded into `layer0`."""
        state = {name: value.clone() for name, value in actor.state_dict().items()}
        state["layer0.weight"] /= self.spread
        state["layer0.bias"] -= state["layer0.weight"] @ self.mean
        return state
