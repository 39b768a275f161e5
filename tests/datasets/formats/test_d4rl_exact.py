"""D4RL files and back: final and next observations of any kind, and options beside notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from gaitforge.datasets import DatasetError, Field, Schema, Store, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.format_stores import (
    Case,
    assert_equal,
    plain_store,
)
from tests.datasets.making import part_input, small_store

BASE = (Field("obs", (5,)), Field("action", (2,)), Field("reward"))
LENGTHS = [3, 4, 5]


def made(path: Path, *fields: Field) -> Store:
    """Three episodes of random numbers in the given fields."""
    store = Store.create(path, Schema(fields, 0.02, "aliengo"))
    rng, rows = np.random.default_rng(1), {"step": sum(LENGTHS), "episode": len(LENGTHS)}
    values = {
        each.name: (rng.normal(size=(rows[each.per], *each.shape)) * 3).astype(each.dtype)
        for each in fields
    }
    given = part_input(LENGTHS)
    steps = {each.name: values[each.name] for each in fields if each.per == "step"}
    ends = np.cumsum(LENGTHS)
    given["episodes"]["return"] = [
        float(part.sum(dtype=float)) for part in np.split(steps["reward"], ends[:-1])
    ]
    per_episode = {each.name: values[each.name] for each in fields if each.per == "episode"}
    store.write_part("part", steps, given["episodes"], per_episode)
    return store


OTHER_FIELDS = {
    "final_obs of another dtype": (Field("final_obs", (5,), "float64", per="episode"),),
    "final_obs of another shape": (Field("final_obs", (4,), per="episode"),),
    "final_obs beside next_obs": (
        Field("next_obs", (5,)),
        Field("final_obs", (5,), per="episode"),
    ),
    "next_obs of another dtype": (Field("next_obs", (3,), "float64"),),
    "a matrix an episode": (
        Field("final_obs", (5,), per="episode"),
        Field("mass", (3, 3), "float64", per="episode"),
        Field("count", (), "int32", per="episode"),
    ),
}


@pytest.mark.parametrize("fields", OTHER_FIELDS.values(), ids=OTHER_FIELDS)
def test_any_final_and_next_observations_come_back(
    fields: tuple[Field, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHARD_STEPS", 7)  # several units, and so several writes
    store = made(tmp_path / "store", *BASE, *fields)
    export_selection("d4rl", store.select(), tmp_path / "out")
    import_source("d4rl", tmp_path / "out", tmp_path / "again")
    case = Case(plain_store, tuple(store.schema.names()))
    assert_equal(case, store.select(), open_store(tmp_path / "again").select())


def test_without_notes_what_has_no_place_is_named(tmp_path: Path) -> None:
    fields = OTHER_FIELDS["final_obs of another dtype"]
    store = made(tmp_path / "store", *BASE, *fields)
    report = export_selection("d4rl", store.select(), tmp_path / "out", {"notes": False})
    assert "final_obs: D4RL has no place for a field per episode" in report.carried.left
    assert "the catalog: D4RL has no place for it" in report.carried.left
    with h5py.File(tmp_path / "out") as file:
        assert "next_observations" not in file


@pytest.mark.parametrize("name", ["obs", "reward"])
def test_observations_and_rewards_of_truths_are_refused(name: str, tmp_path: Path) -> None:
    fields = [Field(each.name, each.shape, "bool") if each.name == name else each for each in BASE]
    store = made(tmp_path / "store", *fields)
    with pytest.raises(DatasetError, match=f"needs numbers for {name}; .* dtype is bool"):
        export_selection("d4rl", store.select(), tmp_path / "out")


@pytest.mark.parametrize(
    "following", [np.zeros((6, 3), "f4"), np.zeros((6, 4), "f8")], ids=["shape", "dtype"]
)
def test_unlike_next_observations_are_kept_apart(following: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = np.zeros((6, 4), "f4"), following
        file["actions"], file["rewards"] = np.zeros((6, 2), "f4"), np.ones(6, "f4")
        file["terminals"] = file["timeouts"] = np.arange(6) == 5
    with pytest.raises(DatasetError, match=r"x.hdf5: next_observations: .* keep_next=true"):
        import_source("d4rl", path, tmp_path / "store")
    import_source("d4rl", path, tmp_path / "store", {"keep_next": True})
    found = open_store(tmp_path / "store").select()
    assert found.read("next_obs").tobytes() == following.tobytes()
    assert "final_obs" not in found.store.schema.names()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "hopper"}, "option task has"),
        ({"infos": False, "horizon": 5}, "options horizon, infos have"),
    ],
)
def test_options_beside_notes(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    export_selection("d4rl", small_store(tmp_path / "store").select(), path)
    with pytest.raises(DatasetError, match=f"x.hdf5: metadata/gaitforge: {named} no effect"):
        import_source("d4rl", path, tmp_path / "again", options)
    import_source("d4rl", path, tmp_path / "again", {"infos": True, "task": ""})
    assert open_store(tmp_path / "again").select().steps == small_steps(path)


def small_steps(path: Path) -> int:
    with h5py.File(path) as file:
        return len(file["rewards"])  # pyright: ignore[reportArgumentType]
