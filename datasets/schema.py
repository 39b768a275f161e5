"""Schema of a store: its fields with shapes, units and named slices, and which actions it holds."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any, Literal

import numpy as np

from gaitforge.common.errors import DatasetError, failures, listed, names_allowed

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
TERRAIN_AND_SKILL = ("terrain", "skill")
TASK_AND_QUALITY = ("task", "quality")
"""`Schema.group_by` of legged robots and of Gymnasium's tasks."""

STREAM_KEYS = ("mask", "return_to_go", "episode", "offset")
"""Names that a batch adds to the stored fields; no field may have one."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def plain_json(tree: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A copy in JSON values; DatasetError names `what` has others."""
    with failures(f"{what} must be plain JSON values", TypeError, ValueError):
        return json.loads(json.dumps(dict(tree), allow_nan=False))


def consecutive_slices(widths: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Name -> (start, stop), one after the other."""
    return dict(zip(widths, pairwise(accumulate(widths.values(), initial=0)), strict=True))


@dataclass(frozen=True)
class Field:
    """One stored quantity; DatasetError for a value that is not allowed.

    Attributes:
        name: lower-case identifier; also the name of its Zarr array in every part.
        shape: shape of one row; `()` for a scalar such as the reward.
        dtype: one of `DTYPES`.
        unit: SI unit in words, or "1".
        description: one line.
        slices: name -> (start, stop) in the last axis, such as `{"gravity": (0, 3)}`.
        per: `"step"` (one row per control step) or `"episode"` (one row per episode).
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    unit: str = "1"
    description: str = ""
    slices: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    per: Literal["step", "episode"] = "step"

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the axes, in the Zarr arrays and in the xarray view."""
        if len(self.shape) == 1:
            return self.per, f"{self.name}_channel"
        return self.per, *(f"{self.name}_axis_{axis}" for axis in range(len(self.shape)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        slices = {key: (int(a), int(b)) for key, (a, b) in self.slices.items()}
        object.__setattr__(self, "slices", slices)
        if not _NAME.fullmatch(self.name) or self.name in STREAM_KEYS:
            raise DatasetError(
                f"field name {self.name!r} is not allowed: use lower-case letters, digits and "
                f"underscores, and none of {listed(STREAM_KEYS)}"
            )
        if self.dtype not in DTYPES:
            raise DatasetError(
                f"field {self.name}: dtype {self.dtype!r} is unknown; allowed: {listed(DTYPES)}"
            )
        if any(size < 1 for size in self.shape):
            raise DatasetError(f"field {self.name}: shape {self.shape} needs sizes of 1 or more")
        if self.per not in ("step", "episode"):
            raise DatasetError(f"field {self.name}: per={self.per!r}; allowed: step, episode")
        width = self.shape[-1] if self.shape else 0
        for key, (start, stop) in self.slices.items():
            if not 0 <= start < stop <= width:
                raise DatasetError(
                    f"field {self.name}: slice {key} = ({start}, {stop}) is outside 0..{width}"
                )

    @property
    def row_bytes(self) -> int:
        """Uncompressed bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def to_json(self) -> dict[str, object]:
        """The field as JSON values; `from_json` is the inverse."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Field":
        """The inverse of `to_json`."""
        return cls(**{**tree, "shape": tuple(tree["shape"])})


@dataclass(frozen=True)
class Schema:
    """The fields of a store and what they have in common; DatasetError for an invalid one.

    Attributes:
        fields: at least one step field; names are unique.
        control_dt_s: seconds between two stored steps.
        robot: the robot whose joint order the fields use.
        attributes: further JSON values.
        group_by: the two text columns of the catalog by which queries and cards group.
    """

    fields: tuple[Field, ...]
    control_dt_s: float
    robot: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    group_by: tuple[str, str] = TERRAIN_AND_SKILL

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        where, kind = self.group_by
        object.__setattr__(self, "group_by", (str(where), str(kind)))
        attributes = plain_json(self.attributes, "schema attributes")
        object.__setattr__(self, "attributes", attributes)
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise DatasetError(f"field names must differ, not {listed(names)}")
        if not any(field.per == "step" for field in self.fields):
            raise DatasetError("a schema needs at least one field with per='step'")
        if not (isfinite(self.control_dt_s) and self.control_dt_s > 0):
            raise DatasetError(f"control_dt_s must be positive and finite, not {self.control_dt_s}")

    def differences(self, other: "Schema") -> str:
        """The fields, their order, attributes, step or grouping in which two differ, in words."""
        pair = [{field.name: field for field in schema.fields} for schema in (self, other)]
        fields = [key for key in pair[0] | pair[1] if pair[0].get(key) != pair[1].get(key)]
        pair = [{**vars(schema), **schema.attributes} for schema in (self, other)]
        names = [key for key in pair[0] | pair[1] if key not in ("fields", "attributes")]
        keys = [key for key in names if pair[0].get(key) != pair[1].get(key)]
        words = [f"in its fields {listed(fields)}"] if fields else []
        words += [f"in its {listed(keys)}"] if keys else []
        return " and ".join(words) or "in the order of its fields"

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON form without `group_by`, which names no stored value."""
        tree = {"schema_version": 1, **self.to_json()}
        del tree["group_by"]
        text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def names(self, per: Literal["step", "episode"] | None = None) -> list[str]:
        """Names of all fields, or of the step or episode fields."""
        return [field.name for field in self.fields if per in (None, field.per)]

    def field(self, name: str) -> Field:
        """The field `name`; DatasetError lists the existing fields."""
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
        raise DatasetError(f"unknown field {name!r}; {names_allowed(name, self.names())}")

    def to_json(self) -> dict[str, object]:
        """The schema as JSON values; `from_json` is the inverse."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Schema":
        """The inverse of `to_json`; DatasetError for a damaged tree."""
        names = ("control_dt_s", "robot", "attributes", "group_by")
        try:
            fields = tuple(Field.from_json(entry) for entry in tree["fields"])
            return cls(fields, **{name: tree[name] for name in names})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(f"the stored schema is damaged: {error!r}") from error


def joined_arrays(
    episodes: Sequence[Any], schema: Schema, renamed: Mapping[str, str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Fields {name: (T, ...)} of a part's steps and {name: (E, ...)} of its episodes.

    Args:
        episodes: objects whose attributes are the arrays; renamed: field -> name of its attribute.
    """
    steps = {}
    for name in schema.names("step"):
        attribute = (renamed or {}).get(name, name)
        steps[name] = np.concatenate([getattr(episode, attribute) for episode in episodes])
    return steps, {"final_obs": np.stack([episode.final_obs for episode in episodes])}


ACTION = "action"
OBS = "obs"
FINAL_OBS = "final_obs"
COMMAND = "command"
"""Slice of `obs` with what a legged robot is told to do."""
LAST_ACTION = "last_action"
"""Slice of `obs` with the action that was executed in the step before."""

CLEAN = "clean"
EXECUTED = "executed"
WORDS = ("", CLEAN, EXECUTED)
"""Choices of actions; by default (empty) executed ones where the schema tells them."""

STORED_ACTIONS = "stored_actions"
"""Attribute of a schema whose field `action` holds the executed actions instead of the chosen."""

_IMPORTED = ("format", "mocapact")
"""Attributes of stores in which a slice `last_action` may have any scale: imports, and Gymnasium's
environments. Imports of our own exports have the schema of the store that was exported."""

_GYMNASIUM = "gymnasium"
"""Attribute `format` of the stores that we collect from Gymnasium's environments."""

_HUMANOID = ("ref_steps", "mocapact")
"""Attributes of stores that we collect from humanoid clips, and of MoCapAct's imports."""

NEW_REWARD = "new_reward"
"""Attribute of stores whose rewards are not those that their simulator gave: true."""

MEAN_ACTION = "mean_action"
"""Field of humanoid stores: the expert's action without the noise."""

Place = tuple[int, int]
Actions = str | Place
"""One of `WORDS`, or the place in `obs` of the previous executed action."""


def has_new_reward(schema: Schema) -> bool:
    """Whether the schema says that the rewards are not the simulator's."""
    return schema.attributes.get(NEW_REWARD) is True


def holds_executed(schema: Schema) -> bool:
    """Whether the schema says that the field `action` holds the executed actions."""
    return schema.attributes.get(STORED_ACTIONS) == EXECUTED


def stores_executed(schema: Schema) -> bool:
    """Whether the field `action` holds the executed actions: the schema says so, or its task."""
    is_gymnasium = schema.attributes.get("format") == _GYMNASIUM
    return holds_executed(schema) or is_gymnasium or _has_noise_apart(schema)


def _has_noise_apart(schema: Schema) -> bool:
    """Whether `action` is the executed one, and the chosen one is a field beside it."""
    is_humanoid = any(name in schema.attributes for name in _HUMANOID)
    return is_humanoid and {ACTION, MEAN_ACTION} <= set(schema.names("step"))


def executed_place(schema: Schema) -> Place | None:
    """(start, stop) in `obs` of the previous executed action; None where no schema tells it."""
    if not {ACTION, OBS} <= set(schema.names("step")):
        return None
    if any(name in schema.attributes for name in _IMPORTED) or stores_executed(schema):
        return None
    span = schema.field(OBS).slices.get(LAST_ACTION)
    if span is None or len(schema.field(OBS).shape) != 1:
        return None
    start, stop = span
    return span if schema.field(ACTION).shape == (stop - start,) else None


def chosen_place(schema: Schema, actions: Actions, address: str) -> Place | None:
    """The place in `obs` of the actions to read; None for those that the field `action` holds.

    DatasetError for another word or place, or for actions that the store at `address` does not
    tell.
    """
    if not isinstance(actions, str):
        return _checked_place(schema, actions)
    if actions not in WORDS:
        raise DatasetError(f"no actions {actions!r}; allowed: {CLEAN}, {EXECUTED}")
    if actions == CLEAN and holds_executed(schema):
        raise DatasetError(f"{address} holds executed actions only; take actions=executed")
    if actions == CLEAN and _has_noise_apart(schema):
        raise DatasetError(
            f"{address} holds executed actions only in {ACTION}, and the clean ones in "
            f"{MEAN_ACTION}; take actions=executed"
        )
    span = None if actions == CLEAN else executed_place(schema)
    if actions == EXECUTED and span is None and not stores_executed(schema):
        raise DatasetError(
            f"{address} does not tell executed actions from its own (it is imported, or its obs "
            f"has no slice {LAST_ACTION} as wide as action); leave the choice of actions out"
        )
    return span


def _checked_place(schema: Schema, span: Place) -> Place:
    start, stop = span
    shape = schema.field(ACTION).shape
    width = schema.field(OBS).shape
    if shape != (stop - start,) or len(width) != 1 or not 0 <= start < stop <= width[0]:
        raise DatasetError(f"executed_actions {span} is no place for {shape}")
    return start, stop


def executed_schema(schema: Schema) -> Schema:
    """The schema of what is read with executed actions in the field `action`."""
    text = "action as it was executed, with noise, limits and any other driver"
    fields = (
        replace(field, description=text) if field.name == ACTION else field
        for field in schema.fields
    )
    attributes = {**schema.attributes, STORED_ACTIONS: EXECUTED}
    return replace(schema, fields=tuple(fields), attributes=attributes)


def actions_in_words(schema: Schema) -> str:
    """What the field `action` holds, for cards and reports; empty where nothing tells it."""
    if stores_executed(schema):
        return "executed, with noise and limits"
    if executed_place(schema) is not None:
        return f"clean, as the policy chose them; obs tells the executed ones ({LAST_ACTION})"
    return ""


CUT_OFF = 0
TRUNCATED = 1
TERMINATED = 2
"""Values of `ending`."""


def endings(terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """(E,) uint8 endings; failing on the horizon's last step counts as terminated."""
    ending = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, CUT_OFF))
    return ending.astype(np.uint8)


def check_complete(ending: np.ndarray) -> None:
    """Raise DatasetError if some episodes were cut off, whose return is unknown."""
    cut_off = int(np.count_nonzero(ending == CUT_OFF))
    if cut_off:
        raise DatasetError(
            f"{cut_off} of {len(ending)} episodes were cut off, so that their return-to-go is "
            "unknown; leave them out with where('terminated or truncated'), or take the sum of "
            "what was stored with partial_returns=True"
        )


def returns_to_go(rewards: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(T,) float32 undiscounted sums of rewards from each step to its episode's last stored step.

    R_t = r_t + r_(t+1) + … + r_T (Chen et al. 2021, section 3), summed in float64. `rewards` (T,)
    are those of whole episodes, whose ascending first rows are `starts` (E,).
    """
    totals = np.cumsum(rewards, dtype=np.float64)
    ends = totals[starts + lengths - 1]
    before = totals - rewards
    return (np.repeat(ends, lengths) - before).astype(np.float32)
