"""The catalog's index: its answers are those of the catalog files, whatever happens to it."""

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.catalog import catalog_files, conditions
from gaitforge.datasets.catalog.catalog import Manifest
from gaitforge.datasets.catalog.catalog_files import INDEX_FROM, write_catalog_file
from gaitforge.datasets.catalog.episodes import episode_table, episodes_digest
from gaitforge.datasets.catalog.index import Segment, segment_paths
from gaitforge.datasets.layout import CACHE, PARTS
from tests.datasets.making import part_input, small_schema, write_small_part
from tests.datasets.programs import run_afresh, run_killed

FEW = 2
"""Missing files that make an index in these tests."""

CONDITIONS = [
    *("length > 3", "friction < 0.8 and level > 0", "terrain = 'flat' or mass_kg > 1", "true"),
    *(
        "note = 'x'",
        "mass_kg is null",
        "mass_kg / length > 0.1",
        "score > length",
        "success and skill <> 'run'",
    ),
]

BUILDS = """
from gaitforge.datasets import open_store
open_store(sys.argv[1]).files.update_index()
"""


@pytest.fixture(autouse=True, scope="module")
def few_files_make_an_index() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_files, "INDEX_FROM", FEW)
        yield


def write_rows(store: Store, number: int, lengths: Sequence[int], mass: Any = None) -> None:
    """Commit a part without arrays; a `mass` adds a column, of whole or other numbers."""
    name = f"part-{number:03d}"
    columns = part_input(lengths, 100 * number)["episodes"]
    columns |= {} if mass is None else {"mass_kg": [mass] * len(lengths)}
    table = episode_table(columns, name, store.schema.group_by)
    digest = episodes_digest(table)
    steps = int(sum(lengths))
    manifest = Manifest(name, store.schema.hash, steps, len(lengths), digest, {}, {})
    (store.path / PARTS / name).mkdir()
    write_catalog_file(store.files.path(name), table, manifest)


def rows_store(path: Path, parts: int = 6) -> Store:
    store = Store.create(path, small_schema())
    for number in range(parts):
        write_rows(store, number, (3, 1 + number % 4, 7))
    return store


def answers(path: Path, conditions: Sequence[str] = CONDITIONS[:2]) -> dict[str, Any]:
    store = open_store(path)
    everything = store.select()
    found = {text: everything.where(text).rows.tolist() for text in conditions}
    groups = everything.describe(("terrain", "skill", "part"))
    return found | {"rows": everything.episodes().to_pylist(), "groups": groups}


def without_index(path: Path, few: int = FEW) -> dict[str, Any]:
    """Answers of a store whose index cannot be written; `few`: see `INDEX_FROM`."""
    shutil.rmtree(path / CACHE, ignore_errors=True)
    (path / CACHE).touch()  # nothing can be written in its place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_files, "INDEX_FROM", few)
        found = answers(path)
    (path / CACHE).unlink()
    return found


parts = st.lists(
    st.tuples(
        st.lists(st.integers(1, 9), min_size=1, max_size=4),
        st.sampled_from([None, None, 1, 0.5, float("nan")]),
    ),
    min_size=FEW,
    max_size=7,
)
edits = st.lists(st.tuples(st.sampled_from(["drop", "annotate"]), st.integers(1, 4)), max_size=3)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(parts, edits, st.integers(1, 6), st.lists(st.sampled_from(CONDITIONS), min_size=2))
def test_a_query_by_the_index_is_one_on_the_parts_files(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[list[int], Any]],
    edits: list[tuple[str, int]],
    first: int,
    conditions: list[str],
) -> None:
    path = tmp_path_factory.mktemp("law") / "s"
    store = Store.create(path, small_schema())
    for number, (lengths, mass) in enumerate(parts):
        write_rows(store, number, lengths, mass)
        if number >= first:
            assert store.files.update_index(), "part by part"
    for kind, step in edits:
        chosen = store.select()
        chosen = chosen.with_rows(chosen.rows[::step])
        if kind == "drop" and len(chosen) < len(store.select()):
            chosen.drop()
        elif kind == "annotate":
            chosen.annotate({"note": "x", "score": 2.5})
    absent = {"note", "mass_kg", "score"}.difference(store.select().catalog.column_names)
    conditions = [text for text in conditions if not any(name in text for name in absent)]
    appended = answers(path, conditions)
    assert segment_paths(store.files.index_folder)
    shutil.rmtree(path / CACHE)
    assert same(answers(path, conditions), appended), "built anew"
    shutil.rmtree(path / CACHE)
    (path / CACHE).touch()
    assert same(answers(path, conditions), appended), "from the files, column by column"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_files, "INDEX_FROM", 10**9)
        assert same(answers(path, conditions), appended), "from tables in memory"


def same(found: Any, expected: Any) -> bool:
    """Whether values are equal; NaN is equal to itself."""
    return repr(found) == repr(expected)


def test_new_parts_are_added_and_small_segments_merged(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s", 16)
    store.files.update_index()
    [first] = segment_paths(store.files.index_folder)
    for number in range(16, 22):
        write_rows(store, number, (2, 5))
        assert store.files.update_index()
        assert len(segment_paths(store.files.index_folder)) <= 3
        assert first.exists() or number > 18, "few files leave a large segment as it is"
    assert answers(store.path) == without_index(store.path)


@pytest.mark.parametrize("place", ["pages", "name", "footer", "checksum", "end"])
@pytest.mark.parametrize("writable", [True, False])
def test_a_damaged_catalog_file_is_never_copied(place: str, writable: bool, tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s")
    path = store.files.path("part-003")
    content = path.read_bytes()
    times = path.stat()
    at = {"pages": 200, "footer": len(content) - 900, "end": len(content) - 6}
    at["name"] = content.find(b"friction") + 3
    at["checksum"] = content.rfind(b"CRC32C of this file") + 44
    flipped = content[: at[place]] + bytes([content[at[place]] ^ 4]) + content[at[place] + 1 :]
    path.write_bytes(flipped)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if not writable:
        (store.path / CACHE).touch()
    try:
        found = answers(store.path)
    except DatasetError as error:
        assert re.search("part-003.*damaged", str(error))  # noqa: PT017 (either outcome is right)
        assert not segment_paths(store.files.index_folder)
    else:
        path.write_bytes(content)
        assert found == without_index(store.path, 10**9), "nothing of a row was in that byte"
        assert place in ("footer", "checksum")


def test_a_part_that_changes_or_goes_is_not_answered_from_the_index(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s")
    before = answers(store.path)
    store.files.path("part-002").unlink()
    shutil.rmtree(store.path / PARTS / "part-002")
    assert not any(row["part"] == "part-002" for row in answers(store.path)["rows"])
    write_rows(store, 2, (8, 8))
    assert answers(store.path)["rows"] != before["rows"]
    assert answers(store.path) == without_index(store.path)


def test_what_is_no_segment_is_removed_and_any_path_can_be_read(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "a[1]*?'é")
    store.files.index_folder.mkdir()
    (store.files.index_folder / "0.index").symlink_to(tmp_path / "nowhere")
    (store.files.index_folder / "1.index").mkdir()
    found = answers(store.path)
    assert [path.is_file() for path in segment_paths(store.files.index_folder)] == [True]
    assert found == answers(store.path) == without_index(store.path)


def test_the_index_of_another_store_is_not_used(tmp_path: Path) -> None:
    store, other = rows_store(tmp_path / "s"), rows_store(tmp_path / "other", 8)
    expected = without_index(store.path)
    for each in (other, Store.create(tmp_path / "c", small_schema(control_dt_s=0.01))):
        for number in range(8, 11):
            write_rows(each, number, (4, 4))
        each.files.update_index()
        shutil.copytree(each.path / CACHE, store.path / CACHE)
        assert answers(store.path) == expected
        assert open_store(store.path).files.update_index()
        assert len(segment_paths(store.files.index_folder)) == 1, "of no use, so removed"
        shutil.rmtree(store.path / CACHE)


def test_files_and_index_of_earlier_versions_are_replaced(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s")
    expected = answers(store.path)
    shutil.rmtree(store.path / CACHE)
    for stem in store.files.stamps():
        manifest, table = store.files.read(stem)
        old = table.replace_schema_metadata(manifest.to_metadata())
        pq.write_table(old, store.files.path(stem), compression="zstd", write_page_checksum=True)
    path = store.path / CACHE / "episodes.index"
    path.parent.mkdir()
    pq.write_table(store.files.read("part-000")[1], path)
    assert answers(store.path) == expected
    [made] = segment_paths(path.parent)
    assert made != path
    assert answers(store.path) == expected == without_index(store.path)


def test_a_build_that_is_killed_leaves_no_index(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s")
    died = run_killed("gaitforge.datasets.catalog.index:replace_durably", 1, BUILDS, store.path)
    assert died.returncode == -signal.SIGKILL
    assert not segment_paths(store.files.index_folder)
    assert answers(store.path) == without_index(store.path)
    answers(store.path)
    store.gc()
    assert [path.suffix for path in store.files.index_folder.iterdir()] == [".index"]


def test_an_open_reader_goes_on_when_its_segments_are_damaged_or_merged(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s")
    expected = answers(store.path)
    opened = open_store(store.path).select()
    [path] = segment_paths(store.files.index_folder)
    assert Segment(path, store.files.read_columns).stamps == store.files.stamps()
    with open(path, "r+b") as stream:  # the reader has it mapped
        stream.seek(4)
        stream.write(bytes(600))
    assert opened.where(CONDITIONS[0]).rows.tolist() == expected[CONDITIONS[0]]
    assert opened.episodes().to_pylist() == expected["rows"]
    assert not path.exists()
    assert answers(store.path) == expected


def test_a_number_that_changes_in_the_index_changes_no_answer(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s")
    expected = answers(store.path)
    [path] = segment_paths(store.files.index_folder)
    content = bytearray(path.read_bytes())
    number = np.float64(expected["rows"][4]["friction"]).tobytes()
    assert content.count(number) == 1
    content[content.index(number) + 6] ^= 64
    path.write_bytes(content)
    assert "has other rows" in "".join(store.verify()) or "is damaged" in "".join(store.verify())
    assert answers(store.path) == expected
    assert store.verify() == [] or not path.exists()


def test_a_condition_reads_its_columns_only(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s")
    store.files.update_index()
    catalog = open_store(store.path).catalog()
    read: list[str] = []
    [segment] = {id(piece.source): piece.source for piece in catalog._pieces}.values()
    assert isinstance(segment, Segment)
    real = segment.column
    segment.column = lambda name: read.append(name) or real(name)  # type: ignore[method-assign]
    open_selection = open_store(store.path).select()
    np.testing.assert_array_equal(
        type(open_selection)(store, catalog, catalog.shown).where("level > 0 and length > 2").rows,
        open_selection.where("level > 0 and length > 2").rows,
    )
    assert sorted(read) == ["length", "level"]


def test_a_handler_of_a_signal_never_runs_inside_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[threading.Thread] = []
    real = conditions.duckdb.connect
    monkeypatch.setattr(
        conditions.duckdb,
        "connect",
        lambda *args, **options: used.append(threading.current_thread()) or real(*args, **options),
    )
    assert len(rows_store(tmp_path / "s").select().where("length > 3"))
    assert used
    assert threading.main_thread() not in used, "handlers run in the main thread"


def test_building_an_index_does_not_load_duckdb(tmp_path: Path) -> None:
    store = rows_store(tmp_path / "s")
    works = f"import sys\n{BUILDS}\nprint('duckdb' in sys.modules)"
    assert run_afresh(works, store.path).stdout.split()[-1] == "False"
    assert segment_paths(store.files.index_folder)


def test_the_default_is_a_number_of_files_that_takes_a_moment(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_files, "INDEX_FROM", INDEX_FROM)
        store = rows_store(tmp_path / "s", INDEX_FROM - 1)
        answers(store.path)
        assert not segment_paths(store.files.index_folder)
        write_small_part(store, "part-900", (3, 4), 9000)
        answers(store.path)
        assert segment_paths(store.files.index_folder)
