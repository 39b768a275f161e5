"""Critics, action densities, light optimisers and their states, which all trainings share.

It needs torch. An optimiser's state becomes flat named tensors, for checkpoints.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.common.files import tensors_below

OptimiserT = TypeVar("OptimiserT", bound=torch.optim.Optimizer)


def without_compiler(kind: type[OptimiserT]) -> type[OptimiserT]:
    """A class of optimisers of torch that does not import torch's compiler; its steps are the same.

    torch wraps these methods to keep `torch.compile` out of them, which imports the compiler (half
    of a training's start: 5 s of CPU). No optimiser is compiled here.
    """
    wrapped = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), methods)


def has_dropout(network: nn.Module) -> bool:
    """Whether a network drops activations in training."""
    layers = (layer for layer in network.modules() if isinstance(layer, nn.Dropout))
    return any(layer.p > 0.0 for layer in layers)


class Ensemble(nn.Module):
    """`members` independent MLPs with ReLU, computed as one.

    Args:
        sizes: inputs, then the hidden layers. Weights start as `nn.Linear`'s do.
        outputs: of each member.
        norm: normalise the outputs of every hidden layer (Ba et al., 2016), with scale and shift.
    """

    def __init__(
        self, members: int, sizes: Sequence[int], outputs: int = 1, norm: bool = False
    ) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for ins, outs in zip(sizes, [*sizes[1:], outputs], strict=True):
            bound = 1.0 / math.sqrt(ins)
            for kept, rows in ((self.weights, ins), (self.biases, 1)):
                values = torch.empty(members, rows, outs).uniform_(-bound, bound)
                kept.append(nn.Parameter(values))
        for width in sizes[1:] if norm else ():
            self.scales.append(nn.Parameter(torch.ones(members, 1, width)))
            self.shifts.append(nn.Parameter(torch.zeros(members, 1, width)))

    def forward(self, *inputs: Tensor, members: int | None = None) -> Tensor:
        """Inputs (N, ...), joined (N, sizes[0]) -> (members, N[, outputs]) of the first members."""
        x = torch.cat(inputs, dim=-1)[None]
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            weight = weight[:members]
            bias = bias[:members]
            x = x.expand(len(weight), -1, -1)
            if weight.shape[-1] == 1:  # products of matrix and vector are several times as fast
                pairs = zip(x, weight[..., 0], strict=True)
                x = torch.stack([member @ vector for member, vector in pairs])[..., None] + bias
            else:
                x = torch.baddbmm(bias, x, weight)
            if layer < last:
                x = x.relu_()
            if layer < len(self.scales):
                x = functional.layer_norm(x, x.shape[-1:])
                x = torch.addcmul(self.shifts[layer][:members], x, self.scales[layer][:members])
        return x.squeeze(-1)

    def frozen(self) -> Self:
        """A copy without gradients, for a target network; see `follow`."""
        return deepcopy(self).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Target <- (1 - rate) target + rate source, of all parameters (Polyak averaging)."""
    for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
        mine.lerp_(theirs, rate)


def squashed_log_density(before: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Log densities (...) of tanh(u), (..., A), where u = mean + exp(log_std) noise is `before`.

    log N(u; mean, std) - sum log(1 - tanh(u)^2) (Haarnoja et al. 2018a, equation 21), with
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which does not cancel where tanh saturates.
    """
    squashing = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi) - squashing
    return density.sum(-1)


def gaussian_nll(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """-log N(action; mean, diag(std^2)) of the whole action, in nats: (..., A) -> (...)."""
    scaled = (action - mean) * (-log_std).exp()
    return (0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


def gaussian_kl(mean: Tensor, std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """KL(first || other) of diagonal Gaussians, in nats: (..., A) -> (...)."""
    distance = std.square() + (mean - other_mean).square()
    return (other_log_std - std.log() + 0.5 * distance * (-2 * other_log_std).exp() - 0.5).sum(-1)


class _Optimiser(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def optimiser_tensors(optimiser: _Optimiser, prefix: str) -> dict[str, Any]:
    """{"PREFIX.INDEX.KEY": tensor}, such as "actor-adam.0.exp_avg"."""
    return {
        f"{prefix}.{index}.{key}": value
        for index, state in optimiser.state_dict()["state"].items()
        for key, value in state.items()
    }


def load_optimiser_tensors(optimiser: _Optimiser, tensors: Mapping[str, Any], prefix: str) -> None:
    """Restore what `optimiser_tensors` gave; learning rates and the like stay the optimiser's."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors_below(prefix, tensors).items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
