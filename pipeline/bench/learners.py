"""Speed of the models: training steps, control steps and attention, beside baselines."""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flows.progress import Reporter
from pipeline.bench.attention import AttentionConfig, attention_layers, single_sequences
from pipeline.bench.bars import check_bars
from pipeline.bench.common import Figures, Rows, load_notes, save_bench, show_tables
from pipeline.bench.control_step import (
    ONNX,
    ControlStepConfig,
    by_runtime,
    candidates,
    control_step_us,
)
from pipeline.bench.train_step import TrainStepConfig, train_step_ms
from pipeline.report.bench_page import write_bench_page


@dataclass(frozen=True)
class LearnerBenchConfig:
    """Sizes of the measurements; the documented figures are those of the defaults."""

    training: TrainStepConfig = field(default_factory=TrainStepConfig)
    control: ControlStepConfig = field(default_factory=ControlStepConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)


QUICK = LearnerBenchConfig(
    TrainStepConfig(batch_size=2, window_len=8, rounds=1, slow_rounds=1),
    ControlStepConfig(
        context_lens=(512, 1024),
        n_layers=(2,),
        hidden_dims=(128,),
        seeds=1,
        warm_up=2,
        blocks=2,
        block_steps=5,
        export_all=False,
    ),
    AttentionConfig(nodes=(16, 128), tokens=256, rounds=1, single_masks=3),
)
"""Checks that everything runs; its figures mean nothing."""


def run(arguments: argparse.Namespace, reporter: Reporter) -> None:
    """Measure and print the figures."""
    config = QUICK if arguments.quick else LearnerBenchConfig()
    record = run_learner_bench(arguments.out, config, reporter)
    show_tables(record, tables(record), arguments.json)


def run_learner_bench(out: Path, config: LearnerBenchConfig, reporter: Reporter) -> dict[str, Any]:
    """Measure everything; writes ``bench_learners.json`` and ``bench.html`` into `out`.

    Raises:
        ValueError: the folder cannot be written.
    """
    before = os.getloadavg()[0]
    with reporter.step("bench learners", _turns(config), "turn") as advance:
        training = train_step_ms(config.training, advance)
        control, notes = control_step_us(config.control, advance)
        attention = {
            "layers": attention_layers(config.attention, advance),
            "single_sequence": single_sequences(config.attention, advance),
        }
    threads = {"train_step": torch.get_num_threads(), "control_step": 1}
    note = f"threads: {threads['train_step']} in training, 1 in control"
    figures = {"train_step_ms": training, "control_step_us": control, "attention": attention}
    load = {"before": before, "after": os.getloadavg()[0], "cores": os.cpu_count()}
    notes = [*load_notes(before), note, *notes]
    figures |= {"bars": check_bars(figures), "load_average": load}
    record = save_bench(out, "learners", figures | {"threads": threads, "notes": notes}, config)
    write_bench_page(record, out)
    return record


def _turns(config: LearnerBenchConfig) -> int:
    exports = sum(each.runtime == ONNX for each in candidates(config.control))
    control = config.control.seeds * config.control.blocks + exports
    masks = len(config.attention.bodies) + 2 * len(config.attention.nodes)
    return config.training.rounds + 1 + control + masks


def tables(record: Figures) -> Iterator[tuple[str, Rows]]:
    """The tables that are printed, with their titles."""
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
