"""What identifies a source: imported again, changed in place, renamed, or read in another way."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import DatasetError, merge_stores, open_store, save_split
from gaitforge.datasets.edits.assemble import apply_edits
from gaitforge.datasets.edits.split import cut_episodes
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.sources import CONTENT_DIGITS, content_digests, identity
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.datasets.schema import Schema
from tests.datasets.formats.rows_format import NAME, source_of
from tests.datasets.making import small_schema

LENGTHS = [10] * 6


def change_a_file(path: Path) -> None:
    """Other bytes in the middle, the size and the times as they were."""
    file = path / "obs.bin"
    status = file.stat()
    content = bytearray(file.read_bytes())
    content[:4] = np.float32(0.5).tobytes()
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_source_changed_in_place(tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", LENGTHS)
    import_source(NAME, source, tmp_path / "store")
    import_source(NAME, source, tmp_path / "store")
    change_a_file(source)
    with pytest.raises(DatasetError, match=r"store holds another content of .*source, .* new sto"):
        import_source(NAME, source, tmp_path / "store")
    import_source(NAME, source, tmp_path / "new")
    old, new = (open_store(tmp_path / each).select() for each in ("store", "new"))
    assert not np.array_equal(old.read("obs"), new.read("obs"))
    assert not set(old.episodes()["episode"].to_pylist()) & set(
        new.episodes()["episode"].to_pylist()
    )


def test_a_source_changed_after_it_joined_a_store_is_refused(tmp_path: Path) -> None:
    """The second source of a store is remembered as the first one is."""
    first, second = source_of(tmp_path / "a", LENGTHS), source_of(tmp_path / "b", [10] * 4)
    for path in (first, second):
        import_source(NAME, path, tmp_path / "store", {"quality": "mine"})
    change_a_file(second)
    with pytest.raises(DatasetError, match=r"another content of .*b,"):
        import_source(NAME, second, tmp_path / "store", {"quality": "mine"})
    import_source(NAME, first, tmp_path / "store", {"quality": "mine"})
    assert len(open_store(tmp_path / "store").select()) == 10


def test_the_same_content_read_in_another_way_is_not_imported_twice(tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", LENGTHS)
    import_source(NAME, source, tmp_path / "store")
    before = open_store(tmp_path / "store").info()
    with pytest.raises(DatasetError, match=r"episode ids .* of the source are in store"):
        import_source(NAME, source, tmp_path / "store", {"quality": "expert"})
    assert open_store(tmp_path / "store").info() == before


def test_the_same_content_under_another_name_is_not_imported_twice(tmp_path: Path) -> None:
    source = source_of(tmp_path / "medium", LENGTHS)
    import_source(NAME, source, tmp_path / "store")
    renamed = source.with_name("expert")
    shutil.copytree(source, renamed)
    assert import_source(NAME, renamed, tmp_path / "store").episodes == len(LENGTHS)
    assert len(open_store(tmp_path / "store").select()) == len(LENGTHS)
    moved = tmp_path / "elsewhere" / source.name
    moved.parent.mkdir()
    shutil.move(source, moved)
    before = open_store(tmp_path / "store").info()
    import_source(NAME, moved, tmp_path / "store")
    assert open_store(tmp_path / "store").info() == before, "where it lies does not matter"


def test_the_identity_of_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_HASH_BLOCK", 64)
    monkeypatch.setattr(sources, "_HASH_READ", 16)
    path, content = tmp_path / "x", bytes(range(200))
    seen = set()
    for at in [None, 0, 63, 64, 100, 199]:
        changed = bytearray(content)
        if at is not None:
            changed[at] ^= 1
        path.write_bytes(changed)
        seen.add(identity([path])[:CONTENT_DIGITS])
    assert len(seen) == 6
    path.write_bytes(b"")
    assert content_digests([path, path]) == content_digests([path]) * 2
    assert identity([path, path]) != identity([path])
    one, other = identity([path], "a"), identity([path], "b")
    assert one != other
    assert one[:CONTENT_DIGITS] == other[:CONTENT_DIGITS]


def test_a_file_that_went_away_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="gone: cannot be read: No such file"):
        identity([tmp_path / "gone"])


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 0.0, -0.02])
def test_a_time_step_is_positive_and_finite(seconds: float) -> None:
    with pytest.raises(DatasetError, match="control_dt_s must be positive and finite"):
        Schema(small_schema().fields, seconds, "aliengo")


def test_an_episode_beyond_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(tmp_path / "source", [20, 60, 20])
    monkeypatch.setattr(sources, "EPISODE_BYTES", 20 * 24)
    message = r"episodes.parquet: length: episode 1 of 60 steps takes .*; cut it in two"
    with pytest.raises(DatasetError, match=message):
        import_source(NAME, source, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_an_option_out_of_its_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"option horizon must be a number of steps, .* not -5"):
        import_source(NAME, tmp_path / "whatever", tmp_path / "store", {"horizon": -5})
    assert list(tmp_path.iterdir()) == []


def test_an_import_does_not_bring_back_what_a_new_store_was_made_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PART_BYTES", 100)
    source = source_of(tmp_path / "rows", [4, 4, 4, 4])
    import_source(NAME, source, tmp_path / "s.zarr")
    store = open_store(tmp_path / "s.zarr")
    ids = store.select().episode_ids().tolist()
    assert len(store.parts()) == 4
    store.select().where(f"episode = {ids[0]}").drop()
    store.select().where(f"episode = {ids[1]}").annotate({"note": "x"})
    present = open_store(store.path).select()
    applied = open_store(apply_edits(present.store, tmp_path / "applied.zarr"))
    cut = open_store(cut_episodes(present.store, tmp_path / "cut.zarr", {ids[1]: [2]}))
    halves = {"a": present.where(f"episode = {ids[1]}"), "b": present.where(f"episode > {ids[1]}")}
    sides = [open_store(path) for path in save_split(halves, tmp_path / "sides", {}).values()]
    again = open_store(apply_edits(sides[1], tmp_path / "again.zarr"))
    both = open_store(merge_stores(sides[0], sides[1], tmp_path / "both.zarr"))
    for made in (applied, cut, *sides, again, both):
        hashed = made.info().hash
        report = import_source(NAME, source, made.path)
        assert open_store(made.path).info().hash == hashed
        assert report.episodes == len(made.as_collected())
        assert "of the source stay out" in report.carried.notes[-1]
    assert import_source(NAME, source, store.path).episodes == 4
    assert len(open_store(store.path).select()) == 3
