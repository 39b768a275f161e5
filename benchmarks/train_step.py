"""Time of one training step: loss, gradient, clipping and optimiser."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import median
from gaitforge.flows.measures.timing import in_turns, seconds_of, untrained_policy
from gaitforge.flows.measures.training_steps import random_batch
from gaitforge.flows.progress import Advance
from gaitforge.learners.models.registry import PRESETS, count_parameters, preset
from gaitforge.learners.models.spaces import SPACES
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.update import Updater

FCNET = "fcnet-legged"
FOLDED, FFT_MODES = "folded", "fft-modes"
BASELINES = (
    *("transformer-legged", "retnet-legged", "dt-legged", "history-mlp-legged", "mlp-legged"),
    "bot",
)
AS_PRESET = "preset"


@dataclass(frozen=True)
class TrainStepConfig:
    """Sizes of the measurement.

    Attributes:
        models: presets beside FCNet; convolutions: of FCNet.
        batch_size, window_len: the FCNet paper's.
        device, precision, compile: of `TrainConfig`.
    """

    models: tuple[str, ...] = BASELINES
    convolutions: tuple[str, ...] = (FOLDED, FFT_MODES)
    batch_size: int = 128
    window_len: int = 64
    rounds: int = 5
    device: str = "cpu"
    precision: str = "float32"
    compile: bool = False


def train_step_ms(config: TrainStepConfig, advance: Advance) -> dict[str, dict[str, object]]:
    """Model -> setting -> times of one step in ms, parameters, and tokens per second.

    With as many threads as PyTorch uses. A token is one control step, whatever the network makes
    of it.
    """
    device = torch.device(config.device)
    steps: dict[tuple[str, str], Callable[[], float]] = {}
    parameters: dict[tuple[str, str], int] = {}
    fcnet = ((FCNET, convolution) for convolution in config.convolutions)
    for model, setting in (*fcnet, *((model, AS_PRESET) for model in config.models)):
        overrides = {} if setting == AS_PRESET else {"convolution": setting}
        policy = untrained_policy(preset(model, overrides), SPACES[PRESETS[model].space])
        how = {"precision": config.precision, "compile": config.compile}
        updater = Updater(policy, TrainConfig(model=model, **how), Ranks(device=device))
        steps[model, setting] = partial(
            _one_step, updater, random_batch(policy, config.batch_size, config.window_len)
        )
        parameters[model, setting] = count_parameters(policy)
    times = in_turns(steps, config.rounds, lambda: advance(1, "train step"))
    records: dict[str, dict[str, object]] = {}
    for (model, setting), seconds in times.items():
        records.setdefault(model, {})[setting] = {
            "median_ms": 1e3 * median(seconds),
            "min_ms": 1e3 * min(seconds),
            "tokens_per_s": config.batch_size * config.window_len / median(seconds),
            "parameters": parameters[model, setting],
            "repeats": len(seconds),
        }
    return records


def _one_step(updater: Updater, batch: dict[str, Tensor]) -> float:
    def step() -> None:
        updater.step(batch, 0, 1e-3)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return seconds_of(step)
