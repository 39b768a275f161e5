"""Values of stored episodes: which actions a store holds, and returns-to-go."""

from dataclasses import replace

import numpy as np

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.schema import Schema

ACTION = "action"
OBS = "obs"
FINAL_OBS = "final_obs"
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

MEAN_ACTION = "mean_action"
"""Field of humanoid stores: the expert's action without the noise."""

Place = tuple[int, int]
Actions = str | Place
"""One of `WORDS`, or the place in `obs` of the previous executed action."""


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
