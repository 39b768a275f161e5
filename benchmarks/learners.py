"""Speed of the models: training and control steps, beside baselines and limits.

Most bars are ratios of two times of the same run; the times themselves are for two quiet cores.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.control_step import (
    DEMO,
    LEGGED,
    ControlStepConfig,
    by_runtime,
    control_step_us,
    setting_name,
    turns,
)
from benchmarks.harness import Bench, Figures, Rows, bar, median
from gaitforge.flows.progress import Advance, Reporter
from gaitforge.learners.models.fcnet import paper_modes
from gaitforge.learners.models.registry import count_parameters, preset
from gaitforge.plugins.papers.measures.timing import in_turns
from gaitforge.plugins.papers.measures.training_steps import update_s, updater_and_batch

FCNET = "fcnet-legged"
FOLDED = "folded"
FFT_MODES = "fft-modes"
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


@dataclass(frozen=True)
class LearnerBenchConfig:
    """Sizes of the measurements."""

    training: TrainStepConfig
    control: ControlStepConfig


def _measure(config: LearnerBenchConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    all_turns = config.training.rounds + 1 + turns(config.control)
    with reporter.step("bench learners", all_turns, "turn") as advance:
        training = train_step_ms(config.training, advance)
        control, notes = control_step_us(config.control, advance)
    note = f"threads: {torch.get_num_threads()} in training, 1 in control"
    figures = {"train_step_ms": training, "control_step_us": control}
    return figures | {"bars": check_bars(figures), "notes": [note, *notes]}


def train_step_ms(config: TrainStepConfig, advance: Advance) -> dict[str, dict[str, object]]:
    """Model -> setting -> times of one step in ms, parameters, and tokens per second.

    With as many threads as PyTorch uses. A token is one control step, whatever the network makes
    of it.
    """
    steps: dict[tuple[str, str], Callable[[], float]] = {}
    parameters: dict[tuple[str, str], int] = {}
    windows = config.batch_size, config.window_len
    how = {"device": config.device, "precision": config.precision, "compile": config.compile}
    fcnet = ((FCNET, convolution) for convolution in config.convolutions)
    for model, setting in (*fcnet, *((model, AS_PRESET) for model in config.models)):
        overrides = {} if setting == AS_PRESET else {"convolution": setting}
        training = updater_and_batch(model, preset(model, overrides), windows, **how)
        steps[model, setting] = partial(update_s, *training)
        parameters[model, setting] = count_parameters(training[0].policy)
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


def check_bars(figures: Figures) -> list[dict[str, object]]:
    """Every bar as {bar, value, wanted, met}."""
    return [*_train_bars(figures["train_step_ms"]), *_control_bars(figures["control_step_us"])]


def _train_bars(steps: Figures) -> Iterator[dict[str, object]]:
    folded = _time(steps, FCNET, FOLDED, "median_ms")
    fft = _time(steps, FCNET, FFT_MODES, "median_ms")
    transformer = _time(steps, "transformer-legged", AS_PRESET, "median_ms")
    name = "train step: the paper's FFT algorithm over the folded kernel"
    yield bar(name, _ratio(fft, folded), least=15)
    name = "train step: FCNet over the Transformer of its size"
    yield bar(name, _ratio(folded, transformer), most=1.1)


def _control_bars(steps: Figures) -> Iterator[dict[str, object]]:
    def us(model: str, setting: str = LEGGED) -> float | None:
        return _time(steps, model, setting, "median_us")

    compiled = us("fcnet-compiled")
    demo = setting_name(DEMO)
    longest = "context_len=1024"
    paper = f"{longest},n_modes={paper_modes(1024)}"
    yield bar("control step: compiled FCNet", compiled, most=60, unit="µs")
    yield bar("control step: FCNet in ONNX Runtime", us("fcnet-onnx"), most=150, unit="µs")
    for name, slow, fast, least in (
        ("the demo's FCNet, torch", us("fcnet-torch", demo), us("fcnet-compiled", demo), 8),
        ("BoT, torch", us("bot-torch"), us("bot-compiled"), 4),
        ("n = 64: Transformer in torch", us("transformer-torch"), compiled, 4),
        (
            "n = 512: Transformer in torch",
            us("transformer-torch", "context_len=512"),
            us("fcnet-compiled", "context_len=512"),
            8,
        ),
    ):
        yield bar(f"across runtimes: {name} over compiled", _ratio(slow, fast), least=least)
    bot = us("bot-c")
    yield bar("control step: BoT of the demo as C", bot, most=120, unit="µs")
    for name, in_c, numba in (
        ("FCNet of the demo", us("fcnet-c", demo), us("fcnet-compiled", demo)),
        ("FCNet", us("fcnet-c"), compiled),
        ("BoT of the demo", bot, us("bot-compiled")),
    ):
        yield bar(f"across runtimes: {name}, C over compiled", _ratio(in_c, numba), most=1.0)
    for name, setting in (
        ("compiled FCNet at n = 1024 over n = 64", longest),
        ("the same with the paper's modes, 17 over 10", paper),
    ):
        ratio = _ratio(us("fcnet-compiled", setting), compiled)
        yield bar(f"control step: {name}", ratio, most=1.3)


def _time(figures: Figures, model: str, setting: str, name: str) -> float | None:
    return figures.get(model, {}).get(setting, {}).get(name)


def _ratio(value: float | None, over: float | None) -> float | None:
    return None if value is None or over is None else value / over


def _tables(record: Figures) -> Iterator[tuple[str, Rows]]:
    sizes = record["config"]["training"]
    control = record["control_step_us"]
    where = f"{sizes['precision']}, {sizes['device']}"
    steps = f"Training step, batch {sizes['batch_size']} x {sizes['window_len']}, {where}"
    yield steps, _rows(record["train_step_ms"], "parameters", "median_ms", "tokens_per_s")
    beside = "median µs; compare networks within a runtime"
    yield f"Control step of one robot on one thread, {beside}", by_runtime(control)
    yield "All control steps", _rows(control, "parameters", "median_us", "p99_us")
    yield "Bars", record["bars"]


def _rows(figures: Figures, *columns: str) -> Rows:
    return [
        {"model": model, "setting": setting, **{name: each[name] for name in columns}}
        for model, settings in figures.items()
        for setting, each in settings.items()
    ]


BENCH = Bench(
    "bench_learners.json",
    LearnerBenchConfig(TrainStepConfig(), ControlStepConfig()),
    LearnerBenchConfig(
        TrainStepConfig(batch_size=2, window_len=8, rounds=1),
        ControlStepConfig(
            (512, 1024), seeds=1, warm_up=2, blocks=2, block_steps=5, export_all=False
        ),
    ),
    _measure,
    _tables,
)
