"""The benchmark of the flows: one small run of all of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.flows import BENCH
from gaitforge.flows.progress import Silent


def test_a_store_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no store at"):
        BENCH.run(tmp_path, replace(BENCH.quick, recorded=tmp_path / "absent"), Silent())


@pytest.mark.long
def test_a_small_run_measures_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
    assert main(["flows", "--quick", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "bench_flows.json").read_text())
    assert found["parts"] == 2
    assert set(found["wall_s"]) == {"bare", "dask", "prefect_dask"}
    assert all(0 < gap < 1 for gap in found["between_parts_s"].values())
    assert set(found["overhead_between_parts"]) == {"dask", "prefect_dask"}
    [simulated] = found["simulated"]
    assert (simulated["workers"], simulated["parts"]) == (16, 64)
    assert 0 < simulated["efficiency"] <= 1
    assert [path.name for path in tmp_path.iterdir()] == ["bench_flows.json"]
