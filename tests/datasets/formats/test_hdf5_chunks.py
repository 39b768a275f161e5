"""Chunks inflated outside HDF5 give the very rows that HDF5 gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets.formats.hdf5 import dataset_at

h5py = pytest.importorskip("h5py", reason="h5py is the extra hdf5")
from gaitforge.datasets.formats.hdf5_chunks import inflated_rows  # noqa: E402  (needs h5py)

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
