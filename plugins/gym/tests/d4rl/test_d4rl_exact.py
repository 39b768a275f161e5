"""D4RL files and back: next observations of any kind, options, nested infos, and metadata."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Schema, Store, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.hdf5 import datasets_of
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.gym.d4rl import d4rl_layout
from gaitforge.plugins.gym.tests.d4rl.test_d4rl import rows, write
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


PART = st.text("aB_ .é/", min_size=1, max_size=3).map(lambda text: text.strip("/. ") or "x")
KEYS = st.lists(PART, min_size=1, max_size=5, unique=True)


def contents(path: Path, group: str) -> dict[str, Any]:
    """Path below a group -> values."""
    with h5py.File(path) as file:
        found = file.get(group)
        if not isinstance(found, h5py.Group):
            return {}
        return {name: each[()] for name, each in datasets_of(found).items()}


def again(path: Path, folder: Path, **options: Any) -> Path:
    """Imported and exported."""
    import_source("d4rl", path, folder / "store", options)
    export_selection("d4rl", open_store(folder / "store").select(), folder / "out.hdf5")
    return folder / "out.hdf5"


@pytest.mark.slow
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=KEYS)
def test_infos_keep_their_path(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, arrays = tmp_path_factory.mktemp("infos"), rows(4)
    arrays["terminals"][-1] = True
    path = write(folder / "x.hdf5", arrays)
    with h5py.File(path, "a") as file:
        for number, name in enumerate(names):
            try:
                file.create_dataset(f"infos/{name}", data=np.arange(4, dtype="f4") + number)
            except (ValueError, OSError, KeyError, TypeError):
                continue  # one key lies in another, which is an array
    before = contents(path, "infos")
    written = again(path, folder)
    after = contents(written, "infos")
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    (folder / "second").mkdir()
    assert contents(again(written, folder / "second"), "infos").keys() == before.keys()


def test_infos_as_one_array_come_back(tmp_path: Path) -> None:
    arrays = rows(4)
    arrays["infos"] = np.arange(4)
    with h5py.File(again(write(tmp_path / "x.hdf5", arrays), tmp_path, horizon=4)) as file:
        assert np.asarray(file["infos"]).tolist() == [0, 1, 2, 3]


def with_metadata(path: Path) -> Path:
    """A file with text, numbers, a policy's weights, and an array without numbers."""
    arrays = rows(6)
    arrays["terminals"][-1] = True
    write(path, arrays)
    with h5py.File(path, "a") as file:
        group = file.require_group("metadata")
        group["iteration"], group["note"] = np.int64(3), "größe"
        group["policy/nonlinearity"] = np.bytes_("relu")
        group["policy/fc1/weight"] = np.random.default_rng(0).normal(size=(64, 64)).astype(">f4")
        group["empty"] = np.zeros((0, 3))
    return path


@pytest.mark.parametrize(("notes", "url_or_folder"), [(True, "store"), (False, "s3")])
def test_metadata_come_back(
    notes: bool, url_or_folder: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = with_metadata(tmp_path / "hopper_medium-v2.hdf5")
    before = contents(path, "metadata")
    assert len(before) == 7
    for number in range(2):
        folder = tmp_path / "store"
        store = folder if url_or_folder == "store" else request.getfixturevalue("url")
        place = f"{store}-{number}"
        report = import_source("d4rl", path, place)
        assert not any("metadata" in line for line in report.carried.left)
        path = tmp_path / f"out-{number}.hdf5"
        report = export_selection("d4rl", open_store(place).select(), path, {"notes": notes})
        assert "metadata of the imported file -> metadata" in report.carried.kept
        after = contents(path, "metadata")
        assert {name for name in after if not name.startswith("gaitforge/")} == before.keys()
        for name, values in before.items():
            np.testing.assert_array_equal(after[name], values)
            assert np.asarray(after[name]).dtype == np.asarray(values).dtype


def test_metadata_of_two_files_are_left_and_said(tmp_path: Path) -> None:
    for number in range(2):
        path = with_metadata(tmp_path / f"{number}.hdf5")
        with h5py.File(path, "a") as file:
            file["actions"][0] = number  # pyright: ignore[reportIndexIssue]
            del file["next_observations"]
            file["metadata/seed"] = number
        import_source("d4rl", path, tmp_path / "store", {"task": "mine"})
    both = open_store(tmp_path / "store").select()
    report = export_selection("d4rl", both, tmp_path / "out.hdf5")
    assert any("metadata of 2 imported files" in line for line in report.carried.left)
    first = both.where(f"part = '{both.rows_by_part()[0][0]}'")
    export_selection("d4rl", first, tmp_path / "first.hdf5")
    assert "seed" in contents(tmp_path / "first.hdf5", "metadata")


def test_metadata_are_bounded_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_metadata(tmp_path / "x.hdf5")
    import_source("d4rl", path, tmp_path / "store")
    [kept] = (tmp_path / "store" / "imports/metadata").iterdir()
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content)
    with pytest.raises(DatasetError, match=r"imports/metadata/\w+.d4rl of .* is damaged"):
        export_selection("d4rl", open_store(tmp_path / "store").select(), tmp_path / "out")
    monkeypatch.setattr(d4rl_layout, "MOST_BYTES", 1000)
    report = import_source("d4rl", path, tmp_path / "other")
    assert any(line.startswith("metadata: larger than") for line in report.carried.left)
