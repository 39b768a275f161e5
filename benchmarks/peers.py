"""Loaders of public libraries on the same steps, beside the store's streams.

They belong to the extra `bench`; a missing one is left out with a note. Unlike the stream, which
gives every step once per epoch, TorchRL's sampler and the HDF5 reader draw random windows: they
repeat or leave out steps.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

BATCHES = 10

Work = Callable[[], int]
"""Reads some batches and returns their steps."""


@dataclass(frozen=True)
class PeerData:
    """Data that every library reads.

    Attributes:
        obs: (T, Do) float32; action: (T, Da) float32.
        lengths: (E,) steps of each episode, at least `window_len`.
        window_len, batch_size: steps per window, windows per batch.
    """

    obs: np.ndarray
    action: np.ndarray
    lengths: np.ndarray
    window_len: int
    batch_size: int


def hdf5_groups(data: PeerData, folder: Path) -> Work:
    """One HDF5 group per episode (robomimic's and Isaac Lab's layout), read window by window."""
    import h5py  # pyright: ignore[reportMissingImports]

    path = folder / "episodes.hdf5"
    starts = np.cumsum(data.lengths) - data.lengths
    with h5py.File(path, "w") as file:
        for number, (start, length) in enumerate(zip(starts, data.lengths, strict=True)):
            group = file.create_group(f"data/demo_{number}")
            group["obs"] = data.obs[start : start + length]
            group["actions"] = data.action[start : start + length]
    file = h5py.File(path, "r")
    rng = np.random.default_rng(0)

    def work() -> int:
        windows: list[tuple[Any, Any]] = []
        for episode in rng.integers(len(data.lengths), size=data.batch_size).tolist():
            first = int(rng.integers(data.lengths[episode] - data.window_len + 1))
            group: Any = file[f"data/demo_{episode}"]
            window = slice(first, first + data.window_len)
            windows.append((group["obs"][window], group["actions"][window]))
        for column in zip(*windows, strict=True):
            torch.from_numpy(np.stack(column))
        return data.window_len * data.batch_size

    return work


def torchrl_slices(data: PeerData, folder: Path) -> Work:
    """TorchRL's sampler of slices over a memory map."""
    from tensordict import TensorDict
    from torchrl import data as torchrl  # pyright: ignore[reportMissingImports]

    logging.getLogger("torchrl").setLevel(logging.WARNING)
    steps = len(data.obs)
    buffer = torchrl.TensorDictReplayBuffer(
        storage=torchrl.LazyMemmapStorage(steps, scratch_dir=str(folder / "torchrl")),
        sampler=torchrl.SliceSampler(
            num_slices=data.batch_size, traj_key="episode", cache_values=True
        ),
        batch_size=data.window_len * data.batch_size,
    )
    episode = np.repeat(np.arange(len(data.lengths)), data.lengths)
    columns = {"obs": data.obs, "action": data.action, "episode": episode}
    tensors = {name: torch.from_numpy(array) for name, array in columns.items()}
    buffer.extend(TensorDict(tensors, [steps]))
    return lambda: sum(len(buffer.sample()) for _ in range(BATCHES))


PEERS: dict[str, Callable[[PeerData, Path], Work]] = {
    "torchrl_slice_sampler": torchrl_slices,
    "hdf5_group_an_episode": hdf5_groups,
}
