"""Changes to a plan by name: the command line's `--set`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gaitforge.common.errors import listed, names_allowed, nearest
from gaitforge.flows.records.plans import check_value, plan_from_tree

Plan = TypeVar("Plan")

_NEEDS = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "json_invalid": "JSON",
}
"""Pydantic's name of an error -> what the setting needs."""


_TRAININGS = ("config", "settings")
"""Names of the settings of a training: the one that is shown, and a plan's field of another name,
which is accepted too. Either stands for the other where a plan has only that."""


class _UnknownSettingError(ValueError):
    """A setting that a plan lacks; `names` are those that stand in its place."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names


def override(plan: Plan, settings: Sequence[str]) -> Plan:
    """A copy of a frozen dataclass tree with `path.to.field=value` settings applied.

    `config.` is the settings of a training, or of all trainings, in every plan.

    Values are read by the field's type: tuples as comma-separated lists, mappings and tuples of
    records as JSON. Entries of mappings are set by `path.to.field.entry=value`, as JSON or else as
    text.

    Raises:
        ValueError: an unknown field, or a value that does not fit it; it says what is allowed.
    """
    for setting in settings:
        path, separator, text = setting.partition("=")
        if not separator:
            raise ValueError(f"--set needs NAME=VALUE, not '{setting}'")
        try:
            plan = _replaced(plan, _field_path(plan, path).split("."), text, path)
        except _UnknownSettingError as error:
            question = f"did you mean '{close}'? " if (close := _nearest_path(plan, path)) else ""
            allowed = listed(sorted(error.names), 200)
            message = f"unknown setting '{path}'; {question}allowed: {allowed}"
            raise ValueError(message) from None
    return plan


def _field_path(plan: Any, path: str) -> str:
    """A setting's path by the plan's own name of what it knows of a training."""
    names = [field.name for field in fields(plan)]
    head, dot, tail = path.partition(".")
    if head in _TRAININGS and head not in names:
        head = next((name for name in _TRAININGS if name in names), head)
    return f"{head}{dot}{tail}"


def _shown(name: str) -> str:
    shown, other = _TRAININGS
    return shown if name == other else name


def _nearest_path(plan: Any, path: str) -> str:
    """The setting that a mistyped path most likely means: the same name elsewhere, or a near one.

    A plan's `setting_classes` tell what settings its mappings have.
    """
    known = setting_names(plan)
    for name, kind in getattr(plan, "setting_classes", {}).items():
        known += [f"{_shown(name)}.{field.name}" for field in fields(kind)]
    by_name = {name.rpartition(".")[2]: name for name in reversed(known)}
    head, dot, tail = path.partition(".")
    name = path.rpartition(".")[2]
    close = by_name.get(name) or nearest(path, known) or by_name.get(nearest(name, by_name), "")
    group = nearest(head, [_shown(field.name) for field in fields(plan)])
    return close or (f"{group}{dot}{tail}" if group and dot else "")


def sets(settings: Sequence[str], name: str) -> bool:
    """Whether one of the settings NAME=VALUE is of a field of this name, wherever it is."""
    paths = (setting.partition("=")[0] for setting in settings)
    return any(path.strip().rpartition(".")[2] == name for path in paths)


def with_chosen(plan: Plan, values: Mapping[str, object]) -> Plan:
    """A copy of a frozen dataclass with those fields replaced whose value is not None."""
    changes = {name: value for name, value in values.items() if value is not None}
    return replace(cast(Any, plan), **changes)


def with_named(plan: Plan, values: Mapping[str, object]) -> Plan:
    """A copy of a frozen dataclass tree with fields replaced, wherever in the tree they are.

    Raises:
        ValueError: the tree has no field of that name, or the value does not fit it.
    """
    paths = setting_paths(plan)
    if unknown := [name for name in values if name not in paths]:
        owner = type(plan).__name__
        choices = names_allowed(unknown[0], sorted(paths))
        raise ValueError(f"{owner} has no setting '{unknown[0]}'; {choices}")
    return _with_values(plan, {tuple(paths[name].split(".")): values[name] for name in values})


def setting_paths(plan: object) -> dict[str, str]:
    """Name of a field -> its `path.to.field`, the first in the tree."""
    return {path.rpartition(".")[2]: path for path in reversed(setting_names(plan))}


def _with_values(plan: Any, values: Mapping[tuple[str, ...], object]) -> Any:
    """Replace all at once: a plan may refuse one new value beside another's old one."""
    changes: dict[str, object] = {}
    for head in dict.fromkeys(path[0] for path in values):
        inner = {path[1:]: value for path, value in values.items() if path[0] == head}
        if () in inner:
            changes[head] = _fitted(inner[()], get_type_hints(type(plan))[head], head)
        else:
            changes[head] = _with_values(getattr(plan, head), inner)
    return replace(plan, **changes)


def setting_names(plan: Any, prefix: str = "") -> list[str]:
    """Every `path.to.field` that `override` accepts."""
    names = []
    for field in fields(plan):
        value = getattr(plan, field.name)
        inner = setting_names(value, f"{prefix}{field.name}.") if is_dataclass(value) else []
        names += inner or [prefix + field.name]
    return names


def _replaced(plan: Any, path: Sequence[str], text: str, whole: str) -> Any:
    names = [field.name for field in fields(plan)]
    head = path[0]
    tail = path[1:]
    if head not in names:
        raise _UnknownSettingError([_shown(name) for name in names])
    current = getattr(plan, head)
    if tail:
        if isinstance(current, Mapping):
            values = _with_entry(current, tail, text, whole)
            outer = whole.removesuffix("." + ".".join(tail))
            check_value(get_type_hints(type(plan))[head], values, outer)
            return replace(plan, **{head: values})
        if not is_dataclass(current):
            raise ValueError(f"setting '{whole}': '{head}' has no settings of its own")
        return replace(plan, **{head: _replaced(current, tail, text, whole)})
    kind = get_type_hints(type(plan))[head]
    if is_dataclass(current) and not (text.lower() == "none" and NoneType in get_args(kind)):
        parts = ", ".join(f"{head}.{field.name}" for field in fields(current))
        raise ValueError(f"'{whole}' is a group of settings: {parts}")
    return replace(plan, **{head: _parsed(text, kind, whole)})


def _with_entry(
    values: Mapping[str, object], path: Sequence[str], text: str, whole: str
) -> dict[str, object]:
    head = path[0]
    tail = path[1:]
    if not tail:
        try:
            return {**values, head: json.loads(text)}
        except ValueError:
            return {**values, head: text}
    inner = values.get(head, {})
    if not isinstance(inner, Mapping):
        raise ValueError(f"setting '{whole}': '{head}' has no settings of its own")
    return {**values, head: _with_entry(inner, tail, text, whole)}


def _fitted(value: object, kind: Any, name: str) -> object:
    """A value of JSON, or text after `--set`, as the field's type has it."""
    value = tuple(value) if isinstance(value, list) else value
    if _allows(kind, value):
        return value
    return _parsed(
        ",".join(map(str, value)) if isinstance(value, tuple) else str(value), kind, name
    )


def _allows(kind: Any, value: object) -> bool:
    """Whether a text, number or tuple is of a type; anything else is left to the plan's checks."""
    if get_origin(kind) in (Union, UnionType):
        return any(_allows(member, value) for member in get_args(kind))
    plain = get_origin(kind) or kind
    if not isinstance(plain, type) or not isinstance(value, str | int | float | tuple):
        return True
    if isinstance(value, tuple) and issubclass(tuple, plain):
        return all(_allows(member, item) for member in get_args(kind)[:1] for item in value)
    return isinstance(value, plain) or (plain is float and isinstance(value, int))


def _parsed(text: str, kind: Any, name: str) -> object:
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # slow, and rarely needed

    finite = ConfigDict(allow_inf_nan=False)

    if text.lower() == "none" and NoneType in get_args(kind):
        return None
    try:
        if get_origin(kind) is tuple and is_dataclass(get_args(kind)[0]):
            return _records(text, get_args(kind)[0], name)
        if get_origin(kind) is tuple:  # the plan checks how many there are
            items = [item.strip() for item in text.split(",") if item.strip()]
            item_type = TypeAdapter(get_args(kind)[0], config=finite)
            return tuple(_small(item_type.validate_python(item), name) for item in items)
        if get_origin(kind) is Mapping:
            return TypeAdapter(kind).validate_json(text)
        return _small(TypeAdapter(kind, config=finite).validate_python(text), name)
    except ValidationError as error:
        first = error.errors()[0]
        need = _NEEDS.get(first["type"])
        fault = f" needs {need}" if need else f": {first['msg']}"
        raise ValueError(f"setting '{name}'{fault}, not '{text}'") from None


def _records(text: str, kind: Any, name: str) -> tuple[Any, ...]:
    try:
        tree = json.loads(text or "[]")
    except ValueError:
        raise ValueError(f"setting '{name}' needs {_NEEDS['json_invalid']}, not '{text}'") from None
    if not isinstance(tree, list):
        raise ValueError(f"setting '{name}' needs a list, not '{text}'")
    return tuple(plan_from_tree(kind, entry) for entry in tree)


def _small(value: object, name: str) -> object:
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"setting '{name}' needs a number of 64 bits, not '{value}'")
    return value
