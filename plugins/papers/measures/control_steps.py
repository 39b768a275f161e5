"""Control steps of one robot in every runtime: Figure 6 of the FCNet paper (Tan et al. 2024)."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gaitforge.collectors.policy import StoredObservation
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.flows.progress import Advance
from gaitforge.flows.stages.transfer import robot_facts
from gaitforge.learners.checkpoint import policy_card
from gaitforge.learners.control.control import TorchStep, compiled_step
from gaitforge.learners.export.export import PolicyExportOptions, export_policy, onnx_packages
from gaitforge.learners.export.onnx_policy import OnnxPolicy
from gaitforge.learners.models.bodies import SPACES
from gaitforge.learners.models.fcnet import paper_modes
from gaitforge.learners.models.registry import (
    ModelSpec,
    count_parameters,
    default_settings,
    model_preset,
    preset,
)
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.papers.measures.interface import Measure, Point, Series
from gaitforge.plugins.papers.measures.timing import in_turns, seconds_of, untrained_policy

RUNTIMES = TORCH, COMPILED, ONNX = "torch", "compiled", "onnx"
OWN_SIZE = "own size"
_REENTRY_STEPS = 5  # untimed at the start of a turn: they refill the caches with the weights

StepOfOne = Callable[[np.ndarray], Any]
"""An observation (Do,) float32 -> an action."""


def sized(
    model: str, axis: str, value: float | None, others: Mapping[str, int] | None = None
) -> ModelSpec:
    """A preset with one size changed; its modes go with the context as in the paper's Section 4.3.

    Args:
        value: None for the preset's own sizes; others: sizes beside the one on the axis.

    Raises:
        ValueError: the model has no such size, or not this one.
    """
    sizes = {} if value is None else {**(others or {}), axis: int(value)}
    if value and axis == "context_len" and "n_modes" in default_settings(preset(model).kind):
        sizes["n_modes"] = paper_modes(int(value))
    return preset(model, sizes)


@dataclass(frozen=True)
class ControlStep(Measure):
    """Time of one control step, from a NumPy observation to an action, with random weights.

    As in Section 4.3 of the paper. Its appendix C.4 tells the sizes beside the one on an axis: a
    context of 64, 4 layers and a width of 256 of both networks, so that the Transformer has four
    times FCNet's parameters (`sizes`). Presets alone have about as many parameters as each other.

    Attributes:
        networks: presets that are measured at their own size.
        scaled: presets that are measured along each axis, one size changed at a time.
        sizes: of all `scaled`, along the other axes; empty for the presets' own.
        n_layers, hidden_dim, context_len: the axes.
        warm_up: untimed steps; the context at least, so that caches are full.
        steps: timed in a turn, whose figure is their median.
        exported: whether to measure ONNX Runtime, too; each network takes seconds to export.
    """

    title: ClassVar[str] = "Control step"
    unit: ClassVar[str] = "µs"
    axes: ClassVar[tuple[str, ...]] = ("n_layers", "hidden_dim", "context_len")

    networks: tuple[str, ...] = (
        "fcnet-legged",
        "transformer-legged",
        "retnet-legged",
        "dt-legged",
        "history-mlp-legged",
        "mlp-legged",
        "bot-hard",
        "flow",
    )
    scaled: tuple[str, ...] = ("fcnet-legged", "transformer-legged")
    sizes: Mapping[str, int] = field(default_factory=dict)
    n_layers: tuple[int, ...] = (2, 4, 8)
    hidden_dim: tuple[int, ...] = (64, 128, 256)
    context_len: tuple[int, ...] = (64, 128, 256)
    warm_up: int = 500
    steps: int = 50
    exported: bool = True

    def points(self, stores: Sequence[str]) -> Iterator[Point]:
        """All networks at their own size, then each value of each axis."""
        if self.steps < 1 or self.warm_up < 0:
            raise ValueError("a control step needs steps of at least 1 and a warm_up of at least 0")
        for name in self.sizes:
            if name not in self.axes:
                raise ValueError(f"sizes has no '{name}'; allowed: {', '.join(self.axes)}")
        points: list[Point] = [(OWN_SIZE, None)] if self.networks else []
        points += [(axis, value) for axis in self.axes for value in getattr(self, axis)]
        for point in points:
            for name in self._models(point):
                sized(name, *point, self.sizes)
            yield point

    def _models(self, point: Point) -> tuple[str, ...]:
        return self.networks if point[1] is None else self.scaled

    def series(
        self, point: Point, repeats: int, stores: Sequence[str], advance: Advance
    ) -> Iterator[Series]:
        """A series for each network in each runtime that it has here."""
        works: dict[str, Callable[[], float]] = {}
        parameters: dict[str, int] = {}
        runtimes = RUNTIMES if self.exported and has_onnx() else (TORCH, COMPILED)
        with tempfile.TemporaryDirectory() as folder:
            for model in self._models(point):
                spec = sized(model, *point, self.sizes)
                space = SPACES[model_preset(model).space]
                policy = untrained_policy(spec, space).eval()
                shape = self.steps, space.layout.obs_dim
                seen = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
                warm_up = max(self.warm_up, getattr(spec.config, "context_len", 0))
                for runtime in runtimes:
                    step = step_in(runtime, policy, spec, Path(folder, model))
                    if step is not None:
                        warm = warmed_up(step, seen, warm_up)
                        works[f"{model} {runtime}"] = partial(_median_us, warm, seen)
                        parameters[f"{model} {runtime}"] = count_parameters(policy.network)
            times = in_turns(works, repeats, lambda: advance(1, point[0]))
        for name, values in times.items():
            yield Series(name, values, {"parameters": parameters[name]})


def step_in(runtime: str, policy: PolicyNetwork, spec: ModelSpec, folder: Path) -> StepOfOne | None:
    """The control step of one robot in a runtime; None where the network has no such step.

    Args:
        folder: new, for the exported files of `ONNX`; its packages must be installed.
    """
    if runtime == ONNX:
        options = PolicyExportOptions(formats=("onnx",))
        export_policy(policy, policy_card(policy, spec), robot_facts(load_robot()), folder, options)
        exported = OnnxPolicy(folder)
        return lambda obs: exported.act(StoredObservation(obs[None], obs[:1]))
    step = compiled_step(policy, 1) if runtime == COMPILED else TorchStep(policy, 1)
    target = np.ones((1, 1), np.float32) if policy.conditioned else None
    return None if step is None else lambda obs: step.step(obs[None], target)


def has_onnx() -> bool:
    """Whether the packages of the extra onnx are installed."""
    try:
        onnx_packages()
    except ValueError:
        return False
    return True


def warmed_up(step: StepOfOne, observations: np.ndarray, steps: int) -> StepOfOne:
    """The step after so many untimed ones."""
    for obs in islice(cycle(observations), steps):
        step(obs)
    return step


def turn_s(step: StepOfOne, observations: np.ndarray) -> list[float]:
    """The seconds of one step for each observation; some untimed ones come first."""
    for obs in observations[:_REENTRY_STEPS]:
        step(obs)
    return [seconds_of(partial(step, obs)) for obs in observations]


def _median_us(step: StepOfOne, observations: np.ndarray) -> float:
    return 1e6 * float(np.median(turn_s(step, observations)))
