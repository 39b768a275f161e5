"""The summary of a comparison: a row for each run, and each model's means over its seeds."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from gaitforge.collectors.intervals import ratio_interval
from gaitforge.flows.stages.comparison.runs import Row, over_seeds

GROUPINGS = {"cells": ("terrain", "skill", "level"), "terrains": ("terrain",), "skills": ("skill",)}
_OUTCOMES = ("return", "success", "survival")
_INTERVALS = ("return_ci95", "success_ci95", "return_fraction_ci95")
_LATENCIES = ("latency_us_median", "latency_us_p99")
_RUN_MEASURES = ("train_s", "test_mse", *_OUTCOMES, "return_fraction", *_LATENCIES)


def summarise(models: Sequence[str], runs: Sequence[Row], expert: Row) -> Row:
    """The rows of a comparison.

    Args:
        models: in the order of the table.
        runs: of each run `model`, `seed`, its training's numbers, and the `evaluation`'s record.
        expert: the record of the expert's evaluation on the same episodes.

    Returns:
        {"expert", "models", "runs"}. Each row has the means over all cells and, under the names of
        GROUPINGS, those of every cell, terrain and skill. A model's measures are {"mean", "std"}
        over its seeds (sample standard deviation, None for one seed). `return_fraction` is the mean
        return over the expert's on the same cells, None where the expert's is not above 0. The
        95 % intervals are over episodes; a model's has the mean limits of its seeds, which share
        the episodes.
    """
    rows = [_run_row(run, expert) for run in runs]
    return {
        "expert": _outcomes(expert, expert) | {"parameters": expert["parameters"]},
        "models": [_model_row([row for row in rows if row["model"] == model]) for model in models],
        "runs": rows,
    }


def _run_row(run: Row, expert: Row) -> Row:
    training = {name: value for name, value in run.items() if name != "evaluation"}
    return training | _outcomes(run["evaluation"], expert)


def _outcomes(evaluation: Row, expert: Row) -> Row:
    row = {name: evaluation[name] for name in (*_OUTCOMES, *_LATENCIES, *_INTERVALS[:2])}
    row["return_fraction"] = _fraction(evaluation["return"], expert["return"])
    row["return_fraction_ci95"] = ratio_interval(evaluation["returns"], expert["returns"])
    for name, by in GROUPINGS.items():
        row[name] = _grouped(evaluation, expert, by)
    return row


def _grouped(evaluation: Row, expert: Row, by: Sequence[str]) -> list[Row]:
    """A row per group of cells; both evaluations have the same cells in the same order."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for k, cell in enumerate(evaluation["cells"]):
        groups.setdefault(_key(cell, by), []).append(k)

    def chosen(of: Row, field: str, group: list[int]) -> list[Any]:
        return [of[field][k] for k in group if of[field]]  # old evaluations have no returns

    rows = []
    for key, group in groups.items():
        own = chosen(evaluation, "cells", group)
        row = dict(zip(by, key, strict=True)) | {"episodes": sum(cell["episodes"] for cell in own)}
        row |= {name: fmean(cell[name] for cell in own) for name in _OUTCOMES}
        of_expert = fmean(cell["return"] for cell in chosen(expert, "cells", group))
        row["return_fraction"] = _fraction(row["return"], of_expert)
        returns = (chosen(each, "returns", group) for each in (evaluation, expert))
        rows.append(row | {"return_fraction_ci95": ratio_interval(*returns)})
    return rows


def _model_row(runs: Sequence[Row]) -> Row:
    row = {
        "model": runs[0]["model"],
        "seeds": [run["seed"] for run in runs],
        "parameters": runs[0]["parameters"],
        "steps": runs[0]["steps"],
        "control_steps": fmean(run["control_steps"] for run in runs),
        **over_seeds(runs, _RUN_MEASURES),
        **{name: _mean_limits([run[name] for run in runs]) for name in _INTERVALS},
    }
    for name, by in GROUPINGS.items():
        row[name] = [
            dict(zip(by, _key(group[0], by), strict=True))
            | {"episodes": group[0]["episodes"]}
            | over_seeds(group, (*_OUTCOMES, "return_fraction"))
            | {_INTERVALS[2]: _mean_limits([each[_INTERVALS[2]] for each in group])}
            for group in zip(*(run[name] for run in runs), strict=True)
        ]
    return row


def _mean_limits(intervals: Sequence[Any]) -> list[float] | None:
    return None if None in intervals else np.mean(intervals, axis=0).tolist()


def _fraction(value: float, of: float) -> float | None:
    return value / of if of > 0 else None


def _key(cell: Row, by: Sequence[str]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in by)
