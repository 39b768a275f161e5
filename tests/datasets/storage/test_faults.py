"""Damage, missing objects, and disks that refuse: found, named, and never read as data."""

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gaitforge.common.files import is_hidden, temporary_file
from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.catalog.index import Segment, segment_paths
from gaitforge.datasets.storage.integrity import store_files
from tests.datasets.making import part_input, small_schema, small_store, write_small_part
from tests.datasets.programs import run_afresh, run_on_full_disk


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("cut", [False, True], ids=["missing", "truncated"])
@pytest.mark.parametrize("name", ["obs/c/0/0", "reward/c/0", "obs/zarr.json"])
def test_an_object_that_is_missing_or_cut_is_an_error(tmp_path: Path, name: str, cut: bool) -> None:
    store = small_store(tmp_path / "s")
    path = store.path / "parts/part-001" / name
    content = path.read_bytes()
    path.unlink()
    if cut:
        path.write_bytes(content[:-20])
    (fault,) = store.verify()
    said = "recorded|not the file that was written" if cut else "missing"
    assert fault.startswith(f"part part-001: object {name} ")
    assert re.search(said, fault)
    with pytest.raises(DatasetError, match=rf"part-001.*({said})"):
        store.select().read(name.split("/")[0])
    with pytest.raises(DatasetError, match=rf"part-001.*({said})"):
        list(store.select().windows(window_len=4, return_to_go=True))
    assert len(store.select(part="part-000").read("obs")) == 15


@pytest.mark.parametrize("damage", ["truncated", "empty", "renamed", "no text", "swapped"])
def test_a_damaged_catalog_file_is_named(tmp_path: Path, damage: str) -> None:
    store = small_store(tmp_path / "s")
    path = store.path / "catalog/part-001.parquet"
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "renamed":
        path.write_bytes(content.replace(b"friction", b"griction"))
    elif damage == "no text":
        # In the schema that Parquet itself reads: names of columns need not be UTF-8 there.
        path.write_bytes(content.replace(b"terrain", b"\xff\xferrain"))
    else:
        shutil.copy(store.path / "catalog/part-000.parquet", path)
    (fault,) = store.verify()
    assert "part-001" in fault
    assert "\n" not in fault
    with pytest.raises(DatasetError, match=r"part-001.*damaged"):
        open_store(store.path).select()


FLIPS_A_FILE = int(os.environ.get("GAITFORGE_FLIPS", "3"))


@pytest.mark.slow
def test_every_flipped_byte_of_every_file_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9), (30, 4)])
    store.tag("v1")
    store.files.update_index()
    whole = _answers(store.path)
    for path in sorted(each for each in store.path.rglob("*") if each.is_file()):
        content, times = path.read_bytes(), path.stat()
        for position in np.linspace(0, len(content) - 1, FLIPS_A_FILE).astype(int).tolist():
            path.write_bytes(content)  # a damaged file of the index is removed
            _flip(path, position)
            later = [1] if path.suffix in (".parquet", ".json") else []
            for modified in (times.st_mtime_ns, *(times.st_mtime_ns + each for each in later)):
                os.utime(path, ns=(times.st_atime_ns, modified))
                where = f"{path.relative_to(store.path)}, byte {position}"
                answers, faults = _one_line(_answers, store.path), _one_line(_faults, store.path)
                assert isinstance(answers, str) or answers == whole, where
                # White space of JSON, and statistics and padding of Parquet, hold nothing.
                assert faults or answers == whole, where
                assert not faults or _shown_name(path) in str(faults), (where, faults)
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert store.verify() == []
    assert _answers(store.path) == whole


def _answers(path: Path) -> tuple[Any, ...]:
    """What a query by a condition, a version's hash, a tag and a stream of windows give."""
    store = open_store(path)
    chosen = store.select().where("friction < 0.8")
    batches = [
        {name: value.numpy().tobytes() for name, value in batch.items()}
        for batch in store.select().windows(window_len=4, batch_size=8, seed=3)
    ]
    tagged = open_store(path, "v1").info().hash
    return chosen.episodes().to_pylist(), store.info().hash, tagged, store.plan, batches


def _faults(path: Path) -> list[str]:
    return open_store(path).verify()


def _one_line(ask: Callable[[Path], Any], path: Path) -> Any:
    """What `ask` gives, or the error's one line."""
    try:
        return ask(path)
    except DatasetError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
        return str(error)


def _shown_name(path: Path) -> str:
    """How a message names a file: catalog files and tags by their stems."""
    return path.stem if path.parent.name in ("catalog", "tags") else path.name


def test_repeated_episode_ids_and_stray_files_are_faults(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1)])
    write_small_part(store, "part-001", (4,), 1)
    (store.path / "parts/part-001/obs/c/0/0.partial").write_bytes(b"x")
    faults = store.verify()
    assert faults[0] == "part part-001: object obs/c/0/0.partial is not among the committed ones"
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


@pytest.mark.parametrize(
    ("action", "limit", "said"),
    [
        ("write_small_part(store, 'part-002', (130, 64), 5)", 2000, "part part-002 was not comm"),
        ("store.tag('v1')", 100, "tag v1 cannot be written"),
        ("store.compact()", 100, "parts part-000 to part-001 of"),
    ],
)
def test_a_full_disk_keeps_the_parts(tmp_path: Path, action: str, limit: int, said: str) -> None:
    store = small_store(tmp_path / "s")
    before, files = store.info(), sorted(store.path.rglob("*.parquet"))
    code = f"store = open_store(sys.argv[1]); limited(); {action}"
    answer = run_on_full_disk(limit, code, store.path)
    assert re.fullmatch(rf"{said}.*: File too large\n", answer.stdout)
    assert store.info() == before
    assert sorted(store.path.rglob("*.parquet")) == files
    assert store.tags() == []
    assert store.verify() == []


READ_ONLY = """
import os, sys
from pathlib import Path
from gaitforge.datasets import DatasetError, open_store
from tests.datasets.making import small_store, write_small_part

other = small_store(Path(sys.argv[2]))  # imports all that the following needs
other.select().where("length > 2")
other.tag("v1"), other.compact(), other.gc(), other.verify()
store = open_store(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
print(len(store.select().where("length > 2")), store.verify())
for act in (
    lambda: write_small_part(store, "part-100", (4,), 90),
    lambda: store.tag("v1"),
    store.compact,
    store.gc,
    lambda: small_store(Path(sys.argv[1])),  # as before a collection
    lambda: store.select().where("length > 2").trim(head=1),
    lambda: store.select().annotate({"note": "x"}),
):
    try:
        print(act())
    except DatasetError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_read_only_store_is_read_and_refuses_to_be_written() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s")
        store = small_store(path, [(5, 1)] * 17)
        for leftover in ("parts/part-100", ".staging/part-100"):
            shutil.copytree(path / "parts/part-000", path / leftover)
        Path(folder).chmod(0o755)
        folders = [path, *(each for each in path.rglob("*") if each.is_dir())]
        for each in folders:
            each.chmod(0o555)
        answer = run_afresh(READ_ONLY, path, Path(folder, "other"))
        for each in folders:
            each.chmod(0o755)
        assert store.parts() == [f"part-{number:03d}" for number in range(17)]
    assert answer.stderr == ""
    first, *refused = answer.stdout.splitlines()
    assert first == "17 []"
    assert len(refused) == 7
    assert all("is read-only here; give one in a place that can be written" in x for x in refused)


def test_clocks_do_not_matter(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1 + k) for k in range(17)])
    expected = store.select().episodes()
    for time_s in (0, 2**33):
        for path in (store.path / "catalog").iterdir():
            os.utime(path, (time_s, time_s))
        assert open_store(store.path).select().episodes().equals(expected)
        assert open_store(store.path).select().episodes().equals(expected)
    write_small_part(store, "part-100", (8,), 34)
    os.utime(store.path / "catalog" / "part-100.parquet", (1, 1))
    assert len(open_store(store.path).select()) == len(expected) + 1
    assert store.verify() == []


@pytest.mark.slow
def test_threads_that_build_the_index_at_once_build_a_whole_one(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s", [(5, 1)] * 17).path
    expected = open_store(path).select().episodes()
    for _ in range(5):
        [index] = segment_paths(open_store(path).files.index_folder)
        index.unlink()
        barrier = threading.Barrier(6)

        def read(barrier: threading.Barrier = barrier) -> pa.Table:
            barrier.wait()
            return open_store(path).select().episodes()

        with ThreadPoolExecutor(6) as threads:
            found = [each.result() for each in [threads.submit(read) for _ in range(6)]]
        assert all(each == expected for each in found)
        assert Segment(index, open_store(path).files.read_columns).files
        assert [each.name for each in index.parent.iterdir()] == [index.name]


def test_hidden_files_are_no_part_of_a_store_and_gc_takes_what_was_left(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s").path)
    store.tag("v1")
    store.select(skill="run").drop()
    store.set_about(licence="MIT")
    folders = [store.path, *(each for each in store.path.rglob("*") if each.is_dir())]
    left = set()
    for folder in folders:
        for name in (".DS_Store", "._x", "._v1.json", ".zarr.json.0123456789abcdef.tmp"):
            (folder / name).write_bytes(b"Mac OS X")
            left.add((folder / name).relative_to(store.path).as_posix())
        (folder / ".gitattributes").write_text("* text")
    assert open_store(store.path).verify() == []
    assert [tag.name for tag in store.tags()] == ["v1"]
    assert not any(is_hidden(name) for name in store_files(store))
    with temporary_file(store.path / "about.json") as living:
        assert set(store.gc()) == left
        assert living.exists()
    assert not living.exists()
    assert store.gc() == []
    assert (store.path / ".gitattributes").exists()
    merged = open_store(store.path)
    assert merged.compact()
    merged.gc()
    assert merged.verify() == []
