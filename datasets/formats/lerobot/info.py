"""``meta/info.json`` of a LeRobot dataset, checked key by key before anything else is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from datasets.formats.lerobot.schema import MOST_AXES
from datasets.formats.sources import refuse, refuse_unreadable

_NEEDED = ("codebase_version", "fps", "features", "data_path")
_PLACE = re.compile(r"\{(chunk|file)_index(?::(?:0([1-9]))?d)?\}")
_SPLIT = re.compile(r"([0-9]{1,15}):([0-9]{1,15})")
_MOST_NUMBERS = 2**31 - 1
"""Of an axis: what an Arrow list can be long."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file; DatasetError names it where there is none."""
    if not path.is_file():
        refuse(path, "", "no such file; give the folder of a LeRobot dataset")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        refuse_unreadable(path, "JSON", "its values lie too deep in each other")
    except (OSError, ValueError) as error:
        refuse_unreadable(path, "JSON", error)
    if not isinstance(tree, dict):
        refuse(path, "", "must be a JSON object")
    return tree


def read_info(path: Path) -> dict[str, Any]:
    """What ``meta/info.json`` says.

    Returns:
        Its tree, of which these are checked: ``codebase_version``; ``fps``, a number whose inverse
        is one, too; ``features``, each with dtype, shape and names; ``data_path`` (``place_in``);
        ``robot_type``, words or None; ``splits``, here name -> (first, stop) of the episodes.

    Raises:
        DatasetError: names file and key.
    """
    info = read_json(path)
    for key in _NEEDED:
        if key not in info:
            refuse(path, key, "the key is missing")
    version, robot = info["codebase_version"], info.get("robot_type")
    if not str(version).startswith("v3."):
        problem = f"is {version}; only v3 can be read: convert it with lerobot's own"
        refuse(path, "codebase_version", f"{problem} convert_dataset_v21_to_v30")
    if not _is_rate(info["fps"]):
        refuse(path, "fps", f"must be a positive number, not {_shown(info['fps'])}")
    if robot is not None and not isinstance(robot, str):
        refuse(path, "robot_type", f"must be words or null, not {_shown(robot)}")
    _check_data_path(path, info["data_path"])
    if not isinstance(info["features"], dict):
        refuse(path, "features", f"must be an object, not {_shown(info['features'])}")
    for name, given in info["features"].items():
        _check_feature(path, name, given)
    return info | {"splits": _read_splits(path, info.get("splits"))}


def place_in(pattern: str, chunk: int, file: int) -> str:
    """A pattern such as "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", filled in.

    Nothing else of Python's format language is understood: a pattern comes from anywhere.
    """
    numbers = {"chunk": chunk, "file": file}
    return _PLACE.sub(lambda found: str(numbers[found[1]]).zfill(int(found[2] or 0)), pattern)


def _check_data_path(path: Path, pattern: Any) -> None:
    if not isinstance(pattern, str):
        refuse(path, "data_path", f"must be words, not {_shown(pattern)}")
    parts = PurePosixPath(pattern)
    named = {found[1] for found in _PLACE.finditer(pattern)}
    if named != {"chunk", "file"} or re.search(r"[{}\0]", _PLACE.sub("", pattern)):
        refuse(path, "data_path", f"'{pattern}' has no chunk_index and file_index alone in braces")
    if parts.is_absolute() or ".." in parts.parts:
        refuse(path, "data_path", f"'{pattern}' leads out of the dataset's folder")


def _check_feature(path: Path, name: str, given: Any) -> None:
    key = f"features/{name}"
    if not name:
        refuse(path, "features", "a feature needs a name")
    if not isinstance(given, dict) or not {"dtype", "shape"} <= given.keys():
        refuse(path, key, "every feature needs dtype and shape")
    shape = given["shape"]
    if not isinstance(given["dtype"], str):
        refuse(path, f"{key}/dtype", f"must be words, not {_shown(given['dtype'])}")
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_AXES
        or not all(type(size) is int and 0 <= size <= _MOST_NUMBERS for size in shape)
    ):
        problem = f"must be a list of up to {MOST_AXES} whole numbers, not {_shown(shape)}"
        refuse(path, f"{key}/shape", problem)
    names = given.get("names")
    if names is not None and not _is_named(names):
        problem = f"must be null, a list of words, or an object of them, not {_shown(names)}"
        refuse(path, f"{key}/names", problem)


def _is_named(names: Any) -> bool:
    """Words, numbers, or an object with these or with lists of them: LeRobot has them all."""
    values = names.values() if isinstance(names, dict) else [names]
    singles = [one for each in values for one in (each if isinstance(each, list) else [each])]
    return all(
        isinstance(one, str | int) or (isinstance(one, float) and math.isfinite(one))
        for one in singles
    )


def _is_rate(fps: Any) -> bool:
    if type(fps) not in (int, float) or not fps > 0:
        return False
    try:
        return math.isfinite(fps) and math.isfinite(1.0 / fps) and 1.0 / fps > 0
    except OverflowError:  # an integer beyond any float
        return False


def _read_splits(path: Path, given: Any) -> Mapping[str, tuple[int, int]]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        refuse(path, "splits", f"must be an object of FIRST:STOP, not {_shown(given)}")
    splits = {}
    for name, bounds in given.items():
        found = _SPLIT.fullmatch(bounds) if isinstance(bounds, str) else None
        if not found or int(found[1]) > int(found[2]):
            refuse(path, f"splits/{name}", f"must be FIRST:STOP, not {_shown(bounds)}")
        splits[name] = int(found[1]), int(found[2])
    return splits


def _shown(value: Any) -> str:
    """A value, as much of it as a message takes."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return "lists in a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
