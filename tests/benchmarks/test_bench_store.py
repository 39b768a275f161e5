"""The store's benchmark: that it runs, counts every step, and says what it left out."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.catalog import WORKS, write_catalog
from benchmarks.store import BENCH
from gaitforge.common.errors import install_extra
from gaitforge.datasets import Store, open_store, query
from gaitforge.datasets.catalog.index import segment_paths
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.status import collection_status
from tests.datasets.making import small_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def records(out: Path) -> dict[str, Any]:
    return BENCH.run(out, BENCH.quick, Silent())


def test_every_figure_is_there_and_positive(records: dict[str, Any]) -> None:
    names = (
        "stream_steps_per_s",
        "stream_peak_mib",
        "single_steps_per_s",
        "materialised_steps_per_s",
        "collect_steps_per_s",
        "varied_ratio_to_stream",
        "varied_peak_mib",
        "bytes_per_step",
    )
    assert all(records[name] > 0 for name in names)
    assert set(records["catalog"]) == set(WORKS)
    assert all(value > 0 for work in records["catalog"].values() for value in work.values())
    assert {each["bar"] for each in records["bars"]} >= {f"{name}, 2 parts" for name in WORKS}
    assert 0 < records["write_share"] < 1
    assert set(records["floor"]) == {"memcpy", "gather"}
    assert records["ratio_to_gather"]["gather"] == 1.0
    assert records["cpu_ratio_to_gather"]["gather"] == 1.0
    assert records["cpu_ratio_to_gather"].keys() == records["ratio_to_gather"].keys()


def test_poses_take_bytes(records: dict[str, Any]) -> None:
    assert records["bytes_per_step"] > records["bytes_per_step_without_state"] > 0


def test_a_peer_is_measured_or_named_as_missing(records: dict[str, Any]) -> None:
    for name, package in (
        ("torchrl_slice_sampler", "torchrl"),
        ("hdf5_group_an_episode", "h5py"),
    ):
        if find_spec(package):
            assert records["peers"][name] > 0
            assert records["ratio_to_gather"][name] > 0
        else:
            missing = f"{name}: {package} is not installed: {install_extra('bench')}"
            assert missing in records["notes"]


def test_figures_are_saved_and_the_stores_removed(records: dict[str, Any], out: Path) -> None:
    assert [path.name for path in out.iterdir()] == ["bench_store.json"]
    saved = json.loads((out / "bench_store.json").read_text())
    assert saved["catalog"] == records["catalog"]
    assert saved["config"]["rounds"] == 1


def test_hundreds_of_parts_answer_alike_with_and_without_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "many.zarr"
    write_catalog(path, small_store(tmp_path / "source").select(), 200, 1000)
    with monkeypatch.context() as without:
        without.setattr("gaitforge.datasets.catalog.catalog_files.INDEX_FROM", 10**9)
        direct = answers(open_store(path))
    assert not segment_paths(open_store(path).files.index_folder)
    assert open_store(path).files.update_index()
    assert answers(open_store(path)) == direct
    monkeypatch.setattr("gaitforge.datasets.catalog.catalog.HELD_BYTES", 1 << 20)
    assert answers(open_store(path)) == direct


def answers(store: Store) -> dict[str, Any]:
    everything = store.select()
    chosen = everything.of_parts(store.parts()[::3]).where("friction < 0.9 and length > 5")
    return {
        "info": store.info(),
        "groups": query(store, group_by=("terrain", "level", "success")),
        "chosen": (chosen.hash, chosen.describe(), chosen.listing(3, "return desc")),
        "columns": everything.with_rows(everything.rows[::777]).episodes().to_pydict(),
        "windows": len(everything.windows(64, 1024)),
        "status": collection_status(store.path),
    }
