"""Lion, the optimiser of Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"."""

import torch
from torch.optim.optimizer import ParamsT


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of the paper: the sign of an interpolated momentum, with decoupled weight decay.

    betas: (b1, b2); b1 interpolates the update, b2 is the momentum's decay.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            beta_update, beta_momentum = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"]
                direction = momentum.lerp(parameter.grad, 1.0 - beta_update).sign_()
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                parameter.add_(direction, alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 1.0 - beta_momentum)
