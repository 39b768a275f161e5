"""Networks that value states and actions: several multi-layer perceptrons side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """`members` independent MLPs with ReLU and one output each, computed as one.

    Args:
        sizes: inputs, then the hidden layers. Weights start as `nn.Linear`'s do.
    """

    def __init__(self, members: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in zip(sizes, [*sizes[1:], 1], strict=True):
            bound = 1.0 / math.sqrt(inputs)
            for kept, shape in (
                (self.weights, (members, inputs, outputs)),
                (self.biases, (members, 1, outputs)),
            ):
                kept.append(nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Inputs (N, ...) that together are (N, sizes[0]) -> (members, N)."""
        x = torch.cat(inputs, dim=-1).expand(len(self.weights[0]), -1, -1)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if layer < last:
                x = x.relu()
        return x.squeeze(-1)

    def frozen(self) -> Self:
        """A copy that is not trained, to follow this one."""
        return deepcopy(self).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Target <- (1 - rate) target + rate source, of all parameters (Polyak averaging)."""
    for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
        mine.lerp_(theirs, rate)


class frozen_parameters:
    """Within the block, a module's parameters get no gradient; its inputs do."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __enter__(self) -> None:
        self._module.requires_grad_(False)

    def __exit__(self, *_: object) -> None:
        self._module.requires_grad_(True)
