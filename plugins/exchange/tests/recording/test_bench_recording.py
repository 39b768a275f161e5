"""The benchmark of recordings: what it measures, on little."""

from pathlib import Path

from benchmarks.recording import BENCH
from gaitforge.flows.progress import Silent


def test_a_loop_is_timed_with_and_without_a_recording(tmp_path: Path) -> None:
    [row] = BENCH.run(tmp_path, BENCH.quick, Silent())["rows"]
    assert row["robots"] == 64
    assert row["recorded_steps_per_s"] > 0
    assert 0 < row["alone_steps_per_s"] <= BENCH.quick.steps_per_s
    assert row["close_s"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["bench_recording.json"]
