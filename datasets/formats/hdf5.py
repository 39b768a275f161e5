"""What readers and writers of HDF5 share: opening, checked reading, and notes in a group.

The notes are the schema as JSON and the catalog as an Arrow stream.
"""

import json
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5l, h5o  # pyright: ignore[reportAttributeAccessIssue] (compiled)

from gaitforge.datasets.formats import checks
from gaitforge.datasets.formats.checks import check_finite, first_line, refuse, refuse_unreadable
from gaitforge.datasets.formats.hdf5_chunks import inflated_rows
from gaitforge.datasets.formats.sources import stored_dtype
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection.selection import Selection

SCHEMA_NOTE, EPISODES_NOTE = "schema", "episodes"


_LINKS = {h5l.TYPE_SOFT: "a soft link", h5l.TYPE_EXTERNAL: "an external link"}


def open_hdf5(path: Path) -> h5py.File:
    """Open a file for reading; refuses one whose links or arrays can lead to other files.

    Otherwise an untrusted file could put other files of this machine into an import.
    """
    if not path.is_file():
        refuse(path, "", "is a folder; give a file" if path.is_dir() else "no such file")
    status = path.stat()
    _check_own_data(path, (status.st_ino, status.st_ctime_ns, status.st_size))
    try:
        return h5py.File(path, "r")
    except OSError as error:
        refuse_unreadable(path, "HDF5", error)


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
        return "a dataset in external files" if settings.get_external_count() else None

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        refuse_unreadable(path, "HDF5", error)
    with file, checks.damage_named(path):
        kind = file.id.links.visit(kind_of_link, info=True)
        kinds = [(names[-1], kind)] if kind else ((name, kind_of_array(name)) for name in names)
        for name, kind in kinds:
            if kind:
                problem = f"is {kind}, which can lead to other files"
                key = name.decode(errors="replace")
                refuse(path, key, f"{problem}; store the data itself under this key")


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


def read_rows(path: Path, dataset: h5py.Dataset, key: str, first: int, stop: int) -> np.ndarray:
    """Rows of a numeric dataset in a dtype of the store."""
    try:
        inflated = inflated_rows(dataset, first, stop)
        rows = dataset[first:stop] if inflated is None else inflated
    except (OSError, RuntimeError) as error:
        refuse(path, key, f"rows {first} to {stop - 1} cannot be read: {first_line(error)}")
    rows = np.ascontiguousarray(rows, stored_dtype(rows.dtype))
    check_finite(path, key, rows, first)
    return rows


def write_notes(group: h5py.Group, selection: Selection) -> None:
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
    try:
        schema = Schema.from_json(json.loads(dataset_at(group, SCHEMA_NOTE)[()]))
        stream = pa.py_buffer(dataset_at(group, EPISODES_NOTE)[:].tobytes())
        with pa.ipc.open_stream(stream) as reader:
            table = reader.read_all()
        table.validate(full=True)  # damaged offsets may point outside the buffers
        return schema, table
    except (KeyError, ValueError, TypeError, OSError, pa.ArrowException) as error:
        refuse(path, str(group.name), f"gaitforge's notes are damaged: {first_line(error)}")
