"""The window stream: every selected step exactly once an epoch, as batches of torch tensors.

The only module of this package that imports torch.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from datasets.errors import DatasetError, listed
from datasets.order import ORDER_VERSION, EpochOrder, epoch_order
from datasets.pool import RETURN_TO_GO, REWARD, Pool, PoolReader
from datasets.selection import DEFAULT_POOL_WINDOWS, Selection

THREAD_NAME = "window-stream"
POLL_S = 0.05

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StreamConfig:
    """How a selection is streamed.

    Attributes:
        context_len: K, steps of a window; 1 gives single steps.
        batch_size: windows of a batch on each rank.
        fields: fields a step to put into the batches.
        seed, epoch: of the order; it depends on nothing else but the selection, ``context_len``
            and ``pool_windows``.
        rank, world_size: ranks take every ``world_size``-th window of one global order.
        return_to_go: add ``return_to_go`` (B, K) from the field ``reward``; see ``returns``.
        drop_last: leave out what does not fill a batch on every rank.
        pool_windows: windows that are shuffled together. Memory is bounded by two pools of
            ``pool_windows * context_len`` steps (or of one shard's episodes, if that is more) and
            ``prefetch + 2`` batches.
        prefetch: batches kept ready.
    """

    context_len: int = 64
    batch_size: int = 1024
    fields: tuple[str, ...] = ("obs", "action")
    seed: int = 0
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    return_to_go: bool = False
    drop_last: bool = False
    pool_windows: int = DEFAULT_POOL_WINDOWS
    prefetch: int = 2

    def __post_init__(self) -> None:
        positive = ("context_len", "batch_size", "world_size", "pool_windows", "prefetch")
        for name in positive:
            if getattr(self, name) < 1:
                raise DatasetError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.seed < 0 or self.epoch < 0:
            raise DatasetError(f"seed and epoch must be 0 or more, not {self.seed}, {self.epoch}")
        if not 0 <= self.rank < self.world_size:
            raise DatasetError(f"rank must be in 0..{self.world_size - 1}, not {self.rank}")


class WindowStream:
    """Batches of windows, an epoch an iteration; made by ``Selection.windows``.

    A batch holds each field as (B, K, *shape), ``mask`` (B, K) bool (True for real steps; padding
    is zero and at the end, so position 0 is always real), ``episode`` (B,) int64 row of
    ``selection.episodes()``, ``offset`` (B,) int64 first step within the episode, and
    ``return_to_go`` (B, K) float32 if asked for. Windows tile each episode; the first one is
    shortened by a phase drawn anew for each episode and epoch.

    Every rank gets the same number of batches, each with one window or more. Iterating goes on
    where the stream stands and ends with the epoch; the next iteration is the next epoch. Only one
    iteration runs at a time: a new one ends the old one.

    Raises:
        DatasetError: an empty selection, unknown fields, a batch that cannot be served (fewer
            windows than ranks), iteration in a forked process or in a DataLoader's worker.
    """

    def __init__(self, selection: Selection, config: StreamConfig) -> None:
        _check_fields(selection, config)
        self.selection = selection
        self.config = config
        self._process = os.getpid()
        self._reader = PoolReader(selection, config.fields, config.context_len, config.return_to_go)
        self._pools = (Pool(), Pool())
        self._epoch = config.epoch
        self._first = self._cursor = 0
        self._order: tuple[int, EpochOrder] | None = None
        self._iteration: Callable[[], Generator[Batch, None, None] | None] = _nothing

    def __len__(self) -> int:
        """Batches of this epoch from where it was begun or resumed."""
        return len(self._bounds(self._first))

    def __iter__(self) -> Iterator[Batch]:
        self._check_process()
        self.close()
        iteration = self._run()
        self._iteration = weakref.ref(iteration)  # so that leaving a for loop ends its threads
        return iteration

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the next one."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; the epoch in progress is left where it stands."""
        if epoch < 0:
            raise DatasetError(f"epoch must be 0 or more, not {epoch}")
        if epoch != self._epoch:
            self.close()
            self._begin(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands after the batches handed out so far, as plain JSON values.

        Equal on all ranks that have taken the same number of batches.
        """
        return self._identity() | {"epoch": self._epoch, "cursor": self._cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly behind the saved position, also with other ranks or batch sizes.

        Raises:
            DatasetError: the state is of another selection or order, or fewer windows are left in
                its epoch than there are ranks.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise DatasetError(
                    f"the stream's state has {name}={state.get(name)!r}, this stream {value!r}"
                )
        self.close()
        self._epoch, self._first = int(state["epoch"]), int(state["cursor"])
        self._cursor = self._first
        self._bounds(self._first)

    def close(self) -> None:
        """End the running iteration and its threads; the position is kept."""
        iteration = self._iteration()
        if iteration is not None:
            iteration.close()

    def _identity(self) -> dict[str, Any]:
        return {
            "order_version": ORDER_VERSION,
            "selection": self.selection.hash,
            "context_len": self.config.context_len,
            "pool_windows": self.config.pool_windows,
            "seed": self.config.seed,
        }

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise DatasetError(
                "this stream was made in another process; a forked reader is refused: make the "
                "stream in the process that reads it, or start processes with 'spawn'"
            )
        if get_worker_info() is not None:
            raise DatasetError(
                "the stream prefetches by itself and every DataLoader worker would repeat it; "
                "iterate it directly, or use num_workers=0"
            )

    def _current_order(self) -> EpochOrder:
        if self._order is None or self._order[0] != self._epoch:
            order = epoch_order(
                self.selection.episode_ids(),
                self.selection.lengths,
                self._reader.unit_bounds,
                context_len=self.config.context_len,
                pool_windows=self.config.pool_windows,
                seed=self.config.seed,
                epoch=self._epoch,
            )
            self._order = (self._epoch, order)
        return self._order[1]

    def _bounds(self, cursor: int) -> list[tuple[int, int]]:
        """Global window ranges of the batches from ``cursor`` to the epoch's end."""
        ranks, batch = self.config.world_size, self.config.batch_size * self.config.world_size
        total = len(self._current_order())
        starts = list(range(cursor, total, batch))
        rest = (total - cursor) % batch
        if rest and (self.config.drop_last or (rest < ranks and len(starts) > 1)):
            starts.pop()  # windows too few for all ranks join the batch before
        stops = [start + batch for start in starts]
        if stops and not self.config.drop_last:
            stops[-1] = total
        if not starts and cursor < total and cursor == 0:
            raise DatasetError(
                f"epoch {self._epoch} has {total} windows, fewer than one batch of "
                f"{self.config.batch_size} on {ranks} ranks; use drop_last=False or smaller batches"
            )
        if starts and stops[0] - starts[0] < ranks:
            raise DatasetError(
                f"{total - cursor} windows are left in epoch {self._epoch}, fewer than {ranks} "
                "ranks; use fewer ranks or go to the next epoch"
            )
        return list(zip(starts, stops, strict=True))

    def _run(self) -> Generator[Batch, None, None]:
        bounds = self._bounds(self._cursor)
        if not bounds:  # what is left does not fill a batch and is dropped
            self._begin(self._epoch + 1)
            return
        batches = self._batches(self._current_order(), bounds)
        with _Producer(batches, self.config.prefetch) as producer:
            for _, stop in bounds:
                self._check_process()
                arrays = producer.get()
                self._cursor = stop
                if stop == bounds[-1][1]:
                    self._begin(self._epoch + 1)
                yield {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _begin(self, epoch: int) -> None:
        self._epoch, self._first, self._cursor = epoch, 0, 0

    def _batches(
        self, order: EpochOrder, bounds: list[tuple[int, int]]
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """Gather this rank's batches, reading one pool ahead."""
        step, rank = self.config.world_size, self.config.rank
        starts = _pools_between(order, bounds)
        with ThreadPoolExecutor(1, THREAD_NAME + "-read") as reader:
            pools = _read_ahead(
                lambda number: self._reader.fill(self._pools[number % 2], order.pool_units[number]),
                starts,
                reader,
            )
            current, pool = next(pools)
            for start, stop in bounds:
                positions = np.arange(start + rank, stop, step)
                owners = np.searchsorted(order.pool_bounds, positions, side="right") - 1
                pieces = []
                for owner in np.unique(owners).tolist():
                    while current < owner:
                        current, pool = next(pools)
                    pieces.append(self._reader.gather(pool, order, positions[owners == owner]))
                yield _joined(pieces)


class _Producer:
    """Runs an iterator in a thread; ``get`` gives its items or raises its error."""

    def __init__(self, items: Generator[dict[str, np.ndarray], None, None], depth: int) -> None:
        self._items = items
        self._queue: queue.Queue[dict[str, np.ndarray] | BaseException] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)

    def __enter__(self) -> _Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def get(self) -> dict[str, np.ndarray]:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _work(self) -> None:
        try:
            for item in self._items:
                if not self._put(item):
                    break
        except BaseException as error:
            self._put(error)
        finally:
            self._items.close()

    def _put(self, item: dict[str, np.ndarray] | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=POLL_S)
            except queue.Full:
                continue
            return True
        return False


def _nothing() -> None:
    return None


def _read_ahead(
    fill: Callable[[int], Pool], numbers: range, reader: ThreadPoolExecutor
) -> Iterator[tuple[int, Pool]]:
    """Pools in order; the one after is being read while the caller uses the one before."""
    coming = reader.submit(fill, numbers[0])
    for number in numbers:
        pool = coming.result()
        if number + 1 in numbers:
            coming = reader.submit(fill, number + 1)
        yield number, pool


def _pools_between(order: EpochOrder, bounds: list[tuple[int, int]]) -> range:
    first, last = np.searchsorted(
        order.pool_bounds, (bounds[0][0], bounds[-1][1] - 1), side="right"
    )
    return range(int(first) - 1, int(last))


def _joined(pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _check_fields(selection: Selection, config: StreamConfig) -> None:
    if len(selection) == 0:
        raise DatasetError("the selection is empty; select at least one episode to stream")
    schema = selection.store.schema
    allowed = schema.names("step")
    if not config.fields or not set(config.fields) <= set(allowed):
        raise DatasetError(f"stream fields {list(config.fields)}: choose from {listed(allowed)}")
    if config.return_to_go and (REWARD not in allowed or schema.field(REWARD).shape != ()):
        raise DatasetError(
            f"{RETURN_TO_GO} needs a scalar field {REWARD!r} a step; fields: {listed(allowed)}"
        )
