"""Loaders of public libraries on the same steps, beside the store's streams.

They are an extra (``bench``); a missing one is left out with a note. None of them promises what the
stream does: TorchRL's samplers and the HDF5 reader draw windows at random, with repeats or with
steps left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

LEROBOT_NOTE = (
    "lerobot: left out; it imports Hugging Face's package called datasets, which cannot be loaded "
    "beside this project's own"
)
BATCHES = 10
HDF5_BATCHES = 1


@dataclass(frozen=True)
class PeerData:
    """What every peer reads.

    Attributes:
        obs: (T, Do) float32; action: (T, Da) float32.
        lengths: (E,) steps of the episodes, each of ``window_len`` or more.
        window_len, batch_size: steps of a window, windows of a batch.
    """

    obs: np.ndarray
    action: np.ndarray
    lengths: np.ndarray
    window_len: int
    batch_size: int

    @property
    def batch_steps(self) -> int:
        """Steps of a batch."""
        return self.window_len * self.batch_size


Work = Callable[[], int]
"""Reads some batches and returns their steps."""


def torchrl_slices(data: PeerData, folder: Path) -> Work:
    """TorchRL's ``SliceSampler`` over a memory map: windows at random, with repeats."""
    from torchrl.data import SliceSampler  # pyright: ignore[reportMissingImports]

    return _torchrl(data, folder, SliceSampler, cache_values=True)


def torchrl_slices_without_replacement(data: PeerData, folder: Path) -> Work:
    """TorchRL's ``SliceSamplerWithoutReplacement`` over a memory map."""
    from torchrl.data import SliceSamplerWithoutReplacement  # pyright: ignore[reportMissingImports]

    return _torchrl(data, folder, SliceSamplerWithoutReplacement)


def hdf5_groups(data: PeerData, folder: Path) -> Work:
    """One HDF5 group an episode (robomimic's and Isaac Lab's layout), read a window at a time."""
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
        for _ in range(HDF5_BATCHES):
            episodes = rng.integers(len(data.lengths), size=data.batch_size)
            windows: list[tuple[Any, Any]] = []
            for episode in episodes.tolist():
                first = int(rng.integers(data.lengths[episode] - data.window_len + 1))
                group: Any = file[f"data/demo_{episode}"]
                window = slice(first, first + data.window_len)
                windows.append((group["obs"][window], group["actions"][window]))
            for column in zip(*windows, strict=True):
                torch.from_numpy(np.stack(column))
        return HDF5_BATCHES * data.batch_steps

    return work


PEERS: dict[str, Callable[[PeerData, Path], Work]] = {
    "torchrl_slice_sampler": torchrl_slices,
    "torchrl_slice_sampler_without_replacement": torchrl_slices_without_replacement,
    "hdf5_group_an_episode": hdf5_groups,
}


def _torchrl(data: PeerData, folder: Path, sampler: Any, **settings: Any) -> Work:
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer  # pyright: ignore[reportMissingImports]

    logging.getLogger("torchrl").setLevel(logging.WARNING)
    steps = len(data.obs)
    storage = LazyMemmapStorage(steps, scratch_dir=str(folder / sampler.__name__))
    buffer = TensorDictReplayBuffer(
        storage=storage,
        sampler=sampler(num_slices=data.batch_size, traj_key="episode", **settings),
        batch_size=data.batch_steps,
    )
    episode = np.repeat(np.arange(len(data.lengths)), data.lengths)
    columns = {"obs": data.obs, "action": data.action, "episode": episode}
    tensors = {name: torch.from_numpy(array) for name, array in columns.items()}
    buffer.extend(TensorDict(tensors, [steps]))

    def work() -> int:
        return sum(len(buffer.sample()) for _ in range(BATCHES))

    return work
