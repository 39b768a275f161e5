"""Work done ahead by threads of the reading process: the next pool, and the next batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from datasets.stream.order import EpochOrder, Windows
from datasets.stream.pool import StepReader, Steps

THREAD_NAME = "window-stream"
POLL_S = 0.05

Item = TypeVar("Item")


class PoolsAhead:
    """The pools of an order one after the other; the next is read while one is in use.

    Args:
        order: the epoch's.
        reader: brings units into memory.
        workers: threads that read; 0 reads a pool when it is asked for.
    """

    def __init__(self, order: EpochOrder, reader: StepReader, workers: int) -> None:
        self._order = order
        self._reader = reader
        self._threads = ThreadPoolExecutor(workers, THREAD_NAME + "-read") if workers else None
        self._slot = 0
        self._held: tuple[int, Steps, Windows] | None = None
        self._coming: tuple[int, Steps, list[Future[Any]]] | None = None

    def __enter__(self) -> PoolsAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def get(self, pool: int) -> tuple[Steps, Windows]:
        """Steps and windows of a pool; those of the pool before are no longer valid."""
        if self._held is None or self._held[0] != pool:
            self._held = None
            if self._threads is None:
                self._held = (pool, *self._read(pool))
            else:
                self._held = (pool, *self._awaited(pool, self._threads))
        return self._held[1:]

    def _read(self, pool: int) -> tuple[Steps, Windows]:
        steps, tasks = self._reader.prepare(0, self._order.pool_units[pool])
        for task in tasks:
            task()
        return steps, self._order.windows(pool)

    def _awaited(self, pool: int, threads: ThreadPoolExecutor) -> tuple[Steps, Windows]:
        coming = self._coming
        if coming is not None and coming[0] != pool:  # this rank has no window in it
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
    """An iterator's items, made ahead by a thread; its errors are raised where items are taken.

    Args:
        items: the iterator; closed with this.
        depth: items kept ready; 0 makes each when it is asked for, without a thread.
    """

    def __init__(self, items: Generator[Item, None, None], depth: int) -> None:
        self._items = items
        self._queue: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = (
            threading.Thread(target=self._work, name=THREAD_NAME, daemon=True) if depth else None
        )

    def __enter__(self) -> Ahead[Item]:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            self._items.close()
            return
        self._stop.set()
        self._thread.join()

    def get(self) -> Item:
        """The next item."""
        if self._thread is None:
            return next(self._items)
        item, error = self._queue.get()
        if error is not None:
            raise error
        return item  # pyright: ignore[reportReturnType] (there is one where there is no error)

    def _work(self) -> None:
        try:
            for item in self._items:
                if not self._put(item, None):
                    break
                del item  # whoever takes it decides how long its memory is held
        except BaseException as error:
            self._put(None, error)
        finally:
            self._items.close()

    def _put(self, item: Item | None, error: BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put((item, error), timeout=POLL_S)
            except queue.Full:
                continue
            return True
        return False
