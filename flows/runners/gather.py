"""Waiting for the futures of Dask and of Prefect alike."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

POLL_S = 1.0

Record = TypeVar("Record")


def gather(
    futures: Mapping[Any, str],
    result: Callable[[Any, str], Record],
    follow: Callable[[list[Record]], None],
    poll_s: float = POLL_S,
) -> list[Record]:
    """The results of all futures, in the order in which they are ready.

    Args:
        futures: future -> part; each has `add_done_callback`.
        result: `result(future, part)`, of a future that is done.
        follow: called every `poll_s` seconds with the results that came since; it stops the wait by
            raising.
    """
    # A queue: waiting for any of n futures costs n each time.
    ended: SimpleQueue[Any] = SimpleQueue()
    for future in futures:
        future.add_done_callback(ended.put)
    records: list[Record] = []
    while len(records) < len(futures):
        new: list[Record] = []
        with suppress(Empty):
            future = ended.get(timeout=poll_s)
            while True:
                new.append(result(future, futures[future]))
                future = ended.get_nowait()
        records += new
        follow(new)
    return records
