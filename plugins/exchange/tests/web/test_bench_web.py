"""The benchmark of a training from a server, at a tiny size."""

import json
from pathlib import Path

import pytest

from benchmarks.web import BENCH
from gaitforge.flows.progress import Silent

pytest.importorskip("obstore")
pytestmark = pytest.mark.slow


def test_a_training_from_a_server_reads_only_its_fields(tmp_path: Path) -> None:
    record = BENCH.run(tmp_path, BENCH.quick, Silent())
    assert record == json.loads((tmp_path / BENCH.file).read_text())
    assert record["bytes_ratio"] == pytest.approx(1.0, abs=0.02)
    assert record["steps"] > 0
    assert min(record["first_update_s"], record["first_update_again_s"]) > 0
    assert list(tmp_path.iterdir()) == [tmp_path / BENCH.file]
