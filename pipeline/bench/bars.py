"""Limits on the models' speeds, checked against a benchmark's figures.

Most bars are ratios of two times of the same run; the times themselves are for two quiet cores.
"""

from dataclasses import dataclass
from typing import Any

from pipeline.bench.attention import PAPER_SPEED_UP_PERCENT
from pipeline.bench.common import Figures
from pipeline.bench.control_step import DEMO, LEGGED, paper_modes, setting_name
from pipeline.bench.train_step import AS_PRESET, FCNET, FFT_MODES, FOLDED

Path = tuple[str | int, ...]
"""Keys from the figures down to one; in a list of records, the number of nodes."""


@dataclass(frozen=True)
class Bar:
    """A figure of a benchmark (over another one), and the least or the most that it may be."""

    name: str
    figure: Path
    limit: float
    at_least: bool
    over: Path | None = None
    unit: str = "x"

    def check(self, figures: Figures) -> dict[str, object]:
        """As a record; ``value`` and ``met`` are None where the run did not measure it."""
        try:
            value = _at(figures, self.figure)
            if self.over is not None:
                value /= _at(figures, self.over)
        except KeyError:
            value = None
        met = None
        if value is not None:
            met = value >= self.limit if self.at_least else value <= self.limit
        wanted = f"{'at least' if self.at_least else 'at most'} {self.limit:g} {self.unit}"
        return {"bar": self.name, "value": value, "wanted": wanted, "met": met}


def check_bars(figures: Figures) -> list[dict[str, object]]:
    """Every bar as {bar, value, wanted, met}."""
    return [bar.check(figures) for bar in BARS]


def _at(figures: Any, path: Path) -> float:
    for key in path:
        if isinstance(figures, list):
            figures = {each["nodes"]: each for each in figures}
        figures = figures[key]
    return figures


def _train(model: str, setting: str) -> Path:
    return ("train_step_ms", model, setting, "median_ms")


def _control(model: str, setting: str = LEGGED) -> Path:
    return ("control_step_us", model, setting, "median_us")


_PAPER_1024 = f"context_len=1024,n_modes={paper_modes(1024)}"

BARS = (
    Bar(
        "train step: the paper's FFT algorithm over the folded kernel",
        _train(FCNET, FFT_MODES), 15.0, at_least=True, over=_train(FCNET, FOLDED),
    ),
    Bar(
        "train step: FCNet over the Transformer of its size",
        _train(FCNET, FOLDED), 1.1, at_least=False, over=_train("transformer-legged", AS_PRESET),
    ),
    Bar("control step: compiled FCNet", _control("fcnet-compiled"), 60.0, False, unit="µs"),
    Bar("control step: FCNet in ONNX Runtime", _control("fcnet-onnx"), 150.0, False, unit="µs"),
    Bar(
        "across runtimes: the demo's FCNet, torch over compiled",
        _control("fcnet-torch", setting_name(DEMO)), 8.0, at_least=True,
        over=_control("fcnet-compiled", setting_name(DEMO)),
    ),
    Bar(
        "across runtimes: BoT, torch over compiled",
        _control("bot-torch"), 4.0, at_least=True, over=_control("bot-compiled"),
    ),
    Bar(
        "across runtimes, n = 64: Transformer in torch over compiled FCNet",
        _control("transformer-torch"), 4.0, at_least=True, over=_control("fcnet-compiled"),
    ),
    Bar(
        "across runtimes, n = 512: Transformer in torch over compiled FCNet",
        _control("transformer-torch", "context_len=512"), 8.0, at_least=True,
        over=_control("fcnet-compiled", "context_len=512"),
    ),
    Bar(
        "control step: compiled FCNet at n = 1024 over n = 64",
        _control("fcnet-compiled", "context_len=1024"), 1.3, at_least=False,
        over=_control("fcnet-compiled"),
    ),
    Bar(
        "control step: the same with the paper's modes, 17 over 10",
        _control("fcnet-compiled", _PAPER_1024), 1.3, at_least=False,
        over=_control("fcnet-compiled"),
    ),
    Bar(
        "one sequence of 128 nodes: compiled attention faster than dense NumPy",
        ("attention", "single_sequence", 128, "speed_up_percent", "compiled"),
        PAPER_SPEED_UP_PERCENT, at_least=True, unit="%",
    ),
)  # fmt: skip
