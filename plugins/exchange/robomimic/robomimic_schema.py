"""The keys of a robomimic file, how a store's fields map to them, and the file's demos.

A demo is a group `data/demo_K` with `actions`, `obs/NAME`, in most files `rewards`, `dones` and
`next_obs/NAME`, and whatever else was recorded, one row a step. `mask/NAME` lists demos (a filter
key). Isaac Lab's recorder (`HDF5DatasetFileHandler`) writes the same with further nested groups,
one row of `initial_state/...` a demo, and the attributes `success` and `seed`. We keep what else
there is once an episode below `episode/`.

`read_demos` says what arrays each demo has, and `common_kinds` which of them all have alike.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5o  # pyright: ignore[reportAttributeAccessIssue] (compiled)

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.hdf5 import keys_clash, next_holds_final, read_whole
from gaitforge.datasets.formats.sources import (
    field_name,
    free_name,
    refuse,
    stored_dtype,
    tiling_slices,
)
from gaitforge.datasets.schema import STREAM_KEYS, Schema

DATA = "data"
MASK = "mask"
NOTES = "gaitforge"
OBS = "obs"
NEXT = "next_obs"
ACTIONS = "actions"
REWARDS = "rewards"
DONES = "dones"
INITIAL_STATE = "initial_state/"
EPISODE = "episode/"
PER_EPISODE = (INITIAL_STATE, EPISODE)
SAMPLES = "num_samples"
SUCCESS = "success"
SEED = "seed"
TOTAL = "total"
ENV_ARGS = "env_args"
NESTED = "nested"
REMEDY = f"delete the group {NOTES} to use the arrays"

KEYS = "robomimic_keys"
"""Attribute of the schema: key by a field's or slice's name -> key of the imported file."""

_KEY = re.compile(r"[^/\0.][^/\0]*(/[^/\0.][^/\0]*)*")
_OWN = {"action": ACTIONS, "reward": REWARDS, NEXT: f"{NEXT}/state"}
_RESERVED = ("obs", "action", "reward", *STREAM_KEYS)


def own_key(name: str, per: str = "step") -> str:
    """The key by a field's name: `obs_NAME` is below `obs`, fields per episode below `episode`."""
    if per == "episode":
        key = re.sub("^initial_state_", INITIAL_STATE, name)
        return key if key != name else f"{EPISODE}{name}"
    return _OWN.get(name) or re.sub("^obs_", "obs/", name)


def name_of(key: str, taken: Collection[str]) -> str:
    """A field's name for a key: lower case, with a number where it is `taken` or reserved."""
    name = re.sub(r"^(?=[^a-z])", "key_", field_name(key.removeprefix(EPISODE)))
    return free_name(name, {*taken, *_RESERVED})


def keys_of(schema: Schema, nested: bool) -> dict[str, list[str]]:
    """Field -> the keys below a demo whose arrays hold it side by side; DatasetError for a clash.

    `nested` takes the groups of an imported file; otherwise names are flat, as robomimic has them.
    """
    noted = schema.attributes.get(KEYS)
    noted = noted if isinstance(noted, Mapping) else {}

    def placed(key: str) -> str:
        noted_key = str(noted.get(key, key))
        return noted_key if nested or noted_key.count("/") == key.count("/") else key

    keys = {
        field.name: [placed(own_key(field.name, field.per))]
        for field in schema.fields
        if field.name not in ("obs", "final_obs")
    }
    parts = [placed(f"{OBS}/{name}") for name, _ in tiling_slices(schema.field("obs"))]
    has_others = any(
        key.startswith(f"{OBS}/") for field_keys in keys.values() for key in field_keys
    )
    keys["obs"] = parts or ([OBS] if nested and not has_others else [f"{OBS}/state"])
    if next_holds_final(schema, NEXT):
        keys["final_obs"] = [f"next_{key}" for key in keys["obs"]]
    elif "final_obs" in schema.names("episode"):
        keys["final_obs"] = [f"{EPISODE}final_obs"]
    every = sorted([DONES, *(key for field_keys in keys.values() for key in field_keys)])
    if keys_clash(every):
        raise DatasetError(f"two fields would have one key, or one in the other's: {listed(every)}")
    if odd := [key for key in every if not _KEY.fullmatch(key)]:
        raise DatasetError(f"{listed(odd)} cannot be keys of a robomimic file")
    return keys


# Demos: what arrays each has, and which of them all have alike.
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
    data = file.get(DATA)
    if not isinstance(data, h5py.Group):
        refuse(path, DATA, "no such group; a robomimic file has data/demo_0, data/demo_1, …")
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
            steps = [key for key in demo.arrays if not key.startswith(PER_EPISODE)]
            if any(demo.arrays[key][0][:1] not in ((), (0,)) for key in steps):
                refuse(path, f"{demo.group}/{ACTIONS}", "is missing or has no rows")
            empty.append(name)
        if samples is not None and not np.array_equal(samples, demo.length):
            unlike.append(f"{name} ({samples!r:.20} for {demo.length})")
    if not demos:
        refuse(path, DATA, f"no demo has {ACTIONS}" if names else "has no demo")
    left += [f"{listed(empty, 8)}: without steps"] * bool(empty)
    notes = [f"{SAMPLES} are not the actions' rows, which count: {listed(unlike, 4)}"]
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
    shape = arrays.get(ACTIONS, ((0,), None))[0]
    stored = {name: attributes[name] for name in (SUCCESS, SEED) if name in attributes}
    numbers = {name: np.asarray(value) for name, value in stored.items()}
    for name, value in numbers.items():
        if value.shape or value.dtype.kind not in "biu" or not -1 <= int(value) < 1 << 63:
            problem = f"must be a whole number from 0 on, not {stored[name]!r:.40}"
            refuse(path, f"{at}: {name}", problem)
    solved = numbers.get(SUCCESS)
    if solved is not None and int(solved) not in (0, 1):
        refuse(path, f"{at}: {SUCCESS}", f"must be true or false, 1 or 0, not {int(solved)}")
    success = None if solved is None else bool(solved)
    seed = int(numbers.get(SEED, -1))
    demo = Demo(at, number, shape[0] if shape else 0, arrays, success, seed)
    return demo, attributes.get(SAMPLES)


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
        expected = (1 if key.startswith(PER_EPISODE) else demo.length, *row)
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
    text: Any = file[DATA].attrs.get(ENV_ARGS, "{}")
    try:
        tree = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        refuse(path, f"{DATA}: {ENV_ARGS}", "must be a JSON object")
    return tree, json.dumps(tree).encode() if tree else b""


def read_masks(file: h5py.File, demos: Sequence[Demo], said: list[str]) -> dict[str, np.ndarray]:
    """Filter key -> the demos it lists, ascending; `said` gets what it lists besides."""
    masks = dict[str, np.ndarray]()
    places = {demo.group.rpartition("/")[2]: at for at, demo in enumerate(demos)}
    group = file.get(MASK)
    items: Mapping[str, Any] = dict(group) if isinstance(group, h5py.Group) else {}
    for name, item in items.items():
        is_list = isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in "SO"
        values: Any = read_whole(item) if is_list and item.nbytes <= _LARGEST_MASK else [0]
        if not all(isinstance(value, bytes) for value in values):
            said.append(f"{MASK}/{name}: left out, not a list of demos")
            continue
        names = {value.decode(errors="replace") for value in values}
        if absent := sorted(names - set(places)):
            said.append(f"{MASK}/{name}: {listed(absent, 4)} are not there, or without steps")
        if present := sorted(places[demo] for demo in names & set(places)):
            masks[name] = np.array(present)
    return masks


def ending_notes(demos: Sequence[Demo], kinds: Mapping[str, Kind], done_mode: int) -> list[str]:
    """The rules by which demos are solved and end."""
    has_success = any(demo.success is not None for demo in demos)
    if DONES not in kinds:
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
    known = (SAMPLES, SUCCESS, SEED, ENV_ARGS, TOTAL)
    return [
        f"attribute {name} of {group}"
        for group in (DATA, demo.group)
        for name in file[group].attrs
        if name not in known
    ]
