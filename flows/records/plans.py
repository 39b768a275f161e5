"""Plans from JSON, as `gaitforge.flows.records.records.to_tree` writes them."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Plan = TypeVar("Plan")

PLAN = "plan.json"  # a training run's record


def plan_from_tree(kind: type[Plan], tree: object) -> Plan:
    """A frozen dataclass tree from its JSON values; fields that are absent have their defaults.

    Raises:
        ValueError: an unknown field, a value of another type, or one that the plan itself refuses.
    """
    return _value(kind, tree, kind.__name__)


def record_from_tree(kind: type[Plan], tree: Any) -> Plan | None:
    """A frozen dataclass from a file that may hold more; None where a field is missing or wrong."""
    try:
        return plan_from_tree(kind, {name: tree[name] for name in _fields(kind) if name in tree})
    except (TypeError, ValueError):
        return None


def _value(kind: Any, tree: object, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass(kind, tree, where)
    if kind is Any:
        return tree
    if origin in (Union, types.UnionType):
        if tree is None and type(None) in arguments:
            return None
        return _value(next(a for a in arguments if a is not type(None)), tree, where)
    if origin is tuple and isinstance(tree, list | tuple):
        return tuple(_value(arguments[0], item, where) for item in tree)
    if origin in (dict, Mapping) and isinstance(tree, dict):
        return dict(tree)
    if kind is float and isinstance(tree, int) and not isinstance(tree, bool):
        return float(tree)
    if isinstance(kind, type) and type(tree) is kind:
        return tree
    raise ValueError(f"{where} needs {getattr(kind, '__name__', kind)}, not {tree!r}")


def _dataclass(kind: Any, tree: object, where: str) -> object:
    if not isinstance(tree, dict):
        raise ValueError(f"{where} needs an object of named values, not {tree!r}")
    names = _fields(kind)
    unknown = sorted(tree.keys() - names.keys())
    if unknown:
        raise ValueError(f"{where} has no '{unknown[0]}'; allowed: {', '.join(names)}")
    needed = {f.name.rstrip("_") for f in fields(kind) if f.default is f.default_factory is MISSING}
    if absent := sorted(needed - tree.keys()):
        raise ValueError(f"{where} needs '{absent[0]}'")
    hints = get_type_hints(kind)
    values = {name: _value(hints[names[name]], tree[name], f"{where}.{name}") for name in tree}
    return kind(**{names[name]: value for name, value in values.items()})


def _fields(kind: Any) -> dict[str, str]:
    """Name in files -> field; `return_` is "return" there."""
    return {field.name.rstrip("_"): field.name for field in fields(kind)}
