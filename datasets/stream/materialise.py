"""Copies of selections as plain arrays on a local disk, and mixtures of several selections.

A copy is streamed at memory speed. It is a folder `<directory>/<key>` with one `.npy` file per
field (all steps end to end, and a last row of zeros for padding), one for the returns-to-go if the
store has a reward, the episodes' ids, lengths and endings, and `materialised.json`. It is written
under another name and renamed when complete. The key is a hash of the selection and the fields, so
all processes of a node share one copy: the first one writes it, the others wait, and later runs
find it. Writing a copy needs memory for one reading unit. Streaming maps its files and uses only
page cache.

A mixture streams several selections together in given shares, for example an equal share per skill.
An epoch of a mixture has about as many steps as the union of the selections, and selection i gives
its share w_i of them (the normalised weights). Each of its episodes is visited r_i = w_i * S / S_i
times per epoch on average, where S and S_i are the steps of the union and of the selection:
floor(r_i) or ceil(r_i) times in one epoch, floor(m * r_i) or ceil(m * r_i) times in the first m
epochs. Visits are not drawn at random but a function of (seed, epoch), so order, ranks and resuming
work as for one selection. Each visit covers every step of its episode once, with its own phase.
"""

import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

import numpy as np

from gaitforge.common import files as disk
from gaitforge.common.errors import DatasetError, disk_failures, listed
from gaitforge.common.hashing import hashed
from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets.schema import (
    CLEAN,
    EXECUTED,
    Actions,
    returns_to_go,
    stores_executed,
)
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.datasets.storage.parts import object_hashes
from gaitforge.datasets.stream import pool
from gaitforge.datasets.stream.pool import SelectionSource
from gaitforge.datasets.stream.stream_config import StreamConfig, StreamSettings, with_settings

if TYPE_CHECKING:
    from gaitforge.datasets.stream.window_stream import WindowStream


# Copies of selections.
MATERIALISED_VERSION = 1
DONE = "materialised.json"
KEY_DIGITS = 24


def materialise(
    selection: EpisodeSelection,
    directory: str | os.PathLike[str],
    fields: Sequence[str] = ("obs", "action"),
) -> "Materialised":
    """Copy step fields of a selection below `directory`, or find the existing copy.

    `directory` is on a local disk. Every chunk's checksum is verified. The copy stays valid when
    parts are added to the store. DatasetError for unknown fields, an empty selection, a damaged
    object or copy, or a disk that is full or fails; nothing is left behind.
    """
    source = pool.SelectionSource(selection)
    if len(selection) == 0:
        raise DatasetError("the selection is empty; select at least one episode to materialise")
    columns = source.columns(sorted(fields), pool.RETURN_TO_GO in source.all_columns)
    folder = Path(directory) / _key(selection, columns)
    with disk_failures(f"cannot materialise the selection to {folder}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder.with_name(f".{folder.name}.lock")):
            if not folder.exists():
                _write_copy(folder, source, columns)
    return Materialised(folder)


class Materialised:
    """A copy of a selection in a folder, a `StepSource`; streams the same batches, bit for bit.

    DatasetError for no complete copy at `path`, another version, or damaged files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._record = self._read_record()
        for name, (size, _) in self._record["files"].items():
            file = disk.join_inside(self.path, name)
            if not file.is_file() or file.stat().st_size != size:
                raise DatasetError(
                    f"{file} is missing or does not have {size} bytes; remove {self.path} and "
                    "materialise again"
                )
        self.episode_ids = self._load("episode_ids")
        self.lengths = self._load("lengths")
        self.unit_bounds = self._load("unit_bounds")

    @property
    def hash(self) -> str:
        """The selection's hash."""
        return self._record["selection"]

    @property
    def fields(self) -> list[str]:
        """The copied step fields."""
        return [name for name in self._record["columns"] if name != pool.RETURN_TO_GO]

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return self._record["steps"]

    def __len__(self) -> int:
        return len(self.lengths)

    def with_actions(self, actions: Actions) -> "Materialised":
        """The copy, if its actions are these; DatasetError for others, which it does not hold."""
        held = self._record.get("actions", CLEAN)
        if isinstance(actions, str) and actions in ("", held):
            return self
        raise DatasetError(
            f"the copy {self.path} holds {held} actions, and no final observations; stream "
            "transitions and executed actions from the selection"
        )

    def ending(self) -> np.ndarray:
        """(E,) how episodes ended; see `gaitforge.datasets.schema`."""
        return self._load("ending")

    def final_obs(self) -> np.ndarray | None:
        """DatasetError: a copy holds fields of steps only."""
        raise DatasetError(
            f"the copy {self.path} has no final observations; stream transitions and "
            "executed actions from the selection"
        )

    def verify(self) -> list[str]:
        """One line for each file that does not have its recorded SHA-256."""
        return [
            f"{self.path / name} does not have its recorded SHA-256"
            for name, (_, sha256) in self._record["files"].items()
            if disk.sha256_file(self.path / name) != sha256
        ]

    @with_settings(workers=0)
    def windows(
        self, window_len: int = 64, batch_size: int = 1024, **settings: Unpack[StreamSettings]
    ) -> "WindowStream":
        """As `EpisodeSelection.windows`; stream states work for both.

        `workers` is 0 by default: with nothing to decode, gathering in the calling thread is
        faster (15.5 against 11.7 million steps a second). Use 1 to overlap with an accelerator or a
        slow disk.
        """
        from gaitforge.datasets.stream.window_stream import WindowStream  # torch is slow to import

        merged: StreamSettings = {"workers": 0, **settings}
        config = StreamConfig(window_len=window_len, batch_size=batch_size, **merged)
        return WindowStream(self, config)

    def columns(self, fields: Sequence[str], return_to_go: bool) -> dict[str, pool.StreamedColumn]:
        """Columns of a batch; DatasetError for fields that were not copied."""
        stored = self._record["columns"].items()
        copied = {
            name: pool.StreamedColumn(tuple(shape), np.dtype(kind))
            for name, (shape, kind) in stored
        }
        return pool.chosen_columns(copied, fields, return_to_go)

    def reader(self, columns: Mapping[str, pool.StreamedColumn], pool_rows: int) -> "MapReader":
        """A reader of the mapped files; it needs no pools."""
        mapped = {name: _map(disk.join_inside(self.path, f"{name}.npy")) for name in columns}
        return MapReader(self, mapped)

    def _load(self, name: str) -> np.ndarray:
        return np.load(self.path / f"{name}.npy", allow_pickle=False)

    def _read_record(self) -> dict[str, Any]:
        try:
            record = json.loads((self.path / DONE).read_bytes())
            version = record["materialised_version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DatasetError(f"{self.path} is not a complete copy of a selection") from error
        if version != MATERIALISED_VERSION:
            raise DatasetError(
                f"{self.path} is of version {version}; this program reads version "
                f"{MATERIALISED_VERSION}: remove it and materialise again"
            )
        return record


class MapReader:
    """Steps of a copy, `mapped` as name -> (map of the file, its rows): every unit is loaded."""

    def __init__(self, copy: Materialised, mapped: Mapping[str, tuple[mmap.mmap, np.ndarray]]):
        self._maps = {name: memory for name, (memory, _) in mapped.items()}
        columns = {name: rows.reshape(len(rows), -1) for name, (_, rows) in mapped.items()}
        starts = np.cumsum(copy.lengths) - copy.lengths
        self._steps = pool.Steps(columns, starts)
        bounds = np.append(starts, copy.steps)[copy.unit_bounds]
        self._unit_rows = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))

    def prepare(self, slot: int, units: tuple[int, ...]) -> tuple[pool.Steps, Sequence[pool.Task]]:
        """See `StepReader`; the tasks prefetch the units into the page cache."""
        return self._steps, [partial(self._will_need, *self._unit_rows[unit]) for unit in units]

    def _will_need(self, first: int, stop: int) -> None:
        for name, memory in self._maps.items():
            column = self._steps.columns[name]
            row_bytes = column.shape[1] * column.itemsize
            header = len(memory) - column.nbytes
            begin = (header + first * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
            memory.madvise(mmap.MADV_WILLNEED, begin, header + stop * row_bytes - begin)


def _key(selection: EpisodeSelection, columns: Mapping[str, pool.StreamedColumn]) -> str:
    content = [MATERIALISED_VERSION, selection.hash_over(columns, ()), sorted(columns)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:KEY_DIGITS]


def _write_copy(
    folder: Path, source: pool.SelectionSource, columns: Mapping[str, pool.StreamedColumn]
) -> None:
    """Write the folder under another name and rename it; the caller holds the folder's lock."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    rows = source.selection.steps + 1
    needed = sum(rows * column.width * column.dtype.itemsize for column in columns.values())
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise DatasetError(
            f"materialising needs {needed / 1e9:.1f} GB and {folder.parent} has {free / 1e9:.1f} "
            "GB free; select less, copy fewer fields, or give a folder on a larger disk"
        )
    try:
        temporary.mkdir()
        _write_columns(temporary, source, columns)
        for name in ("episode_ids", "lengths", "unit_bounds"):
            np.save(temporary / f"{name}.npy", getattr(source, name), allow_pickle=False)
        np.save(temporary / "ending.npy", source.ending(), allow_pickle=False)
        disk.fsync_tree(temporary)
        record = {
            "materialised_version": MATERIALISED_VERSION,
            "selection": source.hash,
            "actions": EXECUTED if stores_executed(source.selection.schema) else CLEAN,
            "steps": source.selection.steps,
            "columns": {name: (column.shape, column.dtype.str) for name, column in columns.items()},
            "files": object_hashes(temporary),
        }
        disk.write_bytes_durably(temporary / DONE, json.dumps(record, indent=1).encode())
        disk.replace_durably(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_columns(
    folder: Path, source: pool.SelectionSource, columns: Mapping[str, pool.StreamedColumn]
) -> None:
    """Write all columns side by side, one reading unit at a time."""
    with ExitStack() as stack:
        files = {name: stack.enter_context(open(folder / f"{name}.npy", "wb")) for name in columns}
        for name, column in columns.items():
            shape = (source.selection.steps + 1, *column.shape)
            header = {"descr": column.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(files[name], header)
        for name, rows in _unit_columns(source, columns):
            files[name].write(rows.reshape(-1).view(np.uint8).data)
        for name, column in columns.items():
            files[name].write(bytes(column.width * column.dtype.itemsize))


def _unit_columns(
    source: pool.SelectionSource, columns: Mapping[str, pool.StreamedColumn]
) -> Iterator[tuple[str, np.ndarray]]:
    selection = source.selection
    for unit in source.units:
        for name in columns:
            if name == pool.RETURN_TO_GO:
                rewards = selection.read_unit(pool.REWARD, unit)
                yield name, returns_to_go(rewards, *selection.unit_rows(unit))
            else:
                yield name, selection.read_unit(name, unit)


def _map(path: Path) -> tuple[mmap.mmap, np.ndarray]:
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memory, np.ndarray(shape, dtype, memory, file.tell())


# Mixtures of selections.
AnySelection = TypeVar("AnySelection", bound=EpisodeSelection)

_TURN = 5


class Mixture(Generic[AnySelection]):
    """Selections of one store and the share of the steps that each gives.

    They may overlap, then an episode's visits add up. `weights` None gives equal shares.
    `selection` is the union, whose rows `episode` in a batch counts, and `shares` the share
    of an epoch's steps by name. DatasetError for no selections or an empty one, selections from
    different stores or catalogs, weights for other names, or a weight that is not positive.
    """

    def __init__(
        self, selections: Mapping[str, AnySelection], weights: Mapping[str, float] | None = None
    ) -> None:
        if not selections:
            raise DatasetError("a mixture needs at least one selection")
        weights = dict.fromkeys(selections, 1.0) if weights is None else weights
        _check_weights(selections, weights)
        total = sum(weights.values())
        self.shares = {name: weights[name] / total for name in selections}
        first = next(iter(selections.values()))
        rows = np.unique(np.concatenate([selection.rows for selection in selections.values()]))
        self.selection = first.with_rows(rows)
        self._components: list[tuple[np.ndarray, float]] = []
        digest = hashlib.sha256(self.selection.arrays_hash.encode())
        for name, selection in selections.items():
            positions = np.searchsorted(self.selection.rows, selection.rows)
            rate = self.shares[name] * self.selection.steps / selection.steps
            self._components.append((positions, rate))
            digest.update(positions.astype("<i8").tobytes())
            digest.update(np.array(rate, "<f8").tobytes())
        self.hash = digest.hexdigest()

    def visits(self, seed: int, epoch: int) -> np.ndarray:
        """(E,) visits of each episode of the union in an epoch."""
        visits = np.zeros(len(self.selection), np.int64)
        ids = self.selection.episode_ids()
        for number, (positions, rate) in enumerate(self._components):
            # Evenly spaced turns in hashed order: each epoch's visits sum to the share within one.
            turns = np.empty(len(positions))
            order = np.argsort(hashed(seed, _TURN, number, ids[positions]), kind="stable")
            turns[order] = (np.arange(len(positions)) + 0.5) / len(positions)
            done = np.floor(rate * epoch + turns)
            visits[positions] += (np.floor(rate * (epoch + 1) + turns) - done).astype(np.int64)
        return visits

    @with_settings()
    def windows(
        self,
        window_len: int = 64,
        batch_size: int = 1024,
        materialised: Materialised | None = None,
        **settings: Unpack[StreamSettings],
    ) -> "WindowStream":
        """As `EpisodeSelection.windows`, for a mixture's epoch (see the module).

        `materialised` is a copy of the union to read instead of the store; DatasetError for a
        copy of another selection.
        """
        from gaitforge.datasets.stream.window_stream import WindowStream  # torch is slow to import

        if materialised is not None and materialised.hash != self.selection.arrays_hash:
            raise DatasetError(
                f"{materialised.path} is a copy of another selection; materialise the mixture's "
                "own .selection"
            )
        config = StreamConfig(window_len=window_len, batch_size=batch_size, **settings)
        return WindowStream(materialised or SelectionSource(self.selection), config, self)


def equal_shares(selection: AnySelection, column: str | None = None) -> Mixture[AnySelection]:
    """A mixture in which every value of a column gives the same share of the steps.

    By default the column is the second of the schema's `group_by`, such as the skill.
    """
    column = selection.catalog.check_column(column or selection.schema.group_by[1])
    codes, values = selection.catalog.codes(column)
    here = codes[selection.rows]
    groups = {str(values[code]): selection.rows[here == code] for code in np.unique(here)}
    return Mixture({name: selection.with_rows(groups[name]) for name in sorted(groups)})


def _check_weights(
    selections: Mapping[str, EpisodeSelection], weights: Mapping[str, float]
) -> None:
    if set(weights) != set(selections):
        raise DatasetError(
            f"weights are for {listed(weights)}; there must be one for each of {listed(selections)}"
        )
    for name, weight in weights.items():
        if not (isfinite(weight) and weight > 0):
            raise DatasetError(f"weight of {name} must be positive and finite, not {weight}")
    first = next(iter(selections.values()))
    for name, data in selections.items():
        if len(data) == 0:
            raise DatasetError(f"selection {name} is empty; leave it out")
        if data.store.path != first.store.path:
            raise DatasetError(
                f"selection {name} is of store {data.store.address}; a mixture takes selections of "
                f"one store, {first.store.address}"
            )
        if data.actions != first.actions:
            raise DatasetError(f"selection {name} has other actions; choose the same for all")
        if list(data.catalog.manifests) != list(first.catalog.manifests):
            raise DatasetError(
                f"selection {name} is of another state of the store; make all selections of a "
                "mixture from one catalog"
            )
