"""Locks and exclusive creation on file systems that lack flock or hard links, or lose files."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gaitforge.common import locks
from gaitforge.common.files import create_durably, remove_leftover, temporary_name
from gaitforge.common.locks import (
    SILENT_S,
    ProcessIdentity,
    exclusive_lock,
    file_system_time,
    is_shared,
)

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

# A process whose file system is as its first argument says: an errno of flock, "hang" or "works".
HOST = """
import fcntl, os, sys, threading, time
from pathlib import Path
from gaitforge.common import files
from gaitforge.common import locks

how, place = sys.argv[1], Path(sys.argv[2])
locks.ANSWER_S = 0.2

def flock(descriptor, operation):
    if how == "hang":
        threading.Event().wait()
    raise OSError(int(how), os.strerror(int(how)))

if how != "works":
    fcntl.flock = flock
"""

COUNT = """
for _ in range(20):
    with locks.exclusive_lock(place / "x.lock"):
        number = int((place / "number").read_text())
        time.sleep(0.001)
        (place / "number").write_text(str(number + 1))
"""

HOLD = """
with locks.exclusive_lock(place / "x.lock"):
    print("held", flush=True)
    time.sleep(60)
"""

CREATE = """
def link(source, target):
    if os.path.lexists(target):
        raise FileExistsError(17, "File exists")
    raise OSError(1, "Operation not permitted")

os.link = link
print(files.create_durably(place / "v1.json", str(os.getpid()).encode() * 1000))
"""


def host(how: object, place: Path, work: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOST + work, str(how), str(place)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_without_locks", set())


def without_flock(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOLCK) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kinds", [*((code,) * 3 for code in NO_LOCKS), ("hang", "works", 37)])
def test_processes_exclude_each_other_with_and_without_flock(
    kinds: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "number").write_text("0")
    hosts = [host(how, tmp_path, COUNT) for how in kinds]
    said = [process.communicate(timeout=60)[1] for process in hosts]
    assert [process.returncode for process in hosts] == [0, 0, 0], said
    assert (tmp_path / "number").read_text() == "60"
    assert os.listdir(tmp_path) == ["number"], "no lock file stays"
    for how, text in zip(kinds, said, strict=True):
        assert text.count("are its locks") == (how != "works"), "said once"


@pytest.mark.parametrize("kinds", [(37, "works", 37), ("works", 37, "works")])
def test_a_process_that_has_created_the_file_but_not_written_it_keeps_its_claim(
    kinds: tuple[object, ...], tmp_path: Path
) -> None:
    """Each is interrupted before every record that it writes."""
    slowly = """
import random
written = locks._write

def write(descriptor, content):
    time.sleep(random.uniform(0, 0.02))
    written(descriptor, content)

locks._write = write
"""
    (tmp_path / "number").write_text("0")
    counts = COUNT.replace("sleep(0.001)", "sleep(0.02)")
    hosts = [host(how, tmp_path, slowly + counts) for how in kinds]
    said = [process.communicate(timeout=60)[1] for process in hosts]
    assert [process.returncode for process in hosts] == [0, 0, 0], said
    assert (tmp_path / "number").read_text() == "60"
    assert os.listdir(tmp_path) == ["number"]


def test_a_group_can_take_the_locks_of_its_members(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with exclusive_lock(tmp_path / "work.lock"):
            assert (tmp_path / "work.lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


@pytest.mark.slow
def test_one_of_many_that_come_at_once_gets_a_lock(tmp_path: Path) -> None:
    """None may give way to another that gives way as well."""
    start, counts = threading.Barrier(4), [0, 0, 0, 0]

    def work(number: int) -> None:
        for turn in range(40):
            start.wait()
            with exclusive_lock(tmp_path / f"{turn}.lock", wait=False) as held:
                counts[number] += held
                start.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 40


@pytest.mark.parametrize("how", [errno.ENOLCK, "works"])
def test_a_lock_ends_with_its_process(how: object, tmp_path: Path) -> None:
    holder = host(how, tmp_path, HOLD)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    for other in ("works", errno.ENOLCK):
        waiter = host(other, tmp_path, "with locks.exclusive_lock(place / 'x.lock', wait=False) as"
                      " held: print(held)")  # fmt: skip
        assert waiter.communicate()[0] == "False\n", f"{other} respects {how}"
    holder.kill()
    holder.communicate()
    after = host(errno.ENOLCK, tmp_path, COUNT)
    (tmp_path / "number").write_text("0")
    text = after.communicate(timeout=30)[1]
    assert after.returncode == 0, text
    assert f"process {holder.pid} on" in text, "who held it is said"
    assert os.listdir(tmp_path) == ["number"]


@pytest.mark.parametrize("ahead_s", [-86400.0, 0.0, 86400.0])
def test_a_holder_elsewhere_is_dead_by_the_file_systems_clock_alone(
    ahead_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_flock(monkeypatch)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + ahead_s)
    lock = tmp_path / "x.lock"
    lock.write_text(json.dumps({"by": "file", "host": "n7", "pid": 5, "space": "", "born": 1}))
    with exclusive_lock(lock, wait=False) as held:
        assert not held
    silent = file_system_time(tmp_path) - SILENT_S - 1
    os.utime(lock, (silent, silent))
    with exclusive_lock(lock, wait=False) as held:
        assert held
        with exclusive_lock(lock, wait=False) as again:
            assert not again
    assert "process 5 on n7 has ended or is silent" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_wait_says_for_what_and_a_holder_shows_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "SAY_S", 0.1)
    monkeypatch.setattr(locks, "SIGN_S", 0.05)
    lock = tmp_path / "x.lock"
    holding, seen = threading.Event(), set[int]()

    def hold() -> None:
        with exclusive_lock(lock):
            holding.set()
            for _ in range(10):
                seen.add(lock.stat().st_mtime_ns)
                time.sleep(0.05)

    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait()
    with exclusive_lock(lock):
        pass
    holder.join()
    line = f"waits for the lock {lock}, which {ProcessIdentity.of_this()} holds"
    assert capsys.readouterr().err.count(line) == 1
    assert len(seen) > 2


def test_a_stale_handle_is_a_removed_file_and_no_descriptor_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, real, before = tmp_path / "x.lock", os.stat, descriptors()
    failing: list[int] = []

    def stat(path: Any, **options: Any) -> os.stat_result:
        if path == lock and failing:
            raise OSError(failing.pop(), "of a lock file", os.fspath(path))
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    started = time.monotonic()
    for errors in ([errno.ESTALE], [errno.ESTALE] * 3, [errno.ESTALE, errno.ENOENT, errno.ESTALE]):
        failing.extend(errors)
        with exclusive_lock(lock) as held:
            assert held
        failing.extend(errors)
        with exclusive_lock(lock, wait=False) as held:
            assert held
            with exclusive_lock(lock, wait=False) as again:
                assert not again
    failing.append(errno.EIO)
    with pytest.raises(OSError, match="of a lock file"), exclusive_lock(lock):
        pass
    with exclusive_lock(lock):
        failing.append(errno.ESTALE)  # of the release
    failing.clear()
    with exclusive_lock(lock, wait=False) as held:
        assert held, "the failed attempts hold nothing"
    assert time.monotonic() - started < SILENT_S / 2, "none waits for itself"
    # A thread that asked for a lock closes its copy as it ends.
    deadline = time.monotonic() + 5
    while descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert descriptors() == before


@pytest.mark.parametrize("code", NO_LINKS)
def test_files_are_created_exclusively_without_hard_links(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: object, target: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    without_flock(monkeypatch)
    assert create_durably(tmp_path / "a", b"first")
    assert not create_durably(tmp_path / "a", b"second")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert not create_durably(tmp_path / "link", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == ["a", "link"]


@pytest.mark.parametrize("how", ["works", errno.ENOLCK])
def test_one_of_many_creators_without_links_succeeds(how: object, tmp_path: Path) -> None:
    hosts = [host(how, tmp_path, CREATE) for _ in range(6)]
    answers = [process.communicate(timeout=60)[0].strip() for process in hosts]
    assert sorted(answers) == ["False"] * 5 + ["True"]
    winner = hosts[answers.index("True")]
    assert (tmp_path / "v1.json").read_text() == str(winner.pid) * 1000


@pytest.mark.parametrize("how", ["works", errno.ENOLCK])
@pytest.mark.parametrize("at", ["link", "rename", "unlink", "fsync"])
def test_a_creator_killed_anywhere_leaves_nothing_or_the_whole_file(
    at: str, how: object, tmp_path: Path
) -> None:
    if at == "link":
        killed = CREATE.replace("    if os.path", "    os.kill(os.getpid(), 9)\n    if os.path")
    else:
        killed = CREATE.replace("os.link = link", f"os.link = link\nos.{at} = lambda *names: "
                                "os.kill(os.getpid(), 9)")  # fmt: skip
    dead = host(how, tmp_path, killed)
    dead.communicate()
    assert dead.returncode == -9
    whole = str(dead.pid) * 1000
    target = tmp_path / "v1.json"
    assert not target.exists() or target.read_text() == whole
    after = host(how, tmp_path, CREATE)
    answer, text = after.communicate(timeout=30)
    assert after.returncode == 0, text
    assert (answer.strip(), target.read_text()) in (
        ("True", str(after.pid) * 1000),
        ("False", whole),
    )


def test_leftovers_go_by_age_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_flock(monkeypatch)
    left = temporary_name(tmp_path / "a")
    left.write_bytes(b"")
    assert not remove_leftover(left)
    old = file_system_time(tmp_path) - 2 * 86400
    os.utime(left, (old, old))
    assert remove_leftover(left)
    assert not left.exists()


SHARE = """
with locks.shared_lock(place / "x.lock"):
    print("held", flush=True)
    sys.stdin.readline()
"""

CLAIM = """
with locks.exclusive_lock(place / "x.lock", wait=False) as held:
    print(held and not locks.is_shared(place / "x.lock"))
"""


@pytest.mark.parametrize("kinds", [("works", "works"), (37, 37), ("hang", "works"), ("works", 37)])
def test_shared_holders_keep_the_lock_from_others_until_the_last_one_ends(
    kinds: tuple[object, object], tmp_path: Path
) -> None:
    """Also where one of them is killed, and where hosts differ in whether they have flock."""

    def is_free() -> bool:
        answers = [host(how, tmp_path, CLAIM).communicate(timeout=30) for how in ("works", 37)]
        assert answers[0][0] == answers[1][0], answers
        return answers[0][0] == "True\n"

    holders = [host(how, tmp_path, SHARE) for how in kinds]
    for holder in holders:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n", "beside the other one"
    assert not is_free()
    killed, ended = holders
    killed.kill()
    killed.communicate()
    assert not is_free(), "the other one still holds it"
    _, text = ended.communicate("\n", timeout=30)
    assert ended.returncode == 0, text
    assert is_free()
    assert os.listdir(tmp_path) == [], "what the killed holder left is removed, too"


def test_an_exclusive_holder_keeps_those_who_share_waiting(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "x.lock"):
        assert not is_shared(tmp_path / "x.lock")
        sharing = host("works", tmp_path, SHARE)
        with pytest.raises(subprocess.TimeoutExpired):
            sharing.communicate("\n", timeout=2)
    text, _ = sharing.communicate(timeout=30)
    assert text == "held\n"
    assert os.listdir(tmp_path) == []
