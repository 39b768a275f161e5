"""Any sequence of edits is the same operations on a plain table; a tag keeps its version."""

import copy
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Selection, Store, difference, open_store
from gaitforge.datasets.statistics import UnitReader
from tests.datasets.making import part_input, small_schema, small_store, write_small_part
from tests.datasets.programs import run_killed

PARTS = [(5, 1, 9), (30, 14), (6, 6, 6)]
Episode = dict[str, Any]


def model_of(store: Store) -> dict[int, Episode]:
    """Episode id -> its columns and steps."""
    selection = store.select()
    table = selection.episodes().to_pylist()
    return {row["episode"]: row | selection.episode(i) for i, row in enumerate(table)}


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) if one is not None else other is None


def assert_equals_model(store: Store, model: dict[int, Episode]) -> None:
    found = model_of(store)
    assert found.keys() == model.keys()
    for episode, wanted in model.items():
        row = found[episode]
        for name in row.keys() | wanted.keys():
            assert same(row.get(name), wanted.get(name)), name
    info = store.info()
    assert info.episodes == len(model)
    assert info.steps == sum(len(each["obs"]) for each in model.values())


def shortened(row: Episode, head: int, tail: int) -> None:
    """Trim a model's episode in place."""
    stop = row["length"] - tail
    if tail:
        row |= {"final_obs": row["obs"][stop], "terminated": False, "truncated": True}
    row |= {name: row[name][head:stop] for name in ("obs", "action", "reward")}
    row |= {"start": row["start"] + head, "length": stop - head}
    row["return"] = float(row["reward"].astype(np.float64).sum())


IDS = st.sets(st.integers(0, 9), min_size=1)
OPERATIONS = st.one_of(
    st.tuples(st.just("drop"), IDS, st.none()),
    st.tuples(
        st.just("annotate"),
        IDS,
        st.dictionaries(st.just("note"), st.text(max_size=4), min_size=1)
        | st.fixed_dictionaries({"score": st.integers(-9, 9), "ok": st.booleans()}),
    ),
    st.tuples(st.just("trim"), IDS, st.tuples(st.integers(0, 2), st.integers(0, 2))),
    st.tuples(st.sampled_from(["compact", "tag", "commit", "reopen"]), st.none(), st.none()),
)


def apply(store: Store, model: dict[int, Episode], operation: tuple[Any, ...]) -> None:
    """Apply an edit to a store and to the model, both or neither."""
    kind, ids, what = operation
    chosen = [model[each] for each in sorted(ids) if each in model]
    selection = store.select().where(f"episode in ({', '.join(map(str, sorted(ids)))})")
    assert len(selection) == len(chosen)
    try:
        if kind == "drop":
            selection.drop()
        elif kind == "annotate":
            selection.annotate(what)
        else:
            selection.trim(*what)
    except DatasetError:
        assert not chosen or kind == "trim"
        if kind == "trim" and chosen:
            assert sum(what) == 0 or any(each["length"] <= sum(what) for each in chosen)
        return
    for row in chosen:
        if kind == "drop":
            del model[row["episode"]]
        elif kind == "annotate":
            row |= what
        else:
            shortened(row, *what)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations=st.lists(OPERATIONS, max_size=9))
def test_edits_are_operations_on_a_table(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[Any, ...]]
) -> None:
    store = open_store(small_store(tmp_path_factory.mktemp("edits") / "s", PARTS).path)
    model = model_of(store)
    tags: dict[str, tuple[dict[int, Episode], str]] = {}
    for number, operation in enumerate(operations):
        before = store.info()
        match operation[0]:
            case "compact":
                store.compact()
                assert store.info().hash == before.hash
            case "tag":
                tags[f"v{number}"] = copy.deepcopy(model), store.tag(f"v{number}").hash
            case "commit":
                write_small_part(store, f"part-{number + 10:03d}", (4,), 100 + number)
                model[100 + number] = model_of(store)[100 + number]
            case "reopen":
                store = open_store(store.path)
            case _:
                apply(store, model, operation)
                assert (store.info().hash != before.hash) == (store.info().edits != before.edits)
    assert_equals_model(store, model)
    assert_equals_model(open_store(store.path), model)
    assert store.verify() == []
    for name, (kept, digest) in tags.items():
        tagged = open_store(store.path, tag=name)
        assert_equals_model(tagged, kept)
        assert tagged.info().hash == digest
        changes = difference(tagged, store)
        assert (changes.added, changes.dropped) == (
            len(model.keys() - kept.keys()),
            len(kept.keys() - model.keys()),
        )
        differing = [
            each
            for each in model.keys() & kept.keys()
            if any(
                not same(model[each].get(k), kept[each].get(k))
                for k in model[each].keys() | kept[each].keys()
            )
        ]
        assert changes.changed == len(differing)


def edited_store(path: Path) -> Store:
    """A store with one edit of each kind."""
    store = open_store(small_store(path, PARTS).path)
    store.select(skill="stand").drop()
    store.select().where("friction < 0.8").annotate({"note": "slips"})
    store.select().where("length > 5").trim(tail=1)
    return store


def test_a_trimmed_episode_streams_without_its_ends(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s", [(30, 14)]).path)
    whole = store.select().episode(0)
    old = store.select().hash
    store.select().trim(head=2, tail=3)
    trimmed = store.select()
    assert trimmed.hash != old
    seen = {0: 0, 1: 0}
    for batch in trimmed.windows(window_len=64, batch_size=8, return_to_go=True):
        for i, episode in enumerate(batch["episode"].tolist()):
            at, steps = int(batch["offset"][i]), int(batch["mask"][i].sum())
            wanted = trimmed.episode(episode)
            assert np.array_equal(batch["obs"][i][:steps], wanted["obs"][at : at + steps])
            to_go = wanted["reward"][at:].sum()
            np.testing.assert_allclose(batch["return_to_go"][i][0], to_go, atol=1e-5)
            seen[episode] += steps
    assert seen == {0: 25, 1: 9}
    assert np.array_equal(trimmed.episode(0)["obs"], whole["obs"][2:-3])
    assert np.array_equal(trimmed.episode(0)["final_obs"], whole["obs"][-3])
    assert [row["truncated"] for row in trimmed.episodes().to_pylist()] == [True, True]


def test_a_reader_in_another_process_sees_the_same_version(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s", [(30, 14)]).path)
    store.tag("v1")
    tagged, early = open_store(store.path, tag="v1").select(), store.select()
    store.select().trim(head=2, tail=3)
    for selection in (tagged, store.select()):
        rebuild, arguments = UnitReader(selection, "obs").__reduce__()
        assert np.array_equal(rebuild(*arguments).read(0), selection.read("obs"))
    rebuild, arguments = UnitReader(early, "obs").__reduce__()
    with pytest.raises(DatasetError, match="edited since"):
        rebuild(*arguments)


def test_every_changed_byte_of_an_edit_is_refused_and_named(tmp_path: Path) -> None:
    store = edited_store(tmp_path / "s")
    names = store.log.names()
    path = store.log.folder / names[1]
    content = path.read_bytes()
    for place in range(0, len(content), 17):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(DatasetError, match=path.name):
            open_store(store.path).select()
    assert any(path.name in fault for fault in store.verify())
    path.write_bytes(content)
    assert store.verify() == []
    os.rename(store.log.folder / names[0], tmp_path / "first")
    with pytest.raises(DatasetError, match="does not follow"):
        open_store(store.path).select()
    assert store.verify() != []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.where("length > 1000").drop(), "no episode to drop"),
        (lambda s: s.annotate({"success": False}), "store's own"),
        (lambda s: s.annotate({"Terrain": "x"}), "store's own"),
        (lambda s: s.annotate({"obs": 1}), "store's own"),
        (lambda s: s.annotate({"row": 1}), "store's own"),
        (lambda s: s.annotate({"friction": "much"}), "has type double"),
        (lambda s: s.annotate({"Friction": 1.0}), "upper and lower case"),
        (lambda s: s.annotate({"a b": 1}), "not allowed"),
        (lambda s: s.annotate({"note": None}), "neither text"),
        (lambda s: s.annotate({"note": 2**70}), "64 bits"),
        (lambda s: s.trim(head=1), "no step left"),
        (lambda s: s.trim(length=100), "no episode would change"),
        (lambda s: s.trim(head=-1), "0 or more"),
    ],
)
def test_wrong_edits_change_nothing(tmp_path: Path, change: Any, message: str) -> None:
    store = open_store(small_store(tmp_path / "s", PARTS).path)
    before = store.info()
    with pytest.raises(DatasetError, match=message) as refused:
        change(store.select())
    assert "\n" not in str(refused.value)
    assert open_store(store.path).info() == before


def test_edits_of_another_version_are_refused(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s", PARTS).path)
    store.tag("v1")
    early = store.select()
    early.save(tmp_path / "all.json")
    store.select(skill="run").drop()
    for refused in (early, open_store(store.path, tag="v1").select(), store.as_collected()):
        with pytest.raises(DatasetError, match=r"select again|opened at tag"):
            refused.drop()
    with pytest.raises(DatasetError, match="dropped; open the store at a tag"):
        Selection.load(store, tmp_path / "all.json")
    tagged = open_store(store.path, tag="v1")
    assert len(Selection.load(tagged, tmp_path / "all.json")) == len(early)


def test_fields_of_whole_episodes_forbid_trimming(tmp_path: Path) -> None:
    schema = small_schema()
    odd = Field("final_obs", (4,), per="episode")
    store = open_store(
        Store.create(tmp_path / "s", small_schema(fields=(*schema.fields[:-1], odd))).path
    )
    finals = {"final_obs": np.zeros((2, 4), np.float32)}
    store.write_part("p", **part_input((5, 9)) | {"per_episode": finals})
    with pytest.raises(DatasetError, match="final_obs"):
        store.select().trim(tail=1)


DROPS = """
from gaitforge.datasets import open_store

open_store(sys.argv[1]).select(skill="run").drop()
"""


def test_a_killed_edit_is_made_or_not(tmp_path: Path) -> None:
    outcomes = set()
    for call in range(1, 12):
        store = small_store(tmp_path / f"s{call}", PARTS)
        before = store.info()
        died = run_killed("os:replace,os:fsync", call, DROPS, store.path)
        store = open_store(store.path)
        info = store.info()
        assert info.edits in (0, 1)
        assert info.hash == before.hash if info.edits == 0 else info.episodes < before.episodes
        assert store.verify() == []
        store.gc()
        assert not list(store.log.folder.glob(".*"))
        outcomes.add((died.returncode, info.edits))
        if died.returncode == 0:
            break
        if not info.edits:
            store.select(skill="run").drop()
    assert {(-signal.SIGKILL, 0), (-signal.SIGKILL, 1), (0, 1)} <= outcomes
