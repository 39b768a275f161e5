"""The demos of a robomimic file: what arrays each has, and which of them all have alike."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5o  # pyright: ignore[reportAttributeAccessIssue] (compiled)

from gaitforge.common.errors import listed
from gaitforge.datasets.formats.checks import refuse
from gaitforge.datasets.formats.hdf5_chunks import read_whole
from gaitforge.datasets.formats.sources import stored_dtype
from gaitforge.plugins.exchange.robomimic import robomimic_schema as keys

_NAME = re.compile(r"demo_(\d{1,9})")
_LARGEST_MASK = 16 << 20


@dataclass(frozen=True)
class Demo:
    """One demo.

    Attributes:
        group: its path; number: of its name; length: steps, which are the rows of its actions.
        arrays: key below the group -> (shape, dtype).
        success, seed: Isaac Lab's attributes, if there.
    """

    group: str
    number: int
    length: int
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]]
    success: bool | None
    seed: int


@dataclass(frozen=True)
class Kind:
    """An array's row shape and dtype over all demos; `problem`: why it is no field."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    problem: str = ""

    @property
    def size(self) -> int:
        """Numbers a row."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_picture(self) -> bool:
        """Whether a row has three axes or more, as colour and depth pictures have."""
        return len(self.shape) > 2

    @property
    def unfit(self) -> str:
        """Why it is left out, or ""."""
        return self.problem or f"a picture of shape {self.shape}" * self.is_picture


def read_demos(path: Path, file: h5py.File) -> tuple[list[Demo], list[str], list[str]]:
    """The demos with steps, in order of their numbers; what is left out, and notes."""
    data = file.get(keys.DATA)
    if not isinstance(data, h5py.Group):
        refuse(path, keys.DATA, "no such group; a robomimic file has data/demo_0, data/demo_1, …")
    names = {name: match for name in data if (match := _NAME.fullmatch(name))}
    left = [f"data/{name}: its name is not demo_NUMBER" for name in data if name not in names]
    demos = list[Demo]()
    empty = list[str]()
    unlike = list[str]()
    for name in sorted(names, key=lambda name: int(names[name][1])):
        group = data[name]
        if not isinstance(group, h5py.Group):
            refuse(path, f"data/{name}", "is not a group")
        demo, samples = _read_demo(path, group, int(names[name][1]))
        if demo.length:
            demos.append(demo)
        else:
            steps = [key for key in demo.arrays if not key.startswith(keys.PER_EPISODE)]
            if any(demo.arrays[key][0][:1] not in ((), (0,)) for key in steps):
                refuse(path, f"{demo.group}/{keys.ACTIONS}", "is missing or has no rows")
            empty.append(name)
        if samples is not None and not np.array_equal(samples, demo.length):
            unlike.append(f"{name} ({samples!r:.20} for {demo.length})")
    if not demos:
        refuse(path, keys.DATA, f"no demo has {keys.ACTIONS}" if names else "has no demo")
    left += [f"{listed(empty, 8)}: without steps"] * bool(empty)
    notes = [f"{keys.SAMPLES} are not the actions' rows, which count: {listed(unlike, 4)}"]
    return demos, left, notes * bool(unlike)


def _read_demo(path: Path, group: h5py.Group, number: int) -> tuple[Demo, Any]:
    """A demo and its `num_samples`."""
    at = str(group.name).lstrip("/")
    names = list[bytes]()
    attributes = group.attrs
    h5o.visit(group.id, names.append)  # quicker than h5py's other calls
    opened = {name.decode(): h5o.open(group.id, name) for name in names}
    arrays = {
        name: (item.shape, item.dtype)
        for name, item in opened.items()
        if isinstance(item, h5d.DatasetID)
    }
    shape = arrays.get(keys.ACTIONS, ((0,), None))[0]
    stored = {name: attributes[name] for name in (keys.SUCCESS, keys.SEED) if name in attributes}
    numbers = {name: np.asarray(value) for name, value in stored.items()}
    for name, value in numbers.items():
        if value.shape or value.dtype.kind not in "biu" or not -1 <= int(value) < 1 << 63:
            problem = f"must be a whole number from 0 on, not {stored[name]!r:.40}"
            refuse(path, f"{at}: {name}", problem)
    solved = numbers.get(keys.SUCCESS)
    success = None if solved is None else bool(solved)
    seed = int(numbers.get(keys.SEED, -1))
    demo = Demo(at, number, shape[0] if shape else 0, arrays, success, seed)
    return demo, attributes.get(keys.SAMPLES)


def common_kinds(demos: Sequence[Demo]) -> dict[str, Kind]:
    """Key -> what the array is in all demos."""
    names = dict.fromkeys(key for demo in demos for key in demo.arrays)
    return {key: _common(key, demos) for key in names}


def _common(key: str, demos: Sequence[Demo]) -> Kind:
    row = next(demo.arrays[key][0][1:] for demo in demos if key in demo.arrays)
    dtypes = set[str]()
    for demo in demos:
        if key not in demo.arrays:
            return Kind(row, problem=f"{demo.group} lacks it")
        shape, dtype = demo.arrays[key]
        expected = (1 if key.startswith(keys.PER_EPISODE) else demo.length, *row)
        if shape != expected or 0 in shape:
            return Kind(row, problem=f"in {demo.group} its shape is {shape}, not {expected}")
        if not stored_dtype(dtype):
            return Kind(row, problem=f"in {demo.group} its dtype {dtype} is not one of numbers")
        dtypes.add(stored_dtype(dtype))
    return Kind(row, np.result_type(*map(np.dtype, dtypes)).name)


def chosen(
    path: Path, option: str, patterns: Sequence[str], kinds: Mapping[str, Kind]
) -> list[str]:
    """The names that match, in the patterns' order; refuses an unfit one that is given in full."""
    picked: list[str] = []
    for pattern in patterns:
        if not (matched := matching(kinds, pattern)):
            refuse(path, f"option {option}", f"no '{pattern}'; allowed: {listed(kinds)}")
        if pattern in matched and kinds[pattern].unfit:
            refuse(path, f"option {option}", f"{pattern}: {kinds[pattern].unfit}")
        picked += [name for name in matched if not kinds[name].unfit]
    return list(dict.fromkeys(picked))


def read_env(path: Path, file: h5py.File) -> tuple[dict[str, Any], bytes]:
    """The environment's `env_args`, and the bytes of them that an export writes back."""
    text: Any = file[keys.DATA].attrs.get(keys.ENV_ARGS, "{}")
    try:
        tree = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        refuse(path, f"{keys.DATA}: {keys.ENV_ARGS}", "must be a JSON object")
    return tree, json.dumps(tree).encode() if tree else b""


def read_masks(file: h5py.File, demos: Sequence[Demo], said: list[str]) -> dict[str, np.ndarray]:
    """Filter key -> the demos it lists, ascending; `said` gets what it lists besides."""
    masks = dict[str, np.ndarray]()
    places = {demo.group.rpartition("/")[2]: at for at, demo in enumerate(demos)}
    group = file.get(keys.MASK)
    items: Mapping[str, Any] = dict(group) if isinstance(group, h5py.Group) else {}
    for name, item in items.items():
        is_list = isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in "SO"
        values: Any = read_whole(item) if is_list and item.nbytes <= _LARGEST_MASK else [0]
        if not all(isinstance(value, bytes) for value in values):
            said.append(f"{keys.MASK}/{name}: left out, not a list of demos")
            continue
        names = {value.decode(errors="replace") for value in values}
        if absent := sorted(names - set(places)):
            said.append(f"{keys.MASK}/{name}: {listed(absent, 4)} are not there, or without steps")
        if present := sorted(places[demo] for demo in names & set(places)):
            masks[name] = np.array(present)
    return masks


def ending_notes(demos: Sequence[Demo], kinds: Mapping[str, Kind], done_mode: int) -> list[str]:
    """The rules by which demos are solved and end."""
    has_success = any(demo.success is not None for demo in demos)
    if keys.DONES not in kinds:
        solved = "the attribute of that name" if has_success else "unknown, so false"
        ends = "no dones: a demo with success terminated, with success false it was truncated"
        return [f"success: {solved}", f"{ends}, without the attribute it was cut off"]
    solved = "a set dones"
    ends = "terminated: a set dones at the last step, else truncated"
    if done_mode:
        solved = "a positive last reward"
        ends = "terminated: solved, else truncated"
    solved = f"the attribute of that name, else {solved}" if has_success else solved
    return [f"success: {solved}", f"{ends} (done_mode={done_mode})"]


def other_attributes(file: h5py.File, demo: Demo) -> list[str]:
    """Attributes that are left out."""
    known = (keys.SAMPLES, keys.SUCCESS, keys.SEED, keys.ENV_ARGS, keys.TOTAL)
    return [
        f"attribute {name} of {group}"
        for group in (keys.DATA, demo.group)
        for name in file[group].attrs
        if name not in known
    ]
