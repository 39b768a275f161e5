"""Time of one training step: loss, gradient, clipping and optimiser, as a training run takes it."""

from __future__ import annotations

import time
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
        batch_size, window_len: windows a step and control steps a window; the FCNet paper's.
        rounds: turns that count, after one that warms up.
        slow_rounds: of them, those that the paper's algorithm takes part in: it needs seconds.
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
    times = _in_turns(steps, config, advance)
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
    """Full windows of noise: what the numbers are does not change how long they take."""
    shape = (config.batch_size, config.window_len)
    act_dim = policy.action_normaliser.mean.numel()
    batch = {
        "obs": torch.randn(*shape, policy.layout.obs_dim),
        "action": torch.randn(*shape, act_dim),
        "mask": torch.ones(shape, dtype=torch.bool),
    }
    return batch | ({"return_to_go": torch.rand(shape)} if policy.conditioned else {})


def _in_turns(
    steps: dict[tuple[str, str], Callable[[], Any]], config: TrainStepConfig, advance: Advance
) -> dict[tuple[str, str], list[float]]:
    """Seconds of each in each round that it takes part in, without the first."""
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
    for number in range(config.rounds + 1):
        for key, step in steps.items():
            if key[1] == FFT_MODES and number > config.slow_rounds:
                continue
            started = time.perf_counter()
            step()
            if number > 0:
                seconds[key].append(time.perf_counter() - started)
        advance(1, "train step")
    return seconds
