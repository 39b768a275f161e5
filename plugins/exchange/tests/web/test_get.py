"""`gaitforge get` copies exactly what is selected, and goes on with nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Selection, Store, open_store
from gaitforge.datasets.edits.operations import add_field
from gaitforge.datasets.formats import sources
from gaitforge.datasets.storage.store import PartStore
from gaitforge.plugins.exchange.web import get
from gaitforge.plugins.exchange.web.get import get_selection
from tests.datasets.edits.test_fields import collected_obs, make_field
from tests.datasets.making import part_input, small_schema, small_store

MOST_STEPS = 10
"""Of a block, so that small parts are cut."""
MOST = "episode % 10 != 1"
"""A condition for all episodes but the second of each part."""
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=5)
PARTS = st.dictionaries(st.sampled_from(["a", "a-0", "a-1", "a-1-0", "b"]), LENGTHS, min_size=1)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few steps; whole parts as large as a block wait in files."""
    monkeypatch.setattr(sources, "SHARD_STEPS", MOST_STEPS)
    monkeypatch.setattr(get, "PART_BYTES", 200)


def made(path: Path, parts: dict[str, list[int]], columns: int = 0) -> Store:
    """A store of these parts; bits of `columns` say which parts have a column of their own."""
    store = Store.create(path, small_schema())
    for number, (name, lengths) in enumerate(parts.items()):
        content = part_input(lengths, 10 * number)
        if columns >> number & 1:
            content["episodes"]["draw"] = np.arange(len(lengths)) / (1 + number % 2)
            content["episodes"][f"note_{number}"] = ["x"] * len(lengths)
        store.write_part(name, **content)
    return open_store(path)


def assert_same(copy: Store, selection: Selection) -> None:
    """The copy holds each selected episode once, with its columns and values."""
    copied = copy.select()
    held = {number: row for row, number in enumerate(copied.episode_ids().tolist())}
    assert sorted(held) == sorted(selection.episode_ids().tolist())
    shown = copied.episodes().drop_columns(["part", "start"]).to_pylist()
    for row, columns in enumerate(selection.episodes().drop_columns(["part", "start"]).to_pylist()):
        there = held[columns["episode"]]
        assert {name: shown[there].get(name) for name in columns} == columns
        first, second = selection.episode(row), copied.episode(there)
        for name in selection.schema.names():
            np.testing.assert_array_equal(first[name], second[name])


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(PARTS, st.integers(0, 31), st.sampled_from(["true", MOST, "length > 2"]), st.booleans())
@example({"a": [6, 6, 6, 6], "a-0": [3, 2], "a-1": [2, 2]}, 0, MOST, True)
@example({"a": [6, 6, 6, 6], "a-0": [3, 2], "a-1": [2, 2]}, 6, "true", False)
def test_a_copy_holds_what_is_selected(
    small_blocks: None,
    tmp_path_factory: pytest.TempPathFactory,
    parts: dict[str, list[int]],
    columns: int,
    condition: str,
    merged: bool,
) -> None:
    """Whatever parts are called and have as columns; of everything it has the same hash."""
    folder = tmp_path_factory.mktemp("get")
    store = made(folder / "source.zarr", parts, columns)
    if merged:
        store.compact()
    chosen = store.select().where(condition)
    if not len(chosen):
        return
    copied = get_selection(chosen, folder / "copy.zarr")
    copy = open_store(folder / "copy.zarr")
    assert (copied.episodes, copied.steps) == (len(chosen), chosen.steps)
    assert_same(copy, chosen)
    if len(chosen) == len(store.select()):
        assert copied.hash == store.info().hash
    assert copy.verify() == []
    assert not list((copy.path / ".staging").glob("tmp*"))
    assert get_selection(chosen, folder / "copy.zarr") == copied


def test_a_copy_of_an_edited_store_has_its_edits_in_its_rows(
    small_blocks: None, tmp_path: Path
) -> None:
    store = made(tmp_path / "source.zarr", {"a": [4, 6, 5, 3], "b": [6, 2], "c": [3]}, columns=1)
    store.select().where("episode = 1").drop()
    store.select().where("episode = 10").trim(head=1, tail=2)
    store.select().where("episode >= 10").annotate({"note": "limps", "draw": 0.25})
    _relabelled(store)
    get_selection(store.select(), tmp_path / "copy.zarr")
    assert_same(open_store(tmp_path / "copy.zarr"), store.select())


Change = Callable[[Store, Path], Selection]
CHANGES: dict[str, Change] = {
    "others": lambda store, folder: store.select(terrain="rough"),
    "fewer": lambda store, folder: store.select().where("terrain = 'flat' and length > 5"),
    "another store": lambda store, folder: made(
        folder / "other.zarr", {"part-000": [5, 1, 9], "part-001": [3, 3]}
    ).select(terrain="flat"),
    "annotated": lambda store, folder: _edited(store, "annotate", {"note": "x"}),
    "trimmed": lambda store, folder: _edited(store, "trim", 1),
    "relabelled": lambda store, folder: _relabelled(store).select(terrain="flat"),
}


def _relabelled(store: Store) -> Store:
    rewards = {part: values[:, 0] for part, values in collected_obs(store).items()}
    add_field(store, make_field(store, store.schema.field("reward"), rewards))
    return store


def _edited(store: Store, edit: str, *arguments: Any) -> Selection:
    getattr(store.select().where("episode = 0"), edit)(*arguments)
    return store.select(terrain="flat")


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_copy_goes_on_with_the_same_selection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, interrupted: bool
) -> None:
    store = open_store(small_store(tmp_path / "source.zarr").path)
    flat = store.select(terrain="flat")
    out = tmp_path / "copy.zarr"
    if interrupted:
        write = PartStore.write_part

        def fail(self: PartStore, part_id: str, *rest: Any) -> Any:
            if part_id == "part-001":
                raise KeyboardInterrupt
            return write(self, part_id, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(PartStore, "write_part", fail)
            with pytest.raises(KeyboardInterrupt):
                get_selection(flat, out)
    else:
        get_selection(flat, out)
    before = open_store(out).parts()
    with pytest.raises(DatasetError, match="holds a copy of other episodes") as refused:
        get_selection(CHANGES[name](store, tmp_path), out)
    assert "\n" not in str(refused.value)
    assert open_store(out).parts() == before
    get_selection(flat, out)
    assert_same(open_store(out), flat)


def test_another_store_is_not_written_to(tmp_path: Path) -> None:
    source = open_store(small_store(tmp_path / "source.zarr").path)
    mine = small_store(tmp_path / "mine.zarr", [(3, 3)])
    with pytest.raises(DatasetError, match="did not begin"):
        get_selection(source.select(), mine.path)
    assert open_store(mine.path).parts() == ["part-000"]


def test_a_copy_to_which_parts_were_added_is_not_taken_for_the_selection(tmp_path: Path) -> None:
    source = open_store(small_store(tmp_path / "source.zarr").path)
    get_selection(source.select(), tmp_path / "copy.zarr")
    open_store(tmp_path / "copy.zarr").write_part("part-9", **part_input([4], 90))
    with pytest.raises(DatasetError, match=r"has 6 episodes .* selected were 5"):
        get_selection(source.select(), tmp_path / "copy.zarr")


@pytest.mark.parametrize("condition", ["true", "episode % 2 = 0"])
def test_an_object_with_other_rows_is_not_copied(tmp_path: Path, condition: str) -> None:
    """Also if it is well formed: as a mirror might hold one."""
    store = open_store(small_store(tmp_path / "source.zarr").path)
    other = Store.create(tmp_path / "other.zarr", small_schema())
    content = part_input((5, 1, 9))
    content["steps"]["obs"] *= -1
    other.write_part("part-000", **content)
    wrong = "parts/part-000/obs/c/0/0"
    (store.path / wrong).write_bytes((other.path / wrong).read_bytes())
    selection = store.select().where(condition)
    assert np.isfinite(selection.read("obs")).all(), "a read sees no fault"
    with pytest.raises(DatasetError, match="obs, object c/0/0: not its recorded SHA-256"):
        get_selection(selection, tmp_path / "copy.zarr")
    assert open_store(tmp_path / "copy.zarr").parts() == []
