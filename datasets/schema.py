"""Schema of a store: its fields with shapes, units and named slices."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any, Literal

import numpy as np

from gaitforge.common.errors import DatasetError, failures, listed

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
        """The fields and attributes in which two schemas differ, in words."""
        pair = [{field.name: field for field in schema.fields} for schema in (self, other)]
        fields = [key for key in pair[0] | pair[1] if pair[0].get(key) != pair[1].get(key)]
        pair = [{"robot": schema.robot, **schema.attributes} for schema in (self, other)]
        keys = [key for key in pair[0] | pair[1] if pair[0].get(key) != pair[1].get(key)]
        words = [f"in its fields {listed(fields)}"] if fields else []
        return " and ".join([*words, *([f"in its {listed(keys)}"] if keys else [])])

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
        raise DatasetError(f"unknown field {name!r}; allowed: {listed(self.names())}")

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
