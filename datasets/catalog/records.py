"""Rows of a result as dicts, made when they are read: a list of millions takes gigabytes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

Record = dict[str, Any]
ROWS_AT_ONCE = 1 << 14


class Records(Sequence[Record]):
    """`count` rows; `make(first, stop)` makes some of them."""

    def __init__(self, count: int, make: Callable[[int, int], list[Record]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            first, stop, step = index.indices(self._count)
            return self._make(first, max(first, stop))[::step] if step > 0 else list(self)[index]
        position = range(self._count)[index]
        return self._make(position, position + 1)[0]

    def __iter__(self) -> Iterator[Record]:
        for chunk in self.chunks():
            yield from chunk

    def chunks(self) -> Iterator[list[Record]]:
        """The rows in order, some thousands at a time."""
        for first in range(0, self._count, ROWS_AT_ONCE):
            yield self._make(first, min(first + ROWS_AT_ONCE, self._count))
