"""Prefetch threads of a window stream: the next pool and the next batches."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any, Generic, TypeVar

from gaitforge.datasets.stream.order import EpochOrder, Windows
from gaitforge.datasets.stream.pool import StepReader, Steps

THREAD_NAME = "window-stream"

Item = TypeVar("Item")


class PoolsAhead:
    """The pools of an order; `workers` threads read the next one while one is in use.

    With 0 workers each pool is read when it is needed.
    """

    def __init__(self, order: EpochOrder, reader: StepReader, workers: int) -> None:
        self._order = order
        self._reader = reader
        self._threads = ThreadPoolExecutor(workers, THREAD_NAME + "-read") if workers else None
        self._slot = 0
        self._held: tuple[int, Steps, Windows] | None = None
        self._coming: tuple[int, Steps, list[Future[Any]]] | None = None

    def __enter__(self) -> "PoolsAhead":
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def get(self, pool: int) -> tuple[Steps, Windows]:
        """Steps and windows of a pool; invalidates those of the previous pool."""
        if self._held is None or self._held[0] != pool:
            self._held = None
            if self._threads is None:
                steps, tasks = self._reader.prepare(0, self._order.pool_units[pool])
                for task in tasks:
                    task()
                self._held = pool, steps, self._order.windows(pool)
            else:
                self._held = (pool, *self._awaited(pool, self._threads))
        return self._held[1:]

    def _awaited(self, pool: int, threads: ThreadPoolExecutor) -> tuple[Steps, Windows]:
        coming = self._coming
        if coming is not None and coming[0] != pool:  # this rank has no window in that pool
            for future in coming[2]:
                future.result()
            coming = None
        number, steps, futures = coming or self._begin(pool, threads)
        windows, *_ = [future.result() for future in futures]
        following = number + 1
        has_next = following < len(self._order.pool_units)
        self._coming = self._begin(following, threads) if has_next else None
        return steps, windows

    def _begin(
        self, pool: int, threads: ThreadPoolExecutor
    ) -> tuple[int, Steps, list[Future[Any]]]:
        self._slot = 1 - self._slot
        steps, tasks = self._reader.prepare(self._slot, self._order.pool_units[pool])
        windows: Future[Any] = threads.submit(self._order.windows, pool)
        return pool, steps, [windows, *(threads.submit(task) for task in tasks)]


class Ahead(Generic[Item]):
    """Items of a generator, made ahead by a thread; `get` raises the generator's errors.

    At most `depth` items are ready; 0 makes each one in `get`, without a thread.
    """

    def __init__(self, items: Generator[Item, None, None], depth: int) -> None:
        self._items = items
        self._depth = depth
        self._thread = ThreadPoolExecutor(1, THREAD_NAME) if depth else None
        self._coming: deque[Future[Item]] = deque()

    def __enter__(self) -> "Ahead[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        if getgeneratorstate(self._items) != GEN_RUNNING:  # running here means forked while running
            self._items.close()

    def get(self) -> Item:
        """The next item; there must be one."""
        if self._thread is None:
            return next(self._items)
        while len(self._coming) <= self._depth:  # one more: it is returned now
            self._coming.append(self._thread.submit(next, self._items))
        return self._coming.popleft().result()
