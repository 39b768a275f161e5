"""MoCapAct's HDF5 in and out, beyond what every format is held to."""

import pickle
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from gaitforge.datasets import DatasetError, Field, Store, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.learners.models.bodies import BODIES
from gaitforge.plugins.mocapact.format.mocapact_schema import BODY_OBSERVABLES
from gaitforge.plugins.mocapact.format.mocapact_writer import MocapactExporter
from gaitforge.plugins.mocapact.tests.formats.mocapact_files import (
    ACTIONS,
    BODY_WIDTHS,
    SMALL_WIDTHS,
    Rollout,
    make_rollouts,
    write_file,
)
from tests.datasets.making import small_schema, small_store

WIDTH = sum(SMALL_WIDTHS.values())
FIRST = make_rollouts((5, 1, 4, 7, 2), 0, WIDTH)
SECOND = make_rollouts((3, 6), 1, WIDTH)
OTHER = make_rollouts((8, 2, 2), 2, WIDTH)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clips: one of two snippets, whose order by name is not that by frame, and another."""
    source = tmp_path / "rollouts"
    source.mkdir()
    write_file(
        source / "CMU_009.hdf5", {"CMU_009-20-55": (FIRST, 3), "CMU_009-100-135": (SECOND, 1)}
    )
    write_file(source / "CMU_010.hdf5", {"CMU_010-0-35": (OTHER, 1)})
    (source / "dataset_metrics.npz").write_bytes(pickle.dumps({"count": 1}))
    return source


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> Store:
    """The folder's store."""
    import_source("mocapact", folder, tmp_path / "store")
    return open_store(tmp_path / "store")


def joined(rollouts: list[Rollout], name: str) -> np.ndarray:
    """One array of all rollouts, end to end; of the observations those before a step."""
    return np.concatenate([getattr(each, name)[: len(each.rewards)] for each in rollouts])


def test_every_array_and_observable_is_where_its_name_says(store: Store) -> None:
    everything = store.select()
    rollouts = [*FIRST, *SECOND, *OTHER]
    for field, key in (
        ("action", "actions"),
        ("mean_action", "mean_actions"),
        ("reward", "rewards"),
        ("value", "values"),
        ("advantage", "advantages"),
    ):
        np.testing.assert_array_equal(everything.read(field), joined(rollouts, key))
    seen = joined(rollouts, "proprioceptive")
    last = np.stack([each.proprioceptive[-1] for each in rollouts])
    at = 0
    for name, width in SMALL_WIDTHS.items():
        field = "obs" if name in BODY_OBSERVABLES else "further_obs"
        chosen = slice(*store.schema.field(field).slices[name])
        columns = slice(at, at + width)
        np.testing.assert_array_equal(everything.read(field)[:, chosen], seen[:, columns])
        np.testing.assert_array_equal(
            everything.read(f"final_{field}")[:, chosen], last[:, columns]
        )
        at += width
    assert store.schema.control_dt_s == 0.03
    assert store.verify() == []


def test_the_catalog_tells_snippets_starts_and_early_terminations(store: Store) -> None:
    table = store.select().episodes()
    assert table.column("clip").to_pylist() == ["CMU_009"] * 7 + ["CMU_010"] * 3
    assert table.column("snippet_start").to_pylist() == [20] * 5 + [100] * 2 + [0] * 3
    assert table.column("snippet_end").to_pylist() == [55] * 5 + [135] * 2 + [35] * 3
    assert table.column("rollout").to_pylist() == [*range(5), *range(2), *range(3)]
    random = [False, False, False, True, True, False, True, False, True, True]
    assert table.column("random_start").to_pylist() == random
    early = [each.early for each in (*FIRST, *SECOND, *OTHER)]
    assert table.column("terminated").to_pylist() == early
    assert table.column("truncated").to_pylist() == [not each for each in early]
    returns = [float(each.rewards.sum()) for each in (*FIRST, *SECOND, *OTHER)]
    assert table.column("return").to_pylist() == returns
    assert table.column("norm_return").to_pylist() == [each / 30.0 for each in returns]
    kept = store.select().where("not terminated and random_start")
    assert kept.lengths.tolist() == [7, 2, 6, 2]


def test_body_observables_are_those_of_the_body_transformer() -> None:
    body = BODIES["cmu-humanoid"]
    assert tuple(body.fields) == BODY_OBSERVABLES
    assert {name: len(nodes) for name, nodes in body.fields.items()} == BODY_WIDTHS


def test_all_observables_can_be_the_observation(folder: Path, tmp_path: Path) -> None:
    import_source("mocapact", folder, tmp_path / "store", {"observables": "all"})
    selection = open_store(tmp_path / "store").select()
    seen = joined([*FIRST, *SECOND, *OTHER], "proprioceptive")
    np.testing.assert_array_equal(selection.read("obs"), seen)
    assert list(selection.store.schema.field("obs").slices) == list(SMALL_WIDTHS)
    export_selection("mocapact", selection, tmp_path / "again")
    with h5py.File(tmp_path / "again" / "CMU_010.hdf5") as file:
        given = file["CMU_010-0-35/1/observations/proprioceptive"]
        np.testing.assert_array_equal(given, OTHER[1].proprioceptive)


def test_a_clip_list_splits_training_from_validation(folder: Path, tmp_path: Path) -> None:
    clips = tmp_path / "clips.txt"
    clips.write_text("# held out\nCMU_010\n\n")
    import_source("mocapact", folder, tmp_path / "split", {"validation_clips": str(clips)})
    split = open_store(tmp_path / "split")
    assert len(split.select(split="train")) == 7
    validation = split.select(split="validation")
    assert set(validation.episodes().column("clip").to_pylist()) == {"CMU_010"}
    clips.write_text("CMU_099\n")
    with pytest.raises(DatasetError, match=r"validation_clips: no clip CMU_099"):
        import_source("mocapact", folder, tmp_path / "no", {"validation_clips": str(clips)})
    clips.write_text("\n")
    with pytest.raises(DatasetError, match=r"clips\.txt names no clip"):
        import_source("mocapact", folder, tmp_path / "no", {"validation_clips": str(clips)})


def published_stats(rollouts: list[Rollout]) -> dict[str, np.ndarray]:
    """Means and variances as the published writer makes them: one count, of the observations."""
    count = sum(len(each.proprioceptive) for each in rollouts)
    found: dict[str, np.ndarray] = {"count": np.array(count)}
    for name, key in (
        ("proprio", "proprioceptive"),
        ("act", "actions"),
        ("mean_act", "mean_actions"),
    ):
        rows = np.concatenate([getattr(each, key) for each in rollouts]).astype(np.float64)
        mean = rows.sum(axis=0) / count
        found |= {f"{name}_mean": mean, f"{name}_var": (rows**2).sum(axis=0) / count - mean**2}
    return found


def test_an_export_has_the_published_layout(store: Store, folder: Path, tmp_path: Path) -> None:
    export_selection("mocapact", store.select(), tmp_path / "out", {"notes": False})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "CMU_009.hdf5",
        "CMU_010.hdf5",
    ]
    with (
        h5py.File(tmp_path / "out" / "CMU_009.hdf5") as given,
        h5py.File(folder / "CMU_009.hdf5") as original,
    ):
        wanted: list[str] = []
        original.visit(wanted.append)
        for key in wanted:
            there = original[key]
            if isinstance(there, h5py.Dataset) and key != "stats/count":
                found = given[key]
                assert isinstance(found, h5py.Dataset)
                assert found.dtype == there.dtype, key
                np.testing.assert_array_equal(found[()], there[()], err_msg=key)
        for key, value in published_stats([*FIRST, *SECOND]).items():
            stats = given[f"stats/{key}"]
            assert isinstance(stats, h5py.Dataset)
            np.testing.assert_allclose(stats[()], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("destination", "notes"), [("out", True), ("out.hdf5", False)])
def test_rollouts_come_back_as_they_were(
    store: Store, tmp_path: Path, destination: str, notes: bool
) -> None:
    export_selection("mocapact", store.select(), tmp_path / destination, {"notes": notes})
    import_source("mocapact", tmp_path / destination, tmp_path / "again")
    again = open_store(tmp_path / "again")
    assert again.schema == store.schema
    for name in store.schema.names():
        np.testing.assert_array_equal(again.select().read(name), store.select().read(name))
    table, expected = again.select().episodes(), store.select().episodes()
    unlike = {"part", "start"} | (set() if notes else {"episode"})
    for name in set(expected.column_names) - unlike:
        assert table.column(name).to_pylist() == expected.column(name).to_pylist(), name
    assert notes == table.column("episode").equals(expected.column("episode"))


def test_an_export_of_some_rollouts_numbers_them_anew(store: Store, tmp_path: Path) -> None:
    some = store.select().where("not terminated and clip = 'CMU_009'")
    report = export_selection("mocapact", some, tmp_path / "some.h5")
    assert any("numbered anew" in note for note in report.carried.notes)
    with h5py.File(tmp_path / "some.h5") as file:
        group = file["CMU_009-20-55"]
        assert isinstance(group, h5py.Group)
        assert sorted(str(name) for name in group if str(name).isdecimal()) == ["0", "1", "2", "3"]
        np.testing.assert_array_equal(group["2/actions"], FIRST[3].actions)
    import_source("mocapact", tmp_path / "some.h5", tmp_path / "again")
    again = open_store(tmp_path / "again").select()
    np.testing.assert_array_equal(again.read("obs"), some.read("obs"))


def test_episodes_without_clips_go_by_their_skill(tmp_path: Path) -> None:
    given = small_store(tmp_path / "store").select()
    report = export_selection("mocapact", given, tmp_path / "out")
    assert any("their skill is taken as their clip" in note for note in report.carried.notes)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["crawl.hdf5", "run.hdf5", "stand.hdf5"]
    import_source("mocapact", tmp_path / "out", tmp_path / "again")
    again = open_store(tmp_path / "again").select()
    for skill in ("crawl", "run", "stand"):
        before, after = (each.where(f"skill = '{skill}'") for each in (given, again))
        np.testing.assert_array_equal(after.read("obs"), before.read("obs"))
        np.testing.assert_array_equal(after.read("final_obs"), before.read("final_obs"))
    assert again.store.schema == given.store.schema


def test_what_the_format_cannot_hold_is_refused_before_it_is_written(tmp_path: Path) -> None:
    fields = (Field("obs", (2,)), Field("action", (1,)), Field("reward"))
    store = Store.create(tmp_path / "none", small_schema(fields=fields))
    with pytest.raises(DatasetError, match=r"needs the fields .* lacks final_obs"):
        MocapactExporter(MocapactExporter.Options()).check(store.select(), tmp_path / "out")
    wide = (Field("obs", (2,), "float64"), *fields[1:], Field("final_obs", (2,), per="episode"))
    store = Store.create(tmp_path / "wide", small_schema(fields=wide))
    with pytest.raises(DatasetError, match=r"needs obs in float32 .* here it is float64"):
        MocapactExporter(MocapactExporter.Options()).check(store.select(), tmp_path / "out")


def _replace(key: str, value: np.ndarray | None = None) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with h5py.File(path, "a") as file:
            del file[key]
            if value is not None:
                file[key] = value

    return change


SEEN = "CMU_010-0-35/1/observations/proprioceptive"
BAD_FILES: dict[str, Callable[[Path], None]] = {
    "CMU_010-0-35: has 2 rollouts, but metrics of 3": _replace("CMU_010-0-35/2"),
    rf"{SEEN}: shape must be \(3, 9\), not \(2, 9\)": _replace(SEEN, OTHER[1].proprioceptive[:-1]),
    r"CMU_010-0-35/0/actions: shape must be \(9, 4\), not \(8, 4\)": _replace(
        "CMU_010-0-35/start_metrics/episode_lengths", np.array([9])
    ),
    r"episode_lengths: episode 7 of 2000000000 steps takes .* is the file damaged": _replace(
        "CMU_010-0-35/start_metrics/episode_lengths", np.array([2_000_000_000])
    ),
    "episode_lengths: every episode needs 1 to 2147483648 steps": _replace(
        "CMU_010-0-35/start_metrics/episode_lengths", np.array([2**62])
    ),
    "CMU_010-0-35/1/rewards: sum to 100": _replace(
        "CMU_010-0-35/1/rewards", np.array([50.0, 50.0], "f4")
    ),
    "observable_indices/walker/joints_vel: must be columns 5 to 7": _replace(
        "observable_indices/walker/joints_vel", np.array([4, 5, 6])
    ),
    "its observables or arrays are not those of": _replace(
        "CMU_010-0-35/0/actions", np.zeros((8, ACTIONS + 1), "f4")
    ),
}


@pytest.mark.parametrize("message", BAD_FILES)
def test_bad_input_leaves_nothing(message: str, folder: Path, tmp_path: Path) -> None:
    BAD_FILES[message](folder / "CMU_010.hdf5")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DatasetError, match=message) as error:
        import_source("mocapact", folder, tmp_path / "store")
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_sources_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"none\.hdf5: no such file"):
        import_source("mocapact", tmp_path / "none.hdf5", tmp_path / "store")
    with pytest.raises(DatasetError, match=r"no file ending in \.hdf5 or \.h5"):
        import_source("mocapact", tmp_path, tmp_path / "store")
    with h5py.File(tmp_path / "flat.hdf5", "w") as file:
        file["observations"] = np.zeros(3)
    with pytest.raises(DatasetError, match=r"is it MoCapAct's\?"):
        import_source("mocapact", tmp_path / "flat.hdf5", tmp_path / "store")
    with pytest.raises(DatasetError, match="option observables is 'most'; allowed: body, all"):
        import_source(
            "mocapact", tmp_path / "flat.hdf5", tmp_path / "store", {"observables": "most"}
        )
