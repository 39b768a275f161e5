"""Sources with bytes changed or cut off, anywhere: refused in one line, or read and then whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datasets import DatasetError, open_store
from datasets.formats import FORMATS
from datasets.formats.transfer.exporting import export_selection
from datasets.formats.transfer.importing import import_source
from tests.datasets.formats.format_stores import CASES, random_episodes

TRIES = 24
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


def check_refused_or_whole(name: str, source: Path, folder: Path) -> None:
    """Import; nothing but DatasetError may be raised, and then nothing is left."""
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


@pytest.mark.parametrize("name", sorted(CASES))
def test_damaged_sources(name: str, tmp_path: Path) -> None:
    if missing := FORMATS[name].missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install 'gaitforge[...]'")
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


@pytest.mark.parametrize("name", ["d4rl", "mocapact"])
def test_notes_whose_texts_lie_outside_them(name: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is an extra: gaitforge[hdf5]")
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
