"""The content of a dataset card, as JSON values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from gaitforge.datasets.analysis.lazy_arrays import Scheduler, channel_names
from gaitforge.datasets.analysis.statistics import (
    block_spectra,
    channel_quantiles,
    channel_statistics,
)
from gaitforge.datasets.catalog.episodes import RANDOMISATION, glossary
from gaitforge.datasets.catalog.summaries import group_counts
from gaitforge.datasets.schema import Field
from gaitforge.datasets.selection.selection import EpisodeSelection
from gaitforge.datasets.storage.about import read_about

CARD_VERSION = 3
BINS = 20
MOST_WHOLE_BINS = 24
CHANNEL_QUANTILES = (0.01, 0.5, 0.99)


def card_record(
    selection: EpisodeSelection,
    *,
    channels: bool = True,
    spectrum: int | None = None,
    scheduler: Scheduler = None,
    read: Callable[[str], object] = str,
) -> dict[str, Any]:
    """Sizes, groups, distributions, provenance and channel statistics of a selection.

    `returns`, `lengths` and `draws` are histograms, `spectra` those of `block_spectra` for windows
    of `spectrum` steps. With `channels=False` no array is read; otherwise `read` is called with
    each field's name after its statistics. DatasetError for an empty selection, windows longer than
    its episodes, or a damaged or missing object.
    """
    store = selection.store
    robots = _groups(selection, "robot")
    return {
        "card_version": CARD_VERSION,
        "name": PurePosixPath(store.full_address).name,
        "store": asdict(store.info()),
        "schema": selection.schema.to_json(),
        "selection": {
            "hash": selection.hash,
            "episodes": len(selection),
            "steps": selection.steps,
            "whole_store": len(selection) == len(selection.catalog.shown),
        },
        "total": selection.describe(()),
        "pairs": selection.describe(),
        "cells": selection.describe((*store.schema.group_by, "level")),
        "returns": histogram(_numbers(selection, "return")),
        "lengths": histogram(_numbers(selection, "length")),
        "draws": list(_draws(selection)),
        "provenance": _provenance(selection),
        "about": read_about(store).to_json(),
        "noise": _groups(selection, "action_noise"),
        "robots": robots if len(robots) > 1 else [],
        "columns": [
            asdict(meaning) for meaning in glossary(store.schema, selection.catalog.schema)
        ],
        "parts": list(_parts(selection)),
        "spectra": list(_spectra(selection, spectrum, scheduler)) if channels else [],
        "channels": list(_channels(selection, scheduler, read)) if channels else [],
    }


def _groups(selection: EpisodeSelection, column: str) -> list[dict[str, Any]]:
    """Groups by a column, each with its share of the episodes; none without the column."""
    if column not in selection.catalog.column_names:
        return []
    groups = selection.describe((column,))
    return [group | {"share": group["episodes"] / len(selection)} for group in groups]


def histogram(
    values: np.ndarray, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """Histogram of finite values; its range includes all values, `low` and `high`.

    Integers in a range below `MOST_WHOLE_BINS` get one bin each (`whole`), other values
    `BINS` equal bins. Returns `edges` (n + 1), `counts` (n), `min`, `max`, `mean` and
    `whole`.
    """
    measured = {"min": None, "max": None, "mean": None}
    limits = [limit for limit in (low, high) if limit is not None]
    bottom = float(min([*limits, values.min(initial=np.inf)]))
    top = float(max([*limits, values.max(initial=-np.inf)]))
    if not np.isfinite([bottom, top]).all():  # nothing to count
        return {"edges": [0.0, 1.0], "counts": [0], **measured, "whole": False}
    whole = bool((values == np.round(values)).all()) and top - bottom < MOST_WHOLE_BINS
    if whole:
        edges = np.arange(np.floor(bottom), np.floor(top) + 2) - 0.5
    else:
        if bottom == top:
            margin = max(0.5, abs(top) * 1e-3)
            bottom = bottom - margin
            top = top + margin
        edges = np.linspace(bottom, top, BINS + 1)
    counts, _ = np.histogram(values, edges)
    if len(values):
        measured = {name: float(getattr(values, name)()) for name in measured}
    return {"edges": edges.tolist(), "counts": counts.tolist(), **measured, "whole": whole}


def _numbers(selection: EpisodeSelection, name: str) -> np.ndarray:
    values = selection.episodes(name).column(name).drop_null().to_numpy().astype(np.float64)
    return values[np.isfinite(values)]


def _draws(selection: EpisodeSelection) -> Iterator[dict[str, object]]:
    """Histograms of the declared randomisation draws, with their declared ranges."""
    declared: Mapping[str, Any] = selection.schema.attributes.get(RANDOMISATION, {})
    for name, draw in declared.items():
        if name not in selection.catalog.column_names:
            continue
        values = _numbers(selection, name)
        low = float(draw["low"])
        high = float(draw["high"])
        outside = int(((values < low) | (values > high)).sum())
        limits = {"unit": draw.get("unit", "1"), "low": low, "high": high, "outside": outside}
        yield {"name": name, **limits, **histogram(values, low, high)}


def _provenance(selection: EpisodeSelection) -> dict[str, object]:
    """Robots, simulators and experts with their numbers of episodes, and the range of seeds."""
    seeds = selection.episodes("seed").column("seed").to_numpy()
    return {
        "robots": _counted(selection, ("robot",)),
        "simulators": _counted(selection, ("simulator", "simulator_version")),
        "experts": _counted(selection, ("expert", "expert_hash")),
        "seeds": {
            "distinct": len(np.unique(seeds)),
            "min": int(seeds.min(initial=0)) if len(seeds) else None,
            "max": int(seeds.max(initial=0)) if len(seeds) else None,
        },
    }


def _counted(selection: EpisodeSelection, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    counts = group_counts(selection.catalog, selection.rows, columns)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [dict(zip(columns, key, strict=True)) | {"episodes": count} for key, count in ordered]


def _parts(selection: EpisodeSelection) -> Iterator[dict[str, object]]:
    """The parts of the selection, with the selected episodes and steps of each."""
    first = 0
    for part_id, rows in selection.rows_by_part():
        manifest = selection.catalog.manifests[part_id]
        stop = first + len(rows)
        yield {
            "part": part_id,
            "folder": selection.catalog.locations[part_id].folder,
            "episodes": len(rows),
            "steps": int(selection.lengths[first:stop].sum()),
            "bytes": manifest.stored_bytes,
            "content_hash": manifest.content_hash,
        }
        first = stop


def _channels(
    selection: EpisodeSelection, scheduler: Scheduler, read: Callable[[str], object]
) -> Iterator[dict[str, object]]:
    for field in selection.schema.fields:
        statistics = channel_statistics(selection, field.name, scheduler)
        quantiles = channel_quantiles(selection, field.name, CHANNEL_QUANTILES, scheduler)
        read(field.name)
        measured = {name: getattr(statistics, name) for name in ("mean", "std", "min")}
        measured |= dict(zip(("q01", "median", "q99"), quantiles, strict=True))
        measured["max"] = statistics.max
        for name, indices in _named_channels(field):
            values = {key: float(array[indices]) for key, array in measured.items()}
            yield {"field": field.name, "channel": name, "unit": field.unit, **values}


def _spectra(
    selection: EpisodeSelection, n: int | None, scheduler: Scheduler
) -> Iterator[dict[str, object]]:
    """Spectra of observation and action, if they are vectors; none of episodes of a single step."""
    vectors = {
        field.name
        for field in selection.schema.fields
        if field.per == "step" and len(field.shape) == 1 and field.dtype.startswith("float")
    }
    if n is None and selection.lengths.max(initial=0) < 2:
        return
    for name in ("obs", "action"):
        if name in vectors:
            yield from block_spectra(selection, name, n, scheduler)


def _named_channels(field: Field) -> Iterator[tuple[str, tuple[int, ...]]]:
    if not field.shape:
        yield field.name, ()
    elif len(field.shape) == 1:
        yield from ((name, (index,)) for index, name in enumerate(channel_names(field)))
    else:
        for indices in product(*map(range, field.shape)):
            yield f"{field.name}[{', '.join(map(str, indices))}]", indices
