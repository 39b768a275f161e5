"""The catalog's table of a part's episodes, and a glossary of the catalog's columns.

A part's table has checked columns and types, and a digest of its values.

The glossary gives the meaning, unit and origin of each column.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, failures, listed
from gaitforge.datasets.catalog.catalog import STORE_COLUMNS, required_columns
from gaitforge.datasets.catalog.rows import array_to_numpy, valid_rows
from gaitforge.datasets.schema import Schema

# The table of a part's episodes.
COLUMN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def episode_table(
    episodes: Mapping[str, Sequence[Any] | np.ndarray] | pa.Table,
    part_id: str,
    group_by: Sequence[str],
) -> pa.Table:
    """The catalog rows of a part, checked and cast, with `part` and `start` added.

    `group_by` is the store's `Schema.group_by`. DatasetError if a required column is missing, a
    type or value is not allowed, columns differ in length, or an episode id repeats.
    """
    names = list(episodes if isinstance(episodes, Mapping) else episodes.column_names)
    required = required_columns(group_by)
    _check_names(names, required)
    columns = dict.fromkeys((*required, *names))
    arrays = {name: _column(name, episodes[name], required.get(name)) for name in columns}
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) != 1:
        raise DatasetError("every episode column needs the same number of rows")
    if sizes == {0}:
        raise DatasetError("a part needs at least one episode")
    lengths = arrays["length"].to_numpy()
    if lengths.min() < 1:
        raise DatasetError("column length: every episode needs at least one step")
    if len(arrays["episode"].unique()) != len(lengths):
        raise DatasetError("column episode: the ids of a part must differ")
    starts = np.cumsum(lengths) - lengths
    added = {"part": pa.array([part_id] * len(lengths)), "start": pa.array(starts)}
    return pa.table(added | arrays)


def episodes_digest(table: pa.Table) -> str:
    """SHA-256 of a catalog table's names, types and values, ordered by column name."""
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        column = table.column(name).combine_chunks()
        digest.update(f"{name} {column.type} {len(column)}\n".encode())
        valid = valid_rows(column)
        digest.update(valid.tobytes())
        if pa.types.is_string(column.type):
            digest.update(_json_of(column).encode())
        else:
            values = array_to_numpy(column)
            digest.update(np.where(valid, values, np.zeros_like(values)).tobytes())
    return digest.hexdigest()


def _json_of(column: pa.Array) -> str:
    """A column of text as a JSON list; each of its few values is encoded once."""
    encoded = column.dictionary_encode()
    texts = [json.dumps(value) for value in [*encoded.dictionary.to_pylist(), None]]
    codes = encoded.indices.to_pylist()
    return f"[{', '.join([texts[-1 if code is None else code] for code in codes])}]"


def _check_names(names: list[str], required: Iterable[str]) -> None:
    if missing := [name for name in required if name not in names]:
        raise DatasetError(f"episode columns are missing: {listed(missing)}")
    if taken := [name for name in names if name in STORE_COLUMNS]:
        raise DatasetError(
            f"episode columns {listed(taken)} are added by the store: leave them out"
        )
    if odd := [name for name in names if not COLUMN_NAME.fullmatch(name)]:
        raise DatasetError(
            f"episode column names {odd} are not allowed: letters, digits and underscores only"
        )
    if len({name.lower() for name in names}) != len(names):
        raise DatasetError("episode column names must differ in more than upper and lower case")


def _column(name: str, values: Any, required: pa.DataType | None) -> pa.Array:
    with failures(f"episode column {name}", pa.ArrowException, TypeError, ValueError):
        array = values if isinstance(values, pa.ChunkedArray | pa.Array) else pa.array(values)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        array = array.cast(required or _carried_type(name, array.type))
    if required:
        if array.null_count:
            raise DatasetError(f"episode column {name}: a value is missing")
        if pa.types.is_floating(array.type) and not np.isfinite(array.to_numpy()).all():
            raise DatasetError(f"episode column {name}: every value must be finite")
    return array


def _carried_type(name: str, kind: pa.DataType) -> pa.DataType:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_floating(value):
        return pa.float64()
    if pa.types.is_integer(value):
        return pa.int64()
    if pa.types.is_boolean(value):
        return value
    if pa.types.is_string(value) or pa.types.is_large_string(value):
        return pa.string()
    raise DatasetError(f"episode column {name}: type {kind} is not allowed; use numbers or text")


# The glossary.
RANDOMISATION = "randomisation"
"""Schema attribute: draw -> {"unit", "low", "high"}; the catalog column has the draw's name."""


@dataclass(frozen=True)
class ColumnMeaning:
    """A column: its type, SI unit ("1" for a plain number, "" for text), meaning and origin."""

    name: str
    type: str
    unit: str
    meaning: str
    origin: str


_MEANINGS: dict[str, dict[str, tuple[str, str]]] = {
    "store": {
        "part": ("", "part that holds the episode"),
        "start": ("step", "first row of the episode in its part's arrays"),
    },
    "plan": {
        "episode": ("1", "id; as a name, the plan's hexadecimal digits and a number"),
        "seed": ("1", "seed of everything random in the episode; -1 if unknown"),
        "terrain": ("", "kind of ground"),
        "skill": ("", "what the robot is commanded to do"),
        "level": ("1", "difficulty of terrain and passage, 0 to 9"),
        "task": ("", "Gymnasium's task"),
        "quality": ("", "which policy of the task acted: random, medium, expert and so on"),
        "robot": ("", "name of the robot"),
        "simulator": ("", "physics engine"),
        "simulator_version": ("", "its version"),
        "expert": ("", "policy whose actions are stored"),
        "expert_hash": ("", "hash of its weights"),
        "action_noise": ("action", "standard deviation of the noise on executed actions"),
        "policy": ("", "learned policy that drove a part of the episode"),
        "policy_hash": ("", "hash of its weights"),
        "policy_share": ("1", "share of the stretches that it was to drive"),
        "policy_stretch": ("step", "length of a stretch"),
        "manoeuvre": ("", "what a command that changes asks for; empty if it is constant"),
        "clip": ("", "motion capture clip"),
        "snippet": ("", "piece of the clip"),
        "snippet_start": ("frame", "first frame of the piece"),
        "snippet_end": ("frame", "last frame of the piece"),
        "start_step": ("step", "step of the piece where the episode starts"),
        "random_start": ("", "whether it starts elsewhere than at the piece's beginning"),
    },
    "outcome": {
        "length": ("step", "control steps"),
        "return": ("1", "sum of the rewards"),
        "success": ("", "whether the skill's or task's criterion is met"),
        "success_known": ("", "whether success was recorded"),
        "terminated": ("", "ended by a terminal state; for legged robots, a fall"),
        "truncated": ("", "ended by the time limit"),
        "fell": ("", "ended by a fall"),
        "policy_steps": ("step", "steps that the learned policy drove"),
        "possible_length": ("step", "steps to the end of the clip's piece"),
        "normalised_return": ("1", "return by the task's reference returns"),
        "normalised_length": ("1", "length by the possible length"),
    },
    "draw": {
        "terrain_variant": ("1", "which of the terrain's tiles"),
        "passage": ("", "what stands on the track: none, bar or walls"),
        "passage_start_m": ("m", "distance to the passage along the track"),
        "passage_depth_m": ("m", "length of the passage along the track"),
        "passage_opening_m": ("m", "height under the bar, or width between the walls"),
        "walk_step": ("step", "first step of walking, before which the robot stands"),
        "manoeuvre_step": ("step", "first step of the manoeuvre"),
        "brake_step": ("step", "first step of braking, where the manoeuvre ends"),
        "stand_step": ("step", "first step of standing at the end"),
        "manoeuvre_vel_x": ("m/s", "forward speed that the manoeuvre commands"),
        "manoeuvre_vel_y": ("m/s", "speed to the left that the manoeuvre commands"),
        "manoeuvre_yaw_rate": ("rad/s", "yaw rate that the manoeuvre commands"),
        "brake_accel": ("m/s^2", "limit of the speed's change while braking"),
        "push_step": ("step", "step of the push; -1 for none"),
        "push_velocity_x": ("m/s", "velocity that the push adds, world x"),
        "push_velocity_y": ("m/s", "velocity that the push adds, world y"),
    },
}
"""Origin -> column -> unit and meaning, of the columns that mean the same in every store."""

_KNOWN = {
    name: ColumnMeaning(name, "", *details, origin)
    for origin, columns in _MEANINGS.items()
    for name, details in columns.items()
}

_DRAWS = {
    "friction": "sliding friction of feet and ground",
    "base_mass_offset_kg": "mass added to the trunk",
    "com_offset_x_m": "the trunk's centre of mass moved forward",
    "com_offset_y_m": "the trunk's centre of mass moved to the left",
    "com_offset_z_m": "the trunk's centre of mass moved up",
    "kp_factor": "factor of the joints' stiffness",
    "kd_factor": "factor of the joints' damping",
    "motor_strength": "factor of the joints' torques",
    "action_lag_substeps": "delay of the action, in substeps of 5 ms",
}


def glossary(schema: Schema, columns: pa.Schema) -> list[ColumnMeaning]:
    """The catalog's columns of a store, in order; one that nobody described has no meaning."""
    attributes = schema.attributes
    draws: Mapping[str, Any] = attributes.get(RANDOMISATION, {})
    names = attributes.get("command_names", [])
    units = attributes.get("command_units", [])
    commands = {f"command_{name}": unit for name, unit in zip(names, units, strict=False)}
    bodies: Mapping[str, str] = attributes.get("descriptor", {})
    entries = []
    for column in columns:
        name = column.name
        if name in commands:
            words = name.removeprefix("command_").replace("_", " ")
            entry = ColumnMeaning(name, "", commands[name], f"mean command: {words}", "command")
        elif name in draws:
            unit, low, high = (draws[name].get(key, "1") for key in ("unit", "low", "high"))
            words = draws[name].get("meaning") or _draw(name, schema)
            meaning = f"{words}, {draws[name].get('distribution') or f'{low:g} to {high:g}'}"
            entry = ColumnMeaning(name, "", unit, meaning, "draw")
        elif name in bodies:
            words = name.removeprefix("body_").removesuffix(f"_{bodies[name]}").replace("_", " ")
            entry = ColumnMeaning(name, "", bodies[name], f"the robot's {words}", "data")
        else:
            entry = _KNOWN.get(name, ColumnMeaning(name, "", "", "", "data"))
        entries.append(replace(entry, type=str(column.type)))
    return entries


def _draw(name: str, schema: Schema) -> str:
    if name.startswith("joint_offset_"):
        joints = schema.attributes.get("joint_names", [])
        number = name.split("_")[2]
        is_joint = number.isdecimal() and int(number) < len(joints)
        joint = joints[int(number)] if is_joint else f"joint {number}"
        return f"added to the position target of {joint}"
    return _DRAWS.get(name, name.replace("_", " "))
