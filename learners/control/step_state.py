"""The recurrent state of a network as a flat list of named tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class StateTensor:
    """One tensor of the recurrent state.

    initial: its value before the first step. batch_axis: the axis of the robots, each with as many
    adjacent entries; None for shared state such as a clock. in_place: a runtime may overwrite it
    with the next value.
    """

    name: str
    initial: Tensor
    batch_axis: int | None
    in_place: bool = False


def named_tensors(state: Any, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    """The tensors in a tree of dataclasses, lists, tuples and dicts, by path; else ValueError."""
    if isinstance(state, Tensor):
        yield name, state
        return
    for key, part in _parts(state, name):
        yield from named_tensors(part, f"{name}_{key}")


def with_tensors(state: Any, tensors: Mapping[str, Tensor], name: str = "state") -> Any:
    """The same tree with the tensors at these paths replaced."""
    if isinstance(state, Tensor):
        return tensors.get(name, state)
    parts = {key: with_tensors(part, tensors, f"{name}_{key}") for key, part in _parts(state, name)}
    if isinstance(state, Mapping):
        return parts
    if isinstance(state, list | tuple):
        return type(state)(parts.values())
    return replace(state, **parts)


def _parts(state: Any, name: str) -> list[tuple[str, Any]]:
    if is_dataclass(state) and not isinstance(state, type):
        return [(field.name, getattr(state, field.name)) for field in fields(state)]
    if isinstance(state, Mapping):
        return [(str(key), part) for key, part in state.items()]
    if isinstance(state, list | tuple):
        return [(str(index), part) for index, part in enumerate(state)]
    raise ValueError(
        f"{name} of the network is of type {type(state).__name__}; only tensors can be exported"
    )
