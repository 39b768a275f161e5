"""HDF5 for readers and writers: opening, checked reading, and notes in a group.

The notes are the schema as JSON and the catalog as an Arrow stream.
"""

import json
from abc import abstractmethod
from contextlib import ExitStack
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5l, h5o  # pyright: ignore[reportAttributeAccessIssue] (compiled)

from gaitforge.common.errors import failures
from gaitforge.common.locks import has_locks
from gaitforge.datasets.formats import checks
from gaitforge.datasets.formats.arrow_streams import check_uncompressed
from gaitforge.datasets.formats.hdf5_chunks import (
    ImplausibleSizeError,
    check_chunks,
    check_held,
    check_sizes,
    read_range,
    read_whole,
)
from gaitforge.datasets.formats.protocol import Importer
from gaitforge.datasets.formats.sources import stored_dtype
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection.selection import EpisodeSelection, final_of

SCHEMA_NOTE = "schema"
EPISODES_NOTE = "episodes"

_LINKS = {h5l.TYPE_SOFT: "a soft link", h5l.TYPE_EXTERNAL: "an external link"}


def open_hdf5(path: Path) -> h5py.File:
    """Open a file for reading; refuses one whose links or arrays can lead to other files.

    Otherwise an untrusted file could put other files of this machine into an import.
    """
    if not path.is_file():
        checks.refuse(path, "", "is a folder; give a file" if path.is_dir() else "no such file")
    status = path.stat()
    _check_own_data(path, (status.st_ino, status.st_ctime_ns, status.st_size))
    try:
        return _open(path)
    except OSError as error:
        checks.refuse_unreadable(path, "HDF5", error)


def top_names(path: Path) -> list[str]:
    """Names in the root of an HDF5 file; none if it cannot be read. No link is followed."""
    if not path.is_file() or not h5py.is_hdf5(path):
        return []
    try:
        with _open(path) as file:
            return list(file)
    except (OSError, RuntimeError):
        return []


def _open(path: Path) -> h5py.File:
    """Open a file, with HDF5's own lock against writers where the file system has locks."""
    # None is HDF5's default. It would end, or wait for ever, where there are none.
    locking = None if has_locks(path) else False
    return h5py.File(path, "r", locking=locking)


@cache  # MoCapAct's files are opened again for every part
def _check_own_data(path: Path, stamp: tuple[int, ...]) -> None:
    """Refuse all links but hard ones, virtual datasets and external storage.

    Low level: h5py's other calls take several times as long, and a file may have 10^6 objects.
    """
    names: list[bytes] = []

    def kind_of_link(name: bytes, link: h5l.LinkInfo) -> str | None:
        names.append(name)  # opened later: h5py takes no exception in here
        return None if link.type == h5l.TYPE_HARD else _LINKS.get(link.type, "a user-defined link")

    def kind_of_array(name: bytes) -> str | None:
        item = h5o.open(file.id, name)
        if not isinstance(item, h5d.DatasetID):
            return None
        settings = item.get_create_plist()
        if settings.get_layout() == h5d.VIRTUAL:
            return "a virtual dataset"
        if settings.get_external_count():
            return "a dataset in external files"
        try:
            check_sizes(item)
        except ImplausibleSizeError as error:
            checks.refuse(path, name.decode(errors="replace"), str(error))
        return None

    try:
        file = _open(path)
    except OSError as error:
        checks.refuse_unreadable(path, "HDF5", error)
    with file, checks.damage_named(path):
        kind = file.id.links.visit(kind_of_link, info=True)
        kinds = [(names[-1], kind)] if kind else ((name, kind_of_array(name)) for name in names)
        for name, kind in kinds:
            if kind:
                problem = f"is {kind}, which can lead to other files"
                key = name.decode(errors="replace")
                checks.refuse(path, key, f"{problem}; store the data itself under this key")


def datasets_of(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Path below the group -> dataset, sorted."""
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: h5py.HLObject) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item

    group.visititems(visit)
    return dict(sorted(datasets.items()))


def dataset_at(group: h5py.Group, key: str) -> h5py.Dataset:
    """The dataset at a key; KeyError where there is none."""
    item = group[key]
    if not isinstance(item, h5py.Dataset):
        raise KeyError(f"{key} is not a dataset")
    return item


def check_readable(group: h5py.Group) -> None:
    """ImplausibleSizeError for arrays of a group that are not as large as they state.

    For a group that another library reads.
    """
    for dataset in datasets_of(group).values():
        check_held(dataset.id)
        if dataset.shape:
            check_chunks(dataset, 0, len(dataset))


def read_rows(path: Path, dataset: h5py.Dataset, key: str, first: int, stop: int) -> np.ndarray:
    """Rows of a numeric dataset in a dtype of the store."""
    with checks.damage_named(path, key, f"rows {first} to {stop - 1} cannot be read"):
        rows = read_range(dataset, first, stop)
    rows = np.ascontiguousarray(rows, stored_dtype(rows.dtype))
    checks.check_finite(path, key, rows, first)
    return rows


class Hdf5Importer(Importer):
    """Reads one file, which stays open; `_open` sets what the base class names."""

    def __init__(self, source: str, options: Any) -> None:
        self._path = Path(source)
        self._options = options
        self._file = open_hdf5(self._path)
        with ExitStack() as undo, checks.damage_named(self._path):
            undo.callback(self._file.close)
            self._open()
            undo.pop_all()

    @abstractmethod
    def _open(self) -> None: ...

    def close(self) -> None:
        """See `protocol.Importer`."""
        self._file.close()


def unlike_following(following: np.ndarray, obs: np.ndarray) -> np.ndarray:
    """(T - 1,) whether the observation after a row's step, (T, *shape), is not the next row's."""
    bits = f"u{obs.itemsize}"
    differ = following[:-1].view(bits) != obs[1:].view(bits)
    return differ.any(axis=tuple(range(1, differ.ndim)))


def next_holds_final(schema: Schema, name: str) -> bool:
    """Whether an array of next observations holds `final_obs`: they are alike, and `name` is free.

    `name` is the field's that would have the array's key.
    """
    if "final_obs" not in schema.names("episode") or name in schema.names():
        return False
    return final_of(schema, "final_obs") is not None


def keys_clash(keys: list[str]) -> bool:
    """Whether two keys are the same, or one is the group that another is in."""
    return any(f"{b}/".startswith(f"{a}/") for a, b in combinations(sorted(keys), 2))


def packing(compression: str) -> str | None:
    """h5py's name of a compression."""
    return None if compression == "none" else compression


def write_notes(group: h5py.Group, selection: EpisodeSelection) -> None:
    """Store a selection's schema and catalog rows in an empty group."""
    table = selection.episodes().drop_columns(["part", "start"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    group.attrs["about"] = "schema: JSON; episodes: an Arrow IPC stream, a row an episode"
    group.create_dataset(SCHEMA_NOTE, data=json.dumps(selection.schema.to_json()))
    group.create_dataset(EPISODES_NOTE, data=np.frombuffer(sink.getvalue(), np.uint8))


def read_notes(path: Path, group: h5py.Group) -> tuple[Schema, pa.Table]:
    """The schema and the catalog rows that `write_notes` stored."""
    kinds = KeyError, ValueError, TypeError, OSError, pa.ArrowException
    with failures(f"{path}: {group.name}: gaitforge's notes are damaged", *kinds):
        schema = Schema.from_json(json.loads(read_whole(dataset_at(group, SCHEMA_NOTE))))
        stream = pa.py_buffer(read_whole(dataset_at(group, EPISODES_NOTE)).tobytes())
        check_uncompressed(stream)
        with pa.ipc.open_stream(stream) as reader:
            table = reader.read_all()
        table.validate(full=True)  # damaged offsets may point outside the buffers
        return schema, table
