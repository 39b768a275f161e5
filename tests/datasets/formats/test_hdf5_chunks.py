"""Chunks inflated outside HDF5 give the very rows that HDF5 gives."""

import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import DatasetError
from gaitforge.datasets.formats.hdf5 import dataset_at, datasets_of, open_hdf5, read_rows

h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")
from gaitforge.datasets.formats.hdf5 import (  # noqa: E402  (needs h5py)
    ImplausibleSizeError,
    inflated_rows,
    read_whole,
)

ROWS = 37


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, 5, 3))


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "u1", "bool"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("chunks", [(8, 2, 3), (64, 5, 1), (1, 5, 3), (37, 4, 2)])
def test_rows_are_those_of_hdf5(
    dtype: str, shuffle: bool, chunks: tuple[int, ...], values: np.ndarray, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        written = (values > 0 if dtype == "bool" else values * 9).astype(dtype)
        maximum = (None, 5, 3)
        settings: dict[str, Any] = {"compression": "gzip", "shuffle": shuffle, "maxshape": maximum}
        file.create_dataset("x", data=written, chunks=chunks, **settings)
        dataset = dataset_at(file, "x")
        for first, stop in ((0, ROWS), (0, 1), (7, 9), (8, 16), (30, ROWS), (36, 37)):
            rows = inflated_rows(dataset, first, stop)
            assert rows is not None
            assert rows.dtype == dataset.dtype
            assert np.array_equal(rows, dataset[first:stop])


@pytest.mark.parametrize(
    "settings",
    [{}, {"chunks": (4, 5, 3)}, {"compression": "lzf"}, {"compression": "gzip", "scaleoffset": 3}],
)
def test_what_it_does_not_know_is_left_to_hdf5(
    settings: dict[str, Any], values: np.ndarray, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", data=values.astype("f4"), **settings)
        assert inflated_rows(dataset_at(file, "x"), 0, 5) is None


def test_chunks_that_were_never_written_are_left_to_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        dataset = file.create_dataset("x", (20, 2), "f4", chunks=(4, 2), compression="gzip")
        dataset[:4] = 1.0
        assert inflated_rows(dataset_at(file, "x"), 0, 20) is None
        rows = inflated_rows(dataset_at(file, "x"), 0, 4)
        assert rows is not None
        assert (rows == 1.0).all()


def bomb(path: Path, key: str, stated: int, **filters: Any) -> None:
    """A file whose only chunk of `stated` float32 inflates to 64 MB."""
    with h5py.File(path, "a") as file:
        settings = {"chunks": (stated,), "compression": "gzip", **filters}
        dataset = file.create_dataset(key, (stated,), "f4", **settings)
        content = zlib.compress(bytes(64_000_000), 9)
        dataset.id.write_direct_chunk((0,), content)


@pytest.mark.parametrize("filters", [{}, {"shuffle": True}, {"fletcher32": True}], ids=str)
def test_a_chunk_is_not_inflated_beyond_what_it_states(
    filters: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "bomb.hdf5"
    bomb(path, "x", 400, **filters)
    with open_hdf5(path) as file:
        dataset = dataset_at(file, "x")
        tracemalloc.start()
        try:
            with pytest.raises(DatasetError, match=r"more than the 1,6.. bytes that it states"):
                read_rows(path, dataset, "x", 0, 10)
            with pytest.raises(ImplausibleSizeError):
                read_whole(dataset)
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()


def test_sizes_that_no_bytes_stand_behind_are_refused(tmp_path: Path) -> None:
    states: dict[str, dict[str, Any]] = {
        "it states 4,000,000,000 bytes and holds": {"shape": (10**9,), "chunks": (1024,)},
        "it states 4,000,000,000 bytes": {"shape": (10**9,)},
        "its chunks are of 2,000,000,000": {
            "shape": (10,), "maxshape": (None,), "chunks": (5 * 10**8,), "compression": "gzip",
        },
    }  # fmt: skip
    for number, (message, settings) in enumerate(states.items()):
        path = tmp_path / f"{number}.hdf5"
        with h5py.File(path, "w") as file:
            file.create_dataset("x", dtype="f4", **settings)
        with pytest.raises(DatasetError, match=message) as refused, open_hdf5(path) as file:
            read_rows(path, dataset_at(file, "x"), "x", 0, 10)
        assert "\n" not in str(refused.value)


def test_honest_constants_and_filters_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    zeros = np.zeros(20_000_000, np.float32)
    with h5py.File(path, "w") as file:
        file.create_dataset("zeros", data=zeros, compression="gzip", compression_opts=9)
        for name in ("lzf", "gzip"):
            file.create_dataset(name, data=zeros[:99], compression=name, fletcher32=True)
        file.create_dataset("offset", data=np.arange(99), compression="gzip", scaleoffset=0)
    with open_hdf5(path) as file:
        for name, dataset in datasets_of(file).items():
            wanted = np.arange(99) if name == "offset" else dataset[:]
            assert np.array_equal(read_whole(dataset), wanted)
