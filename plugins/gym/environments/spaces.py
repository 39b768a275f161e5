"""Gymnasium's spaces as vectors: observations flattened by name, actions from -1 to 1."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gaitforge.common.extensions import load_extra
from gaitforge.datasets.schema import consecutive_slices

LARGEST = 4096
"""Most numbers of one named part of an observation: 64 x 64 pixels."""


def load_gymnasium(module: str) -> Any:
    """A module of the extra `gym`; raises as `load_extra`."""
    return load_extra(module, "the Gymnasium environment", "gym")


@dataclass(frozen=True)
class Part:
    """A space without parts of its own, inside of an observation.

    Attributes:
        name: its keys joined by "_"; path: the keys; size: of its vector.
        one_hot: `gymnasium.spaces.flatten` of a discrete space; None for a Box.
    """

    name: str
    path: tuple[Any, ...]
    space: Any
    size: int
    one_hot: Callable[[Any, Any], np.ndarray] | None

    def vector(self, seen: Any) -> np.ndarray:
        """The part of a whole observation as (size,) float32; one-hot if it is discrete."""
        for key in self.path:
            seen = seen[key]
        if self.one_hot is not None:
            # A number below the first one would mark the last.
            if not self.space.contains(np.asarray(seen).astype(self.space.dtype)):
                raise ValueError(f"{self.name} is {seen}, which is not in its space {self.space}")
            return self.one_hot(self.space, seen).astype(np.float32)
        values = np.asarray(seen, np.float32)
        if values.shape != self.space.shape:
            raise ValueError(
                f"{self.name} has the shape {values.shape}; its space says {self.space.shape}"
            )
        return values.reshape(-1)


class Flattening:
    """Observations of any space as vectors (obs_dim,) float32, part after part.

    Attributes:
        slices: part -> (start, stop) in the vector.
        left_out: parts that a vector cannot hold, in words: text, sequences, large images.

    Raises:
        ValueError: nothing is left, or two parts have the same name.
    """

    def __init__(self, space: Any, name: str) -> None:
        spaces = load_gymnasium("gymnasium").spaces
        self._parts: list[Part] = []
        left_out: list[str] = []
        for path, leaf in _leaves(space):
            key = _name(path)
            size = _size(leaf)
            if size is None:
                left_out.append(f"{key} ({type(leaf).__name__})")
            elif size > LARGEST:
                left_out.append(f"{key} ({size:,} numbers, {LARGEST:,} are allowed)")
            else:
                one_hot = None if isinstance(leaf, spaces.Box) else spaces.flatten
                self._parts.append(Part(key, path, leaf, size, one_hot))
        if not self._parts:
            raise ValueError(
                f"{name} observes {space}, of which no part is a vector of at most {LARGEST:,} "
                "numbers: give a wrapper that makes one, --wrapper module:Class"
            )
        self.left_out = tuple(left_out)
        self.slices = consecutive_slices({part.name: part.size for part in self._parts})
        if len(self.slices) < len(self._parts):
            raise ValueError(f"{name} observes {space}, two parts of which have the same name")

    @property
    def obs_dim(self) -> int:
        """Size of the vector."""
        return sum(part.size for part in self._parts)

    def __call__(self, seen: Any) -> np.ndarray:
        """The vector of an observation."""
        return np.concatenate([part.vector(seen) for part in self._parts])


class ActionCode:
    """Actions of a space as vectors from -1 to 1.

    A Box's bounds become -1 and 1. Of discrete actions the vector has a score for each choice,
    and the highest is taken: `executed` gives 1 to the one taken and -1 to the others.

    Attributes:
        choices: number of choices of each discrete action; empty for a Box.

    Raises:
        ValueError: any other space, or a Box without bounds.
    """

    def __init__(self, space: Any, name: str) -> None:
        spaces = load_gymnasium("gymnasium").spaces
        self._space = space
        self.choices: tuple[int, ...] = ()
        if isinstance(space, spaces.Discrete):
            self.choices = (int(space.n),)
        elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            counts = getattr(space, "nvec", np.full(space.shape, 2))
            self.choices = tuple(map(int, np.ravel(counts)))
        elif not isinstance(space, spaces.Box) or not space.is_bounded():
            raise ValueError(
                f"{name} has the actions {space}; allowed: Discrete, MultiDiscrete, MultiBinary "
                "and a bounded Box, which a wrapper can make of others: --wrapper module:Class"
            )
        self.act_dim = sum(self.choices) or prod(space.shape)

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Executed actions (..., A), in the form and dtype of `actions`."""
        if not self.choices:
            return actions
        taken = np.full_like(actions, -1.0)
        for start, stop in _blocks(self.choices):
            best = actions[..., start:stop].argmax(axis=-1)[..., None]
            np.put_along_axis(taken[..., start:stop], best, 1.0, axis=-1)
        return taken

    def __call__(self, action: np.ndarray) -> Any:
        """The environment's action of a vector (A,)."""
        space = self._space
        if not self.choices:
            low = space.low.astype(np.float64)
            high = space.high.astype(np.float64)
            values = (high + low) / 2 + (high - low) / 2 * np.reshape(action, space.shape)
            if np.issubdtype(space.dtype, np.integer):
                values = np.round(values)
            return np.clip(values, low, high).astype(space.dtype)
        best = [int(np.argmax(action[start:stop])) for start, stop in _blocks(self.choices)]
        start = getattr(space, "start", 0)
        if space.shape == ():
            return start + best[0]
        return (start + np.reshape(best, space.shape)).astype(space.dtype)


def _blocks(choices: tuple[int, ...]) -> list[tuple[int, int]]:
    stops = np.cumsum(choices).tolist()
    return list(zip([0, *stops], stops, strict=False))


def _leaves(space: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    spaces = load_gymnasium("gymnasium").spaces
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces
        for key, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            yield from _leaves(part, (*path, key))
    else:
        yield path, space


def _name(path: tuple[Any, ...]) -> str:
    return re.sub(r"\W+", "_", "_".join(map(str, path))) or "state"


def _size(space: Any) -> int | None:
    """Size of a part's vector; None for one without a fixed size."""
    spaces = load_gymnasium("gymnasium").spaces
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    size = int(spaces.flatdim(space)) if isinstance(space, kinds) else 0
    return size or None
