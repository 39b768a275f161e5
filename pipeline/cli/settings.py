"""Overrides of a plan's settings from the command line: `--set fcnet.config.steps=500`.

They are checked against the dataclass tree.
"""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints


def override(plan: Any, settings: Sequence[str]) -> Any:
    """A copy of a frozen dataclass tree with `path.to.field=value` settings applied.

    Values are read by the field's type; tuples as comma-separated lists.

    Raises:
        ValueError: an unknown field, or a value that does not fit it; it says what is allowed.
    """
    for setting in settings:
        path, separator, text = setting.partition("=")
        if not separator:
            raise ValueError(f"--set needs NAME=VALUE, not '{setting}'")
        plan = _replaced(plan, path.split("."), text, path)
    return plan


def setting_names(plan: Any, prefix: str = "") -> list[str]:
    """Every `path.to.field` that `override` accepts."""
    names = []
    for field in fields(plan):
        value = getattr(plan, field.name)
        if is_dataclass(value):
            names += setting_names(value, f"{prefix}{field.name}.")
        else:
            names.append(prefix + field.name)
    return names


def _replaced(plan: Any, path: Sequence[str], text: str, whole: str) -> Any:
    names = [field.name for field in fields(plan)]
    head, rest = path[0], path[1:]
    if head not in names:
        raise ValueError(f"unknown setting '{whole}'; there are: {', '.join(sorted(names))}")
    current = getattr(plan, head)
    if rest:
        if not is_dataclass(current):
            raise ValueError(f"setting '{whole}': '{head}' has no parts")
        return replace(plan, **{head: _replaced(current, rest, text, whole)})
    if is_dataclass(current):
        parts = ", ".join(f"{head}.{field.name}" for field in fields(current))
        raise ValueError(f"'{whole}' is a group of settings; there are: {parts}")
    kind = get_type_hints(type(plan))[head]
    try:
        value = _parse(text, kind)
    except (ValueError, TypeError):
        raise ValueError(f"setting '{whole}' needs {_describe(kind)}, not '{text}'") from None
    return replace(plan, **{head: value})


def _parse(text: str, kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if text.lower() == "none" and type(None) in arguments:
            return None
        return _parse(text, next(a for a in arguments if a is not type(None)))
    if origin is tuple:
        items = [item.strip() for item in text.split(",") if item.strip()]
        return tuple(_parse(item, arguments[0]) for item in items)
    if kind is bool:
        return (
            {"true": True, "false": False}[text.lower()]
            if text.lower() in ("true", "false")
            else _fail()
        )
    if kind in (int, float, str):
        return kind(text)
    return json.loads(text)


def _fail() -> Any:
    raise ValueError


def _describe(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return f"a comma-separated list of {_describe(arguments[0])}"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(a) for a in arguments)
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(kind, "none" if kind is type(None) else "JSON")
