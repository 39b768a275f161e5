"""LeRobot v3 datasets that others wrote or changed: imported, or refused in a line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.exchange.tests.lerobot.lerobot_files import DATA, EPISODES, read, tree

SCALARS = {
    "observation.Env-State": "float64",
    "action": "float32",
    "next.reward": "float32",
    **dict.fromkeys(("next.done", "next.success"), "bool"),
    **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"),
}
FRAMES = [(episode, frame) for episode, length in enumerate((4, 3, 2)) for frame in range(length)]


def foreign(root: Path, features: dict[str, Any] | None = None, **info: Any) -> Path:
    """A dataset of others: two files, a video, a done flag, and splits."""
    described = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["hip", "knee"]},
        "observation.images.top": {"dtype": "video", "shape": [8, 8, 3], "names": None},
        **{name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in SCALARS.items()},
        **(features or {}),
    }
    written = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "fps": 10,
        "total_frames": 9,
        "splits": {"train": "0:2", "val": "2:3"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "features": described,
    } | info
    tasks = {"task_index": [0, 1], "__index_level_0__": ["lift", "put down"]}
    episodes = {
        "episode_index": [0, 1, 2],
        "length": [4, 3, 2],
        "data/chunk_index": [0, 0, 0],
        "data/file_index": [0, 0, 1],
        "dataset_from_index": [0, 4, 7],
        "dataset_to_index": [4, 7, 9],
    }
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / folder).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(written))
    pq.write_table(pa.table(tasks), root / "meta/tasks.parquet")
    pq.write_table(pa.table(episodes), root / EPISODES)
    for file, rows in enumerate((FRAMES[:7], FRAMES[7:])):
        table = frames_table(rows, 7 * file)
        pq.write_table(table, root / f"data/chunk-000/file-{file:03d}.parquet", row_group_size=2)
    return root


def frames_table(rows: list[tuple[int, int]], first: int) -> pa.Table:
    """A row for each pair of episode and frame."""
    numbers, frames = np.array(rows).T
    last = frames == np.array([4, 3, 2])[numbers] - 1
    states = pa.array(np.array(rows, np.float32).tolist(), pa.list_(pa.float32()))
    return pa.table(
        {
            "observation.state": states,
            "observation.Env-State": frames / 2,
            "action": frames.astype(np.float32),
            "next.reward": np.ones(len(frames), np.float32),
            "next.done": last & (numbers != 1),
            "next.success": last & (numbers == 2),
            "frame_index": frames,
            "episode_index": numbers,
            "index": first + np.arange(len(frames)),
            "task_index": numbers % 2,
        }
    )


def test_a_dataset_of_others_becomes_a_store(tmp_path: Path) -> None:
    report = import_source("lerobot", foreign(tmp_path / "given"), tmp_path / "store")
    selection = open_store(tmp_path / "store").select()
    np.testing.assert_array_equal(selection.read("obs")[:, 0], [0, 0, 0, 0, 1, 1, 1, 2, 2])
    np.testing.assert_array_equal(selection.read("action")[:, 0], [0, 1, 2, 3, 0, 1, 2, 0, 1])
    expected = np.array([0, 1, 2, 3, 0, 1, 2, 0, 1]) / 2
    np.testing.assert_array_equal(selection.read("observation_env_state"), expected)
    table = selection.episodes()
    assert table.column("truncated").to_pylist() == [True, False, True]
    assert table.column("terminated").to_pylist() == [False] * 3
    assert table.column("success").to_pylist() == [False, False, True]
    assert table.column("skill").to_pylist() == ["lift", "put down", "lift"]
    assert table.column("split").to_pylist() == ["train", "train", "val"]
    assert table.column("return").to_pylist() == [4.0, 3.0, 2.0]
    assert selection.store.schema.control_dt_s == 0.1
    assert selection.store.schema.attributes["channel_names"] == {"obs": ["hip", "knee"]}
    assert report.carried.left == (
        "observation.images.top: videos are not imported: a store holds numbers only",
    )


def _info(**changes: Any) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / "meta/info.json"
        path.write_text(json.dumps(tree(path) | changes))

    return change


def _deep(root: Path) -> None:
    (root / "meta/info.json").write_text("[" * 100_000)


def _column(file: str, name: str, values: pa.Array | None) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        table = read(root / file)
        index = table.schema.get_field_index(name)
        table = table.remove_column(index)
        pq.write_table(table if values is None else table.append_column(name, values), root / file)

    return change


def _no_text(root: Path) -> None:
    path = root / EPISODES
    path.write_bytes(path.read_bytes().replace(b"length", b"\xff\xfength"))


def _shorten(root: Path) -> None:
    pq.write_table(read(root / DATA).slice(0, 6), root / DATA)


def _remove(root: Path) -> None:
    (root / DATA).unlink()


FILE = "file-000.parquet"
STATE = "observation.state"
BAD_INPUT: dict[str, Callable[[Path], None]] = {
    "data: the 1 file hold 2 rows, but there are 9 frames; is a file": _remove,
    r"codebase_version: is v2.1; only v3 .* python -m lerobot\.scripts\.convert_dataset_v21_to_v30 "
    r"--repo-id=me/data --root=\S+ --push-to-hub=false": _info(codebase_version="v2.1"),
    "codebase_version: is v2.0; only v3 .* converters of that time": _info(codebase_version="v2.0"),
    "info.json: cannot be read as JSON: it is nested too deeply": _deep,
    "total_frames: is 10, but .* sum to 9": _info(total_frames=10),
    "info.json: splits/b: ends at 99, but there are 3 episodes": _info(
        splits={"a": "0:2", "b": "2:99"}
    ),
    "splits/b: must be FIRST:STOP": _info(splits={"a": "0:1", "b": "rest"}),
    "info.json: data_path: 'data/{chunk_index.real}/.* has no chunk_index and file_index": _info(
        data_path="data/{chunk_index.real}/{file_index}.parquet"
    ),
    "info.json: data_path: .* leads out of the dataset's folder": _info(
        data_path="../{chunk_index}/{file_index}.parquet"
    ),
    f"{FILE}: {STATE}: a row holds 1 values, not 2": _column(
        DATA, STATE, pa.array([[1.0, 2.0]] * 6 + [[1.0]], pa.list_(pa.float32()))
    ),
    "episodes: dataset_from_index: episode 2 has 7, not 6": _column(
        EPISODES, "length", pa.array([4, 2, 3])
    ),
    f"{EPISODES}: .*Parquet": _no_text,
    "data: the 2 files hold 8 rows, but there are 9 frame": _shorten,
    "episodes: episode_index: episode 2 has 3, not 2: episodes are numbered": _column(
        EPISODES, "episode_index", pa.array([0, 1, 3])
    ),
    f"{FILE}: action: row 0 has 0.1, which float32 does not hold exactly; decl": _column(
        DATA, "action", pa.array([0.1, 1, 2, 3, 4, 5, 6], pa.float64())
    ),
    f"{FILE}: next.done: row 3 has 2, which bool does not hold exactly": _column(
        DATA, "next.done", pa.array([0, 0, 0, 2, 0, 0, 0])
    ),
    f"{FILE}: episode_index: row 3 is 1, not 0": _column(
        DATA, "episode_index", pa.array([0, 0, 0, 1, 1, 1, 1])
    ),
}


ONE = pa.list_(pa.float64(), 1)
AS_LEROBOT_READS: dict[str, Callable[[Path], None]] = {
    "a stale file of the first episode in a file": _column(
        EPISODES, "data/file_index", pa.array([0, 0, 0])
    ),
    "no file of any episode": _column(EPISODES, "data/chunk_index", None),
    "short numbers of episodes": _column(EPISODES, "length", pa.array([4, 3, 2], pa.int32())),
    "lists of one flag": _column(
        DATA, "next.done", pa.array([[0], [0], [0], [1], [0], [0], [0]], pa.list_(pa.int8()))
    ),
    "lists of one reward": _column(DATA, "next.reward", pa.array([[1.0]] * 7, ONE)),
    "lists of one counter": _column(
        DATA, "frame_index", pa.array([[each[1]] for each in FRAMES[:7]])
    ),
    "short counters": _column(
        DATA, "episode_index", pa.array([each[0] for each in FRAMES[:7]], pa.int16())
    ),
    "whole numbers for a float": _column(DATA, "action", pa.array([0, 1, 2, 3, 0, 1, 2])),
    "lists in lists of one": _column(
        DATA, STATE, pa.array([[[float(each)] for each in row] for row in FRAMES[:7]])
    ),
}


@pytest.mark.parametrize("case", AS_LEROBOT_READS)
def test_files_that_lerobot_itself_reads_give_the_same_store(case: str, tmp_path: Path) -> None:
    """As its converter and recorders write them: LeRobot issues 2401, 3343 and 2264."""
    stores = []
    for name in ("plain", "changed"):
        root = foreign(tmp_path / name)
        if name == "changed":
            AS_LEROBOT_READS[case](root)
        import_source("lerobot", root, tmp_path / f"{name}.zarr")
        stores.append(open_store(tmp_path / f"{name}.zarr").select())
    assert stores[0].store.schema == stores[1].store.schema
    for field in stores[0].store.schema.names():
        np.testing.assert_array_equal(stores[0].read(field), stores[1].read(field))
    rows = [each.episodes().drop_columns(["episode", "part"]) for each in stores]
    assert rows[0].to_pylist() == rows[1].to_pylist()


@pytest.mark.parametrize("message", BAD_INPUT)
def test_bad_input_is_one_line_and_leaves_nothing(message: str, tmp_path: Path) -> None:
    root = foreign(tmp_path / "given")
    BAD_INPUT[message](root)
    with pytest.raises(DatasetError, match=message) as error:
        import_source("lerobot", root, tmp_path / "store")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]
