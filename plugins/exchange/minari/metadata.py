"""The checked metadata of a Minari dataset and of its episodes.

A seed there is any number below 2**64: `minari.DataCollector` draws 64 random bits where it is
given none. The catalog's `seed` is int64 with -1 for none, so a seed of 2**63 or more is text in
the column `minari_seed`, beside a `seed` of -1.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.checks import read_json, refuse
from gaitforge.plugins.exchange.minari.minari_schema import METADATA_FILE, NOTES, most_steps

SEED = "seed"
LARGE_SEED = "minari_seed"
STEPS = "total_steps"
EPISODES = "total_episodes"
_LARGE = 1 << 63
_SEED_STOP = 1 << 64
_NEEDED = ("observation_space", "action_space", "data_format", "dataset_id", EPISODES)
_USED = (*_NEEDED[:3], "jpeg_encoding", EPISODES, STEPS, NOTES)
_USED_OF_EPISODES = ("id", SEED, STEPS, NOTES)


def data_folder(source: str) -> Path:
    """The folder with the metadata: the source, its `data`, or that of a local dataset's id."""
    from minari.storage.datasets_root_dir import get_dataset_path

    places = [Path(source), Path(source, "data")]
    if not Path(source).exists():
        places.append(get_dataset_path(source) / "data")
    for folder in places:
        if (folder / METADATA_FILE).is_file():
            return folder
    refuse(source, METADATA_FILE, "no such file there or in data/, and no local dataset's id")


def read_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a dataset."""
    path = folder / METADATA_FILE
    tree = read_json(path, "Minari dataset")
    for key in _NEEDED:
        if key not in tree:
            refuse(path, key, f"the key is missing; there must be {listed(_NEEDED)}")
    for key in (EPISODES, STEPS):
        if key in tree:
            _whole(path, key, tree[key])
    return tree


def episode_length(folder: Path, number: int, about: Mapping[str, Any], data_format: str) -> int:
    """Steps of an episode by its metadata."""
    key = f"episode_{number}/{STEPS}"
    most = most_steps(data_format)
    steps = _whole(folder, key, about.get(STEPS))
    if most is not None and steps > most:
        problem = f"is {steps}; Minari reads back {most:,} steps of an episode from its"
        refuse(folder, key, f"{problem} {data_format} storage; write it with the hdf5 storage")
    return steps


def check_totals(
    folder: Path, metadata: Mapping[str, Any], lengths: np.ndarray, following: bool
) -> None:
    """Refuse totals that the episodes' lengths (E,), or an episode after them, contradict."""
    path = folder / METADATA_FILE
    steps = int(lengths.sum())
    if following:
        refuse(path, EPISODES, f"is {len(lengths)}, but there is an episode_{len(lengths)}")
    if metadata.get(STEPS, steps) != steps:
        refuse(path, STEPS, f"is {metadata[STEPS]}, but the episodes have {steps}")


def episode_seed(folder: Path, number: int, about: Mapping[str, Any]) -> int | None:
    """The seed of an episode by its metadata; None if it has none."""
    seed = about.get(SEED)
    if seed is None:
        return None
    if not _is_whole(seed) or not 0 <= seed < _SEED_STOP:
        rule = f"must be null or a whole number from 0 to {_SEED_STOP - 1}"
        refuse(folder, f"episode_{number}/{SEED}", f"{rule}, not {seed!r:.40}")
    return int(seed)


def seed_columns(seeds: Sequence[int | None]) -> dict[str, list[Any]]:
    """Catalog columns of some episodes' seeds; `catalog_seed` is the inverse."""
    small = [-1 if seed is None or seed >= _LARGE else seed for seed in seeds]
    large = [None if seed is None or seed < _LARGE else str(seed) for seed in seeds]
    return {SEED: small} | ({LARGE_SEED: large} if any(large) else {})


def catalog_seed(seed: int, large: str | None = None) -> int | None:
    """The seed of a catalog row."""
    if large is None:
        return None if seed < 0 else seed
    if not (large.isascii() and large.isdecimal()) or not _LARGE <= int(large) < _SEED_STOP:
        rule = f"be empty or hold a whole number from {_LARGE} to {_SEED_STOP - 1}"
        raise DatasetError(f"the column {LARGE_SEED} must {rule}, not {large!r:.40}")
    return int(large)


def unused(
    metadata: Mapping[str, Any], episode_keys: Iterable[str], used: Sequence[str]
) -> list[str]:
    """Entries of the metadata of dataset and episodes that the store does not keep."""
    left = [f"{key} of the metadata" for key in metadata if key not in (*_USED, *used)]
    if "env_spec" in metadata and "env_spec" in used:
        left.append("env_spec of the metadata, but for its id")
    return left + [
        "options of resets" if key == "options" else f"{key} of the episodes' metadata"
        for key in sorted(set(episode_keys) - set(_USED_OF_EPISODES))
    ]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _whole(source: Path, key: str, value: Any) -> int:
    if not _is_whole(value) or value < 1:
        refuse(source, key, f"must be a whole number from 1 on, not {value!r:.40}")
    return int(value)
