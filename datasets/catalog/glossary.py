"""Glossary of the catalog's columns: meaning, unit and origin of each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from gaitforge.datasets.schema import Schema

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
