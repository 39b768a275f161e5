"""Processes killed at any moment, and several at work at once: nothing committed is ever lost."""

import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import Store, open_store
from gaitforge.datasets.files import exclusive_lock
from tests.datasets.making import small_schema, small_store, write_small_part
from tests.datasets.programs import Program, run_program

KILLED_AT_A_CALL = """
import importlib, os, signal, sys
from gaitforge.datasets import open_store
from tests.datasets.making import write_small_part

module, name, count = importlib.import_module(sys.argv[2]), sys.argv[3], int(sys.argv[4])
original = getattr(module, name)
calls = 0

def dying(*args, **kwargs):
    global calls
    calls += 1
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)

store = open_store(sys.argv[1])
setattr(module, name, dying)
"""
DIES_WRITING = f"""{KILLED_AT_A_CALL}
write_small_part(store, "part-001", (130, 64), 3)
"""
DIES_TIDYING = f"""{KILLED_AT_A_CALL}
action = sys.argv[5]
store.tag("v1") if action == "tag" else getattr(store, action)()
"""
WORKS_FOR_EVER = """
import sys
from gaitforge.datasets import DatasetError, Store
from tests.datasets.making import small_schema, write_small_part

store = Store.create(sys.argv[1], small_schema())
first = int(sys.argv[2])
for number in range(first, first + 10_000):
    write_small_part(store, f"part-{number:05d}", (4, 3, 5), 3 * number)
    print("part", number, flush=True)
    if number % 2:
        print("tag", store.tag(f"v{number}").hash, number, flush=True)
    if number % 3 == 2:
        store.compact()
    if number % 4 == 3:
        store.gc()
"""
WRITES_FOR_EVER = """
import sys
from gaitforge.datasets import Store
from tests.datasets.making import small_schema, write_small_part

store = Store.create(sys.argv[1], small_schema())
for number in range(10_000):
    write_small_part(store, f"part-{number:05d}", (40, 30, 50), 3 * number)
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("write_arrays", 1),
        ("fsync_tree", 1),
        ("object_hashes", 1),
        ("write_catalog_file", 1),
        ("replace_durably", 1),
        ("replace_durably", 2),
    ],
)
def test_a_killed_writer_leaves_nothing_visible(tmp_path: Path, function: str, call: int) -> None:
    reference = small_store(tmp_path / "reference", [(5, 1, 9), (130, 64)])
    store = small_store(tmp_path / "s", [(5, 1, 9)])
    before = store.info()
    died = run_program(
        DIES_WRITING, store.path, "gaitforge.datasets.storage.commit", function, call
    )
    assert died.returncode == -signal.SIGKILL
    assert store.info() == before
    assert store.verify() == []
    assert store.missing(["part-000", "part-001"]) == ["part-001"]
    write_small_part(store, "part-001", (130, 64), 3)
    assert store.info() == reference.info()
    assert store.verify() == []
    assert store.gc() == []


def test_gc_removes_leftovers_and_keeps_parts(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9)])
    arguments = (DIES_WRITING, store.path, "gaitforge.datasets.storage.commit", "replace_durably")
    run_program(*arguments, 2)
    assert store.gc() == [".staging/part-001.parquet", "parts/part-001"]
    run_program(*arguments, 1)
    assert store.gc() == [".staging/part-001", ".staging/part-001.parquet"]
    assert store.gc() == []
    assert list((store.path / ".staging").iterdir()) == []
    assert store.parts() == ["part-000"]
    assert store.verify() == []


def test_gc_leaves_a_part_that_is_being_written(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5,)])
    growing = store.path / "parts" / "part-001"
    shutil.copytree(store.path / "parts" / "part-000", growing)
    with exclusive_lock(store.path / ".staging" / "part-001.lock"):
        assert store.gc() == []
    assert growing.is_dir()
    assert store.gc() == ["parts/part-001"]


def test_kill_at_random_moments_loses_only_uncommitted_parts(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for delay_s in (0.0, 0.013, 0.029, 0.041):
        writer = Program(WRITES_FOR_EVER, path)
        reported = int(writer.stdout.readline())
        time.sleep(delay_s)
        os.kill(writer.pid, signal.SIGKILL)
        reported = max([reported, *map(int, writer.stdout.read().split())])
        writer.wait()
        store = open_store(path)
        assert store.verify() == []
        assert store.missing([f"part-{number:05d}" for number in range(reported + 1)]) == []
    again = Store.create(tmp_path / "again", small_schema())
    for number, part_id in enumerate(store.parts()):
        write_small_part(again, part_id, (40, 30, 50), 3 * number)
    assert again.info() == store.info()


@pytest.mark.parametrize(
    ("action", "module", "function", "call"),
    [
        ("compact", "gaitforge.datasets.storage.commit", "write_arrays", 1),
        ("compact", "gaitforge.datasets.storage.commit", "replace_durably", 1),
        ("compact", "gaitforge.datasets.storage.commit", "replace_durably", 2),
        ("compact", "gaitforge.datasets.catalog.index", "replace_durably", 1),
        ("gc", "gaitforge.datasets.storage.integrity", "fsync_path", 3),
        ("gc", "shutil", "rmtree", 2),
        ("tag", "os", "link", 1),
        ("tag", "gaitforge.datasets.files", "fsync_path", 1),
    ],
)
def test_a_process_killed_while_tidying_loses_nothing(
    tmp_path: Path, action: str, module: str, function: str, call: int
) -> None:
    store = small_store(tmp_path / "s", [(5, 1), (9, 4), (7,), (3, 3, 3)])
    version, obs = store.info().hash, store.select().read("obs")
    if action == "gc":
        store.compact()
    died = run_program(DIES_TIDYING, store.path, module, function, call, action)
    assert died.returncode == -signal.SIGKILL
    again = open_store(store.path)
    assert again.verify() == []
    again.compact()
    again.gc()
    assert again.tag("v1").hash == version
    assert again.gc() == []
    for opened in (again, open_store(store.path, tag="v1")):
        assert opened.verify() == []
        assert opened.info().hash == version
        assert np.array_equal(opened.select().read("obs"), obs)
    assert len(list((store.path / "catalog").iterdir())) == 1
    assert [path.name for path in (store.path / "tags").iterdir() if path.name[0] != "."] == [
        "v1.json"
    ]


def check_random_kills(path: Path, kills: int) -> None:
    """Kill a process that writes, tags, compacts and collects garbage, and check what is left."""
    rng = np.random.default_rng(kills)
    done: set[int] = set()
    tags: dict[int, str] = {}

    def tagged(names: Iterable[int]) -> dict[int, str]:
        return {name: open_store(path, tag=f"v{name}").info().hash for name in names}

    for _ in range(kills):
        worker = Program(WORKS_FOR_EVER, path, max(done, default=-1) + 1)
        lines = [worker.stdout.readline()]
        time.sleep(float(rng.uniform(0, 0.2)))
        os.kill(worker.pid, signal.SIGKILL)
        lines += worker.stdout.read().splitlines()
        worker.wait()
        new: dict[int, str] = {}
        for kind, *words in (line.split() for line in lines):
            if kind == "part":
                done.add(int(words[0]))
            else:
                new[int(words[1])] = words[0]
        store = open_store(path)
        assert store.verify() == []
        committed = {int(part.split("-")[1]) for part in store.parts()}
        assert done <= committed
        done = committed
        assert tagged(new) == new
        tags |= new
    assert tagged(tags) == tags
    again = Store.create(path.with_name("again"), small_schema())
    for number in sorted(done):
        write_small_part(again, f"part-{number:05d}", (4, 3, 5), 3 * number)
    assert again.info().hash == open_store(path).info().hash
    assert np.array_equal(again.select().read("obs"), open_store(path).select().read("obs"))


def test_kill_at_random_moments_of_all_work(tmp_path: Path) -> None:
    check_random_kills(tmp_path / "s", kills=3)


@pytest.mark.slow
def test_many_kills_at_random_moments_of_all_work(tmp_path: Path) -> None:
    check_random_kills(tmp_path / "s", kills=int(os.environ.get("GAITFORGE_KILLS", "20")))


TIDIES = """
import sys, time
from gaitforge.datasets import open_store

store = open_store(sys.argv[1])
while len(store.parts()) < 12:
    store.compact()
    store.gc()
    print(store.select().steps, flush=True)
"""


def test_two_writers_and_a_compaction_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "s"
    Store.create(path, small_schema())
    code = WRITES_FOR_EVER.replace("10_000", "12")
    workers = [Program(text, path) for text in (code, code, TIDIES)]
    for worker in workers:
        assert worker.finish().returncode == 0
    store = open_store(path)
    store.compact()
    store.gc()
    twin = Store.create(tmp_path / "twin", small_schema())
    for number in range(12):
        write_small_part(twin, f"part-{number:05d}", (40, 30, 50), 3 * number)
    assert store.verify() == []
    assert store.info().hash == twin.info().hash


def test_two_writers_of_one_part_agree(tmp_path: Path) -> None:
    path = tmp_path / "s"
    Store.create(path, small_schema())
    code = WRITES_FOR_EVER.replace("10_000", "6")
    writers = [Program(code, path) for _ in range(2)]
    for writer in writers:
        assert writer.finish().returncode == 0
    store = open_store(path)
    assert len(store.parts()) == 6
    assert store.verify() == []
    assert store.gc() == []
