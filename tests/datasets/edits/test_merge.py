"""Merging and splitting move no value: stores and selections of the same episodes."""

import os
import shutil
import signal
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gaitforge.common.files import files_under
from gaitforge.datasets import (
    DatasetError,
    Store,
    merge_stores,
    open_store,
    save_split,
    split_by_column,
    split_by_fractions,
)
from tests.datasets.edits.test_edits import (
    IDS,
    PARTS,
    apply,
    assert_equals_model,
    edited_store,
    model_of,
)
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
        (Store.create(tmp_path / "b", other_field), "different schemas, in its control_dt_s;"),
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


COLUMNS = st.fixed_dictionaries({"note": st.sampled_from("xyz")})
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("drop"), IDS, st.none()),
        st.tuples(st.just("annotate"), IDS, COLUMNS),
        st.tuples(st.just("trim"), IDS, st.tuples(st.integers(0, 1), st.integers(0, 1))),
    ),
    max_size=4,
)


def assigned(store: Store, first: int) -> dict[tuple[int, str], Any]:
    """(Episode, column) -> the value that the edits from `first` on gave it last."""
    collected, values = store.collected(), dict[tuple[int, str], Any]()
    ids = collected.numbers("episode")
    for edit in store.edits()[first:]:
        for row in edit.rows.to_pylist():
            episode = int(ids[collected.part_bounds[row["part"]][0] + row["row"]])
            values |= {(episode, name): row[name] for name in edit.columns}
    return values


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=EDITS, ours=EDITS, theirs=EDITS)
@example(before=[("annotate", {0, 1}, {"note": "x"})], ours=[], theirs=[])
@example(before=[], ours=[("annotate", {0, 1}, {"note": "x"})], theirs=[("drop", {5}, None)])
def test_a_shared_history_counts_once_and_the_second_stores_edits_come_last(
    tmp_path_factory: pytest.TempPathFactory, before: list[Any], ours: list[Any], theirs: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    origin = open_store(small_store(folder / "o", PARTS).path)
    repeated = [("annotate", {0, 1}, {"note": note}) for note in "xyx"]
    for operation in before:
        apply(origin, model_of(origin), operation)
    stores = []
    for name, operations in (("a", ours), ("b", [*theirs, *repeated])):
        shutil.copytree(origin.path, folder / name)
        stores.append(open_store(folder / name))
        for operation in operations:
            apply(stores[-1], model_of(stores[-1]), operation)
    first, second = stores
    merged = open_store(merge_stores(first, second, folder / "ab"))
    assert merged.verify() == []
    chains = zip(first.edits(), second.edits(), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0].sha256 == pair[1].sha256, chains))
    assert shared >= len(origin.edits())
    last = assigned(second, shared)
    a, b, both = model_of(first), model_of(second), model_of(merged)
    assert both.keys() == a.keys() & b.keys()
    for episode, row in both.items():
        for name, value in row.items():
            if isinstance(value, np.ndarray):
                continue
            assert value == last.get((episode, name), a[episode].get(name)), name
        whole = origin.select().with_rows(np.arange(10)).episode(episode)["obs"]
        start = origin.collected().numbers("start")[episode]
        low = row["start"] - start
        assert np.array_equal(row["obs"], whole[low : low + row["length"]])
    for source in stores:
        again = merge_stores(merged, source, folder / f"again-{source.path.name}")
        assert open_store(again).info().hash == merged.info().hash
    compacted = model_of(merged)
    merged.compact()
    assert_equals_model(merged, compacted)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=EDITS, ours=EDITS, theirs=EDITS, tagged=st.booleans())
def test_sides_of_a_split_merge_into_what_was_split_and_edited_since(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[Any],
    ours: list[Any],
    theirs: list[Any],
    tagged: bool,
) -> None:
    folder = tmp_path_factory.mktemp("sides")
    store = open_store(small_store(folder / "s", PARTS).path)
    model = model_of(store)
    for operation in before:
        apply(store, model, operation)
    sides = split_by_fractions(store.select(), {"a": 0.5, "b": 0.5}, 1)
    assume(all(len(side) for side in sides.values()))
    paths = save_split(sides, folder / "sides", {"seed": 1})
    models = []
    for name, operations in (("a", ours), ("b", theirs)):
        side = open_store(paths[name])
        models.append(model_of(side))
        for operation in operations:
            apply(side, models[-1], operation)
        if tagged:
            side.tag("v1")
    for one, other in (("a", "b"), ("b", "a")):
        first, second = open_store(paths[one]), open_store(paths[other])
        merged = open_store(merge_stores(first, second, folder / f"{one}{other}"))
        assert_equals_model(merged, models[0] | models[1])
        assert merged.verify() == []


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


def test_a_side_of_another_selection_is_not_taken_for_the_same(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s", PARTS).path)
    save_split({"x": store.select(skill="run")}, tmp_path / "sides", {"by": "x"})
    with pytest.raises(DatasetError, match="not the same result"):
        save_split({"x": store.select(skill="crawl")}, tmp_path / "sides", {"by": "x"})


def test_missing_values_and_the_text_none_are_one_side(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s", PARTS).path)
    store.select().where("episode < 2").annotate({"passage": "none"})
    open_store(store.path).select().where("episode = 2").annotate({"passage": "bar"})
    everything = open_store(store.path).select()
    sides = split_by_column(everything, "passage")
    assert {name: side.episode_ids().tolist() for name, side in sides.items()} == {
        "bar": [2],
        "none": [each for each in everything.episode_ids().tolist() if each != 2],
    }
