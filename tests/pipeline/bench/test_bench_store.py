"""The store's benchmark: that it runs, counts every step, and says what it left out."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from datasets.errors import install_extra
from flows.progress import Silent
from pipeline.bench.store import BENCH


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def records(out: Path) -> dict[str, Any]:
    return BENCH.run(out, BENCH.quick, Silent())


def test_every_figure_is_there_and_positive(records: dict[str, Any]) -> None:
    names = (
        "query_ms",
        "query_cold_ms",
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
    assert 0 < records["write_share"] < 1
    assert set(records["floor"]) == {"memcpy", "gather"}
    assert records["ratio_to_gather"]["gather"] == 1.0


def test_smaller_forms_take_fewer_bytes(records: dict[str, Any]) -> None:
    sizes = [
        records[f"bytes_per_step{form}"]
        for form in ("", "_without_state", "_float16", "_float16_without_state")
    ]
    assert sizes[0] > sizes[1] > sizes[3]
    assert sizes[0] > sizes[2] > sizes[3]


def test_a_peer_is_measured_or_named_as_missing(records: dict[str, Any]) -> None:
    for name, package in (
        ("torchrl_slice_sampler", "torchrl"),
        ("torchrl_slice_sampler_without_replacement", "torchrl"),
        ("hdf5_group_an_episode", "h5py"),
    ):
        if find_spec(package):
            assert records["peers"][name] > 0
            assert records["ratio_to_gather"][name] > 0
        else:
            missing = f"{name}: {package} is not installed: {install_extra('bench')}"
            assert missing in records["notes"]
    assert any(note.startswith("lerobot: left out") for note in records["notes"])


def test_figures_are_saved_and_the_stores_removed(records: dict[str, Any], out: Path) -> None:
    assert [path.name for path in out.iterdir()] == ["bench_store.json"]
    saved = json.loads((out / "bench_store.json").read_text())
    assert saved["query_ms"] == records["query_ms"]
    assert saved["config"]["rounds"] == 1
