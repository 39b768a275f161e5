"""Loads a file with D4RL's own package and with TorchRL's reader; run by an interpreter with both.

python d4rl_program.py FILE RESULT     writes what the two saw to RESULT, an .npz file
python d4rl_program.py --write FILE    writes three terminated episodes with D4RL's own writer
"""

# Run by another interpreter, which has d4rl and torchrl.
# pyright: reportMissingImports=false

import os
import sys
import tempfile
from typing import Any

os.environ["D4RL_SUPPRESS_IMPORT_ERROR"] = (
    "1"  # its environments need MuJoCo 2.1; its readers do not
)

import d4rl
import gym
import numpy as np
from d4rl.offline_env import OfflineEnv
from d4rl.utils.dataset_utils import DatasetWriter


class Shape(OfflineEnv):
    """Observations and actions of given sizes, which is all that the readers ask of a task."""

    _max_episode_steps = 1000

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (observations,))
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (actions,))


def seen_by_d4rl(path: str) -> dict[str, np.ndarray]:
    """What its three ways of reading give, and the reference scores that it has."""
    environment = Shape(5, 2)
    loaded = environment.get_dataset(path)
    rows = {key: rows for key, rows in loaded.items() if not key.startswith("metadata/")}
    pairs = d4rl.qlearning_dataset(environment, dict(rows))
    episodes = list(d4rl.sequence_dataset(environment, rows))
    low, high = d4rl.infos.REF_MIN_SCORE, d4rl.infos.REF_MAX_SCORE
    names = sorted(low)
    return {
        **{f"get/{key}": values for key, values in rows.items()},
        **{f"qlearning/{key}": values for key, values in pairs.items()},
        "sequence/lengths": np.array([len(each["rewards"]) for each in episodes]),
        "sequence/observations": np.concatenate([each["observations"] for each in episodes]),
        "names": np.array(names),
        "scores": np.array([[low[name], high[name]] for name in names]),
    }


def seen_by_torchrl(path: str) -> dict[str, np.ndarray]:
    """The transitions of its replay buffer; the download is answered by the file."""
    import torchrl.data.datasets.d4rl as reader

    reader._download_dataset_from_url = lambda url, folder: path
    with tempfile.TemporaryDirectory() as scratch:
        buffer = reader.D4RLExperienceReplay(
            "hopper-medium-v2", batch_size=4, direct_download=True, root=scratch
        )
        rows = buffer[:]
        keys = ("observation", "action", ("next", "reward"), ("next", "done"))
        return {
            f"torchrl/{key if isinstance(key, str) else '/'.join(key)}": rows[key].numpy()
            for key in keys
        }


def write_their_own(path: str) -> None:
    """Episodes of 4, 5 and 6 steps whose first observation counts the steps of all."""
    writer = DatasetWriter()
    for length in (4, 5, 6):
        for step in range(length):
            state = np.array([len(writer), step, 0.5], np.float32)
            writer.append_data(state, np.full(2, 0.25), 1.0, step == length - 1)
    writer.write_dataset(path)


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write_their_own(sys.argv[2])
    else:
        seen: dict[str, Any] = seen_by_d4rl(sys.argv[1]) | seen_by_torchrl(sys.argv[1])
        np.savez(sys.argv[2], **seen)
