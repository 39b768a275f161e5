"""Notes of a D4RL file: held against its arrays, and never unpacked."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gaitforge.datasets import DatasetError
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.format_stores import (
    FAILURE_DIFFERS,
    RETURN_DIFFERS,
    Change,
    assert_notes_hold,
    relabel_hdf5,
)
from tests.datasets.making import small_store

h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")


def without_notes(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["metadata/gaitforge"]


def timed_out(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["timeouts"][:] |= file["terminals"][:]  # pyright: ignore
        file["terminals"][:] = False  # pyright: ignore[reportIndexIssue]


def an_end_more(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["terminals"][0] = True  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (partial(relabel_hdf5, "rewards"), RETURN_DIFFERS),
        (timed_out, FAILURE_DIFFERS),
        (an_end_more, "the lengths in the notes are not"),
    ],
)
def test_a_file_edited_beside_its_notes_is_refused_until_these_are_removed(
    edit: Change, message: str, tmp_path: Path
) -> None:
    remedy = "metadata/gaitforge: .* delete"
    assert_notes_hold("d4rl", edit, message, without_notes, remedy, tmp_path)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_notes_are_refused_before_they_are_unpacked(
    compression: str, tmp_path: Path
) -> None:
    store = small_store(tmp_path / "s", [(3, 2)])
    path = tmp_path / "x.hdf5"
    export_selection("d4rl", store.select(), path)
    zeros = pa.table({"length": np.zeros(20_000_000, np.int64)})
    words = pa.table({"skill": pa.array(["run"] * 20_000_000).dictionary_encode()})
    for table in (zeros, words):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        with h5py.File(path, "a") as file:
            del file["metadata/gaitforge/episodes"]
            content = np.frombuffer(sink.getvalue(), np.uint8)
            file["metadata/gaitforge"].create_dataset("episodes", data=content)
        before = pa.total_allocated_bytes()
        with pytest.raises(DatasetError, match=r"notes are damaged: .* is compressed") as refused:
            import_source("d4rl", path, tmp_path / "again")
        assert "\n" not in str(refused.value)
        assert pa.total_allocated_bytes() - before < 10_000_000
