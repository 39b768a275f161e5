"""Optimisers, the learning-rate schedule, and the moving average of the weights."""

import math

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT
from torch.optim.swa_utils import AveragedModel

from gaitforge.learners.training.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of optimiser step `step` (from 0): linear warm-up, then the config's schedule."""
    warmup = round(config.warmup_fraction * config.steps)
    if step < warmup:
        return config.peak_lr * (step + 1) / warmup
    if config.schedule == "constant":
        return config.peak_lr
    progress = (step - warmup) / max(1, config.steps - warmup)
    return 0.5 * config.peak_lr * (1.0 + math.cos(math.pi * progress))


def make_optimiser(parameters: ParamsT, config: TrainConfig) -> torch.optim.Optimizer:
    """The config's optimiser; weight decay is decoupled, but "adam" adds it to the gradient."""
    if config.optimiser == "lion":
        return Lion(parameters, config.peak_lr, config.betas, config.weight_decay)
    adam = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
    return adam(
        parameters,
        lr=config.peak_lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


class Lion(torch.optim.Optimizer):
    """Lion, Algorithm 2 of Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms".

    The sign of an interpolated momentum, with decoupled weight decay.

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


def averaged_copy(policy: nn.Module, decay: float) -> AveragedModel:
    """A copy of the policy whose weights follow it: average <- d * average + (1 - d) * weight.

    d = min(decay, (1 + t) / (10 + t)) after optimiser step t, so that the average soon forgets the
    initial weights; the rule of TensorFlow's ExponentialMovingAverage with `num_updates`. The
    copy's `n_averaged` is t + 1.
    """

    def blend(average: Tensor, weight: Tensor, step: Tensor | int) -> Tensor:
        t = int(step)
        return average.lerp(weight, 1.0 - min(decay, (1 + t) / (10 + t)))

    average = AveragedModel(policy, avg_fn=blend)
    average.n_averaged.fill_(1)  # the initial weights
    return average.eval()
