"""Paired differences between episodes that were simulated again and their originals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.collectors.intervals import mean_interval
from gaitforge.datasets import Selection

_NEEDED = ("original_return", "original_success", "diverged_at")


def paired(selection: Selection, group_by: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A row for each group of episodes, and one for all: means of new minus original.

    Half widths of 95 % intervals: `ci95` and `success_ci95` of the mean difference within pairs;
    `unpaired_ci95` of what as many episodes of each kind would tell without pairs.

    Raises:
        ValueError: no store of gaitforge counterfactual, or no episodes.
    """
    columns = selection.catalog.column_names
    if missing := [name for name in _NEEDED if name not in columns]:
        raise ValueError(
            f"{selection.store.address} has no column {missing[0]}: pairs are in the stores that "
            "gaitforge counterfactual makes"
        )
    if not len(selection):
        raise ValueError("no episodes are selected")
    names = list(selection.schema.group_by if group_by is None else group_by)
    table = selection.episodes(*names, *_NEEDED, "return", "success")
    keys = list(zip(*(table[name].to_pylist() for name in names), strict=True)) or [()] * len(table)
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    rows = [
        dict(zip(names, key, strict=True)) | _row(table.take(groups[key]))
        for key in sorted(groups, key=str)
    ]
    if len(groups) > 1:
        rows.append({**dict.fromkeys(names, "all"), **_row(table)})
    return rows


def _row(table: pa.Table) -> dict[str, Any]:
    new, original = (table[name].to_numpy() for name in ("return", "original_return"))
    success, before = (
        table[name].to_numpy(zero_copy_only=False).astype(float)
        for name in ("success", "original_success")
    )
    difference = new - original
    diverged = table["diverged_at"].to_numpy()
    return {
        "episodes": len(table),
        "return": float(new.mean()),
        "original": float(original.mean()),
        "difference": float(difference.mean()),
        "ci95": _half_width(difference),
        "unpaired_ci95": float(np.hypot(_half_width(new), _half_width(original))),
        "success_difference": float((success - before).mean()),
        "success_ci95": _half_width(success - before),
        "diverged": float((diverged >= 0).mean()),
        "diverged_at": float(np.median(diverged[diverged >= 0])) if (diverged >= 0).any() else None,
    }


def _half_width(values: np.ndarray) -> float:
    """Half the width of the 95 % interval of a mean; NaN for one value."""
    low, high = mean_interval(values.tolist()) or (np.nan, np.nan)
    return float(high - low) / 2
