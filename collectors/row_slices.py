"""Work on rows in slices, by threads: compiled functions and NumPy release the interpreter's lock.

A row's result must not depend on the other rows, so that it is the same for any number of threads.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

LEAST_ROWS = 1024
"""Rows of a slice, at least: some 200 calls a slice and step pass the interpreter's lock on."""


class RowSlices:
    """Slices of N rows, as even as possible, one a thread.

    Attributes:
        parts: the slices, in order.
    """

    def __init__(self, rows: int, threads: int):
        count = max(1, min(threads, rows // LEAST_ROWS))
        ends = np.linspace(0, rows, count + 1).astype(int).tolist()
        self.parts = [slice(start, stop) for start, stop in pairwise(ends)]
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[int, slice], None]) -> None:
        """Call `work` with each slice's number and the slice; raises what a call raised."""
        if len(self.parts) == 1:
            work(0, self.parts[0])
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.parts) - 1, thread_name_prefix="rows")
        others = enumerate(self.parts[1:], 1)
        futures = [self._pool.submit(work, number, rows) for number, rows in others]
        try:
            work(0, self.parts[0])
        finally:
            wait(futures)
        for future in futures:
            future.result()

    def close(self) -> None:
        """End the threads; may be called twice."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


Record = TypeVar("Record")
"""A dataclass of arrays and of such dataclasses, whose first axis is the rows."""


def rows_of(record: Record, rows: slice | np.ndarray) -> Record:
    """The record of some rows; its arrays are views for a slice, copies for indices."""
    return _changed(record, lambda array: array[rows])


def copied(record: Record) -> Record:
    """A record with copies of the arrays."""
    return _changed(record, np.copy)


def write_rows(record: Any, rows: slice | np.ndarray, part: Any) -> None:
    """Write a record of some rows into one of all rows."""
    for name, value in vars(part).items():
        getattr(record, name)[rows] = value


def _changed(record: Record, change: Callable[[np.ndarray], np.ndarray]) -> Record:
    values: dict[str, Any] = {
        name: change(value) if isinstance(value, np.ndarray) else _changed(value, change)
        for name, value in vars(record).items()
    }
    return type(record)(**values)
