"""Stages in several processes of this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from gaitforge.common.locks import exclusive_lock
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.stages.stage import RecordedStage, Stage, run_side_by_side
from tests.datasets.programs import ROOT

pytestmark = pytest.mark.slow

# name -> the stages that it waits for
GRAPH = {"a": (), "b": (), "c": ("a",), "d": ("a", "b"), "e": ("c", "d")}


def work(out: Path, name: str, beside: str, reporter: Reporter) -> None:
    """Write when and where a stage ran; it ends once the stage `beside` has begun."""
    began = time.time()
    (out / f"{name}.began").touch()
    with reporter.step(name, 1, "step") as advance:
        while beside and not (out / f"{beside}.began").exists():
            time.sleep(0.03)
            advance(0, "")
    record = {"began": began, "ended": time.time(), "pid": os.getpid()}
    (out / f"{name}.json").write_text(json.dumps(record))


def fail(reporter: Reporter) -> None:
    raise ValueError("there is no bread")


def die(reporter: Reporter) -> None:
    os._exit(3)


def stages(
    out: Path,
    device: str = "cpu",
    beside: Mapping[str, str] = {},
    **others: Callable[[Reporter], None],
) -> Sequence[Stage]:
    return [
        RecordedStage(
            name,
            "key",
            run=others.get(name, partial(work, out, name, beside.get(name, ""))),
            outputs=() if name in others else (out / f"{name}.json",),
            after=after,
            device=device,
        )
        for name, after in GRAPH.items()
    ]


def records(out: Path) -> dict[str, dict[str, float]]:
    return {name: json.loads((out / f"{name}.json").read_text()) for name in GRAPH}


def overlaps(one: dict[str, float], other: dict[str, float]) -> bool:
    return one["began"] < other["ended"] and other["began"] < one["ended"]


def test_stages_run_side_by_side_each_after_those_that_it_waits_for(tmp_path: Path) -> None:
    meeting = stages(tmp_path, beside={"a": "b", "b": "a"})
    run_side_by_side(tmp_path, meeting, Silent(), Silent(), processes=2)
    ran = records(tmp_path)
    for name, after in GRAPH.items():
        assert all(ran[other]["ended"] <= ran[name]["began"] for other in after)
    assert ran["a"]["pid"] != ran["b"]["pid"]
    assert os.getpid() not in {each["pid"] for each in ran.values()}
    run_side_by_side(tmp_path, stages(tmp_path), Silent(), Silent(), processes=2)
    assert records(tmp_path) == ran, "what is done is skipped"


@pytest.mark.parametrize(("processes", "device"), [(1, "cpu"), (2, "cuda")])
def test_one_at_a_time_where_there_is_one_core_or_one_gpu(
    processes: int, device: str, tmp_path: Path
) -> None:
    run_side_by_side(tmp_path, stages(tmp_path, device), Silent(), Silent(), processes)
    ran = list(records(tmp_path).values())
    assert not any(
        overlaps(*pair) for k, each in enumerate(ran) for pair in [(each, o) for o in ran[:k]]
    )
    if processes == 1:  # in this one, where no overlap is possible: in the order of their waiting
        assert {each["pid"] for each in ran} == {os.getpid()}
        assert [*sorted(GRAPH, key=lambda name: records(tmp_path)[name]["began"])] == [*GRAPH]


def test_a_share_of_the_gpu_lets_as_many_stages_run_at_a_time(tmp_path: Path) -> None:
    meeting = stages(tmp_path, "cuda", beside={"a": "b", "b": "a"})
    run_side_by_side(tmp_path, meeting, Silent(), Silent(), processes=2, gpu_share=2)
    assert records(tmp_path)["a"]["pid"] != records(tmp_path)["b"]["pid"]


@pytest.mark.parametrize(
    ("broken", "message"), [(fail, "b: there is no bread"), (die, "a process ended before")]
)
def test_a_stage_that_fails_ends_the_others_and_is_named(
    broken: Callable[[Reporter], None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        run_side_by_side(tmp_path, stages(tmp_path, b=broken), Silent(), Silent(), processes=2)
    assert not stages(tmp_path)[-1].is_done(tmp_path)
    run_side_by_side(tmp_path, stages(tmp_path), Silent(), Silent(), processes=2)
    assert all(stage.is_done(tmp_path) for stage in stages(tmp_path))


def test_the_error_of_an_earlier_run_is_not_told_where_a_process_was_killed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="b: there is no bread"):
        run_side_by_side(tmp_path, stages(tmp_path, b=fail), Silent(), Silent(), processes=2)
    with pytest.raises(ValueError, match="a process ended before"):
        run_side_by_side(tmp_path, stages(tmp_path, b=die), Silent(), Silent(), processes=2)


PROGRAM = """
import sys, time
from pathlib import Path
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.stage import run_side_by_side
from gaitforge.common.interrupts import Stopped
from tests.flows.runners.test_side_by_side import stages

out = Path(sys.argv[1])
if __name__ == "__main__":
    try:
        endless = stages(out, beside={"a": "e"})
        run_side_by_side(out, endless, Silent(), Silent(), processes=2)
    except Stopped as stop:
        sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    out = tmp_path / "out"
    out.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    running = subprocess.Popen([sys.executable, program, out], cwd=ROOT, env=environment)
    while not (out / "a.began").exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(number)
    assert running.wait(30) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    lock, until, ended = out / "stages" / "a.lock", time.monotonic() + 30, False
    while not ended:  # the process that does the stage holds its lock
        assert time.monotonic() < until
        with exclusive_lock(lock, wait=False) as ended:
            time.sleep(0.1)
