"""Time of one training step: loss, gradient, clipping and optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flows.progress import Advance
from learners.models.registry import PRESETS, build_network, count_parameters, preset
from learners.models.spaces import SPACES
from learners.policy.normalisation import Normaliser
from learners.policy.policy_network import PolicyNetwork
from learners.training.config import TrainConfig
from learners.training.distributed import Ranks
from learners.training.update import Updater
from pipeline.bench.common import in_turns

FCNET = "fcnet-legged"
FOLDED, FFT_MODES = "folded", "fft-modes"
BASELINES = (
    "transformer-legged",
    "retnet-legged",
    "dt-legged",
    "history-mlp-legged",
    "mlp-legged",
    "bot",
)
AS_PRESET = "preset"


@dataclass(frozen=True)
class TrainStepConfig:
    """What is measured.

    Attributes:
        models: presets beside FCNet.
        batch_size, window_len: the FCNet paper's.
        slow_rounds: rounds of the paper's algorithm, which needs seconds.
    """

    models: tuple[str, ...] = BASELINES
    batch_size: int = 128
    window_len: int = 64
    rounds: int = 7
    slow_rounds: int = 3

    @property
    def measured(self) -> tuple[tuple[str, str], ...]:
        """Models and settings, in the order of a round."""
        baselines = ((model, AS_PRESET) for model in self.models)
        return ((FCNET, FOLDED), (FCNET, FFT_MODES), *baselines)


def train_step_ms(config: TrainStepConfig, advance: Advance) -> dict[str, dict[str, Any]]:
    """Model -> setting -> times of one step in ms, and what follows from them.

    In float32, with as many threads as PyTorch uses. Each has ``median_ms``, ``min_ms``,
    ``repeats``, ``parameters`` and ``tokens_per_s``, where a token is one control step, whatever
    the network makes of it.
    """
    steps: dict[tuple[str, str], Callable[[], Any]] = {}
    parameters: dict[tuple[str, str], int] = {}
    for model, setting in config.measured:
        overrides = {} if setting == AS_PRESET else {"convolution": setting}
        policy = _policy(model, overrides)
        batch = _random_batch(policy, config)
        updater = Updater(policy, TrainConfig(model=model), Ranks())
        steps[model, setting] = partial(updater.step, batch, 0, 1e-3)
        parameters[model, setting] = count_parameters(policy)
    slow = {(FCNET, FFT_MODES): config.slow_rounds}
    times = in_turns(steps, config.rounds, slow, lambda: advance(1, "train step"))
    tokens = config.batch_size * config.window_len
    records: dict[str, dict[str, Any]] = {}
    for (model, setting), seconds in times.items():
        median = float(np.median(seconds))
        records.setdefault(model, {})[setting] = {
            "median_ms": 1e3 * median,
            "min_ms": 1e3 * min(seconds),
            "tokens_per_s": tokens / median,
            "parameters": parameters[model, setting],
            "repeats": len(seconds),
        }
    return records


def _policy(model: str, overrides: dict[str, Any]) -> PolicyNetwork:
    space = SPACES[PRESETS[model].space]
    torch.manual_seed(0)
    return PolicyNetwork(
        build_network(preset(model, overrides), space.layout, space.act_dim),
        space.layout,
        Normaliser.identity(space.layout.obs_dim),
        Normaliser.identity(space.act_dim),
    )


def _random_batch(policy: PolicyNetwork, config: TrainStepConfig) -> dict[str, Tensor]:
    """Full windows of noise: the values do not change the time."""
    shape = (config.batch_size, config.window_len)
    act_dim = policy.action_normaliser.mean.numel()
    batch = {
        "obs": torch.randn(*shape, policy.layout.obs_dim),
        "action": torch.randn(*shape, act_dim),
        "mask": torch.ones(shape, dtype=torch.bool),
    }
    return batch | ({"return_to_go": torch.rand(shape)} if policy.conditioned else {})
