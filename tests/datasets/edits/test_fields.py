"""Fields added to stores: read like others, whatever is dropped, trimmed, merged or pushed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Schema, Store, create_store, open_store
from gaitforge.datasets.edits.operations import add_field
from gaitforge.datasets.layout import OVERLAYS
from tests.datasets.making import TWO_PARTS, part_input, small_store, write_small_part

PARTS = [(5, 1, 9), (30, 14), (6, 6, 6)]


def make_field(store: Store, field: Field, values: dict[str, np.ndarray], folder: str = "") -> str:
    """An overlay with these values by part, made in the order given; returns its folder."""
    folder = folder or f"{field.name}-1"
    schema = Schema((field,), store.schema.control_dt_s, store.schema.robot)
    overlay = create_store(store.path / OVERLAYS / folder, schema)
    episodes, first = {}, 0
    for part, manifest in store.collected().manifests.items():
        table = store.collected().rows(np.arange(first, first + manifest.episodes))
        episodes[part] = table.drop_columns(["part", "start"])
        first += manifest.episodes
    for part in overlay.missing(values):
        overlay.write_part(part, {field.name: values[part]}, episodes[part])
    return folder


def collected_obs(store: Store) -> dict[str, np.ndarray]:
    """The first two channels of the observation, by part."""
    found = {}
    for part, manifest in store.collected().manifests.items():
        rows = np.empty((manifest.steps, 5), np.float32)
        with store.array_reader(store.collected(), part, "obs") as reader:
            reader.read_runs([(0, manifest.steps)], rows)
        found[part] = rows[:, :2]
    return found


TWO = Field("two", (2,), unit="rad", description="two channels")


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(["drop", "trim", "field", "compact"]), st.integers(0, 7)),
        max_size=5,
    )
)
def test_an_added_field_has_the_rows_of_what_it_was_made_of(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]]
) -> None:
    store = open_store(small_store(tmp_path_factory.mktemp("field") / "s.zarr", PARTS).path)
    for name, number in [*operations, ("field", 0)]:
        chosen = store.select().where(f"episode = {number}")
        if name == "drop" and len(chosen):
            chosen.drop()
        elif name == "trim" and len(chosen) and chosen.lengths[0] > 2:
            chosen.trim(head=1, tail=1)
        elif name == "field":
            add_field(store, make_field(store, TWO, collected_obs(store)))
        elif name == "compact":
            store.compact()
    selection = store.select()
    np.testing.assert_array_equal(selection.read("two"), selection.read("obs")[:, :2])
    for index in range(len(selection)):
        episode = selection.episode(index)
        np.testing.assert_array_equal(episode["two"], episode["obs"][:, :2])
    assert store.verify() == []


def test_a_field_is_added_once_when_all_its_parts_are_there(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s.zarr", PARTS).path)
    values = collected_obs(store)
    folder = make_field(store, TWO, {part: values[part] for part in store.parts()[:2]})
    with pytest.raises(DatasetError, match="field two: part part-002 is not made yet"):
        add_field(store, folder)
    assert store.edits() == ()
    make_field(store, TWO, values)
    assert add_field(store, folder) is not None
    assert add_field(store, folder) is None
    other = make_field(store, TWO, values, "two-2")
    with pytest.raises(DatasetError, match="has a field 'two' already"):
        add_field(store, other)
    store.tag("with-two")
    write_small_part(store, "part-003", (4, 4), 8)
    with pytest.raises(DatasetError, match=r"field two of .* is absent in part part-003"):
        store.select().read("two")
    assert open_store(store.path, tag="with-two").select().read("two").shape == (77, 2)
    make_field(store, TWO, collected_obs(store))
    assert add_field(store, folder) is not None
    assert store.select().read("two").shape == (85, 2)


def test_a_saved_selection_is_that_of_the_episodes_also_under_a_new_reward(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s.zarr").path)
    chosen = store.select(skill="run")
    chosen.save(tmp_path / "picked.json")
    rewards = {
        part: part_input(lengths, first)["steps"]["reward"] + 1
        for part, lengths, first in zip(store.parts(), TWO_PARTS, (0, 3), strict=True)
    }
    add_field(store, make_field(store, Field("reward"), rewards))
    again = type(chosen).load(store, tmp_path / "picked.json")
    np.testing.assert_array_equal(again.read("reward"), chosen.read("reward") + 1)
    assert again.hash != chosen.hash
    dask = again.dask("reward").compute(scheduler="synchronous")
    np.testing.assert_array_equal(dask, again.read("reward"))
    copy, old = (each.materialise(tmp_path / "copies", ("reward",)) for each in (again, chosen))
    assert copy.path != old.path


def test_verify_names_a_part_of_a_field_that_is_gone(tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s.zarr").path)
    folder = make_field(store, TWO, collected_obs(store))
    add_field(store, folder)
    (store.path / OVERLAYS / folder / "catalog" / "part-001.parquet").unlink()
    assert open_store(store.path).verify() == [
        f"{OVERLAYS}/{folder}: part part-001 is not there as it was added"
    ]
    with pytest.raises(DatasetError, match=r"field two, part part-001 of .* is absent or not as"):
        open_store(store.path).select().read("two")
