"""What comes out of an edited store, by whichever way, is what its selection reads."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import (
    DatasetError,
    Field,
    Selection,
    Store,
    merge_stores,
    open_store,
    save_split,
)
from gaitforge.datasets.edits.assemble import apply_edits
from gaitforge.datasets.edits.operations import add_field
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.datasets.schema import NEW_REWARD
from gaitforge.datasets.storage.integrity import store_files
from gaitforge.datasets.storage.s3 import push_store
from gaitforge.pipeline.report.card import card_record
from tests.datasets.edits.test_edits import same
from tests.datasets.edits.test_fields import TWO, collected_obs, make_field
from tests.datasets.formats import rows_format
from tests.datasets.formats.format_stores import plain_store, random_episodes

EPISODES = 24
Answers = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of four parts with every kind of edit, and tags of before, between and after."""
    path = tmp_path_factory.mktemp("edited") / "s.zarr"
    plain_store(path, random_episodes(EPISODES), parts=4)
    store = open_store(path)
    store.set_about(licence="CC-BY-4.0")
    store.tag("collected")
    store.select().where("episode % 3 = 0").drop({"reason": "fell"})
    store.select().where("length > 3").trim(head=1, tail=1)
    store.tag("trimmed")
    rewards = {}
    for part, manifest in store.collected().manifests.items():
        rewards[part] = np.arange(manifest.steps, dtype=np.float32)
    add_field(store, make_field(store, Field("reward"), rewards))
    add_field(store, make_field(store, TWO, collected_obs(store)))
    store.select(skill="run").annotate({"note": "replaced", "score": 1})
    store.select(skill="run").annotate({"note": "limps"})
    store.tag("edited")
    return store


def answers(selection: Selection) -> Answers:
    """Episode id -> its columns, but where it is stored, and its arrays."""
    table = selection.episodes().drop_columns(["part", "start"]).to_pylist()
    return {row["episode"]: row | selection.episode(i) for i, row in enumerate(table)}


def assert_same(found: Answers, wanted: Answers, names: set[str] | None = None) -> None:
    assert found.keys() == wanted.keys()
    for episode, row in wanted.items():
        for name in row.keys() if names is None else names:
            assert same(found[episode].get(name), row[name]), (episode, name)


def assert_nothing_else(store: Store) -> None:
    """The store has collected what it shows: nothing that was dropped, trimmed or replaced."""
    assert store.edits() == ()
    assert store.tags() == []
    collected = answers(store.as_collected())
    assert_same(collected, answers(store.select()))
    assert all(each % 3 for each in collected)


def copied(files: Mapping[str, Path], out: Path) -> Store:
    for name, path in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / name)
    return open_store(out)


def as_published(store: Store, out: Path) -> Store:
    found = copied(store_files(open_store(apply_edits(store, out / "a"))), out / "b")
    assert_nothing_else(found)
    assert found.about() == store.about()
    return found


def with_history(store: Store, out: Path) -> Store:
    found = copied(store_files(store), out / "s")
    assert found.info().hash == store.info().hash
    assert found.tags() == store.tags()
    for tag in store.tags():
        before = open_store(store.path, tag.name).select()
        assert_same(answers(open_store(found.path, tag.name).select()), answers(before))
    return found


def compacted(store: Store, out: Path) -> Store:
    found = with_history(store, out)
    assert found.compact()
    found.gc()
    assert found.info().hash == store.info().hash
    return found


def merged(store: Store, out: Path) -> Store:
    other = open_store(plain_store(out / "o", random_episodes(4)).path)
    with pytest.raises(DatasetError, match="what 'gaitforge dataset apply' makes of it"):
        merge_stores(store, other, out / "m")
    one = open_store(apply_edits(store, out / "a"))
    halves = [one.select().where(f"episode % 2 = {k}") for k in (0, 1)]
    sides = save_split({"even": halves[0], "odd": halves[1]}, out, {"by": "episode"})
    # Sides share their parts and hide each other's episodes; applied, each has its own only.
    for name, side in zip(sides, halves, strict=True):
        assert_same(answers(open_store(sides[name]).select()), answers(side))
    own = {
        name: open_store(apply_edits(open_store(path), out / name)) for name, path in sides.items()
    }
    assert [len(each.as_collected()) for each in own.values()] == list(map(len, halves))
    return open_store(merge_stores(one, one, out / "m"))


WAYS: dict[str, Callable[[Store, Path], Store]] = {
    "publish": as_published,
    "copy": with_history,
    "compact": compacted,
    "merge and split": merged,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_store_of_an_edited_one_is_the_same(edited: Store, tmp_path: Path, way: str) -> None:
    found = WAYS[way](edited, tmp_path)
    schema = found.select().schema
    said = {name: value for name, value in schema.attributes.items() if name != NEW_REWARD}
    assert replace(schema, attributes=said) == edited.select().schema
    assert found.select().has_new_reward
    assert edited.select().has_new_reward
    assert_same(answers(found.select()), answers(edited.select()))
    assert found.verify() == []


@pytest.mark.slow
def test_a_pushed_store_reads_the_same(edited: Store, url: str, tmp_path: Path) -> None:
    push_store(edited, url)
    assert push_store(edited, url) == []
    found = open_store(url)
    assert found.info().hash == edited.info().hash
    assert found.tags() == edited.tags()
    assert_same(answers(found.select()), answers(edited.select()))
    assert_nothing_else(open_store(apply_edits(found, tmp_path / "a")))
    assert found.verify() == []


def test_an_export_has_what_the_selection_reads(edited: Store, tmp_path: Path) -> None:
    with rows_format.registered():
        export_selection(rows_format.NAME, edited.select(), tmp_path / "out")
        import_source(rows_format.NAME, tmp_path / "out", tmp_path / "s")
    found = answers(open_store(tmp_path / "s").select())
    columns = {"length", "return", "terminated", "truncated", "note", "score", "two", "reward"}
    assert_same(found, answers(edited.select()), columns | {"obs", "action", "final_obs"})


def test_a_copy_and_a_card_are_of_what_the_selection_reads(edited: Store, tmp_path: Path) -> None:
    selection = edited.select()
    streamed = {}
    for source in (selection, selection.materialise(tmp_path, ("obs", "reward", "two"))):
        stream = source.windows(4, 16, seed=0, fields=("obs", "reward", "two"))
        streamed[type(source)] = [{k: v.numpy() for k, v in batch.items()} for batch in stream]
    for one, other in zip(*streamed.values(), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    card = card_record(selection)
    assert card["store"]["hash"] == edited.info().hash
    assert (card["selection"]["episodes"], card["selection"]["steps"]) == (
        len(selection),
        selection.steps,
    )
    reward = next(each for each in card["channels"] if each["field"] == "reward")
    assert reward["mean"] == pytest.approx(selection.read("reward").astype(float).mean())
    assert {each["field"] for each in card["channels"]} >= {"two", "reward"}


def test_applying_goes_on_and_gives_the_same_bytes(edited: Store, tmp_path: Path) -> None:
    whole = open_store(apply_edits(edited, tmp_path / "a" / "s.zarr"))
    (tmp_path / "b").mkdir()
    begun = open_store(shutil.copytree(whole.path, tmp_path / "b" / ".s.zarr.unfinished"))
    (begun.path / "catalog" / f"{begun.parts()[-1]}.parquet").unlink()
    again = open_store(apply_edits(edited, tmp_path / "b" / "s.zarr"))
    assert not begun.path.exists()
    read = [{n: p.read_bytes() for n, p in store_files(s).items()} for s in (whole, again)]
    assert read[0] == read[1]
    assert again.info().hash == whole.info().hash
