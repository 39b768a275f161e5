"""Speed of the learners: training steps, control steps and attention, each beside its baselines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from flows.progress import Reporter, Silent
from flows.records.records import provenance, to_tree, write_record
from pipeline.bench.attention import AttentionConfig, attention_layers, single_sequences
from pipeline.bench.bars import check_bars
from pipeline.bench.control_step import ONNX, ControlStepConfig, candidates, control_step_us
from pipeline.bench.train_step import TrainStepConfig, train_step_ms
from pipeline.report.bench_page import write_bench_page
from pipeline.tables import table

RECORD_NAME = "bench_learners.json"
_QUIET_LOAD = 0.5  # processes that compute besides this one, on the average of the last minute


@dataclass(frozen=True)
class LearnerBenchConfig:
    """What is measured; the defaults are the sizes that the figures are quoted at."""

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
"""Shows that everything runs; its figures say nothing."""


def run_learner_bench(
    out: Path, config: LearnerBenchConfig | None = None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Measure everything.

    Args:
        out: folder for ``bench_learners.json`` and ``bench.html``.
        config: what is measured; None for the sizes that the figures are quoted at.
        reporter: told which step is in work.

    Returns:
        ``train_step_ms`` and ``control_step_us`` (model -> setting -> figures), ``attention``
        (``layers`` and ``single_sequence``), ``bars``, ``load_average``, ``threads`` and ``notes``.

    Raises:
        ValueError: the folder cannot be written.
    """
    config, reporter = config or LearnerBenchConfig(), reporter or Silent()
    before = os.getloadavg()[0]
    with reporter.step("bench learners", _turns(config), "turn") as advance:
        training = train_step_ms(config.training, advance)
        control, notes = control_step_us(config.control, advance)
        attention = {
            "layers": attention_layers(config.attention, advance),
            "single_sequence": single_sequences(config.attention, advance),
        }
    load = {"before": before, "after": os.getloadavg()[0], "cores": os.cpu_count()}
    threads = {"train_step": torch.get_num_threads(), "control_step": 1}
    figures = {
        "train_step_ms": training,
        "control_step_us": control,
        "attention": attention,
    }
    record = to_tree(
        figures
        | {
            "bars": check_bars(figures),
            "load_average": load,
            "threads": threads,
            "notes": [*_machine_notes(load, threads), *notes],
            "config": asdict(config),
        }
        | provenance()
    )
    write_record(out / RECORD_NAME, record)
    write_bench_page(record, out)
    return record


def show_learner_bench(record: Mapping[str, Any], as_json: bool) -> None:
    """Print the record as JSON, or as tables and notes."""
    if as_json:
        print(json.dumps(record, indent=1))
        return
    for title, rows in _tables(record):
        print(f"{title}\n{table(rows)}\n")
    for note in record["notes"]:
        print(note)


def _turns(config: LearnerBenchConfig) -> int:
    exports = sum(each.runtime == ONNX for each in candidates(config.control))
    control = config.control.seeds * config.control.blocks + exports
    masks = len(config.attention.bodies) + 2 * len(config.attention.nodes)
    return config.training.rounds + 1 + control + masks


def _machine_notes(load: Mapping[str, Any], threads: Mapping[str, int]) -> list[str]:
    notes = [
        f"load average {load['before']:.1f} before and {load['after']:.1f} after, on "
        f"{load['cores']} cores; threads: {threads['train_step']} in training, 1 in control"
    ]
    if load["before"] > _QUIET_LOAD:
        notes.append("the machine was busy: judge by the ratios, not by the times")
    return notes


def _tables(record: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    sizes = record["config"]["training"]
    yield (
        f"Training step, batch {sizes['batch_size']} x {sizes['window_len']}, float32",
        [
            {"model": model, "setting": setting}
            | {name: each[name] for name in ("parameters", "median_ms", "min_ms", "tokens_per_s")}
            for model, setting, each in _flat(record["train_step_ms"])
        ],
    )
    yield (
        "Control step of one robot on one thread",
        [
            {"model": model, "setting": setting}
            | {name: each[name] for name in ("parameters", "median_us", "p99_us")}
            for model, setting, each in _flat(record["control_step_us"])
        ],
    )
    yield (
        "Attention forward and backward, ms a batch of as many nodes in all",
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


def _flat(figures: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for model, settings in figures.items():
        for setting, each in settings.items():
            yield model, setting, each
