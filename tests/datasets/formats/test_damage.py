"""Damaged sources: refused in one line that names the file, or imported whole.

Bytes, arrays, columns and metadata are damaged one at a time, anywhere. Damage to a required array
or column must be refused by name.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.formats import find_format
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.format_stores import CASES, plain_store, random_episodes

TRIES = 10
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


def test_damaged_sources(name: str, tmp_path: Path) -> None:
    source, rng = tmp_path / "source", np.random.default_rng(0)
    export_selection(name, CASES[name].make(tmp_path / "s", random_episodes(15)).select(), source)
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

REQUIRED = {
    "d4rl": r"observations|actions|rewards|terminals",
    "minari": r"episode_\d+/(observations|actions|rewards|terminations|truncations)",
    "robomimic": r"data/demo_\d+/(actions|rewards|dones|obs/.*)",
    "mocapact": r".*/(actions|rewards|proprioceptive|episode_lengths|episode_returns|early_.*)",
}
"""Arrays without which nothing can be imported."""


@pytest.mark.slow
def test_damaged_arrays(tmp_path: Path) -> None:
    """Every array of every HDF5 format, damaged in one of the ways, all of them in turn."""
    h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")
    for name in (each for each in REQUIRED if not find_format(each).missing):
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
                if re.fullmatch(REQUIRED[name], key) and kind != "one axis more":
                    group, _, array = key.rpartition("/")  # or another of its group contradicts it
                    named = array in refusal or bool(group and group in refusal)
                    assert named, f"{name} {key} {kind}: {refusal}"
                path.write_bytes(content)


def columns_with_damage(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Every column removed, and replaced by another type, missing values or numbers in turn."""
    rows = table.num_rows
    others = [
        pa.array(["a"] * rows),
        pa.array(np.full(rows, np.nan)),
        pa.array([None] * rows, pa.int64()),
        pa.array([-7] * rows),
        pa.array([[1.5]] * rows),
    ]
    for at, key in enumerate(table.column_names):
        yield key, table.remove_column(at)
        yield key, table.set_column(at, key, others[at % len(others)])


@pytest.mark.parametrize("folder", ["data", "meta/episodes"])
def test_damaged_columns(folder: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store = plain_store(tmp_path / "s", random_episodes(4))
    options = {"notes": False, "episode_stats": False}
    export_selection("lerobot", store.select(), source, options)
    path = source / folder / "chunk-000/file-000.parquet"
    table = pq.ParquetFile(path).read()
    required = {*table.column_names} - {"index", "timestamp", "tasks"}
    required -= {each for each in table.column_names if each.startswith(("meta/", "data/"))}
    for key, damaged_table in columns_with_damage(table):
        pq.write_table(damaged_table, path)
        refusal = check_refused_or_whole("lerobot", source, tmp_path)
        same_type = damaged_table.schema.equals(table.schema)
        is_cast = key == "next.reward" and key in damaged_table.column_names  # of -7 and of [1.5]
        if key in required and not same_type and not is_cast:
            assert refusal, key


VALUES = (None, -1, "x", [[1]], {"a": 1}, 10**400, float("nan"))


@pytest.mark.parametrize(
    ("name", "file"), [("lerobot", "meta/info.json"), ("minari", "data/metadata.json")]
)
def test_damaged_metadata(name: str, file: str, tmp_path: Path) -> None:
    """Keys removed, and replaced by values of every kind, in turn and two levels deep."""
    if missing := find_format(name).missing:
        pytest.skip(f"{', '.join(missing)} not installed: extras")
    source = tmp_path / "source"
    store = plain_store(tmp_path / "s", [(3, "truncated"), (4, "terminated")])
    export_selection(name, store.select(), source, {"notes": False})
    tree = json.loads((source / file).read_text())
    first = next(iter(tree["features"])) if "features" in tree else ""
    for parent in [(), *([("features",), ("features", first)] if first else [])]:
        level = tree
        for key in parent:
            level = level[key]
        for number, (key, kept) in enumerate(list(level.items())):
            del level[key]
            if number % 2:
                level[key] = VALUES[number % len(VALUES)]
            (source / file).write_text(json.dumps(tree))
            check_refused_or_whole(name, source, tmp_path)
            level[key] = kept


@pytest.mark.parametrize("name", ["d4rl", "mocapact", "robomimic"])
def test_notes_whose_texts_lie_outside_them(name: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")
    source = tmp_path / "source"
    export_selection(name, CASES[name].make(tmp_path / "s", random_episodes(15)).select(), source)
    path = source if source.is_file() else next(source.iterdir())
    with h5py.File(path, "r+") as file:
        notes = file["metadata/gaitforge/episodes" if name == "d4rl" else "gaitforge/episodes"]
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
