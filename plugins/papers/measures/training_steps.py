"""Training steps over the context length: Table 1 of the FCNet paper (Tan et al. 2024)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from gaitforge.flows.progress import Advance
from gaitforge.learners.models.bodies import SPACES
from gaitforge.learners.models.registry import (
    ModelSpec,
    count_parameters,
    default_settings,
    model_preset,
    preset,
)
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.update import Updater
from gaitforge.plugins.papers.measures.control_steps import sized
from gaitforge.plugins.papers.measures.interface import Measure, Point, Series
from gaitforge.plugins.papers.measures.timing import in_turns, seconds_of, untrained_policy


@dataclass(frozen=True)
class TrainStep(Measure):
    """Time of one training step on windows as long as the context: loss, gradient and optimiser.

    Attributes:
        networks: presets, with the other sizes as they are.
        context_len: the axis, n of the table.
        batch_size: windows.
    """

    title: ClassVar[str] = "Training step"
    unit: ClassVar[str] = "ms"
    axes: ClassVar[tuple[str, ...]] = ("context_len",)

    networks: tuple[str, ...] = ("fcnet-legged", "transformer-legged", "retnet-legged")
    context_len: tuple[int, ...] = (64, 128, 256)
    batch_size: int = 8

    def points(self, stores: Sequence[str]) -> Iterator[Point]:
        """Each length."""
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        for value in self.context_len:
            for name in self.networks:
                _of_length(name, value)
            yield "context_len", value

    def series(
        self, point: Point, repeats: int, stores: Sequence[str], advance: Advance
    ) -> Iterator[Series]:
        """A series for each network."""
        works: dict[str, Callable[[], float]] = {}
        parameters: dict[str, int] = {}
        for model in self.networks:
            windows = self.batch_size, int(point[1] or 0)
            training = updater_and_batch(model, _of_length(model, point[1]), windows)
            works[model] = partial(self._figure, *training)
            parameters[model] = count_parameters(training[0].policy)
        for name, values in in_turns(works, repeats, lambda: advance(1, point[0])).items():
            yield Series(name, values, {"parameters": parameters[name]})

    def _figure(self, updater: Updater, batch: dict[str, Tensor]) -> float:
        return 1e3 * update_s(updater, batch)


@dataclass(frozen=True)
class TrainMemory(TrainStep):
    """Memory that the forward pass keeps for the gradient, without the weights.

    Every storage counts once; it is the same on every machine. The peak of a process would also
    have what the allocator keeps.
    """

    title: ClassVar[str] = "Memory for the gradient"
    unit: ClassVar[str] = "MiB"
    timed: ClassVar[bool] = False

    def _figure(self, updater: Updater, batch: dict[str, Tensor]) -> float:
        weights = {
            parameter.untyped_storage().data_ptr() for parameter in updater.policy.parameters()
        }
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = updater.summed_loss(updater.policy, batch)
        del loss
        return sum(kept.values()) / 2**20


def _of_length(model: str, context_len: float | None) -> ModelSpec:
    """A preset with this context; networks without such a size, as RetNet, read every window."""
    whole = "context_len" not in default_settings(preset(model).kind)
    return sized(model, "context_len", None if whole else context_len)


def updater_and_batch(
    model: str, spec: ModelSpec, windows: tuple[int, int], device: str = "cpu", **settings: Any
) -> tuple[Updater, dict[str, Tensor]]:
    """An untrained network with its optimiser, and full windows of noise: values change no time.

    Args:
        windows: how many, and their length; settings: of `TrainConfig`.
    """
    policy = untrained_policy(spec, SPACES[model_preset(model).space])
    ranks = Ranks(device=torch.device(device))
    updater = Updater(policy, TrainConfig(model=model, **settings), ranks)
    batch = {
        "obs": torch.randn(*windows, policy.layout.obs_dim),
        "action": torch.randn(*windows, policy.act_dim),
        "mask": torch.ones(windows, dtype=torch.bool),
    }
    return updater, batch | ({"condition": torch.rand(*windows, 1)} if policy.conditioned else {})


def update_s(updater: Updater, batch: dict[str, Tensor]) -> float:
    """Seconds of one training step."""

    def step() -> None:
        updater.step(batch, 0, 1e-3)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return seconds_of(step)
