"""What a Minari data set says of itself and of its episodes, checked, and what of it is not used.

A seed in the file is any number below 2**64: ``minari.DataCollector`` draws 64 random bits where it
is given none. The catalog's ``seed`` is int64 with -1 for none, so that a seed of 2**63 or more is
kept as text, in the column ``minari_seed``, beside a ``seed`` of -1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets.errors import DatasetError, listed
from datasets.formats.minari.schema import METADATA_FILE, NOTES, most_steps
from datasets.formats.sources import refuse

SEED, LARGE_SEED, STEPS = "seed", "minari_seed", "total_steps"
EPISODES = "total_episodes"
_LARGE, _SEED_STOP = 1 << 63, 1 << 64
_NEEDED = ("observation_space", "action_space", "data_format", "dataset_id", EPISODES)
_READING = ("observation_space", "action_space", "data_format", "jpeg_encoding", EPISODES, STEPS)
"""Keys of the metadata that are used up by reading."""

_OF_EPISODES = ("id", SEED, STEPS, NOTES)


def data_folder(source: str) -> Path:
    """The folder with the metadata: given, below a data set's folder, or of a local data set.

    Raises:
        DatasetError: there is none.
    """
    from minari.storage.datasets_root_dir import get_dataset_path

    places = [Path(source), Path(source, "data")]
    if not Path(source).exists():
        places.append(get_dataset_path(source) / "data")
    for place in places:
        if (place / METADATA_FILE).is_file():
            return place
    refuse(source, METADATA_FILE, "no such file there or in data/, and no local data set's id")


def read_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a data set, its spaces and totals there.

    Raises:
        DatasetError: no such file, or a key is missing or wrong.
    """
    path = folder / METADATA_FILE
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        refuse(path, "", f"cannot be read as JSON: {(str(error).splitlines() or ['?'])[0]}")
    if not isinstance(tree, dict):
        refuse(path, "", "must hold an object of named values")
    for key in _NEEDED:
        if key not in tree:
            refuse(path, key, f"the key is missing; there must be {listed(_NEEDED)}")
    for key in (EPISODES, STEPS):
        if key in tree and _whole(tree[key], 1) is None:
            refuse(path, key, f"must be a whole number from 1 on, not {tree[key]!r:.40}")
    return tree


def episode_length(folder: Path, number: int, about: Mapping[str, Any], data_format: str) -> int:
    """Steps of an episode by its metadata.

    Raises:
        DatasetError: none, or more than the library reads from this storage.
    """
    key, most = f"episode_{number}/{STEPS}", most_steps(data_format)
    steps = _whole(about.get(STEPS), 1)
    if steps is None:
        refuse(folder, key, f"must be a whole number from 1 on, not {about.get(STEPS)!r:.40}")
    if most is not None and steps > most:
        problem = (
            f"is {steps}; Minari gives back {most:,} steps of an episode from its {data_format} "
            "storage; write the data set with the hdf5 storage"
        )
        refuse(folder, key, problem)
    return steps


def check_totals(
    folder: Path, metadata: Mapping[str, Any], lengths: np.ndarray, following: bool
) -> None:
    """Refuse totals that the episodes contradict.

    Args:
        lengths: (E,) steps of the episodes that the total tells of.
        following: there is another one after them.
    """
    path, steps = folder / METADATA_FILE, int(lengths.sum())
    if following:
        refuse(path, EPISODES, f"is {len(lengths)}, but there is an episode_{len(lengths)}")
    if metadata.get(STEPS, steps) != steps:
        refuse(path, STEPS, f"is {metadata[STEPS]}, but the episodes have {steps}")


def episode_seed(folder: Path, number: int, about: Mapping[str, Any]) -> int | None:
    """The seed of an episode by its metadata; None if it has none.

    Raises:
        DatasetError: something else than a whole number below 2**64.
    """
    if about.get(SEED) is None:
        return None
    seed = _whole(about[SEED], 0)
    if seed is None or seed >= _SEED_STOP:
        problem = f"must be null or a whole number from 0 to {_SEED_STOP - 1}"
        refuse(folder, f"episode_{number}/{SEED}", f"{problem}, not {about[SEED]!r:.40}")
    return seed


def seed_columns(seeds: Sequence[int | None]) -> dict[str, list[Any]]:
    """The catalog's columns of some episodes' seeds; ``catalog_seed`` turns them back."""
    small = [-1 if seed is None or seed >= _LARGE else seed for seed in seeds]
    large = [None if seed is None or seed < _LARGE else str(seed) for seed in seeds]
    return {SEED: small} | ({LARGE_SEED: large} if any(large) else {})


def catalog_seed(seed: int, large: str | None = None) -> int | None:
    """The seed that the catalog's columns tell of.

    Raises:
        DatasetError: the large one is none.
    """
    if large is None:
        return None if seed < 0 else seed
    if not (large.isascii() and large.isdecimal()) or not _LARGE <= int(large) < _SEED_STOP:
        raise DatasetError(
            f"the column {LARGE_SEED} must be empty or hold a whole number from {_LARGE} to "
            f"{_SEED_STOP - 1}, not {large!r:.40}"
        )
    return int(large)


def unused(
    metadata: Mapping[str, Any], episode_keys: Iterable[str], used: Sequence[str]
) -> list[str]:
    """What the metadata say and a store has no place for.

    Args:
        episode_keys: those of the episodes' metadata.
        used: keys of the data set's metadata that became something.
    """
    known = (*_READING, NOTES, *used)
    left = [f"{key} of the metadata" for key in metadata if key not in known]
    if "env_spec" in metadata and "env_spec" in used:
        left.append("env_spec of the metadata, but for its id")
    further = sorted(set(episode_keys) - set(_OF_EPISODES))
    return left + [
        "options of resets" if key == "options" else f"{key} of the episodes' metadata"
        for key in further
    ]


def _whole(value: Any, least: int) -> int | None:
    """The value as a whole number; None if it is none, or less than the least."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if whole and value >= least else None
