"""The benchmark of the simulators: its clock, and one small run of all of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gaitforge.pipeline.bench.collection import (
    OBSERVATION,
    POLICY,
    RECORDING,
    ROLLOUT,
    STAGES,
    StageClock,
)
from tests.pipeline.command_line import Run


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


def test_a_stage_that_fails_is_counted_and_closed() -> None:
    clock = StageClock()

    def fail() -> None:
        with clock.stage(RECORDING), clock.stage(POLICY):
            time.sleep(0.01)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert clock.seconds[POLICY] >= 0.01
    before = dict(clock.seconds)
    time.sleep(0.01)
    with clock.stage(ROLLOUT):
        pass
    assert clock.seconds[POLICY] == before[POLICY]


def test_a_small_run_measures_all_of_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = {"mujoco": ("gaitforge.collectors.physics.mujoco.backend", "MujocoBackend")}
    monkeypatch.setattr("gaitforge.pipeline.bench.sim.BACKENDS", backends)
    code, out, _ = run("bench", "sim", "--quick", "--out", tmp_path, "--json")
    assert code == 0
    record = json.loads(out)
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
    (bar,) = record["bars"]
    assert bar["met"] == (collected["ratio"] >= 0.90)
