"""Base of the algorithms: modules with an Adam optimiser each, and their checkpoint."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from gaitforge.collectors.gym.algorithms.networks import Actor
from gaitforge.common.optimiser_state import (
    load_optimiser_tensors,
    optimiser_tensors,
    tensors_below,
)


class Algorithm:
    """Networks under training; `modules` and `optimisers` are named as in a checkpoint."""

    actor: Actor
    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]

    def state_dict(self) -> dict[str, Tensor]:
        """State to checkpoint: {"MODULE.PARAMETER": …, "OPTIMISER-adam.INDEX.KEY": …}."""
        tensors: dict[str, Tensor] = {}
        for name, module in self.modules.items():
            tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
        for name, optimiser in self.optimisers.items():
            tensors |= optimiser_tensors(optimiser, f"{name}-adam")
        return tensors

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state_dict`'s tensors into networks of the same sizes."""
        for name, module in self.modules.items():
            module.load_state_dict(tensors_below(name, state))
        for name, optimiser in self.optimisers.items():
            load_optimiser_tensors(optimiser, state, f"{name}-adam")

    def minimise(self, loss: Tensor, name: str, max_grad_norm: float | None = None) -> None:
        """One step of an optimiser."""
        optimiser = self.optimisers[name]
        optimiser.zero_grad()
        loss.backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(optimiser.param_groups[0]["params"], max_grad_norm)
        optimiser.step()


def adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam in one kernel for all parameters."""
    return torch.optim.Adam(parameters, learning_rate, fused=True)
