"""Heartbeats, failures and logs: what they say, what they cost, and what they never do."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.common.interrupts import Interrupted
from gaitforge.common.kernels import compiled, numba
from gaitforge.common.locks import ProcessIdentity, file_system_time
from gaitforge.common.redaction import redacted
from gaitforge.flows.progress import COMPILING
from gaitforge.flows.records import logs
from gaitforge.flows.records.logs import log_event
from gaitforge.flows.records.part_records import (
    HEARTBEAT_S,
    MAX_FAILURES,
    STALE_S,
    FollowedParts,
    Heartbeat,
    PartActivity,
    forget_stale,
    last_line,
    read_active,
    read_failures,
)
from gaitforge.flows.stages.collect import Retry, is_passing
from tests.flows.processes import read_log


def beat(pid: int = 0, space: str = "", age_s: float = 0.0) -> Heartbeat:
    process = ProcessIdentity.of_this()
    if pid:
        process = replace(process, pid=pid, born=0)
    if space:
        process = replace(process, host="elsewhere", space=space)
    return Heartbeat("p", process, 10.0, 500, 1000, age_s=age_s)


def test_a_part_in_work_has_a_heartbeat_that_goes_with_its_end(tmp_path: Path) -> None:
    with PartActivity(tmp_path, "part-1", 1000) as activity:
        [first] = read_active(tmp_path)
        assert (first.part, first.pid, first.steps, first.total) == ("part-1", os.getpid(), 0, 1000)
        assert not first.is_stale
        activity.advance(300)
        activity.writing()
        [second] = read_active(tmp_path)
        assert (second.steps, second.phase) == (300, "write")
    assert read_active(tmp_path) == []
    assert [line["event"] for line in read_log(tmp_path)] == ["part started", "part committed"]
    assert read_failures(tmp_path) == []


def test_a_part_whose_machine_code_is_compiled_says_so_until_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba().config, "CACHE_DIR", str(tmp_path / "machine-code"))
    told: list[tuple[int, str]] = []
    follow = FollowedParts(tmp_path, ["part-1"], lambda steps, note: told.append((steps, note)))

    @compiled
    def twice(number: int) -> int:
        return 2 * number

    with PartActivity(tmp_path, "part-1", 1000) as activity:
        follow([])
        assert twice(4) == 8
        follow([])
        activity.advance(300)
        activity.writing()
        follow([])
    assert told == [(0, ""), (0, COMPILING), (300, "")]


def test_a_failure_is_kept_with_its_last_line_and_an_interrupt_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="first"), PartActivity(tmp_path, "a", 10):
        raise ValueError("first line\nlast line")
    for error in (Interrupted, KeyboardInterrupt):
        with pytest.raises(error), PartActivity(tmp_path, "a", 10):
            raise error
    [failure] = read_failures(tmp_path)
    assert (failure.part, failure.error) == ("a", "ValueError: last line")
    assert read_active(tmp_path) == []
    levels = [line["level"] for line in read_log(tmp_path) if line["event"] != "part started"]
    assert levels == ["error", "warning", "warning"]


def test_failures_of_a_part_are_bounded_and_the_last_one_stays(tmp_path: Path) -> None:
    for number in range(MAX_FAILURES + 3):
        with pytest.raises(RuntimeError), PartActivity(tmp_path, "a", 10):
            raise RuntimeError(f"number {number}")
    failures = read_failures(tmp_path)
    assert len(failures) == MAX_FAILURES
    assert failures[-1].error == f"RuntimeError: number {MAX_FAILURES + 2}"


def test_heartbeats_come_seldom_whatever_the_work(tmp_path: Path) -> None:
    seen = set()
    with PartActivity(tmp_path, "a", 10**6) as activity:
        started = time.monotonic()
        calls = 0
        while time.monotonic() - started < 0.3:
            activity.advance(1)
            calls += 1
            if calls % 50 == 0:
                seen.add((tmp_path / "active" / "a.json").stat().st_mtime_ns)
    assert HEARTBEAT_S <= 2.0
    assert len(seen) == 1, "one heartbeat, at the start"
    assert calls > 1000, "a step's report costs microseconds"


def test_a_heartbeat_is_stale_when_its_process_is_gone_or_silent() -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert not beat().is_stale
    assert beat(pid=int(gone.stdout)).is_stale
    assert not beat(pid=int(gone.stdout), space="other").is_stale, "cannot be known"
    assert beat(space="other", age_s=STALE_S + 1).is_stale
    assert beat().rate == pytest.approx(50)
    mine = beat()
    later = replace(mine, process=replace(mine.process, born=mine.process.born + 1))
    assert later.is_stale, "its number is used by another process now"


@pytest.mark.parametrize("jump_s", [-86400.0, -3600.0, 86400.0])
def test_ages_and_rates_are_the_same_whatever_this_hosts_clock_says(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with PartActivity(tmp_path, "a", 1000) as activity:
        monkeypatch.setattr(time, "time", lambda: now + jump_s)
        time.sleep(0.2)
        activity.advance(100)
        activity.writing()
        [mine] = read_active(tmp_path)
        assert not mine.is_stale
        assert mine.age_s < 30
        assert 0.2 <= mine.seconds < 30
        assert mine.rate == pytest.approx(100 / mine.seconds)
        forget_stale(tmp_path)
        assert len(read_active(tmp_path)) == 1, "a living one stays"
        path = tmp_path / "active" / "a.json"
        tree = json.loads(path.read_text())
        tree["process"] |= {"host": "elsewhere", "space": "other"}
        path.write_text(json.dumps(tree))
        silent = file_system_time(tmp_path) - STALE_S - 1
        os.utime(path, (silent, silent))
        [dead] = read_active(tmp_path)
        assert dead.is_stale, "a dead one is, also if its host's clock was ahead"
        forget_stale(tmp_path)
        assert read_active(tmp_path) == []


def test_heartbeats_of_other_versions_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "active").mkdir()
    old = {"part": "p", "host": "h", "pid": 1, "started": 0.0, "updated": 1.0, "steps": 1}
    (tmp_path / "active" / "p.json").write_text(json.dumps(old))
    assert read_active(tmp_path) == []


def test_readers_never_see_a_torn_heartbeat(tmp_path: Path) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with PartActivity(tmp_path, "a", 10) as activity:
                for _ in range(20):
                    activity.writing()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(300):
            for path in (tmp_path / "active").glob("*.json"):
                try:
                    text = path.read_text()
                except FileNotFoundError:
                    continue
                assert json.loads(text)["part"] == "a"
    finally:
        stop.set()
        worker.join()


def test_a_disk_that_refuses_does_not_stop_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with PartActivity(tmp_path / "file", "a", 10) as activity:
        activity.advance(10)
        activity.writing()
    assert activity.steps == 10
    assert (tmp_path / "file").read_text() == "in the way"


def test_logs_are_lines_of_json_with_time_level_and_ids(tmp_path: Path) -> None:
    log_event(tmp_path, "warning", "something", part="p-1", error="two\nlines", wait_s=1.5)
    [path] = (tmp_path / "log").iterdir()
    assert str(os.getpid()) in path.name
    line = json.loads(path.read_text())
    assert set(line) == {"time", "level", "event", "host", "pid", "part", "error", "wait_s"}
    assert (line["level"], line["part"], line["error"]) == ("warning", "p-1", "two lines")
    assert line["time"].endswith("+00:00")


def test_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 2_000)
    monkeypatch.setattr(logs, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / "log").mkdir(exist_ok=True)
        (tmp_path / "log" / f"other-{number}.jsonl").write_text("")
    for number in range(100):
        log_event(tmp_path, "info", "again", number=number)
    files = list((tmp_path / "log").iterdir())
    assert len(files) <= 4
    assert sum(path.stat().st_size for path in files) < 3 * 2_000
    kept = [line["number"] for line in read_log(tmp_path)]
    assert kept == list(range(kept[0], 100)), "in order, across the piece that was moved aside"


def test_no_secret_reaches_a_log_or_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DB_PASSWORD"):
        monkeypatch.setenv(name, f"hunter2-{name}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    text = " ".join(os.environ[n] for n in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DB_PASSWORD"))
    with pytest.raises(OSError, match="hunter2"), PartActivity(tmp_path, "a", 10):
        raise OSError(f"refused {text} for https://user:pass-word@host/path in us-east-1")
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "hunter2" not in written
    assert "pass-word" not in written
    assert "us-east-1" in written
    assert last_line(OSError("https://a:b@c/d")) == "OSError: https://a:***@c/d"


@given(st.text(max_size=200))
def test_what_holds_no_secret_is_not_changed(text: str) -> None:
    if "://" not in text and not any(v in text for v in os.environ.values() if len(v) >= 6):
        assert redacted(text) == text


def test_only_passing_faults_are_tried_again_and_not_for_ever() -> None:
    wrapped = ValueError("not committed")
    wrapped.__cause__ = OSError(28, "No space left on device")
    retry = Retry(attempts=3)
    for passing in (OSError("slow disk"), wrapped):
        assert [retry.wait_s(n, passing) is None for n in range(4)] == [False, False, True, True]
    for lasting in (ValueError("wrong"), PermissionError("never")):
        assert retry.wait_s(0, lasting) is None
    assert is_passing(ConnectionResetError())
    assert is_passing(TimeoutError())
    with pytest.raises(ValueError, match="attempts must be at least 1, got 0"):
        Retry(attempts=0)


def test_waits_grow_and_are_spread() -> None:
    error, retry = OSError("always"), Retry(3, 0.001)
    first, second = ([retry.wait_s(n, error) or 0.0 for _ in range(20)] for n in (0, 1))
    assert all(0.0005 <= wait <= 0.0015 for wait in first)
    assert all(0.002 <= wait <= 0.006 for wait in second)
    assert len(set(first)) > 10
