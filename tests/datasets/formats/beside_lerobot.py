"""Collects, exports and trains in one process with lerobot and Hugging Face's datasets.

python beside_lerobot.py FOLDER    prints, as JSON, what lerobot loads of an export to FOLDER
"""

# Run by another interpreter, which has lerobot and gaitforge's wheel.
# pyright: reportMissingImports=false

import json
import sys
from pathlib import Path

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import DataLoader

import datasets
from gaitforge.datasets import open_store
from gaitforge.pipeline.cli.main import main

TINY = ("parts=1", "episodes_per_part=6", "terrains=flat", "skills=stand,run", "levels=4")


def _command(*words: object) -> None:
    assert main([*map(str, words), "--json"]) == 0, words


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    store, export, trained = folder / "legged.zarr", folder / "lerobot", folder / "fcnet"
    _command("collect", store, *(f"--set=grid.{each}" for each in TINY))
    _command("export", store, "lerobot", export)
    no_validation = "--set=config.held_out_fraction=0"
    _command("train", store, "--out", trained, "--steps", 1, "--batch-size", 4, no_validation)
    loaded = LeRobotDataset("local/legged", root=export)
    batch = next(iter(DataLoader(loaded, batch_size=32)))
    obs = open_store(store).select().read("obs")
    [rows] = export.glob("data/*/*.parquet")
    seen = {
        "frames": [len(loaded), len(datasets.Dataset.from_parquet(str(rows))), len(obs)],
        "same": bool(np.array_equal(batch["observation.state"], obs[:32])),
        "checkpoint": bool(list(trained.rglob("*.safetensors"))),
        "versions": f"datasets {datasets.__version__}, torch {torch.__version__}",
    }
    print(json.dumps(seen))
