"""Loads datasets with the lerobot package and TorchRL's reader; run by an interpreter with both.

python lerobot_reader.py FOLDER OTHER    prints, as JSON, what the two saw in FOLDER, and writes a
small dataset with lerobot itself to OTHER
"""

# Run by another interpreter, which has lerobot and torchrl.
# pyright: reportMissingImports=false

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

# Of torchvision, lerobot needs what is pure Python. Its wheel may be built for another torch (one
# with CUDA): then its operators do not load, and its import stops where the first is described.
try:
    import torchvision  # noqa: F401
except RuntimeError:
    for operator in ("nms", "qnms"):
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", signature)

from lerobot.datasets.compute_stats import compute_episode_stats
from lerobot.datasets.dataset_tools import merge_datasets, split_dataset
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def seen_by_lerobot(root: Path) -> dict[str, Any]:
    """Sizes, a row, windows of some episodes, and the mean after a split and a merge."""
    dataset = LeRobotDataset("local/given", root=root)
    row = dataset[len(dataset) - 1]
    step_s = 1.0 / dataset.fps
    windows = LeRobotDataset(
        "local/given",
        root=root,
        episodes=[1, 2],
        delta_timestamps={"observation.state": [-step_s, 0.0], "action": [0.0, step_s]},
    )
    numbers = list(range(dataset.num_episodes))
    with tempfile.TemporaryDirectory() as scratch:
        parts = split_dataset(
            dataset, {"train": numbers[:2], "val": numbers[2:]}, output_dir=Path(scratch, "split")
        )
        merged = merge_datasets(
            list(parts.values()), output_repo_id="local/merged", output_dir=Path(scratch, "merged")
        )
        mean = merged.meta.stats["action"]["mean"].tolist()
    return {
        "frames": len(dataset),
        "episodes": dataset.num_episodes,
        "fps": dataset.fps,
        "last": {key: value.tolist() for key, value in row.items() if torch.is_tensor(value)},
        "task": row["task"],
        "windows": len(windows),
        "window": windows[0]["observation.state"].tolist(),
        "padded": windows[0]["observation.state_is_pad"].tolist(),
        "stats": {key: value.tolist() for key, value in dataset.meta.stats["action"].items()},
        "merged_mean": mean,
    }


def episode_stats(root: Path, theirs: Path) -> dict[str, Any]:
    """The largest difference of the actions' statistics from lerobot's own of each episode.

    Quantiles are left out: lerobot takes them from histograms. Also gives the columns of a
    statistic and their types, in the given dataset and in one that lerobot wrote.
    """
    tables = []
    for folder in (root, theirs):
        [path] = folder.glob("meta/episodes/*/*.parquet")
        tables.append(pq.ParquetFile(path).read())
    kinds = [
        {each.name: str(each.type) for each in table.schema if "/action/" in each.name}
        for table in tables
    ]
    dataset, largest, features = LeRobotDataset("local/given", root=root), 0.0, ("action",)
    for episode in tables[0].to_pylist():
        first, stop = episode["dataset_from_index"], episode["dataset_to_index"]
        rows = {"action": np.array([dataset[i]["action"].numpy() for i in range(first, stop)])}
        described = {name: dataset.features[name] for name in features}
        for name, expected in compute_episode_stats(rows, described)["action"].items():
            if not name.startswith("q"):
                found = np.array(episode[f"stats/action/{name}"])
                largest = max(largest, float(np.abs(found - expected).max()))
    return {"largest": largest, "ours": kinds[0], "theirs": kinds[1]}


def seen_by_torchrl(root: Path) -> dict[str, Any]:
    """Names and shapes of what a replay buffer samples; the download is answered by the folder."""
    import huggingface_hub

    huggingface_hub.snapshot_download = lambda *args, **kwargs: str(root)
    from torchrl.data.datasets.lerobot import LeRobotExperienceReplay

    with tempfile.TemporaryDirectory() as scratch:
        buffer = LeRobotExperienceReplay("local/given", root=scratch, download=True, batch_size=4)
        sample = buffer.sample()
        keys = sample.keys(include_nested=True, leaves_only=True)
        return {
            ".".join([key] if isinstance(key, str) else key): list(sample.get(key).shape[1:])
            for key in keys
            if torch.is_tensor(sample.get(key))
        } | {"frames": len(buffer)}


def write_their_own(root: Path) -> None:
    """Three episodes of 4, 5 and 6 frames, whose first state counts the frames of all."""
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    dataset = LeRobotDataset.create(
        "local/theirs", fps=25, features=features, root=root, robot_type="arm", use_videos=False
    )
    count = 0
    for episode in range(3):
        for frame in range(4 + episode):
            state = np.array([count, episode, frame], np.float32)
            dataset.add_frame(
                {
                    "observation.state": state,
                    "action": np.zeros(2, np.float32),
                    "next.reward": np.array([1.0], np.float32),
                    "next.done": np.array([frame == 3 + episode]),
                    "task": f"task {episode % 2}",
                }
            )
            count += 1
        dataset.save_episode()
    dataset.finalize()


if __name__ == "__main__":
    given, written = map(Path, sys.argv[1:])
    write_their_own(written)
    seen = {"lerobot": seen_by_lerobot(given), "torchrl": seen_by_torchrl(given)}
    print(json.dumps(seen | {"stats": episode_stats(given, written)}))
