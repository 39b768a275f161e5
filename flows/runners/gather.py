"""Waiting for the futures of Dask and of Prefect alike."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

POLL_S = 1.0

Record = TypeVar("Record")


class Again(Exception):
    """Raised by a `result` of `gather`: another future will have the part's result."""

    def __init__(self, future: Any):
        super().__init__()
        self.future = future


def gather(
    futures: Mapping[Any, str],
    result: Callable[[Any, str], Record],
    follow: Callable[[list[Record]], None],
    poll_s: float = POLL_S,
) -> list[Record]:
    """The results of all futures, in the order in which they are ready.

    Args:
        futures: future -> part; each has `add_done_callback`.
        result: `result(future, part)`, of a future that is done; it may raise `Again`.
        follow: called every `poll_s` seconds with the results that came since; it stops the wait by
            raising.
    """
    # A queue: waiting for any of n futures costs n each time.
    ended: SimpleQueue[Any] = SimpleQueue()
    parts = dict(futures)
    for future in futures:
        future.add_done_callback(ended.put)
    records: list[Record] = []
    while len(records) < len(futures):
        new: list[Record] = []
        with suppress(Empty):
            future = ended.get(timeout=poll_s)
            while True:
                part = parts.pop(future)
                try:
                    new.append(result(future, part))
                except Again as again:
                    parts[again.future] = part
                    again.future.add_done_callback(ended.put)
                future = ended.get_nowait()
        records += new
        follow(new)
    return records
