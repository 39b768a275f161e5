"""Writes files as robomimic's scripts and as Isaac Lab's recorder lay them out."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Tree = Mapping[str, Any]
"""Key -> array, or a tree of a group."""


def write_isaac_lab(path: Path, episodes: Sequence[tuple[Tree, Mapping[str, Any]]]) -> None:
    """As `HDF5DatasetFileHandler.write_episode`: (data, attributes) of each episode in turn.

    https://github.com/isaac-sim/IsaacLab, source/isaaclab/isaaclab/utils/datasets/
    """
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Isaac-Stack-Cube-Franka-v0", "type": 2})
        data.attrs["total"] = sum(len(tree.get("actions", ())) for tree, _ in episodes)
        for number, (tree, attributes) in enumerate(episodes):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = len(tree.get("actions", ()))
            demo.attrs.update(attributes)
            _put(demo, tree)


def _put(group: Any, tree: Tree) -> None:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            _put(group.create_group(key), value)
        else:
            group.create_dataset(key, data=value, compression="gzip")


def isaac_lab_episode(steps: int, seed: int, *, mimic: bool = True) -> dict[str, Any]:
    """What its recorder terms and Mimic's give for so many steps; no rewards and no dones."""
    rng = np.random.default_rng(seed)

    def rows(*shape: int) -> np.ndarray:
        return rng.normal(size=(steps, *shape)).astype(np.float32)

    state = {"articulation": {"robot": {"joint_position": rows(9), "root_pose": rows(7)}}}
    first = {name: each[:1] for name, each in state["articulation"]["robot"].items()}
    obs: dict[str, Any] = {"actions": rows(7), "joint_pos": rows(9), "eef_pose": rows(2, 3)}
    obs["cameras"] = {"table_cam": np.zeros((steps, 6, 5, 3), np.uint8)}
    if mimic:
        grasped = np.arange(steps)[:, None] > 2
        signals = {"subtask_term_signals": {"grasp_1": grasped}}
        obs["datagen_info"] = {"eef_pose": {"franka": rows(4, 4)}, **signals}
    return {
        "initial_state": {"articulation": {"robot": first}},
        "obs": obs,
        "actions": rows(7),
        "processed_actions": rows(8),
        "states": state,
    }


def robomimic_demo(
    steps: int, seed: int = 0, *, solved: bool = True, following: bool = True
) -> dict[str, Any]:
    """A demo as `dataset_states_to_obs.py --done_mode 0` writes it: float64, sparse rewards."""
    rng = np.random.default_rng(seed)
    seen = {"object": rng.normal(size=(steps + 1, 10)), "eef": rng.normal(size=(steps + 1, 3))}
    flags = np.zeros(steps, np.int64)
    flags[-2:] = solved
    demo = {
        "actions": rng.uniform(-1, 1, (steps, 7)),
        "states": rng.normal(size=(steps, 32)),
        "rewards": flags.astype(np.float64),
        "dones": flags,
        "obs": {key: rows[:-1] for key, rows in seen.items()},
    }
    return demo | (
        {"next_obs": {key: rows[1:].copy() for key, rows in seen.items()}} if following else {}
    )


def write_robomimic(
    path: Path, demos: Mapping[str, Tree], masks: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Demos by their names, and filter keys as `create_hdf5_filter_key` writes them."""
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for name, tree in demos.items():
            demo = data.create_group(name)
            demo.attrs["num_samples"] = len(tree["actions"])
            demo.attrs["model_file"] = "<mujoco/>"
            _put(demo, tree)
        data.attrs["total"] = sum(len(tree["actions"]) for tree in demos.values())
        kwargs = {"robots": ["Panda"], "control_freq": 20}
        env = {"env_name": "Lift", "env_version": "1.4.1", "type": 1, "env_kwargs": kwargs}
        data.attrs["env_args"] = json.dumps(env, indent=4)
        for name, listed in (masks or {}).items():
            file[f"mask/{name}"] = np.array(listed, dtype="S")
