"""The benchmark of the simulators: its clock, and one small run of all of it."""

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.collection import (
    OBSERVATION,
    POLICY,
    RECORDING,
    ROLLOUT,
    STAGES,
    StageClock,
)
from benchmarks.sim_peers import BARE, COLLECTED, INSTALL, PYTHON, PeerSizes, measure_peers

pytestmark = pytest.mark.slow


def test_a_stage_within_another_does_not_count_twice() -> None:
    clock = StageClock()
    started = time.perf_counter()
    with clock.stage(RECORDING):
        time.sleep(0.02)
        with clock.stage(POLICY):
            time.sleep(0.03)
            with clock.stage(OBSERVATION):
                time.sleep(0.01)
        time.sleep(0.01)
    whole = time.perf_counter() - started
    time.sleep(0.01)
    with clock.stage(POLICY):
        time.sleep(0.01)
    seconds = clock.seconds
    assert seconds[RECORDING] >= 0.03
    assert seconds[POLICY] >= 0.04
    assert seconds[OBSERVATION] >= 0.01
    assert seconds[ROLLOUT] == 0.0
    assert sum(seconds.values()) - 0.01 == pytest.approx(whole, abs=0.01)


def test_a_small_run_measures_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.sim.backend_names", lambda: ["mujoco"])
    monkeypatch.setenv(PYTHON, str(tmp_path / "python"))
    assert main(["sim", "--quick", "--out", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "bench_sim.json").read_text())
    (row,) = record["backends"]
    assert (row["simulator"], row["robots"], row["ipc_share"]) == ("mujoco", 4, None)
    assert row["steps_per_s"] == pytest.approx(4 * 1000 / row["step_ms"])
    (collected,) = record["collection"]
    assert collected["threads"] == 1
    assert 0 < collected["ratio"] < 1.2
    assert list(record["stages"]) == list(STAGES)
    assert all(share > 0 for share in record["stages"].values())
    assert sum(record["stages"].values()) == pytest.approx(1.0)
    (task,) = record["task"]
    assert task["robots"] == task["resets"] == 4
    assert min(task["step_us_1_thread"], task["step_us_2_threads"], task["reset_ms"]) > 0
    assert [each["simulator"] for each in record["peers"]] == [BARE.name, COLLECTED.name]
    assert all(each["steps_per_cpu_s"] > 0 for each in record["peers"])
    assert record["notes"][-1].endswith(INSTALL)
    bar, *of_task = record["bars"]
    assert len(of_task) == 2
    assert bar["met"] == (collected["ratio"] >= 0.90)


def test_an_environment_without_the_peers_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, sys.executable)
    sizes = PeerSizes(robots=2, seconds=0.02, rounds=1, episodes=2)
    with pytest.raises(ValueError, match="No module named 'mujoco_uni'"):
        measure_peers(sizes, tmp_path)
