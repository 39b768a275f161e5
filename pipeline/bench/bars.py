"""What the learners' speeds have to be, checked against a benchmark's figures.

Most bars are ratios of two times of the same run; the times themselves are for two quiet cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.bench.attention import PAPER_SPEED_UP_PERCENT
from pipeline.bench.control_step import LEGGED, paper_modes
from pipeline.bench.train_step import AS_PRESET, FCNET, FFT_MODES, FOLDED

Figures = Mapping[str, Any]
CONTEXT_512 = "context_len=512"
CONTEXT_1024 = "context_len=1024"


@dataclass(frozen=True)
class Bar:
    """A figure of a benchmark, and the least or the most that it may be."""

    name: str
    figure: Callable[[Figures], float]
    limit: float
    at_least: bool
    unit: str = "x"

    def check(self, figures: Figures) -> dict[str, Any]:
        """As a record; ``value`` and ``met`` are None where the run did not measure it."""
        try:
            value = self.figure(figures)
        except KeyError:
            value = None
        met = None
        if value is not None:
            met = value >= self.limit if self.at_least else value <= self.limit
        wanted = f"{'at least' if self.at_least else 'at most'} {self.limit:g} {self.unit}"
        return {"bar": self.name, "value": value, "wanted": wanted, "met": met}


def check_bars(figures: Figures) -> list[dict[str, Any]]:
    """Every bar as {bar, value, wanted, met}."""
    return [bar.check(figures) for bar in BARS]


def _train_ratio(over: tuple[str, str], under: tuple[str, str]) -> Callable[[Figures], float]:
    def ratio(figures: Figures) -> float:
        times = figures["train_step_ms"]
        above, below = (times[model][setting]["median_ms"] for model, setting in (over, under))
        return above / below

    return ratio


def _control(model: str, setting: str = LEGGED) -> Callable[[Figures], float]:
    return lambda figures: figures["control_step_us"][model][setting]["median_us"]


def _control_ratio(over: tuple[str, str], under: tuple[str, str]) -> Callable[[Figures], float]:
    return lambda figures: _control(*over)(figures) / _control(*under)(figures)


def _single_speed_up(figures: Figures) -> float:
    records = figures["attention"]["single_sequence"]
    return {each["nodes"]: each["speed_up_percent"]["compiled"] for each in records}[128]


_PAPER_1024 = f"{CONTEXT_1024},n_modes={paper_modes(1024)}"

BARS = (
    Bar(
        "train step: the paper's FFT algorithm over the folded kernel",
        _train_ratio((FCNET, FFT_MODES), (FCNET, FOLDED)),
        15.0,
        at_least=True,
    ),
    Bar(
        "train step: FCNet over the Transformer of its size",
        _train_ratio((FCNET, FOLDED), ("transformer-legged", AS_PRESET)),
        1.1,
        at_least=False,
    ),
    Bar("control step: compiled FCNet", _control("fcnet-compiled"), 60.0, False, "µs"),
    Bar("control step: FCNet in ONNX Runtime", _control("fcnet-onnx"), 150.0, False, "µs"),
    Bar(
        "control step, n = 64: Transformer over compiled FCNet",
        _control_ratio(("transformer", LEGGED), ("fcnet-compiled", LEGGED)),
        4.0,
        at_least=True,
    ),
    Bar(
        "control step, n = 512: Transformer over compiled FCNet",
        _control_ratio(("transformer", CONTEXT_512), ("fcnet-compiled", CONTEXT_512)),
        8.0,
        at_least=True,
    ),
    Bar(
        "control step: compiled FCNet at n = 1024 over n = 64",
        _control_ratio(("fcnet-compiled", CONTEXT_1024), ("fcnet-compiled", LEGGED)),
        1.3,
        at_least=False,
    ),
    Bar(
        "control step: the same with the paper's modes, 17 over 10",
        _control_ratio(("fcnet-compiled", _PAPER_1024), ("fcnet-compiled", LEGGED)),
        1.3,
        at_least=False,
    ),
    Bar(
        "one sequence of 128 nodes: compiled attention faster than dense NumPy",
        _single_speed_up,
        PAPER_SPEED_UP_PERCENT,
        at_least=True,
        unit="%",
    ),
)
