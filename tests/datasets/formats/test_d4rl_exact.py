"""D4RL files and back, exactly: with notes any store, without them whatever the layout holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from gaitforge.datasets import DatasetError, Field, Schema, Selection, Store, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.format_stores import (
    PLAIN_FIELDS,
    Case,
    assert_equal,
    plain_store,
    random_episodes,
)
from tests.datasets.making import part_input, small_store

WITHOUT_NOTES = Case(plain_store, PLAIN_FIELDS, ("length", "return", "terminated"), schema=False)
"""What plain D4RL holds: nothing of the catalog but what its arrays tell."""

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


def again(store: Store, folder: Path, **options: Any) -> Selection:
    """Exported and imported."""
    export_selection("d4rl", store.select(), folder / "out.hdf5", options)
    import_source("d4rl", folder / "out.hdf5", folder / "again")
    return open_store(folder / "again").select()


def check_without_notes(before: Selection, after: Selection) -> None:
    """All fields, and of the catalog what flags and rewards say; a cut-off end is a time-out."""
    assert_equal(WITHOUT_NOTES, before, after)
    ends = before.episodes()
    terminated, truncated = (ends[name].to_numpy() for name in ("terminated", "truncated"))
    marked = truncated | ~terminated
    marked[-1] = truncated[-1]
    assert after.episodes()["truncated"].to_pylist() == marked.tolist()
    assert after.episodes()["success"].to_pylist() == (~terminated).tolist()


@pytest.mark.parametrize("count", [1, 2, 300])
def test_without_notes_random_episodes_are_exact(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHARD_STEPS", 500)
    store = plain_store(tmp_path / "store", random_episodes(count))
    found = again(store, tmp_path, notes=False)
    assert count < 300 or len(found.store.parts()) > 1
    check_without_notes(store.select(), found)


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
    found = again(store, tmp_path)
    names = tuple(store.schema.names())
    assert_equal(Case(plain_store, names), store.select(), found)


def test_without_notes_what_has_no_place_is_named(tmp_path: Path) -> None:
    fields = OTHER_FIELDS["final_obs of another dtype"]
    store = made(tmp_path / "store", *BASE, *fields)
    report = export_selection("d4rl", store.select(), tmp_path / "out", {"notes": False})
    assert "final_obs: D4RL has no place for a field per episode" in report.carried.left
    with h5py.File(tmp_path / "out") as file:
        assert "next_observations" not in file


@pytest.mark.parametrize("name", ["obs", "reward"])
def test_observations_and_rewards_of_truths_are_refused_before_they_are_written(
    name: str, tmp_path: Path
) -> None:
    fields = [Field(each.name, each.shape, "bool") if each.name == name else each for each in BASE]
    store = made(tmp_path / "store", *fields)
    with pytest.raises(DatasetError, match=f"needs numbers for {name}; .* dtype is bool"):
        export_selection("d4rl", store.select(), tmp_path / "out")


@pytest.mark.parametrize(
    "following", [np.zeros((6, 3), "f4"), np.zeros((6, 4), "f8")], ids=["shape", "dtype"]
)
def test_next_observations_unlike_observations_are_named_or_kept_apart(
    following: np.ndarray, tmp_path: Path
) -> None:
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


def relabelled(file: h5py.File) -> None:
    file["rewards"][:] = 1.0  # pyright: ignore[reportIndexIssue]


def timed_out(file: h5py.File) -> None:
    file["timeouts"][:] |= file["terminals"][:]  # pyright: ignore
    file["terminals"][:] = False  # pyright: ignore[reportIndexIssue]


def both(file: h5py.File) -> None:
    file["timeouts"][:] |= file["terminals"][:]  # pyright: ignore


def unmarked_last(file: h5py.File) -> None:
    file["terminals"][-1] = file["timeouts"][-1] = False  # pyright: ignore[reportIndexIssue]


EDITS: Mapping[str, tuple[Callable[[h5py.File], None], str]] = {
    "rewards": (relabelled, "return of episode 0 is .* in the notes, but 5 in the arrays; delete"),
    "ends": (timed_out, "terminated of episode 0 is 1 in the notes, but 0 in the arrays"),
    "both": (both, "truncated of episode 0 is 0 in the notes, but 1 in the arrays"),
    "last": (unmarked_last, "terminated of episode 4 is 1 in the notes, but 0 in the arrays"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_arrays_that_were_edited_beside_their_notes_are_refused(edit: str, tmp_path: Path) -> None:
    change, message = EDITS[edit]
    path = tmp_path / "x.hdf5"
    export_selection("d4rl", small_store(tmp_path / "store").select(), path)
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(DatasetError, match=f"x.hdf5: metadata/gaitforge: {message}"):
        import_source("d4rl", path, tmp_path / "again")
    with h5py.File(path, "a") as file:
        del file["metadata/gaitforge"]
        rewards = np.asarray(file["rewards"])
    import_source("d4rl", path, tmp_path / "again")
    found = open_store(tmp_path / "again").select()
    sums = np.add.reduceat(rewards.astype(float), np.cumsum(found.lengths) - found.lengths)
    assert found.episodes()["return"].to_pylist() == sums.tolist()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "hopper"}, "option task has"),
        ({"infos": False, "horizon": 5}, "options horizon, infos have"),
    ],
)
def test_options_beside_notes_are_not_ignored(
    options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.hdf5"
    export_selection("d4rl", small_store(tmp_path / "store").select(), path)
    with pytest.raises(DatasetError, match=f"x.hdf5: metadata/gaitforge: {named} no effect"):
        import_source("d4rl", path, tmp_path / "again", options)
    import_source("d4rl", path, tmp_path / "again", {"infos": True, "task": ""})
    assert open_store(tmp_path / "again").select().steps == small_steps(path)


def small_steps(path: Path) -> int:
    with h5py.File(path) as file:
        return len(file["rewards"])  # pyright: ignore[reportArgumentType]
