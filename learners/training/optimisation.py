"""The optimisers and the learning-rate schedule."""

import math
from collections.abc import Iterable

import torch

from learners.training.config import TrainConfig
from learners.training.lion import Lion


def learning_rate(step: int, config: TrainConfig) -> float:
    """Rate of optimiser step `step` (from 0): linear warm-up, then as the schedule says.

    "cosine" ends at 0, "constant" stays at the peak.
    """
    warmup = round(config.warmup_fraction * config.steps)
    if step < warmup:
        return config.peak_lr * (step + 1) / warmup
    if config.schedule == "constant":
        return config.peak_lr
    progress = (step - warmup) / max(1, config.steps - warmup)
    return 0.5 * config.peak_lr * (1.0 + math.cos(math.pi * progress))


def make_optimiser(
    parameters: Iterable[torch.nn.Parameter], config: TrainConfig
) -> torch.optim.Optimizer:
    """The config's optimiser over all parameters; the rate is set before each step.

    The weight decay of "adamw" and "lion" is decoupled, that of "adam" is part of the gradient.
    """
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


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` from the next step on."""
    for group in optimiser.param_groups:
        group["lr"] = rate
