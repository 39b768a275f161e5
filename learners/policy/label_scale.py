"""What a conditioned policy's labels are measured by: facts of the episodes that it learned from.

They are kept in the checkpoint, so that labels of other episodes mean the same.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

Key = str
"""Values of some columns of the catalog, as JSON."""


@dataclass(frozen=True)
class ExpectedRate:
    """The rate that a linear function of the observation expects, and what exceeds it by rank.

    Attributes:
        mean, std: (D,) of the observations; weights: (D + 1,), the last one a constant.
        edges: (bins - 1,) bounds of the ranks.
    """

    mean: np.ndarray
    std: np.ndarray
    weights: np.ndarray
    edges: np.ndarray

    def expected(self, obs: np.ndarray) -> np.ndarray:
        """(...) rates that are expected at obs (..., D)."""
        return self.features(obs, self.mean, self.std) @ self.weights

    @staticmethod
    def features(obs: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        """(..., D + 1) what the function is linear in."""
        return np.concatenate([(obs - mean) / std, np.ones((*obs.shape[:-1], 1))], axis=-1)

    def rank(self, obs: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """(B, T) ranks 0 to 1 of steps with obs (B, T, D) and rates (B, T)."""
        return np.searchsorted(self.edges, rates - self.expected(obs)) / len(self.edges)


@dataclass(frozen=True)
class LabelScale:
    """What labels are measured by; `training.labels` says how.

    Attributes:
        horizon: steps of the longest episode.
        cells: cell -> return that counts as a share of 1.
        drivers: policy whose actions are stored -> its mean share, least disturbed.
        rate: for the label "advantage".
    """

    horizon: int
    cells: Mapping[Key, float]
    drivers: Mapping[Key, float]
    rate: ExpectedRate | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` is the inverse, bit for bit."""
        rate = self.rate and {name: values.tolist() for name, values in vars(self.rate).items()}
        return {
            **vars(self),
            "cells": dict(self.cells),
            "drivers": dict(self.drivers),
            "rate": rate,
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "LabelScale":
        """The inverse of `to_json`; ValueError for a damaged tree."""
        try:
            rate = tree["rate"] and ExpectedRate(
                **{name: np.array(tree["rate"][name], float) for name in _RATE}
            )
            scale = cls(
                int(tree["horizon"]), _numbers(tree["cells"]), _numbers(tree["drivers"]), rate
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"the scale of the labels cannot be read: {error!r}") from error
        if scale.horizon < 1 or not all(
            map(isfinite, [*scale.cells.values(), *scale.drivers.values()])
        ):
            raise ValueError("the scale of the labels is damaged")
        return scale


_RATE = tuple(ExpectedRate.__dataclass_fields__)


def _numbers(tree: Mapping[str, Any]) -> dict[Key, float]:
    return {str(key): float(value) for key, value in tree.items()}


def key_of(values: Sequence[Any]) -> Key:
    """The key of some columns' values."""
    return json.dumps(list(values), default=str)
