"""All that an algorithm's modules and optimisers hold, by name: what a checkpoint is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


def state_tensors(
    modules: Mapping[str, nn.Module], optimisers: Mapping[str, torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """{"MODULE.PARAMETER": …, "OPTIMISER-adam.INDEX.KEY": …}."""
    found = {
        f"{part}.{key}": value
        for part, module in modules.items()
        for key, value in module.state_dict().items()
    }
    for part, optimiser in optimisers.items():
        for index, state in optimiser.state_dict()["state"].items():
            found |= {f"{part}-adam.{index}.{key}": value for key, value in state.items()}
    return found


def load_state_tensors(
    modules: Mapping[str, nn.Module],
    optimisers: Mapping[str, torch.optim.Optimizer],
    tensors: Mapping[str, Tensor],
) -> None:
    """Take over what `state_tensors` gave, of the same sizes."""
    for part, module in modules.items():
        module.load_state_dict(_below(part, tensors))
    for part, optimiser in optimisers.items():
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _below(f"{part}-adam", tensors).items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": state, "param_groups": groups})


def adam(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Adam:
    """The optimiser of all of them."""
    return torch.optim.Adam(parameters, rate, fused=True)


def _below(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{part}."
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
