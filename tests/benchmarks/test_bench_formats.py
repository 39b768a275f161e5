"""The benchmark of imports: what it measures, on little."""

import json
from pathlib import Path

import pytest

from benchmarks.formats import BENCH
from gaitforge.flows.progress import Silent


@pytest.mark.slow
def test_every_source_is_imported_and_read(tmp_path: Path) -> None:
    rows = BENCH.run(tmp_path, BENCH.quick, Silent())["rows"]
    assert [row["source"] for row in rows] == ["D4RL, plain", "D4RL, gzip", "robomimic", "MoCapAct"]
    for row in rows:
        assert 0 < row["mb_per_s"] < row["read_mb_per_s"]
        assert row["of_reading"] == pytest.approx(row["mb_per_s"] / row["read_mb_per_s"])
        assert 3 < row["mb"] < 9
        assert 2 < row["file_mb"] < 9
        assert 50 < row["peak_mib"] < 1024
    assert json.loads((tmp_path / "bench_formats.json").read_text())["rows"] == rows
    assert [path.name for path in tmp_path.iterdir()] == ["bench_formats.json"]
