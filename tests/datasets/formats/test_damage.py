"""Damaged sources: refused in one line that names the file, or imported whole.

Bytes, arrays, columns and metadata are damaged one at a time, anywhere. Damage to a required array
or column must be refused by name.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.formats import find_format
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.cases import CASES
from tests.datasets.formats.format_stores import Case, random_episodes

TRIES = 10
HDF5 = [name for name, case in CASES.items() if case.required and not find_format(name).missing]
HEADER_BYTES = 6000
"""Where HDF5 and Parquet keep what describes the rest."""


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """A file's content with some bytes changed, a run of them replaced, or its end missing."""
    changed, kind = bytearray(content), rng.integers(3)
    if kind == 0:
        for at in rng.integers(len(changed), size=rng.integers(1, 40)):
            changed[at] = rng.integers(256)
    elif kind == 1:
        first = int(rng.integers(min(len(changed), HEADER_BYTES)))
        run = rng.bytes(int(rng.integers(1, 300)))[: len(changed) - first]
        changed[first : first + len(run)] = run
    else:
        del changed[int(rng.integers(len(changed))) :]
    return bytes(changed)


def check_refused_or_whole(name: str, source: Path, folder: Path) -> str:
    """Import; only DatasetError may be raised, and then nothing is left. Returns the refusal."""
    store, refusal = folder / "again", ""
    try:
        import_source(name, source, store, workers=1)
    except DatasetError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        assert source.name in refusal
    else:
        assert open_store(store).verify() == []
        shutil.rmtree(store)
    assert not [path.name for path in folder.iterdir() if "again" in path.name]
    return refusal


def test_damaged_sources(name: str, case: Case, tmp_path: Path) -> None:
    source, rng = tmp_path / "source", np.random.default_rng(0)
    export_selection(name, case.make(tmp_path / "s", random_episodes(15)).select(), source)
    files = [path for path in [source, *sorted(source.rglob("*"))] if path.is_file()]
    for _ in range(TRIES):
        file = files[rng.integers(len(files))]
        content = file.read_bytes()
        if content:
            file.write_bytes(damaged(content, rng))
            check_refused_or_whole(name, source, tmp_path)
            file.write_bytes(content)


Damage = Callable[[np.ndarray], Any]
"""An array -> what replaces it; None to remove it."""

DAMAGES: dict[str, Damage] = {
    "removed": lambda rows: None,
    "one row shorter": lambda rows: rows[:-1],
    "one axis more": lambda rows: np.stack([rows, rows], axis=-1),
    "not finite": lambda rows: np.full_like(rows, np.nan) if rows.dtype.kind == "f" else rows[:0],
    "text": lambda rows: np.full(rows.shape, b"a"),
    "complex": lambda rows: rows.astype(complex),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HDF5)
def test_damaged_arrays(name: str, tmp_path: Path) -> None:
    """Every array of every HDF5 format, damaged in one of the ways, all of them in turn."""
    h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")
    source = tmp_path / f"{name}.hdf5"
    store = CASES[name].make(tmp_path / name, [(3, "truncated"), (4, "terminated")])
    export_selection(name, store.select(), source, {"notes": False})
    path = source if source.is_file() else source / "data/main_data.hdf5"
    content, keys = path.read_bytes(), []
    with h5py.File(path) as file:
        file.visit(keys.append)
        arrays = [key for key in keys if isinstance(file[key], h5py.Dataset)]
        keys = [key for key in arrays if file[key].shape and file[key].size]
    for number, key in enumerate(keys):
        for kind, damage in [*DAMAGES.items()][number % 6 :: 6]:
            with h5py.File(path, "a") as file:
                values = damage(file[key][()])
                del file[key]
                if values is not None:
                    file[key] = values
            refusal = check_refused_or_whole(name, source, tmp_path)
            if re.fullmatch(CASES[name].required, key) and kind != "one axis more":
                group, _, array = key.rpartition("/")  # or another of its group contradicts it
                named = array in refusal or bool(group and group in refusal)
                assert named, f"{name} {key} {kind}: {refusal}"
            path.write_bytes(content)


@pytest.mark.parametrize("name", [name for name in HDF5 if CASES[name].notes])
def test_notes_whose_texts_lie_outside_them(name: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")
    source = tmp_path / "source"
    export_selection(name, CASES[name].make(tmp_path / "s", random_episodes(15)).select(), source)
    path = source if source.is_file() else next(source.iterdir())
    with h5py.File(path, "r+") as file:
        notes = file[CASES[name].notes]
        content = notes[:]
        buffer = pa.py_buffer(content)
        with pa.ipc.open_stream(buffer) as reader:
            terrain = reader.read_all().column("terrain").chunk(0)
        at = terrain.buffers()[1].address - buffer.address
        content[at + 4 : at + 8].view(np.int32)[:] = 2**30
        notes[:] = content
    with pytest.raises(DatasetError, match=r"gaitforge: gaitforge's notes are damaged") as error:
        import_source(name, source, tmp_path / "again")
    assert path.name in str(error.value)
    assert not (tmp_path / "again").exists()
