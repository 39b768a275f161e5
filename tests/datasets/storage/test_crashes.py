"""Processes killed at any moment, and several at work at once: nothing committed is ever lost."""

import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets import Store, open_store
from tests.datasets.making import small_schema, small_store, write_small_part
from tests.datasets.programs import Program, run_killed

WRITES = """
from gaitforge.datasets import open_store
from tests.datasets.making import write_small_part

write_small_part(open_store(sys.argv[1]), "part-001", (130, 64), 3)
"""
TIDIES_UP = """
from gaitforge.datasets import open_store

store = open_store(sys.argv[1])
store.tag("v1") if sys.argv[2] == "tag" else getattr(store, sys.argv[2])()
"""
COMMIT = "gaitforge.datasets.storage.store"
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
    died = run_killed(f"{COMMIT}:{function}", call, WRITES, store.path)
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
    run_killed(f"{COMMIT}:replace_durably", 2, WRITES, store.path)
    assert store.gc() == [".staging/part-001.parquet", "parts/part-001"]
    run_killed(f"{COMMIT}:replace_durably", 1, WRITES, store.path)
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


@pytest.mark.parametrize(
    ("action", "place", "call"),
    [
        ("compact", f"{COMMIT}:write_arrays", 1),
        ("compact", f"{COMMIT}:replace_durably", 1),
        ("compact", f"{COMMIT}:replace_durably", 2),
        ("compact", "gaitforge.datasets.catalog.index:replace_durably", 1),
        ("gc", "gaitforge.datasets.storage.integrity:fsync_path", 3),
        ("gc", "shutil:rmtree", 2),
        ("tag", "os:link", 1),
        ("tag", "gaitforge.common.files:fsync_path", 1),
    ],
)
def test_a_kill_while_tidying(tmp_path: Path, action: str, place: str, call: int) -> None:
    store = small_store(tmp_path / "s", [(5, 1), (9, 4), (7,), (3, 3, 3)])
    version, obs = store.info().hash, store.select().read("obs")
    if action == "gc":
        store.compact()
    died = run_killed(place, call, TIDIES_UP, store.path, action)
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


def test_a_process_killed_at_random_moments_of_all_work_loses_nothing(tmp_path: Path) -> None:
    """It writes, tags, compacts and collects garbage; GAITFORGE_KILLS says how often it dies."""
    path, kills = tmp_path / "s", int(os.environ.get("GAITFORGE_KILLS", "4"))
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


TIDIES = """
import sys, time
from gaitforge.datasets import open_store

store = open_store(sys.argv[1])
while len(store.parts()) < 12:
    store.compact()
    store.gc()
    print(store.select().steps, flush=True)
"""


@pytest.mark.slow
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
