"""Speed of the models: training steps, control steps and attention, beside baselines and limits.

Most bars are ratios of two times of the same run; the times themselves are for two quiet cores.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gaitforge.flows.progress import Reporter
from gaitforge.pipeline.bench.attention import (
    PAPER_SPEED_UP_PERCENT,
    AttentionConfig,
    attention_layers,
    single_sequences,
)
from gaitforge.pipeline.bench.control_step import (
    DEMO,
    LEGGED,
    ControlStepConfig,
    by_runtime,
    control_step_us,
    paper_modes,
    setting_name,
    turns,
)
from gaitforge.pipeline.bench.harness import Bench, Figures, Rows, bar
from gaitforge.pipeline.bench.train_step import (
    AS_PRESET,
    FCNET,
    FFT_MODES,
    FOLDED,
    TrainStepConfig,
    train_step_ms,
)
from gaitforge.pipeline.report.bench_page import write_bench_page


@dataclass(frozen=True)
class LearnerBenchConfig:
    """Sizes of the measurements."""

    training: TrainStepConfig
    control: ControlStepConfig
    attention: AttentionConfig


def _measure(config: LearnerBenchConfig, folder: Path, reporter: Reporter) -> dict[str, Any]:
    masks = len(config.attention.bodies) + 2 * len(config.attention.nodes)
    all_turns = config.training.rounds + 1 + turns(config.control) + masks
    with reporter.step("bench learners", all_turns, "turn") as advance:
        training = train_step_ms(config.training, advance)
        control, notes = control_step_us(config.control, advance)
        attention = {
            "layers": attention_layers(config.attention, advance),
            "single_sequence": single_sequences(config.attention, advance),
        }
    note = f"threads: {torch.get_num_threads()} in training, 1 in control"
    figures = {"train_step_ms": training, "control_step_us": control, "attention": attention}
    return figures | {"bars": check_bars(figures), "notes": [note, *notes]}


def check_bars(figures: Figures) -> list[dict[str, object]]:
    """Every bar as {bar, value, wanted, met}."""
    single = {each["nodes"]: each for each in figures["attention"]["single_sequence"]}
    return [
        *_train_bars(figures["train_step_ms"]),
        *_control_bars(figures["control_step_us"]),
        bar(
            "one sequence of 128 nodes: compiled attention faster than dense NumPy",
            single[128]["speed_up_percent"]["compiled"] if 128 in single else None,
            least=PAPER_SPEED_UP_PERCENT,
            unit="%",
        ),
    ]


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

    fcnet, demo = us("fcnet-compiled"), setting_name(DEMO)
    yield bar("control step: compiled FCNet", fcnet, most=60, unit="µs")
    yield bar("control step: FCNet in ONNX Runtime", us("fcnet-onnx"), most=150, unit="µs")
    torch, compiled = us("fcnet-torch", demo), us("fcnet-compiled", demo)
    name = "across runtimes: the demo's FCNet, torch over compiled"
    yield bar(name, _ratio(torch, compiled), least=8)
    name = "across runtimes: BoT, torch over compiled"
    yield bar(name, _ratio(us("bot-torch"), us("bot-compiled")), least=4)
    for length, setting, least in ((64, LEGGED, 4), (512, "context_len=512", 8)):
        name = f"across runtimes, n = {length}: Transformer in torch over compiled FCNet"
        torch, compiled = us("transformer-torch", setting), us("fcnet-compiled", setting)
        yield bar(name, _ratio(torch, compiled), least=least)
    name = "control step: compiled FCNet at n = 1024 over n = 64"
    yield bar(name, _ratio(us("fcnet-compiled", "context_len=1024"), fcnet), most=1.3)
    name = "control step: the same with the paper's modes, 17 over 10"
    paper = f"context_len=1024,n_modes={paper_modes(1024)}"
    yield bar(name, _ratio(us("fcnet-compiled", paper), fcnet), most=1.3)


def _time(figures: Figures, model: str, setting: str, name: str) -> float | None:
    return figures.get(model, {}).get(setting, {}).get(name)


def _ratio(value: float | None, over: float | None) -> float | None:
    return None if value is None or over is None else value / over


def _tables(record: Figures) -> Iterator[tuple[str, Rows]]:
    sizes = record["config"]["training"]
    yield (
        f"Training step, batch {sizes['batch_size']} x {sizes['window_len']}, float32",
        _rows(record["train_step_ms"], "parameters", "median_ms", "min_ms", "tokens_per_s"),
    )
    yield (
        "Control step of one robot on one thread, median µs; compare networks within a runtime",
        by_runtime(record["control_step_us"]),
    )
    yield (
        "All control steps",
        _rows(record["control_step_us"], "parameters", "median_us", "p99_us"),
    )
    yield (
        "Attention forward and backward, ms per batch of equally many nodes",
        [
            {"mask": each["mask"], "nodes": each["nodes"], "degree": each["degree"]}
            | each["train_ms"]
            | {"default": each["default"], "over dense": each["train_over_dense"][each["default"]]}
            for each in record["attention"]["layers"]
        ],
    )
    yield (
        "Attention of one sequence, one head: % faster than dense NumPy",
        [
            {"nodes": each["nodes"]} | each["speed_up_percent"]
            for each in record["attention"]["single_sequence"]
        ],
    )
    yield "Bars", record["bars"]


def _rows(figures: Figures, *columns: str) -> Rows:
    return [
        {"model": model, "setting": setting, **{name: each[name] for name in columns}}
        for model, settings in figures.items()
        for setting, each in settings.items()
    ]


BENCH = Bench(
    "bench_learners.json",
    LearnerBenchConfig(TrainStepConfig(), ControlStepConfig(), AttentionConfig()),
    LearnerBenchConfig(
        TrainStepConfig(batch_size=2, window_len=8, rounds=1, slow_rounds=1),
        ControlStepConfig(
            (512, 1024), (2,), (128,), seeds=1, warm_up=2, blocks=2, block_steps=5, export_all=False
        ),
        AttentionConfig(nodes=(16, 128), tokens=256, rounds=1, single_masks=3),
    ),
    _measure,
    _tables,
    write_bench_page,
)
