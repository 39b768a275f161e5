"""An exponential moving average (EMA) of the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """average <- d * average + (1 - d) * weight after every optimiser step.

    d = min(decay, (1 + t) / (10 + t)) at step t, so that the random start is soon forgotten; the
    rule of TensorFlow's ExponentialMovingAverage with `num_updates`.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._parameters = dict(module.named_parameters())
        self._averages = {name: value.detach().clone() for name, value in self._parameters.items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after optimiser step `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, average in self._averages.items():
            average.lerp_(self._parameters[name], 1.0 - decay)

    def state(self) -> dict[str, Tensor]:
        """Parameter name -> its average."""
        return dict(self._averages)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved averages, of the same module."""
        for name, value in self._averages.items():
            value.copy_(state[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the module has the averages for weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self._parameters.items():
            kept = weight.clone()
            weight.copy_(self._averages[name])
            self._averages[name].copy_(kept)
