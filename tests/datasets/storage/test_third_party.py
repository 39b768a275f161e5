"""Other people's libraries open a store without any of this project's code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import Field, Schema, Store, open_store
from gaitforge.datasets.storage.parts import SHARD_STEPS
from tests.datasets.making import part_input, small_store

LENGTHS = [SHARD_STEPS - 20, 30, 500]
"""The second episode lies in two shards; the fields have several chunks a shard."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a part and what was written into it."""
    schema = Schema(
        (
            Field("obs", (6,), unit="rad", slices={"gravity": (0, 3)}),
            Field("foot", (4, 3), "float16", unit="m"),
            Field("reward", dtype="float64"),
            Field("contact", (4,), "bool"),
            Field("final_obs", (6,), per="episode"),
        ),
        0.02,
        "aliengo",
    )
    rng = np.random.default_rng(0)
    rows, episodes = sum(LENGTHS), len(LENGTHS)
    steps = {
        "obs": rng.normal(size=(rows, 6)).astype(np.float32),
        "foot": rng.normal(size=(rows, 4, 3)).astype(np.float16),
        "reward": rng.normal(size=rows),
        "contact": rng.random((rows, 4)) < 0.5,
    }
    final = {"final_obs": rng.normal(size=(episodes, 6)).astype(np.float32)}
    store = Store.create(tmp_path_factory.mktemp("store") / "s.zarr", schema)
    store.write_part("part-000", steps, part_input(LENGTHS)["episodes"], final)
    return store.path / "parts/part-000", steps | final


def test_zarr_reads_every_array(stored: tuple[Path, dict[str, Any]]) -> None:
    folder, written = stored
    root = zarr.open_group(folder.parent.parent, mode="r")
    assert root.metadata.zarr_format == 3
    group = root["parts/part-000"]
    assert isinstance(group, zarr.Group)
    assert sorted(group.array_keys()) == sorted(written)
    for name, values in written.items():
        array = group[name]
        assert isinstance(array, zarr.Array)
        np.testing.assert_array_equal(np.asarray(array[:]), values)
        assert array.attrs["units"] == {"obs": "rad", "foot": "m"}.get(name, "1")


@settings(max_examples=25)
@given(bounds=st.lists(st.integers(0, sum(LENGTHS)), min_size=2, max_size=6, unique=True))
def test_our_reader_gives_any_rows_as_written(
    bounds: list[int], stored: tuple[Path, dict[str, Any]]
) -> None:
    folder, written = stored
    store = open_store(folder.parents[1])
    ends = sorted(bounds[: len(bounds) // 2 * 2])
    runs = list(zip(ends[::2], ends[1::2], strict=True))
    for name in store.schema.names("step"):
        expected = np.concatenate([written[name][start:stop] for start, stop in runs])
        read = np.empty_like(expected)
        with store.array_reader(store.catalog(), folder.name, name) as reader:
            reader.read_runs(runs, read)
        assert read.tobytes() == expected.tobytes()


def test_xarray_opens_a_part_as_a_dataset(stored: tuple[Path, dict[str, Any]]) -> None:
    folder, written = stored
    dataset = xarray.open_zarr(folder, consolidated=False)
    assert set(dataset.data_vars) == set(written)
    assert dict(dataset.sizes) == {
        "step": sum(LENGTHS),
        "episode": len(LENGTHS),
        "obs_channel": 6,
        "final_obs_channel": 6,
        "contact_channel": 4,
        "foot_axis_0": 4,
        "foot_axis_1": 3,
    }
    for name, values in written.items():
        np.testing.assert_array_equal(dataset[name].to_numpy(), values)
        assert dataset[name].dtype == values.dtype
    assert dataset["obs"].attrs["slices"] == {"gravity": [0, 3]}
    assert dataset.attrs["control_dt_s"] == 0.02


def test_tensorstore_reads_every_array(stored: tuple[Path, dict[str, Any]]) -> None:
    folder, written = stored
    for name, values in written.items():
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(folder / name)},
        }
        array = tensorstore.open(spec, read=True).result()
        np.testing.assert_array_equal(array.read().result(), values)
        if len(values) > SHARD_STEPS:
            some = array[SHARD_STEPS - 7 : SHARD_STEPS + 5].read().result()
            np.testing.assert_array_equal(some, values[SHARD_STEPS - 7 : SHARD_STEPS + 5])


def test_a_flipped_byte_is_an_error(stored: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = stored
    copied = tmp_path / "part"
    for path in (folder / "reward").rglob("*"):
        if path.is_file():
            target = copied / path.relative_to(folder / "reward")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    shard = copied / "c/0"
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"(?i)checksum|crc"):
        zarr.open_array(copied, mode="r")[:]


@pytest.mark.parametrize("place", ["mine", "parts/mine", "parts/part-000/mine", "overlays/mine"])
def test_an_array_that_another_program_added_is_named(place: str, tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s.zarr").path)
    (store.path / "README.md").write_text("of a published store")
    (store.path / "parts" / "half-written").mkdir()
    assert store.verify() == []
    folder, _, name = place.rpartition("/")
    zarr.open_group(store.path / folder, mode="a").create_array(name, data=np.arange(10))
    faults = store.verify()
    assert faults
    assert all(place.partition("/")[0] in fault or "mine" in fault for fault in faults)
    assert any("mine" in fault for fault in faults)


@pytest.mark.parametrize("name", ["x.bin", "parts/x.bin", "catalog/x.csv", "tags/x", "edits/x"])
def test_a_file_beside_the_stores_own_is_named(name: str, tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s.zarr").path)
    (store.path / name).parent.mkdir(exist_ok=True)
    (store.path / name).write_bytes(b"x")
    [fault] = store.verify()
    assert name in fault
