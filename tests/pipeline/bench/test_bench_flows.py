"""The benchmark of the flows: its model, and one small run of all of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.flows.progress import Silent
from gaitforge.pipeline.bench.flows import BENCH, modelled_efficiency
from tests.pipeline.command_line import call


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=20),
    st.integers(1, 20),
    st.integers(1, 100),
)
def test_nothing_is_faster_than_the_ideal(durations: list[float], workers: int, parts: int) -> None:
    efficiency = modelled_efficiency(durations, workers, parts, 0.0)
    assert 0 < efficiency <= 1 + 1e-9
    assert modelled_efficiency(durations, workers, parts, 0.01) <= efficiency + 1e-9


def test_the_models_closed_forms() -> None:
    assert modelled_efficiency([2.0], 4, 40, 0.0) == pytest.approx(1.0), "equal parts, whole rounds"
    assert modelled_efficiency([2.0], 4, 5, 0.0) == pytest.approx(5 / 8), "one part too many"
    assert modelled_efficiency([1.0], 1, 10, 0.25) == pytest.approx(0.8), "waiting for each part"
    busy = modelled_efficiency([1.0], 100, 1000, 0.1)
    assert busy == pytest.approx(0.1, rel=0.1), "a scheduler of 10 parts/s feeds 10 workers"


def test_a_store_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no store at"):
        BENCH.run(tmp_path, replace(BENCH.quick, recorded=tmp_path / "absent"), Silent())


@pytest.mark.long
def test_a_small_run_measures_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
    assert call("bench", "flows", "--quick", "--out", tmp_path) == 0
    found = json.loads((tmp_path / "bench_flows.json").read_text())
    assert found["parts"] == 2
    assert set(found["wall_s"]) == {"bare", "dask", "prefect_dask"}
    assert all(0 < gap < 1 for gap in found["between_parts_s"].values())
    assert (
        set(found["overhead"]) == set(found["overhead_between_parts"]) == {"dask", "prefect_dask"}
    )
    [simulated] = found["simulated"]
    assert (simulated["workers"], simulated["parts"]) == (16, 64)
    assert 0 < simulated["efficiency"] <= 1
    assert 0 < found["scheduler_s_per_task"] < 0.5
    assert "tail" in found["limits"]
    assert [path.name for path in tmp_path.iterdir()] == ["bench_flows.json"]
