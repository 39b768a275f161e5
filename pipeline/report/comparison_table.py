"""The comparison's table, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.wording import DASH, count, duration, fixed

Record = Mapping[str, Any]


def table_rows(record: Record) -> list[dict[str, str]]:
    """A row a model and the expert's, as text; ± is the standard deviation over the seeds."""
    return [_model_row(model) for model in record["models"]] + [_expert_row(record["expert"])]


def spread(measure: Record, digits: int) -> str:
    """A mean with its standard deviation, which no line break parts, or alone without one."""
    mean, std = (fixed(measure[name], digits) for name in ("mean", "std"))
    return mean if measure["std"] is None else f"{mean}\u00a0±\u00a0{std}"


def comparison_markdown(record: Record) -> str:
    """The table as Markdown."""
    rows = table_rows(record)
    heads = list(rows[0])
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *(list(row.values()) for row in rows)]
    return "\n".join(_line(line) for line in lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _model_row(model: Record) -> dict[str, str]:
    return {
        "model": model["model"],
        "parameters": count(model["parameters"]),
        "steps": count(model["steps"]),
        "training": duration(model["train_s"]["mean"]),
        "test MSE": spread(model["test_mse"], 4),
        "of the expert's return": spread(model["return_fraction"], 3),
        "success": spread(model["success"], 3),
        "survival": spread(model["survival"], 3),
        "control step, µs": count(model["latency_us_median"]["mean"]),
    }


def _expert_row(expert: Record) -> dict[str, str]:
    return {
        "model": "expert",
        "parameters": count(expert["parameters"]),
        "steps": DASH,
        "training": DASH,
        "test MSE": DASH,
        "of the expert's return": fixed(expert["return_fraction"], 3),
        "success": fixed(expert["success"], 3),
        "survival": fixed(expert["survival"], 3),
        "control step, µs": count(expert["latency_us_median"]),
    }
