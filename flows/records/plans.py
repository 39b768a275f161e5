"""Plans from JSON, as `gaitforge.flows.records.records.to_tree` writes them."""

import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gaitforge.common.errors import names_allowed

Plan = TypeVar("Plan")

PLAN = "plan.json"  # a training run's record


def plan_from_tree(kind: type[Plan], tree: object) -> Plan:
    """A frozen dataclass tree from its JSON values; fields that are absent have their defaults.

    Raises:
        ValueError: an unknown field, a value of another type, or one that the plan itself refuses.
    """
    return _value(kind, tree, kind.__name__)


def read_fields(kind: type[Plan], tree: Any, path: object, **known: object) -> Plan:
    """A frozen dataclass from a file's JSON values, which may hold more.

    Args:
        path: of the file; known: values of fields that the file does not hold.

    Raises:
        ValueError: a field is missing or of another type; the line names the file.
    """
    try:
        if not isinstance(tree, Mapping):
            raise ValueError(f"it needs an object of named values, not {tree!r}")
        names = _fields(kind).keys() - known.keys()
        values = {name: tree[name] for name in names if name in tree}
        return cast(Plan, _dataclass(kind, values, "the record", known))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def record_from_tree(kind: type[Plan], tree: Any) -> Plan | None:
    """A frozen dataclass from a file that may hold more; None where a field is missing or wrong."""
    try:
        return plan_from_tree(kind, {name: tree[name] for name in _fields(kind) if name in tree})
    except (TypeError, ValueError):
        return None


def check_value(kind: Any, value: object, where: str) -> None:
    """Raise ValueError unless a value is of a type, and all that it holds; `where` names it."""
    _value(kind, value, where)


def _value(kind: Any, tree: object, where: str) -> Any:
    origin = get_origin(kind)
    arguments = get_args(kind)
    if is_dataclass(kind):
        return _dataclass(kind, tree, where)
    if kind in (Any, object):
        return tree
    if origin in (Union, types.UnionType):
        return _one_of(arguments, tree, where)
    if origin is tuple and isinstance(tree, list | tuple):
        return tuple(_value(arguments[0], item, where) for item in tree)
    if origin is Sequence and isinstance(tree, list | tuple):
        for item in tree:
            _value(arguments[0], item, where)
        return tree
    if origin in (dict, Mapping) and isinstance(tree, Mapping):
        for name, item in tree.items():
            _value(arguments[1], item, f"{where}.{name}")
        return dict(tree)  # as it is written: a plan's hash depends on it
    if kind is float and isinstance(tree, int) and not isinstance(tree, bool):
        return _as_float(tree, where)
    if isinstance(kind, type) and type(tree) is kind:
        return tree
    raise ValueError(f"{where} needs {_needed(kind)}, not {tree!r}")


def _as_float(number: int, where: str) -> float:
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"{where} needs a number of at most 309 digits") from None


def _one_of(kinds: Sequence[Any], tree: object, where: str) -> Any:
    """A value as one of several types has it."""
    if tree is None and type(None) in kinds:
        return None
    options = [kind for kind in kinds if kind is not type(None)]
    for kind in options[:-1]:
        with suppress(ValueError):
            return _value(kind, tree, where)
    try:
        return _value(options[-1], tree, where)
    except ValueError:
        if len(options) == 1:
            raise
        needed = " or ".join(map(_needed, options))
        raise ValueError(f"{where} needs {needed}, not {tree!r}") from None


def _needed(kind: Any) -> str:
    """What a type needs, in words."""
    origin = get_origin(kind)
    if origin in (tuple, Sequence):
        return f"a list of {_needed(get_args(kind)[0])}"
    if origin in (dict, Mapping):
        return "an object of named values"
    return str(getattr(kind, "__name__", kind))


def _dataclass(
    kind: Any, tree: object, where: str, known: Mapping[str, object] | None = None
) -> object:
    if not isinstance(tree, dict):
        raise ValueError(f"{where} needs an object of named values, not {tree!r}")
    names = _fields(kind)
    unknown = sorted(tree.keys() - names.keys())
    if unknown:
        raise ValueError(f"{where} has no '{unknown[0]}'; {names_allowed(unknown[0], names)}")
    needed = {f.name.rstrip("_") for f in fields(kind) if f.default is f.default_factory is MISSING}
    known = known or {}
    if absent := sorted(needed - tree.keys() - known.keys()):
        raise ValueError(f"{where} needs '{absent[0]}'")
    hints = _hints(kind)
    values = {name: _value(hints[names[name]], tree[name], f"{where}.{name}") for name in tree}
    return kind(**{names[name]: value for name, value in values.items()}, **known)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fields(kind: Any) -> dict[str, str]:
    """Name in files -> field; `return_` is "return" there."""
    return {field.name.rstrip("_"): field.name for field in fields(kind)}
