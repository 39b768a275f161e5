"""Selections as Dask arrays and xarray datasets: the right rows, lazily, in bounded memory."""

import sys
import tracemalloc
from pathlib import Path

import dask.array as da
import dask.config
import numpy as np
import pytest
from distributed import Client, LocalCluster

from gaitforge.datasets import DatasetError, Field, Schema, Selection, Store
from gaitforge.datasets.statistics import UnitReader, channel_names
from tests.datasets.making import part_input, small_store, write_small_part

PARTS = [(5, 1, 9, 4), (500, 64), (17, 3)]


def selections(folder: Path) -> list[Selection]:
    store = small_store(folder / "s", PARTS)
    return [
        store.select(),
        store.select(terrain="rough"),
        store.select().where("length between 3 and 70"),
        store.select(part="part-001"),
    ]


@pytest.mark.parametrize("field", ["obs", "action", "reward", "final_obs"])
def test_a_dask_array_has_the_selections_rows_in_order(tmp_path: Path, field: str) -> None:
    for selection in selections(tmp_path):
        array = selection.dask(field)
        expected = selection.read(field)
        assert isinstance(array, da.Array)
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert array.numblocks[0] == len(selection.units())
        np.testing.assert_array_equal(array.compute(), expected)
        np.testing.assert_array_equal(array[1:].compute(), expected[1:])


def test_an_empty_selection_is_an_empty_array(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "s").select().where("length < 0")
    assert selection.dask("obs").compute().shape == (0, 5)
    assert selection.to_xarray().sizes["step"] == 0


def test_nothing_is_read_before_it_is_computed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", PARTS)
    array, dataset = store.select().dask("obs"), store.select().to_xarray()
    lost = store.path / "parts/part-001/obs/c/0/0"
    lost.unlink()
    with pytest.raises(DatasetError, match=r"part part-001.*obs.*missing"):
        array.compute()
    with pytest.raises(DatasetError, match="missing"):
        dataset["obs"].mean().compute()
    np.testing.assert_array_equal(dataset["action"].to_numpy(), store.select().read("action"))
    np.testing.assert_array_equal(array[:19].compute(), store.select(part="part-000").read("obs"))


def test_computing_holds_a_few_chunks_and_no_more(tmp_path: Path) -> None:
    schema = Schema((Field("obs", (50,)),), 0.02, "aliengo")
    store = Store.create(tmp_path / "s", schema)
    values = np.zeros((20_000, 50), np.float32)
    for number in range(12):
        episodes = part_input([20_000], first_episode=number)["episodes"]
        store.write_part(f"p{number:02d}", {"obs": values + number}, episodes)
    array = store.select().dask("obs")
    assert array.numblocks == (12, 1)
    with dask.config.set(scheduler="synchronous"):
        array[:10].mean().compute()  # what is imported and built once is not counted
        tracemalloc.start()
        mean = array.mean(axis=0).compute()
        statistics = store.select().statistics("obs")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    np.testing.assert_allclose(mean, 5.5)
    np.testing.assert_allclose(statistics.mean, 5.5)
    assert peak < 5 * values.nbytes < 6 * values.nbytes


def reader_in_another_process(selection: Selection) -> UnitReader:
    rebuild, arguments = UnitReader(selection, "obs").__reduce__()
    return rebuild(*arguments)


def test_another_process_reads_the_same_rows_after_more_were_added(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", PARTS)
    selection = store.select().where("length > 4")
    write_small_part(store, "part-0000", (8, 8), 100)  # sorts between the others
    moved = reader_in_another_process(selection)
    rows = [moved.read(number) for number in range(len(selection.units()))]
    np.testing.assert_array_equal(np.concatenate(rows), selection.read("obs"))


def test_another_process_refuses_a_store_that_was_replaced(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "s", PARTS).select()
    small_store(tmp_path / "t", [(5, 2, 9, 4), *PARTS[1:]])
    (tmp_path / "s").rename(tmp_path / "old")
    (tmp_path / "t").rename(tmp_path / "s")
    with pytest.raises(DatasetError, match=r"part part-000 of .* is absent or changed"):
        reader_in_another_process(selection)


@pytest.mark.slow
def test_a_client_computes_what_threads_compute(tmp_path: Path) -> None:
    selection = selections(tmp_path)[1]
    expected = selection.statistics("obs"), selection.quantiles("obs", (0.3,))
    address = {"dashboard_address": None, "host": "127.0.0.1"}
    with (
        dask.config.set({"distributed.worker.memory.terminate": False}),
        LocalCluster(n_workers=1, threads_per_worker=2, **address) as cluster,
        Client(cluster),
    ):
        np.testing.assert_array_equal(selection.dask("obs").compute(), selection.read("obs"))
        statistics = selection.statistics("obs")
        np.testing.assert_array_equal(statistics.mean, expected[0].mean)
        np.testing.assert_array_equal(statistics.squares, expected[0].squares)
        np.testing.assert_array_equal(selection.quantiles("obs", (0.3,)), expected[1])


def test_xarray_has_dimensions_coordinates_and_units(tmp_path: Path) -> None:
    for selection in selections(tmp_path):
        dataset = selection.to_xarray()
        assert dataset["obs"].dims == ("step", "obs_channel")
        assert dataset["reward"].dims == ("step",)
        assert dataset["final_obs"].dims == ("episode", "final_obs_channel")
        assert dataset["obs"].attrs["units"] == "rad"
        assert dataset.attrs["control_dt_s"] == 0.02
        np.testing.assert_array_equal(dataset["episode"], selection.episode_ids())
        assert dataset["skill"].values.tolist() == selection.episodes()["skill"].to_pylist()
        rows = np.repeat(np.arange(len(selection)), selection.lengths)
        np.testing.assert_array_equal(dataset["episode_row"], rows)
        within = dataset["step_in_episode"].values
        places = np.arange(selection.steps)
        np.testing.assert_array_equal(dataset["offset"].values[rows] + within, places)


def test_xarray_selects_channels_by_name_and_episodes_by_column(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "s", PARTS).select()
    dataset = selection.to_xarray(["obs"])
    assert list(dataset.data_vars) == ["obs"]
    gravity_y = dataset["obs"].sel(obs_channel="gravity[1]")
    np.testing.assert_array_equal(gravity_y.to_numpy(), selection.read("obs")[:, 1])
    crawling = dataset["skill"].values[dataset["episode_row"].values] == "crawl"
    expected = selection.where("skill = 'crawl'").read("obs")
    np.testing.assert_array_equal(dataset["obs"].values[crawling], expected)


def test_channels_are_named_by_their_narrowest_slice() -> None:
    field = Field("obs", (4,), slices={"command": (0, 3), "vel_x": (0, 1)})
    assert channel_names(field) == ["vel_x", "command[1]", "command[2]", "obs[3]"]


def test_without_xarray_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    selection = small_store(tmp_path / "s").select()
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(DatasetError, match=r"pip install -e '.\[xarray\]'"):
        selection.to_xarray()


def test_unknown_fields_are_refused_at_once(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "s").select()
    with pytest.raises(DatasetError, match="unknown field 'speed'; allowed: obs"):
        selection.dask("speed")
    with pytest.raises(DatasetError, match="unknown field 'speed'"):
        selection.to_xarray(["speed"])
