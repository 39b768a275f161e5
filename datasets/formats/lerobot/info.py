"""`meta/info.json` of a LeRobot dataset, checked key by key."""

import glob
import math
import re
from pathlib import Path, PurePosixPath
from typing import Any

from gaitforge.datasets.formats.checks import read_json, refuse
from gaitforge.datasets.formats.lerobot.lerobot_schema import MOST_AXES

_NEEDED = ("codebase_version", "fps", "features", "data_path")
_PLACE = re.compile(r"\{(chunk|file)_index(?::(?:0([1-9]))?d)?\}")
_SPLIT = re.compile(r"([0-9]{1,15}):([0-9]{1,15})")
_MOST_NUMBERS = 2**31 - 1
"""Largest axis: the longest Arrow list."""


def read_info(path: Path) -> dict[str, Any]:
    """The content of `meta/info.json`, with `splits` parsed: name -> (first, stop).

    `1 / fps` is a positive number; see `data_files` for `data_path`.
    """
    info = read_json(path, "LeRobot dataset")
    for key in _NEEDED:
        if key not in info:
            refuse(path, key, "the key is missing")

    def check(key: str, allowed: bool, rule: str, value: Any) -> None:
        if not allowed:
            refuse(path, key, f"must be {rule}, not {value!r:.60}")

    version, robot, features = info["codebase_version"], info.get("robot_type"), info["features"]
    if not str(version).startswith("v3."):
        problem = f"is {version}; only v3 can be read: convert it with lerobot's own"
        refuse(path, "codebase_version", f"{problem} convert_dataset_v21_to_v30")
    check("fps", _is_rate(info["fps"]), "a positive number", info["fps"])
    check("robot_type", isinstance(robot, str | None), "a string or null", robot)
    _check_data_path(path, info["data_path"])
    check("features", isinstance(features, dict), "an object", features)
    for name, feature in features.items():
        key = f"features/{name}"
        if not name:
            refuse(path, "features", "a feature needs a name")
        if not isinstance(feature, dict) or not {"dtype", "shape"} <= feature.keys():
            refuse(path, key, "every feature needs dtype and shape")
        shape, dtype, names = feature["shape"], feature["dtype"], feature.get("names")
        check(f"{key}/dtype", isinstance(dtype, str), "a string", dtype)
        rule = f"a list of up to {MOST_AXES} whole numbers"
        check(f"{key}/shape", _is_shape(shape), rule, shape)
        rule = "null, a list of strings, or an object of them"
        check(f"{key}/names", names is None or _is_named(names), rule, names)
    splits = info.get("splits") or {}
    check("splits", isinstance(splits, dict), "an object of FIRST:STOP", splits)
    parsed = {}
    for name, bounds in splits.items():
        match = _SPLIT.fullmatch(bounds) if isinstance(bounds, str) else None
        if not match or int(match[1]) > int(match[2]):
            refuse(path, f"splits/{name}", f"must be FIRST:STOP, not {bounds!r:.60}")
        parsed[name] = int(match[1]), int(match[2])
    return info | {"splits": parsed}


def data_files(root: Path, pattern: str) -> list[Path]:
    """The files of "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", by their numbers.

    Nothing else of Python's format language is allowed, because the pattern is untrusted.
    """

    def numbers(path: Path) -> list[int]:
        return [int(each) for each in re.findall("[0-9]+", path.relative_to(root).as_posix())]

    anything = re.sub(rf"({_PLACE.pattern})+", "*", glob.escape(pattern))
    return sorted(root.glob(anything), key=numbers)


def _check_data_path(path: Path, pattern: Any) -> None:
    if not isinstance(pattern, str):
        refuse(path, "data_path", f"must be a string, not {pattern!r:.60}")
    parts = PurePosixPath(pattern)
    named = {match[1] for match in _PLACE.finditer(pattern)}
    if named != {"chunk", "file"} or re.search(r"[{}\0]", _PLACE.sub("", pattern)):
        refuse(path, "data_path", f"'{pattern}' has no chunk_index and file_index alone in braces")
    if parts.is_absolute() or ".." in parts.parts:
        refuse(path, "data_path", f"'{pattern}' leads out of the dataset's folder")


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= MOST_AXES
        and all(type(size) is int and 0 <= size <= _MOST_NUMBERS for size in shape)
    )


def _is_named(names: Any) -> bool:
    """Whether these are strings, numbers, or an object of them or of lists of them."""
    values = names.values() if isinstance(names, dict) else [names]
    singles = [one for each in values for one in (each if isinstance(each, list) else [each])]
    return all(
        isinstance(one, str | int) or (isinstance(one, float) and math.isfinite(one))
        for one in singles
    )


def _is_rate(fps: Any) -> bool:
    try:
        return type(fps) in (int, float) and fps > 0 and 0 < 1.0 / fps < math.inf
    except OverflowError:  # an integer beyond any float
        return False
