"""Merging and splitting move no value: stores and selections of the same episodes."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import (
    DatasetError,
    Store,
    merge_stores,
    open_store,
    save_split,
    split_by_column,
    split_by_fractions,
)
from gaitforge.datasets.files import files_under
from tests.datasets.edits.test_edits import PARTS, assert_equals_model, edited_store, model_of
from tests.datasets.making import small_schema, small_store, write_small_part
from tests.datasets.programs import run_killed


def other_store(path: Path) -> Store:
    """A store of the same schema with other parts, one of them merged from two, and an edit."""
    store = open_store(Store.create(path, small_schema()).path)
    for number in range(3):
        write_small_part(store, f"other-{number}", (7, 4), 50 + 2 * number)
    store.compact()
    store.gc()
    store.select(skill="run").annotate({"note": "other"})
    return store


def test_a_merged_store_has_the_episodes_and_edits_of_both(tmp_path: Path) -> None:
    first, second = edited_store(tmp_path / "a"), other_store(tmp_path / "b")
    done: list[int] = []
    merged = open_store(merge_stores(first, second, tmp_path / "out", done.append))
    assert_equals_model(merged, model_of(first) | model_of(second))
    assert merged.verify() == []
    assert sum(done) == len(first.files.stamps()) + len(second.files.stamps())
    sources = merged.plan["merge"] if merged.plan else []
    assert [each["hash"] for each in sources] == [first.info().hash, second.info().hash]
    assert [edit.origin["edit"] for edit in merged.edits()] == [
        edit.sha256 for store in (first, second) for edit in store.edits()
    ]
    before = merged.info()
    assert open_store(merge_stores(first, second, tmp_path / "out")).info() == before
    again = open_store(merge_stores(merged, first, tmp_path / "again"))
    assert again.info().hash == before.hash
    merged.select(skill="crawl").drop()
    merged.compact()
    merged.gc()
    assert first.verify() == second.verify() == []


def test_without_edits_the_hash_is_that_of_one_collection(tmp_path: Path) -> None:
    together = small_store(tmp_path / "all", PARTS)
    first = small_store(tmp_path / "a", PARTS[:2])
    second = open_store(Store.create(tmp_path / "b", small_schema()).path)
    write_small_part(second, "part-002", PARTS[2], 5)
    merged = open_store(merge_stores(first, second, tmp_path / "out"))
    assert (merged.info().hash, merged.info().schema_version) == (together.info().hash, 3)


def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    first = small_store(tmp_path / "a", PARTS)
    other_field = small_schema(control_dt_s=0.01)
    clashing = open_store(Store.create(tmp_path / "c", small_schema()).path)
    write_small_part(clashing, "part-000", (3,), 100)
    repeated = open_store(Store.create(tmp_path / "d", small_schema()).path)
    write_small_part(repeated, "mine", (3,), 0)
    for second, message in (
        (Store.create(tmp_path / "b", other_field), "different schemas"),
        (clashing, "both have part part-000"),
        (repeated, "episode ids 0"),
    ):
        with pytest.raises(DatasetError, match=message):
            merge_stores(first, second, tmp_path / "out")
    second = other_store(tmp_path / "e")
    for place in (first.path, first.path / "inside", tmp_path / "file"):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(DatasetError, match=r"not the same result|is inside the store"):
            merge_stores(first, second, place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "d", "e", "file"]


MERGES = """
from gaitforge.datasets import merge_stores, open_store

merge_stores(open_store(sys.argv[1]), open_store(sys.argv[2]), sys.argv[3])
"""


@pytest.mark.slow
def test_a_killed_merge_goes_on(tmp_path: Path) -> None:
    first, second = edited_store(tmp_path / "a"), other_store(tmp_path / "b")
    wanted = model_of(first) | model_of(second)
    for calls in (1, 2, 4, 6, 8, 10):
        out = tmp_path / f"out-{calls}"
        died = run_killed("os:replace", calls, MERGES, first.path, second.path, out)
        assert died.returncode == -signal.SIGKILL
        assert not out.exists()
        merged = open_store(merge_stores(first, second, out))
        assert_equals_model(merged, wanted)
        assert merged.verify() == []
    left = {each for each in os.listdir(tmp_path) if each.startswith(".")}
    assert left == set()


def test_fractions_agree_with_a_held_out_share(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s", [(2,) * 200, (3,) * 200]).path)
    everything = store.select()
    rest, held_out = everything.split(0.25, seed=3)
    two = split_by_fractions(everything, {"train": 0.75, "val": 0.25}, 3)
    assert (two["train"].hash, two["val"].hash) == (rest.hash, held_out.hash)
    three = split_by_fractions(everything, {"a": 0.5, "b": 0.3, "c": 0.2}, 3)
    rows = np.concatenate([side.rows for side in three.values()])
    assert np.array_equal(np.sort(rows), rest.catalog.shown)
    for name, share in (("a", 0.5), ("b", 0.3), ("c", 0.2)):
        assert abs(len(three[name]) / 400 - share) < 0.1
    for wrong in ({"a": 0.5}, {"a": 0.5, "b": -0.5}, {"a/b": 1.0}, {}):
        with pytest.raises(DatasetError):
            split_by_fractions(everything, wrong, 0)


def test_split_stores_have_their_side_only(tmp_path: Path) -> None:
    store = edited_store(tmp_path / "s")
    model = model_of(store)
    sides = split_by_column(store.select(), "skill")
    paths = save_split(sides, tmp_path / "sides", {"by": "skill"})
    assert sorted(paths) == ["crawl", "run"]
    for skill, path in paths.items():
        side = open_store(path)
        wanted = {key: row for key, row in model.items() if row["skill"] == skill}
        assert_equals_model(side, wanted)
        assert side.verify() == []
        one = next(name for name in files_under(path) if name.endswith("c/0/0"))
        assert (path / one).stat().st_nlink > 1
    assert save_split(sides, tmp_path / "sides", {"by": "skill"}) == paths
