"""Steps and records an environment of mjlab, imports it, and collects with MuJoCo, in one process.

python beside_mjlab.py FOLDER    prints, as JSON, what the stores hold
"""

# Run by another interpreter, which has mjlab and gaitforge's wheel.
# pyright: reportMissingImports=false

import json
import sys
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np
import torch
from mjlab.envs import ManagerBasedRlEnv
from mjlab.tasks.registry import load_env_cfg

import gaitforge
from gaitforge.datasets import open_store
from gaitforge.pipeline.cli.main import main

TASK = "Mjlab-Velocity-Flat-Unitree-Go1"
ROBOTS = 2
STEPS = 40
TINY = ("parts=1", "episodes_per_part=6", "terrains=flat", "skills=stand,run", "levels=4")


def command(*words: object) -> None:
    """Run a command of gaitforge in this process."""
    assert main([*map(str, words), "--json"]) == 0, words


def stepped(store: Path) -> dict[str, np.ndarray]:
    """Observations, actions and rewards (robot, step, ...) of a task under random actions.

    They are recorded into a store, too.
    """
    config = load_env_cfg(TASK)
    config.scene.num_envs = ROBOTS
    environment = ManagerBasedRlEnv(cfg=config, device="cpu")
    width = environment.action_manager.total_action_dim
    generator = torch.Generator().manual_seed(0)
    steps: dict[str, list[torch.Tensor]] = {"obs": [], "actions": [], "rewards": []}
    draws = {"robot_number": np.arange(ROBOTS)}
    with gaitforge.record(store, environment, draws=draws, part_steps=30):
        observed, _ = environment.reset(seed=0)
        for _ in range(STEPS):
            action = 0.3 * torch.randn(ROBOTS, width, generator=generator)
            steps["obs"].append(observed["actor"].clone())
            steps["actions"].append(action)
            observed, reward, *_ = environment.step(action)
            steps["rewards"].append(reward.clone())
    environment.close()
    return {name: torch.stack(rows, 1).numpy() for name, rows in steps.items()}


def in_order(rows: np.ndarray) -> np.ndarray:
    """Rows (T, ...) sorted by their values: recorded episodes have the order of their ends."""
    flat = rows.reshape(len(rows), -1)
    return flat[np.lexsort(flat.T)]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    store, run = folder / "mjlab.zarr", folder / "mlp"
    recorded = stepped(folder / "recorded.zarr")
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for robot in range(ROBOTS):
            demo = file.create_group(f"data/demo_{robot}")
            demo["obs/policy"] = recorded["obs"][robot]
            demo["actions"] = recorded["actions"][robot]
            demo["rewards"] = recorded["rewards"][robot]
    command("import", "robomimic", folder / "demos.hdf5", store)
    size = ("--steps", 1, "--batch-size", 4, "--set=config.held_out_fraction=0")
    command("train", store, "--model", "mlp", "--out", run, *size)
    command("collect", folder / "legged.zarr", *(f"--set=grid.{text}" for text in TINY))
    rows = recorded["obs"].reshape(ROBOTS * STEPS, -1)
    read = open_store(folder / "recorded.zarr").select().read
    packages = ("mjlab", "mujoco", "rsl-rl-lib", "torch", "numpy")
    seen = {
        "same": bool(np.array_equal(open_store(store).select().read("obs"), rows)),
        "recorded": all(
            np.array_equal(in_order(read(name)), in_order(recorded[key].reshape(len(rows), -1)))
            for name, key in (("obs", "obs"), ("action", "actions"), ("reward", "rewards"))
        ),
        "seconds": open_store(folder / "recorded.zarr").schema.control_dt_s,
        "moved": float(np.abs(np.diff(recorded["obs"], axis=1)).max()),
        "collected": len(open_store(folder / "legged.zarr").select()),
        "versions": {name: version(name) for name in packages},
    }
    print(json.dumps(seen))
