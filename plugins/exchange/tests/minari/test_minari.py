"""Minari datasets, written and read beside the library itself; any format: `test_formats`."""

import errno
import fcntl
import functools
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.common import locks
from gaitforge.datasets import DatasetError, Field, Schema, Selection, Store, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.exchange.tests.minari.test_minari_exact import write_dataset
from tests.datasets.formats.format_stores import plain_store, random_episodes

minari = pytest.importorskip("minari", reason="minari is the extra minari")
spaces = pytest.importorskip("gymnasium").spaces

STORAGES = ("hdf5", "arrow", "parquet")
LENGTHS = (5, 1, 3)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the library looks for local data sets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def make_dataset(root: Path, data_format: str) -> Any:
    """A data set of the library's own making: nested observations, seeds, infos."""
    box = functools.partial(spaces.Box, -np.inf, np.inf)
    space = spaces.Dict(achieved=box((2,), np.float64), observation=box((3,), np.float64))
    rng = np.random.default_rng(0)

    def values(number: int, length: int) -> dict[str, Any]:
        last = np.arange(length) == length - 1
        return {
            "seed": 100 + number if number else None,
            "observations": {
                "achieved": rng.normal(size=(length + 1, 2)),
                "observation": rng.normal(size=(length + 1, 3)),
            },
            "terminations": last & (number == 0),
            "truncations": last & (number == 1),
            "infos": {"qpos": rng.normal(size=(length + 1, 4))},
        }

    about = {"observation_space": space, "algorithm_name": "waypoints"}
    data = write_dataset(root, data_format, values, lengths=LENGTHS, **about)
    return minari.MinariDataset(data)


def imported(source: Path | str, store: Path, **options: Any) -> Selection:
    import_source("minari", source, store, options)
    return open_store(store).select()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("data_format", STORAGES)
def test_the_librarys_data_become_a_store(data_format: str, root: Path, tmp_path: Path) -> None:
    dataset = make_dataset(root, data_format)
    found = imported("small/data-v0", tmp_path / "store")
    assert found.lengths.tolist() == list(LENGTHS)
    table = found.episodes()
    assert table.column("seed").to_pylist() == [-1, 101, 102]
    assert table.column("terminated").to_pylist() == [True, False, False]
    assert table.column("truncated").to_pylist() == [False, True, False]
    assert set(table.column("expert").to_pylist()) == {"waypoints"}
    obs = found.store.schema.field("obs")
    assert dict(obs.slices) == {"achieved": (0, 2), "observation": (2, 5)}
    for index, episode in enumerate(dataset.iterate_episodes()):
        ours = found.episode(index)
        whole = np.concatenate(list(episode.observations.values()), axis=1)
        assert np.array_equal(ours["obs"], whole[:-1])
        assert np.array_equal(ours["final_obs"], whole[-1])
        assert np.array_equal(ours["action"], episode.actions)
        assert np.array_equal(ours["reward"], episode.rewards)
        assert np.array_equal(ours["info_qpos"], episode.infos["qpos"][:-1])
        assert np.array_equal(ours["final_info_qpos"], episode.infos["qpos"][-1])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("data_format", STORAGES)
def test_an_export_loads_in_the_library(data_format: str, root: Path, tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", random_episodes(20))
    whole = store.select()
    root.mkdir()
    export_selection("minari", whole, root / "walks-v3", {"storage": data_format})
    dataset = minari.load_dataset("walks-v3")
    assert dataset.total_episodes == 20
    assert dataset.total_steps == whole.steps
    assert data_format == dataset.storage.FORMAT
    seeds = [about["seed"] for about in dataset.storage.get_episode_metadata(range(20))]
    assert seeds == whole.episodes().column("seed").to_pylist()
    for index, episode in enumerate(dataset.iterate_episodes()):
        ours = whole.episode(index)
        assert np.array_equal(episode.observations[:-1], ours["obs"])
        assert np.array_equal(episode.observations[-1], ours["final_obs"])
        assert np.array_equal(episode.actions, ours["action"])
        assert np.array_equal(episode.rewards, ours["reward"])
        assert np.array_equal(episode.infos["info_contact"][:-1], ours["info_contact"])
        assert not episode.terminations[:-1].any()
    last = [bool(each.truncations[-1]) for each in dataset.iterate_episodes()]
    assert last == whole.episodes().column("truncated").to_pylist()
    assert len(dataset.sample_episodes(5)) == 5


def test_without_notes_what_is_lost_is_named(root: Path, tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", random_episodes(4))
    options = {"notes": False, "author": "us", "description": "walks"}
    report = export_selection("minari", store.select(), tmp_path / "out", options)
    assert "the rest of the catalog" in report.carried.left
    found, whole = imported(tmp_path / "out", tmp_path / "again"), store.select()
    for name in ("obs", "final_obs"):
        assert found.store.schema.field(name).slices == {"state": (0, 5)}
    assert np.array_equal(found.read("info_info_qpos"), whole.read("info_qpos"))


def test_scalars_and_an_unknown_final_observation(root: Path, tmp_path: Path) -> None:
    fields = (Field("obs", (2,)), Field("action", (1,)), Field("reward"), Field("height"))
    store = Store.create(tmp_path / "store", Schema(fields, 0.02, "hopper"))
    whole = plain_store(tmp_path / "columns", [(4, "truncated")], parts=1).select().episodes()
    rng = np.random.default_rng(0)
    shapes = {"obs": (4, 2), "action": (4, 1), "reward": (4,), "height": (4,)}
    steps = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    rows = whole.drop_columns(["part", "start"]).to_pydict()
    store.write_part("p", steps, rows | {"return": [float(steps["reward"].sum())]})
    for storage in STORAGES:
        place = tmp_path / storage
        report = export_selection("minari", store.select(), place, {"storage": storage})
        assert any("final observation is unknown" in note for note in report.carried.notes)
        found = imported(place, tmp_path / f"again-{storage}")
        assert found.store.schema == store.schema
        assert np.array_equal(found.read("height"), steps["height"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_infos_that_are_not_numbers_are_named_as_left(root: Path, tmp_path: Path) -> None:
    infos = {"state": {"a": np.arange(3.0)}, "name": ["x"] * 3, "short": np.zeros(9)}
    write_dataset(root, change=lambda number, length: {"infos": infos}, lengths=(2, 2, 2))
    report = import_source("minari", "small/data-v0", tmp_path / "store")
    assert open_store(tmp_path / "store").select().read("info_state_a").tolist() == [0, 1] * 3
    left = {"infos/name: not numbers", "infos/short: not a row per step"}
    assert left == {line for line in report.carried.left if line.startswith("infos/")}


def test_an_id_that_minari_would_not_take(tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", random_episodes(3))
    with pytest.raises(DatasetError, match="'my walks!-v0' is no id of a Minari dataset"):
        export_selection("minari", store.select(), tmp_path / "my walks!")


@pytest.mark.parametrize("name", ["minari", "d4rl"])
def test_a_disk_without_room_is_refused_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = plain_store(tmp_path / "store", random_episodes(20))
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DatasetError, match=r"it may take 0\.\d MB and 0\.0 MB are free"):
        export_selection(name, store.select(), tmp_path / "new" / "walks-v0")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_hdf5_storage_asks_for_no_lock_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 locks in C, and would fail with the lock that is held here on every file."""
    held = ExitStack()
    touch, flock = Path.touch, fcntl.flock

    def hold(path: Path) -> None:
        file = held.enter_context(path.open("rb"))
        flock(file.fileno(), fcntl.LOCK_EX)

    def touch_and_hold(path: Path, *args: Any, **options: Any) -> None:
        touch(path, *args, **options)
        hold(path)

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    store = plain_store(tmp_path / "store", [(3, "terminated"), (2, "terminated")])
    with held:
        with monkeypatch.context() as changed:
            changed.setattr(locks, "_without_locks", set())
            changed.setattr(fcntl, "flock", no_locks)
            changed.setattr(Path, "touch", touch_and_hold)  # as the library makes its file
            export_selection("minari", store.select(), tmp_path / "a-v0")
            again = imported(tmp_path / "a-v0", tmp_path / "again")
        assert again.lengths.tolist() == [3, 2]
        with pytest.raises(DatasetError, match="lock"):
            imported(tmp_path / "a-v0", tmp_path / "locked")
