"""MoCapAct's HDF5 layout (Wagener et al. 2022) and how it maps to a store's fields.

A file has one group per snippet, `<clip>-<start>-<end>`, and in it one per rollout, `0` and up:
first those from the snippet's start, then those from random points of it (`rsi`). A rollout of T
control steps has T actions, rewards and values, and T + 1 observations; the last one is the store's
final observation.

The observation is 35 observables side by side, which `observable_indices` names. The Body
Transformer learns from 13 of them (Sferrazza et al. 2024, Appendix B): by default these are the
field `obs`, and the others the field `further_obs`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.formats.sources import tiling_slices
from gaitforge.datasets.schema import Field, Schema, consecutive_slices

BODY_OBSERVABLES = (
    "actuator_activation",
    "body_height",
    "end_effectors_pos",
    "gyro_control",
    "joints_pos",
    "joints_vel",
    "reference_rel_bodies_pos_local",
    "reference_rel_bodies_quats",
    "sensors_gyro",
    "sensors_torque",
    "sensors_touch",
    "sensors_velocimeter",
    "world_zaxis",
)
"""What the Body Transformer's CMU humanoid observes: numbers with a place on its body."""

CONTROL_DT_S = 0.03
"""Control step of dm_control's clip tracking, six physics steps of 5 ms."""

ROBOT = "cmu-humanoid"
SUFFIXES = (".hdf5", ".h5")
PROPRIOCEPTIVE = "observations/proprioceptive"
INDICES = "observable_indices/walker"
EARLY = "early_termination"
START_METRICS = "start_metrics"
RANDOM_METRICS = "rsi_metrics"

STEP_KEYS = {
    "actions": "action",
    "mean_actions": "mean_action",
    "rewards": "reward",
    "values": "value",
    "advantages": "advantage",
}
"""Dataset of a rollout -> field per step."""

REQUIRED_STEP_KEYS = ("actions", "rewards")

METRICS = {
    "episode_returns": "return",
    "norm_episode_returns": "norm_return",
    "norm_episode_lengths": "norm_length",
}
"""Array of a snippet's metrics -> catalog column, beside the lengths."""

REQUIRED_METRICS = ("episode_returns",)

NOTES = "gaitforge"
NOTES_ROLLOUTS = "rollouts"
"""Group of the notes, and the names of the rollouts in the order of their catalog rows."""

ATTRIBUTE = "mocapact"
"""Attribute of the store's schema: the observables in the file's order, and the reference steps."""

_FIELDS = ("obs", "further_obs")
"""Observation fields per step; `final_<field>` per episode is its last row."""

_DESCRIPTIONS = {
    "action": "sampled from the expert: mean action plus noise",
    "mean_action": "the expert's mean action",
    "value": "the expert's value of the observation",
    "advantage": "GAE advantage of the sampled action",
}
_SNIPPET = re.compile(r"(?P<clip>.+)-(?P<start>[0-9]+)-(?P<end>[0-9]+)", re.DOTALL)
_NO_NAME = re.compile(r"^\.|[%/\x00-\x1f\x7f]")
_ESCAPE = re.compile("%([0-9A-F]{2})")


def clip_name(clip: str) -> str:
    """A clip as the name of groups and files, with escapes such as "%2F" for "/"; "%" if empty.

    Names are unique; `clip_of` is the inverse.
    """
    return _NO_NAME.sub(lambda match: f"%{ord(match[0]):02X}", clip) or "%"


def clip_of(name: str) -> str:
    """The clip of a name; a name that is not `clip_name`'s is the clip itself."""
    clip = "" if name == "%" else _ESCAPE.sub(lambda match: chr(int(match[1], 16)), name)
    return clip if clip_name(clip) == name else name


@dataclass(frozen=True, order=True)
class MocapactSnippet:
    """Frames `start` to `end` of a clip, which one expert tracks.

    Attributes:
        clip: its `clip_name`.
    """

    clip: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The name of the clip's group in the file."""
        return f"{self.clip}-{self.start}-{self.end}"

    @classmethod
    def parse(cls, name: str) -> "MocapactSnippet | None":
        """The snippet of a group's name; None for another group."""
        match = _SNIPPET.fullmatch(name)
        return cls(match["clip"], int(match["start"]), int(match["end"])) if match else None


@dataclass(frozen=True, eq=False)
class ObservableLayout:
    """Slices of the observables in the file's observation and in the store's fields.

    Attributes:
        widths: name -> how many numbers; fields: field -> its observables; in the file's order.
    """

    widths: Mapping[str, int]
    fields: Mapping[str, tuple[str, ...]]

    @classmethod
    def of_file(cls, widths: Mapping[str, int], obs_names: Sequence[str]) -> "ObservableLayout":
        """The observables `obs_names` as the field `obs`, all others as `further_obs`."""
        parts = {
            field: tuple(name for name in widths if (name in obs_names) == (field == "obs"))
            for field in _FIELDS
        }
        return cls(widths, {field: names for field, names in parts.items() if names})

    @classmethod
    def of_schema(cls, schema: Schema) -> "ObservableLayout":
        """The observables of a store: the named slices of its observation fields.

        A field whose slices do not tile it is one observable of its own name.
        """
        fields: dict[str, tuple[str, ...]] = {}
        widths: dict[str, int] = {}
        for name in (name for name in _FIELDS if name in schema.names("step")):
            ordered = tiling_slices(schema.field(name)) or [
                (name, (0, schema.field(name).shape[0]))
            ]
            fields[name] = tuple(key for key, _ in ordered)
            if twice := sorted(set(fields[name]) & set(widths)):
                raise DatasetError(f"two observation fields have a slice {twice[0]}")
            widths |= {key: stop - start for key, (start, stop) in ordered}
        recorded = schema.attributes.get(ATTRIBUTE, {}).get("observables")
        if isinstance(recorded, dict) and recorded == widths:
            widths = recorded  # in the order of the file that they came from
        return cls(widths, fields)

    @property
    def slices(self) -> dict[str, tuple[int, int]]:
        """Name -> (start, stop) in the file's observation."""
        return consecutive_slices(self.widths)

    @property
    def width(self) -> int:
        """Numbers of the file's observation."""
        return sum(self.widths.values())

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Field -> its columns in the file's observation."""
        return {
            field: np.concatenate([np.arange(*self.slices[name]) for name in names])
            for field, names in self.fields.items()
        }

    def observation_fields(self) -> list[Field]:
        """The fields per step."""
        fields = []
        for name, names in self.fields.items():
            widths = {observable: self.widths[observable] for observable in names}
            text = "proprioceptive observation" if name == "obs" else "further observables"
            shape = (sum(widths.values()),)
            slices = consecutive_slices(widths)
            fields.append(Field(name, shape, unit="mixed", description=text, slices=slices))
        return fields


def store_schema(
    layout: ObservableLayout, action_dim: int, keys: Sequence[str], ref_steps: Sequence[int] | None
) -> Schema:
    """The schema of a store of rollouts, of which the file has the `keys` of `STEP_KEYS`."""
    shapes = {key: (action_dim,) if key.endswith("actions") else () for key in STEP_KEYS}
    signals = [
        Field(name, shapes[key], description=_DESCRIPTIONS.get(name, ""))
        for key, name in STEP_KEYS.items()
        if key in keys
    ]
    observed = layout.observation_fields()
    finals = [replace(field, name=f"final_{field.name}", per="episode") for field in observed]
    attribute: dict[str, Any] = {"observables": dict(layout.widths)}
    if ref_steps is not None:
        attribute["ref_steps"] = list(ref_steps)
    fields = (*observed, *signals, *finals)
    return Schema(fields, CONTROL_DT_S, ROBOT, {ATTRIBUTE: attribute})
