"""A few bytes of a foreign file do not become gigabytes."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.common.limits import check_archive, check_parquet
from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.catalog.edit_log import edit_name
from gaitforge.datasets.storage.parts import ArrayLayout
from tests.datasets.making import small_store

MANY = 100_000_000


@pytest.fixture(scope="module")
def constant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file of half a megabyte with 10^8 equal rows."""
    path = tmp_path_factory.mktemp("constant") / "x.parquet"
    rows = pa.repeat(pa.scalar(1, pa.int64()), MANY // 100)
    with pq.ParquetWriter(path, pa.schema({"x": pa.int64()}), compression="zstd") as writer:
        for _ in range(100):
            writer.write_table(pa.table({"x": rows}))
    assert path.stat().st_size < 1_000_000
    return path


def test_parquet_of_many_equal_rows_is_refused(constant: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"states .* bytes and holds"):
        check_parquet("x", pq.read_metadata(constant), constant.stat().st_size)
    store = open_store(small_store(tmp_path / "s").path)
    store.select().annotate({"note": "x"})
    [edit] = store.log.folder.iterdir()
    content = constant.read_bytes()
    edit.unlink()
    (store.log.folder / edit_name(1, content)).write_bytes(content)
    with pytest.raises(DatasetError, match=r"states .* bytes and holds"):
        store.edits()


def test_a_zip_of_zeros_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    zeros = np.zeros(20_000_000, np.int8)
    np.savez_compressed(path, a=zeros, b=zeros, c=zeros, d=zeros, e=zeros)
    check_archive(path)  # as gzip packs
    content = path.read_bytes()
    path.write_bytes(content.replace((20_000_128).to_bytes(4, "little"), b"\xff\xff\xff\x7f"))
    with pytest.raises(DatasetError, match=r"states .* bytes and holds"):
        check_archive(path)


@pytest.mark.parametrize(
    ("place", "size"),
    [("chunk", 10**9), ("chunk", 0), ("chunk", -1), ("chunk", 1.5), ("shard", 10**12), ("row", -5)],
)
def test_array_metadata_with_other_sizes_is_refused(
    place: str, size: float, tmp_path: Path
) -> None:
    store = small_store(tmp_path / "s")
    tree = json.loads((store.path / "parts/part-000/obs/zarr.json").read_text())
    assert ArrayLayout.parse(json.dumps(tree).encode()).row_shape == (5,)
    grid = tree["chunk_grid"]["configuration"]["chunk_shape"]
    inner = tree["codecs"][0]["configuration"]["chunk_shape"]
    match place:
        case "chunk":
            inner[0] = size
        case "shard":
            grid[0] = size
        case _:
            tree["shape"][1] = size
    with pytest.raises(DatasetError, match="damaged array metadata"):
        ArrayLayout.parse(json.dumps(tree).encode())
