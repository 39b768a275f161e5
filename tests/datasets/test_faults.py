"""Crashes, damage and missing objects: found, named, and never read as data."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datasets import DatasetError, Store, open_store
from datasets.files import exclusive_lock
from tests.datasets.making import part_input, small_schema, small_store, write_small_part

ROOT = Path(__file__).resolve().parents[2]
DIES_AT = """
import os, signal, sys
import datasets.store as store_module
from tests.datasets.making import small_schema, write_small_part

name, count = sys.argv[2], int(sys.argv[3])
original = getattr(store_module, name)
calls = 0

def dying(*args, **kwargs):
    global calls
    calls += 1
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)

store = store_module.Store.create(sys.argv[1], small_schema())
setattr(store_module, name, dying)
write_small_part(store, "part-001", (130, 64), 3)
"""
WRITES_FOR_EVER = """
import sys
from datasets import Store
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
    died = subprocess.run(
        [sys.executable, "-c", DIES_AT, str(store.path), function, str(call)],
        cwd=ROOT,
        check=False,
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
    arguments = [sys.executable, "-c", DIES_AT, str(store.path), "replace_durably"]
    subprocess.run([*arguments, "2"], cwd=ROOT, check=False)
    assert store.gc() == [".staging/part-001.parquet", "parts/part-001"]
    subprocess.run([*arguments, "1"], cwd=ROOT, check=False)
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
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITES_FOR_EVER, str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
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


def test_two_writers_of_one_part_agree(tmp_path: Path) -> None:
    path = tmp_path / "s"
    Store.create(path, small_schema())
    code = WRITES_FOR_EVER.replace("10_000", "6")
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    store = open_store(path)
    assert len(store.parts()) == 6
    assert store.verify() == []
    assert store.gc() == []


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("position", [0, 11, 200, -1, -5, -20])
def test_a_flipped_byte_of_a_shard_is_an_error(tmp_path: Path, position: int) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9), (130, 64)])
    _flip(store.path / "parts/part-001/obs/c/0/0", position)
    (fault,) = store.verify()
    assert "part-001" in fault
    assert "obs/c/0/0" in fault
    with pytest.raises(DatasetError, match=r"part-001.*obs"):
        store.select().read("obs")
    assert len(store.select(part="part-000").read("obs")) == 15


def test_a_flipped_byte_of_array_metadata_is_an_error(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    _flip(store.path / "parts/part-000/obs/zarr.json", 30)
    assert any("part-000" in fault and "obs/zarr.json" in fault for fault in store.verify())
    with pytest.raises(DatasetError, match=r"part-000.*zarr\.json"):
        store.select().read("obs")


@pytest.mark.parametrize("name", ["obs/c/0/0", "reward/c/0", "obs/zarr.json"])
def test_a_missing_object_is_an_error(tmp_path: Path, name: str) -> None:
    store = small_store(tmp_path / "s")
    (store.path / "parts/part-001" / name).unlink()
    assert store.verify() == [f"part part-001: object {name} is missing"]
    with pytest.raises(DatasetError, match=r"part-001.*missing"):
        store.select().read(name.split("/")[0])
    with pytest.raises(DatasetError, match=r"part-001.*missing"):
        list(store.select().windows(context_len=4, return_to_go=True))


def test_a_truncated_shard_is_an_error(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    path = store.path / "parts/part-001/obs/c/0/0"
    path.write_bytes(path.read_bytes()[:-50])
    assert "recorded" in store.verify()[0]
    with pytest.raises(DatasetError, match="recorded"):
        store.select().read("obs")


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "swapped"])
def test_a_damaged_catalog_file_is_named(tmp_path: Path, damage: str) -> None:
    store = small_store(tmp_path / "s")
    path = store.path / "catalog/part-001.parquet"
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "flipped":
        _flip(path, content.index(b"flat"))
    else:
        shutil.copy(store.path / "catalog/part-000.parquet", path)
    (fault,) = store.verify()
    assert "part-001" in fault
    assert "\n" not in fault
    with pytest.raises(DatasetError, match=r"part-001.*damaged"):
        open_store(store.path).select()


def test_every_flipped_byte_of_a_catalog_file_is_found(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9)])
    path = store.path / "catalog/part-000.parquet"
    content = path.read_bytes()
    version = store.info()["hash"]
    for position in range(0, len(content), 61):
        _flip(path, position)
        damaged = store.verify()
        path.write_bytes(content)
        if not damaged:  # a flip in statistics or padding that changes no value
            assert open_store(store.path).info()["hash"] == version
    assert store.verify() == []


def test_repeated_episode_ids_and_stray_files_are_faults(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1)])
    write_small_part(store, "part-001", (4,), 1)
    (store.path / "parts/part-001/obs/c/0/0.partial").write_bytes(b"x")
    faults = store.verify()
    assert faults[0] == "part part-001: file obs/c/0/0.partial is not among the committed objects"
    assert faults[1] == "episode ids in more than one row: 1"


def test_a_part_of_another_schema_is_named(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1)])
    other = Store.create(tmp_path / "other", small_schema(control_dt_s=0.01))
    other.write_part("part-001", **part_input((4,), 9))
    shutil.copy(other.path / "catalog/part-001.parquet", store.path / "catalog")
    shutil.copytree(other.path / "parts/part-001", store.path / "parts/part-001")
    assert store.verify() == ["part part-001: it was written under another schema"]
    with pytest.raises(DatasetError, match=r"part-001.*another schema"):
        store.select()


FULL_DISK = """
import resource, sys
from datasets import DatasetError, open_store
from tests.datasets.making import write_small_part

store = open_store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    write_small_part(store, "part-001", (130, 64), 3)
except DatasetError as error:
    print(error)
"""


def test_a_disk_that_takes_no_more_commits_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9)])
    before = sorted(store.path.rglob("*"))
    answer = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(store.path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout == f"part part-001 was not committed to {store.path}: File too large\n"
    assert sorted(store.path.rglob("*")) == before
    assert store.verify() == []
