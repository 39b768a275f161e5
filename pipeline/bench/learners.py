"""Speed of the models: training steps, control steps and attention, beside baselines."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flows.progress import Reporter
from pipeline.bench.attention import AttentionConfig, attention_layers, single_sequences
from pipeline.bench.bars import check_bars
from pipeline.bench.control_step import ControlStepConfig, by_runtime, control_step_us, turns
from pipeline.bench.harness import Bench, Figures, Rows
from pipeline.bench.train_step import TrainStepConfig, train_step_ms
from pipeline.report.bench_page import write_bench_page


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
