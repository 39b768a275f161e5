"""LeRobot v3 datasets in and out, beyond what every format is held to."""

from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.exchange.lerobot.lerobot_schema import episode_stats
from gaitforge.plugins.exchange.tests.format_cases import lerobot_store
from gaitforge.plugins.exchange.tests.lerobot.lerobot_files import DATA, EPISODES, read, tree
from tests.datasets.formats.format_stores import random_episodes
from tests.datasets.making import small_store

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def test_the_folder_has_the_layout_of_version_3(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "store").select()
    export_selection("lerobot", selection, tmp_path / "out")
    info = tree(tmp_path / "out/meta/info.json")
    assert info["codebase_version"] == "v3.0"
    assert (info["fps"], info["robot_type"]) == (50, "aliengo")
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (5, 209, 3)
    assert info["splits"] == {"train": "0:5"}
    assert info["features"]["observation.state"] == {
        "dtype": "float32",
        "shape": [5],
        "names": ["gravity_0", "gravity_1", "gravity_2", "command_0", "command_1"],
    }
    frames = read(tmp_path / "out" / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(frames.column_names) == set(info["features"])
    obs = np.stack(frames.column("observation.state").to_pylist()).astype(np.float32)
    np.testing.assert_array_equal(obs, selection.read("obs"))
    np.testing.assert_array_equal(frames.column("next.reward").to_numpy(), selection.read("reward"))
    np.testing.assert_array_equal(frames.column("index").to_numpy(), np.arange(209))
    counted = np.concatenate([np.arange(length) for length in selection.lengths])
    np.testing.assert_array_equal(frames.column("frame_index").to_numpy(), counted)
    expected = (counted / 50).astype(np.float32)
    np.testing.assert_array_equal(frames.column("timestamp").to_numpy(), expected)


def test_episodes_say_where_their_frames_are_and_how_they_end(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "store").select()
    export_selection("lerobot", selection, tmp_path / "out")
    rows = read(tmp_path / "out" / EPISODES)
    assert rows.column("length").to_pylist() == [5, 1, 9, 130, 64]
    assert rows.column("dataset_from_index").to_pylist() == [0, 5, 6, 15, 145]
    assert rows.column("dataset_to_index").to_pylist() == [5, 6, 15, 145, 209]
    frames = read(tmp_path / "out" / DATA)
    last = np.cumsum(selection.lengths) - 1
    table = selection.episodes()
    for key, column in (("next.terminated", "terminated"), ("next.truncated", "truncated")):
        flags = frames.column(key).to_numpy()
        np.testing.assert_array_equal(flags[last], table.column(column).to_numpy())
        assert flags.sum() == flags[last].sum()
    tasks = read(tmp_path / "out/meta/tasks.parquet").to_pylist()
    words = {row["task_index"]: row["task"] for row in tasks}
    numbers = frames.column("task_index").to_numpy()[last].tolist()
    given = zip(table.column("skill").to_pylist(), table.column("terrain").to_pylist(), strict=True)
    assert [words[number] for number in numbers] == [f"{s} on {t}" for s, t in given]
    assert rows.column("tasks").to_pylist() == [[words[number]] for number in numbers]


def test_statistics_are_those_of_the_rows_and_a_clashing_name_is_changed(tmp_path: Path) -> None:
    selection = lerobot_store(tmp_path / "store", random_episodes(8)).select()
    options = {"notes": False}
    report = export_selection("lerobot", selection, tmp_path / "out", options)
    assert any(line.startswith("final_obs") for line in report.carried.left)
    import_source("lerobot", tmp_path / "out", tmp_path / "again")
    again = open_store(tmp_path / "again").select()
    np.testing.assert_array_equal(again.read("store_timestamp"), selection.read("timestamp"))
    stats = tree(tmp_path / "out/meta/stats.json")
    frames = read(tmp_path / "out" / DATA)
    assert set(stats) == set(frames.column_names)
    for name, found in stats.items():
        rows = np.array(frames.column(name).to_pylist()).astype(np.float64)
        for key, value in described(rows).items():
            np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-9, err_msg=name)
        assert found["count"] == [selection.steps]


def described(rows: np.ndarray) -> dict[str, np.ndarray]:
    """What NumPy says of (T, *shape), each at least of one axis."""
    found = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    found |= {name: np.quantile(rows, q, axis=0) for name, q in QUANTILES.items()}
    return {name: np.atleast_1d(value) for name, value in found.items()}


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_statistics_of_each_episode_are_those_of_its_rows(shape: tuple[int, ...]) -> None:
    lengths = np.array([4, 1, 7, 4, 2])
    rows = np.random.default_rng(0).normal(size=(18, *shape)).astype(np.float32)
    found = episode_stats(rows, lengths)
    for episode, part in enumerate(np.split(rows.astype(np.float64), np.cumsum(lengths)[:-1])):
        for key, value in described(part).items():
            np.testing.assert_allclose(found[key][episode], value, rtol=1e-6, atol=1e-7)
    assert found["count"].tolist() == [[4], [1], [7], [4], [2]]


def test_full_files_are_followed_by_others(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", [[9000] * 4, [9000] * 3])
    export_selection("lerobot", store.select(), tmp_path / "out", {"file_mb": 1})
    files = sorted((tmp_path / "out/data").rglob("*.parquet"))
    assert len(files) > 3
    rows = read(tmp_path / "out" / EPISODES)
    for number, path in enumerate(files):
        held = np.unique(read(path).column("episode_index").to_numpy())
        there = np.flatnonzero(rows.column("data/file_index").to_numpy() == number)
        np.testing.assert_array_equal(held, there)
    import_source("lerobot", tmp_path / "out", tmp_path / "again")
    again = open_store(tmp_path / "again").select()
    np.testing.assert_array_equal(again.read("obs"), store.select().read("obs"))
    with pytest.raises(DatasetError, match="option file_mb must be 1 or more, not 0"):
        export_selection("lerobot", store.select(), tmp_path / "no", {"file_mb": 0})
