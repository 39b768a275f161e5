"""Cutting episodes moves no value, whatever was edited before and is done afterwards."""

import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Store, merge_stores, open_store
from gaitforge.datasets.edits.assemble import apply_edits
from gaitforge.datasets.edits.split import Cuts, cut_episodes, pieces_of
from gaitforge.datasets.storage.s3 import push_store
from tests.datasets.edits.test_edits import PARTS, apply, edited_store, model_of
from tests.datasets.edits.test_merge import EDITS
from tests.datasets.making import part_input, small_schema, small_store, write_small_part
from tests.datasets.programs import run_killed


def pieces_by_source(store: Store) -> dict[int, list[dict[str, Any]]]:
    """Id of a cut or whole episode -> the catalog rows and arrays of what it became, in order."""
    selection = store.select()
    whole = selection.episodes().to_pylist()
    sources: dict[int, list[dict[str, Any]]] = {}
    for number, row in enumerate(whole):
        source = row["cut_from"] if row.get("cut_from", -1) >= 0 else row["episode"]
        sources.setdefault(source, []).append(row | selection.episode(number))
    return {k: sorted(rows, key=lambda row: row["cut_step"]) for k, rows in sources.items()}


def assert_cut(before: Store, after: Store, cuts: Cuts) -> None:
    """Every value of the one is in the other, at its place; only given-up steps are gone."""
    assert after.verify() == []
    whole = before.select()
    became = pieces_by_source(after)
    ids = whole.episode_ids().tolist()
    assert sorted(became) == sorted(ids)
    every = after.select().episode_ids()
    assert len(set(every.tolist())) == len(every)
    for number, episode in enumerate(ids):
        stored, row = whole.episode(number), whole.episodes().slice(number, 1).to_pylist()[0]
        steps = [0, *cuts.get(episode, ()), row["length"]]
        rows = became[episode]
        assert len(rows) == len(steps) - 1
        if len(rows) == 1:
            [only] = rows
            assert (only["cut_from"], only["cut_step"], only["seed"]) == (-1, -1, row["seed"])
        for place, piece in enumerate(rows):
            is_last = place == len(rows) - 1
            first, stop = steps[place], steps[place + 1] - (not is_last)
            assert piece["length"] == stop - first
            for name in ("obs", "action", "reward"):
                assert np.array_equal(piece[name], stored[name][first:stop]), name
            final = stored["final_obs"] if is_last else stored["obs"][stop]
            assert np.array_equal(piece["final_obs"], final)
            assert piece["return"] == pytest.approx(
                stored["reward"][first:stop].astype(float).sum()
            )
            for flag in ("terminated", "truncated", "success"):
                assert piece[flag] == (row[flag] and is_last)
            for name in ("terrain", "skill", "robot", *({"note"} & row.keys())):
                assert piece[name] == row[name], name


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edits=EDITS, data=st.data())
def test_pieces_are_what_was_cut_and_can_be_edited_cut_and_merged(
    tmp_path_factory: pytest.TempPathFactory, edits: list[Any], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    store = open_store(small_store(folder / "s", PARTS).path)
    model = model_of(store)
    for operation in edits:
        apply(store, model, operation)
    stores = [store]
    for turn in ("first", "second"):
        present = stores[-1].select()
        lengths = dict(zip(present.episode_ids().tolist(), present.lengths.tolist(), strict=True))
        long = sorted(episode for episode, length in lengths.items() if length >= 3)
        if not long:
            return
        chosen = data.draw(st.sets(st.sampled_from(long), min_size=1))
        cuts = {
            episode: [data.draw(st.integers(2, lengths[episode] - 1))] for episode in sorted(chosen)
        }
        stores.append(open_store(cut_episodes(stores[-1], folder / turn, cuts)))
        if turn == "first":
            assert_cut(stores[0], stores[1], cuts)
        assert stores[-1].verify() == []
    cut, again = stores[1:]
    assert len(again.select()) > len(cut.select())
    other = open_store(Store.create(folder / "other", small_schema()).path)
    write_small_part(other, "other", (7, 4), 50)
    both = open_store(merge_stores(cut, other, folder / "both"))
    assert both.verify() == []
    assert pieces_of(both.select()).sum() == pieces_of(cut.select()).sum()
    whole = both.select().where("seed >= 0")
    assert not pieces_of(whole).any()
    assert len(whole) == len(both.select()) - pieces_of(both.select()).sum()
    cut.tag("v1")
    cut.select(skill="run").annotate({"note": "x"})
    cut.compact()
    assert open_store(cut.path, tag="v1").verify() == []


def test_what_stands_at_the_new_stores_place_is_kept(tmp_path: Path) -> None:
    store = small_store(tmp_path / "a", [(9, 4)])
    other = small_store(tmp_path / "b", [(9, 4)])
    for out in (store.path, other.path, store.path / "inside"):
        before = open_store(other.path).info()
        with pytest.raises(DatasetError, match=r"not the same result|is inside the store"):
            cut_episodes(store, out, {0: [3]})
        with pytest.raises(DatasetError, match=r"not the same result|is inside the store"):
            apply_edits(store, out)
        assert open_store(other.path).info() == before
    with pytest.raises(DatasetError, match="is on object storage; give a local folder"):
        cut_episodes(store, "s3://bucket/x", {0: [3]})
    first = open_store(cut_episodes(store, tmp_path / "c", {0: [3]})).info()
    assert open_store(cut_episodes(store, tmp_path / "c", {0: [3]})).info() == first
    with pytest.raises(DatasetError, match="is not the same result"):
        cut_episodes(store, tmp_path / "c", {0: [4]})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_fields_of_whole_episodes_are_left_out_where_the_caller_says_so(tmp_path: Path) -> None:
    schema = small_schema()
    fields = (*schema.fields, Field("initial_state", (3,), per="episode"))
    store = Store.create(tmp_path / "s", small_schema(fields=fields))
    content = part_input((9, 4))
    content["per_episode"]["initial_state"] = np.ones((2, 3), np.float32)
    store.write_part("a", **content)
    with pytest.raises(DatasetError, match="leave them out with --without initial_state"):
        cut_episodes(store, tmp_path / "c", {0: [3]})
    with pytest.raises(DatasetError, match="no episode field obs; there are: final_obs"):
        cut_episodes(store, tmp_path / "c", {0: [3]}, without=["obs"])
    cut = open_store(cut_episodes(store, tmp_path / "c", {0: [3]}, without=["initial_state"]))
    assert cut.schema.fields == schema.fields
    assert_cut(store, cut, {0: [3]})


def test_a_store_on_object_storage_is_cut_into_a_local_one(url: str, tmp_path: Path) -> None:
    local = edited_store(tmp_path / "a")
    push_store(local, url)
    remote = open_store(url)
    lengths = dict(
        zip(remote.select().episode_ids().tolist(), remote.select().lengths.tolist(), strict=True)
    )
    longest = max(lengths, key=lambda episode: lengths[episode])
    cut = open_store(cut_episodes(remote, tmp_path / "cut", {longest: [2]}))
    assert_cut(remote, cut, {longest: [2]})
    push_store(cut, f"{url}-cut")
    assert open_store(f"{url}-cut").info().hash == cut.info().hash


CUTS = """
from gaitforge.datasets import open_store
from gaitforge.datasets.edits.split import cut_episodes

cut_episodes(open_store(sys.argv[1]), sys.argv[2], {0: [3], 4: [20, 40]})
"""


@pytest.mark.slow
def test_a_killed_cut_shows_nothing_and_goes_on(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(9, 4), (5,), (6, 60)])
    wanted = open_store(cut_episodes(store, tmp_path / "whole", {0: [3], 4: [20, 40]})).info()
    died = 0
    for calls in (1, 2, 4, 6, 8):
        out = tmp_path / f"out-{calls}"
        program = run_killed("os:replace", calls, CUTS, store.path, out)
        if program.returncode == -signal.SIGKILL:
            died += 1
            assert not out.exists()
        cut = open_store(cut_episodes(store, out, {0: [3], 4: [20, 40]}))
        assert cut.info().hash == wanted.hash
        assert cut.verify() == []
        shutil.rmtree(out)
    assert died > 2
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()
