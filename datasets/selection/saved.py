"""Selections as JSON files: row ranges of parts, with the parts' content hashes."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError, disk_failures, failures
from gaitforge.common.files import write_bytes_durably
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.datasets.selection.selection import EpisodeSelection
from gaitforge.datasets.storage.shards import row_runs
from gaitforge.datasets.storage.store import PartStore

SAVED_VERSION = 1

PartRuns = dict[str, tuple[str, list[tuple[int, int]]]]
"""Part id -> its content hash, and half-open runs of its episodes' rows, ascending and disjoint."""


def save_selection(selection: EpisodeSelection, path: str | os.PathLike[str]) -> None:
    """Write `episodes_hash`, the parts' content hashes, and the row ranges in each."""
    runs = part_runs(selection).items()
    parts = {part_id: {"content_hash": digest, "rows": rows} for part_id, (digest, rows) in runs}
    tree = {"selection_version": SAVED_VERSION, "hash": selection.episodes_hash, "parts": parts}
    with disk_failures(f"cannot write the selection to {path}"):
        write_bytes_durably(check_outside_stores(Path(path)), json.dumps(tree, indent=1).encode())


def load_selection(store: PartStore, path: str | os.PathLike[str]) -> EpisodeSelection:
    """Read a saved selection; DatasetError if it is none, or its parts are absent or changed."""
    parts, recorded = _read(path)
    with failures(os.fspath(path)):
        loaded = selection_of_runs(store, parts)
    shown = np.isin(loaded.rows, loaded.catalog.shown, assume_unique=True)
    trimmed = loaded.catalog.trimmed
    lost = int((~shown).sum()) + (0 if trimmed is None else int(trimmed[loaded.rows[shown]].sum()))
    is_same = loaded.episodes_hash == recorded
    if not shown.all() or (lost and not is_same):
        edited = "dropped" if is_same else "dropped or trimmed"
        raise DatasetError(
            f"{path}: {lost} of its {len(loaded)} episodes were {edited}; open the store at a tag "
            "from before, or select again"
        )
    if not is_same:
        raise DatasetError(f"{path} is damaged: its rows do not have the recorded hash")
    return loaded


def part_runs(selection: EpisodeSelection) -> PartRuns:
    """The selection's rows, which `selection_of_runs` selects again."""
    manifests = selection.catalog.manifests
    return {
        part_id: (manifests[part_id].content_hash, row_runs(rows, np.ones_like(rows)))
        for part_id, rows in selection.rows_by_part()
    }


def selection_of_runs(store: PartStore, parts: PartRuns) -> EpisodeSelection:
    """The selection of these rows; DatasetError if parts are absent, changed or have fewer."""
    catalog = store.catalog()
    rows: list[np.ndarray] = [np.zeros(0, np.int64)]
    for part_id in sorted(parts):
        content_hash, runs = parts[part_id]
        manifest = catalog.manifests.get(part_id)
        if manifest is None or manifest.content_hash != content_hash:
            subject = f"part {part_id} of {store.address}"
            raise DatasetError(f"{subject} is absent or changed; select again")
        if runs[-1][1] > manifest.episodes:
            problem = f"has {manifest.episodes} episodes, not {runs[-1][1]}"
            raise DatasetError(f"the selection is damaged: part {part_id} {problem}")
        first, _ = catalog.part_bounds[part_id]
        rows += [first + np.arange(start, stop) for start, stop in runs]
    return EpisodeSelection(store, catalog, np.concatenate(rows))


def _read(path: str | os.PathLike[str]) -> tuple[PartRuns, str]:
    try:
        tree = json.loads(Path(path).read_bytes())
        version = tree["selection_version"]
        if version == SAVED_VERSION:
            parts = {
                part_id: (str(entry["content_hash"]), _checked_runs(entry["rows"]))
                for part_id, entry in tree["parts"].items()
            }
            return parts, str(tree["hash"])
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not a saved selection") from error
    raise DatasetError(
        f"{path}: selection version {version}; this program reads version {SAVED_VERSION}"
    )


def _checked_runs(runs: Any) -> list[tuple[int, int]]:
    """Half-open (start, stop) runs, ascending and disjoint; ValueError for anything else."""
    bounds = [bound for start, stop in runs for bound in (start, stop)]
    if not bounds or any(type(bound) is not int for bound in bounds) or bounds[0] < 0:
        raise ValueError("rows must be runs of integers")
    if any(low >= high for low, high in pairwise(bounds)):
        raise ValueError("runs must ascend")
    return [(start, stop) for start, stop in runs]
