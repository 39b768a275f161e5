"""The window stream: every selected step exactly once per epoch, in batches.

Batches hold torch tensors; without torch, NumPy arrays of the same values.

Of `datasets` only this module imports torch.

Prefetch threads of a window stream prepare its next pool and its next batches.
"""

import inspect
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from inspect import GEN_RUNNING, getgeneratorstate
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from gaitforge.common.errors import DatasetError, amount
from gaitforge.common.extras import is_installed
from gaitforge.datasets.schema import (
    ACTION,
    LAST_ACTION,
    TERMINATED,
    check_complete,
)
from gaitforge.datasets.stream.pool import (
    FOLLOWING,
    ORDER_VERSION,
    EpochOrder,
    StepReader,
    Steps,
    StepSource,
    StreamedColumn,
    Windows,
    epoch_order,
    gather,
)
from gaitforge.datasets.stream.stream_config import StreamConfig

Item = TypeVar("Item")

if TYPE_CHECKING or is_installed("torch"):
    import torch
    from torch.utils.data import IterableDataset
else:
    torch = None  # the base installation has none

    class IterableDataset(Generic[Item]):
        """Stands for torch's class."""


# Prefetch threads.
THREAD_NAME = "window-stream"


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


# The window stream.
BATCH_KEYS = ("mask", "episode", "offset", "ending", "last", "terminal")
"""Names that a batch adds to the fields; no field may have one."""
_NO_WORKERS = "use num_workers=0, the stream has prefetch threads of its own (workers=, prefetch=)"

Batch: TypeAlias = "dict[str, torch.Tensor]"
"""Name -> a tensor; without torch, an array."""


class Schedule(Protocol):
    """How often each epoch visits each episode; see `materialise.Mixture`."""

    hash: str

    def visits(self, seed: int, epoch: int) -> np.ndarray:
        """(E,) visits of each episode."""
        ...


class WindowStream(IterableDataset[Batch]):
    """Iterable over batches of windows, one epoch per iteration; `Selection.windows` makes one.

    It is the loader, and a torch `IterableDataset` where torch is: programs that want a
    `DataLoader` give it `batch_size=None`, since the stream makes the batches, and no workers.

    A batch holds each field as (B, K, *shape), `mask` (B, K) bool, `episode` (B,) int64 row of
    `selection.episodes()`, `offset` (B,) int64 first step of the window within the episode,
    with `return_to_go` also `return_to_go` (B, K) float32 and `ending` (B,) uint8 (see
    `gaitforge.datasets.schema`), with `last_action` the previous step's action (B, K, *shape), and
    with `transitions` what follows each step. float16 fields are returned as float32. Windows tile
    each episode; the first window is shortened by a random phase per episode and epoch.

    K is `prefix_len + window_len`: a row begins `prefix_len` steps before its window, or at the
    episode's start, and is padded at its end with zeros. `mask` is True for the window's steps,
    those to learn from, and False for the steps before them and for padding.

    Every rank gets the same number of batches, none of them empty. Iteration continues from the
    current position to the end of the epoch; the next iteration is the next epoch. A new iteration
    ends the previous one. A batch's memory is reused once nothing refers to it.

    Raises:
        DatasetError: an empty selection, unknown fields, returns of cut-off episodes, fewer windows
            than ranks, iteration in a forked process or a DataLoader worker, or pinned memory
            without an accelerator.
    """

    def __init__(
        self, source: StepSource, config: StreamConfig, schedule: Schedule | None = None
    ) -> None:
        if len(source.lengths) == 0:
            raise DatasetError("the selection is empty; select at least one episode to stream")
        self.config = config
        # The order does not depend on the actions, so a state is of the episodes alone.
        self._order_hash = (schedule or source).hash
        if (actions := config.chosen_actions) is not None:
            source = source.with_actions(actions)
        self._source = source
        self._schedule = schedule
        self._columns, handed_out = _columns(source, config)
        if taken := set(self._columns) & set(BATCH_KEYS):
            raise DatasetError(f"field {taken.pop()!r} has the name of a batch's own entry")
        need = config.return_to_go or config.transitions
        self._ending = source.ending() if need else None
        self._finals = source.final_obs() if config.transitions else None
        if self._ending is not None and config.return_to_go and not config.partial_returns:
            check_complete(self._ending)
        self._buffers = _Buffers(handed_out, config)
        self._process = os.getpid()
        self._epoch = config.epoch
        self._first = self._cursor = 0
        self._order: tuple[int, EpochOrder] | None = None
        self._reader: tuple[int, StepReader] | None = None
        self._iteration: Callable[[], Generator[Batch, None, None] | None] = lambda: None

    def __repr__(self) -> str:
        config = self.config
        prefix = f"{config.prefix_len} + " if config.prefix_len else ""
        windows = f"{amount(config.batch_size, 'window')} of {prefix}{config.window_len} steps"
        episodes = amount(len(self._source.lengths), "episode")
        return (
            f"WindowStream({', '.join(self._columns)}; batches of {windows}, of {episodes}; "
            f"seed {config.seed}, epoch {self._epoch})"
        )

    def __reduce__(self) -> NoReturn:
        raise DatasetError(f"a window stream is not copied to another process: {_NO_WORKERS}")

    def __len__(self) -> int:
        """Batches of this epoch, counted from where it started or was resumed."""
        return len(self._bounds(self._first))

    def __iter__(self) -> Iterator[Batch]:
        self._check_process()
        running = self._iteration()
        if running is not None and inspect.getgeneratorstate(running) != inspect.GEN_CLOSED:
            raise DatasetError(
                "an iteration of this stream is not at its end; end it, close() the stream, which "
                "keeps the position, or make another stream"
            )
        iteration = self._run()
        self._iteration = weakref.ref(iteration)  # so that leaving a for loop ends its threads
        return iteration

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the next one to start."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; no effect for the current one."""
        if epoch < 0:
            raise DatasetError(f"epoch must be 0 or more, not {epoch}")
        if epoch != self._epoch:
            self.close()
            self._begin(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Position after the batches returned so far, as JSON values.

        Equal on all ranks that have taken the same number of batches.
        """
        return self._identity() | {"epoch": self._epoch, "cursor": self._cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume exactly after the saved position, also with other ranks or batch sizes.

        Raises DatasetError for another selection or order, or fewer windows left than ranks.
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
        """Stop the running iteration and its threads; the position is kept."""
        iteration = self._iteration()
        if iteration is not None:
            iteration.close()

    def _identity(self) -> dict[str, object]:
        return {
            "order_version": ORDER_VERSION,
            "selection": self._order_hash,
            "window_len": self.config.window_len,
            "prefix_len": self.config.prefix_len,
            "pool_steps": self.config.pool_steps,
            "seed": self.config.seed,
        }

    def _check_process(self) -> None:
        if torch is not None and torch.utils.data.get_worker_info() is not None:
            raise DatasetError(
                f"every DataLoader worker would repeat the whole stream: {_NO_WORKERS}"
            )
        if os.getpid() != self._process:
            raise DatasetError(
                "this stream was made in another process; a forked reader is refused: make the "
                "stream in the process that reads it, or start processes with 'spawn'"
            )

    def _current_order(self) -> EpochOrder:
        if self._order is None or self._order[0] != self._epoch:
            seed = self.config.seed
            source = self._source
            schedule = self._schedule
            order = epoch_order(
                source.episode_ids,
                source.lengths,
                source.unit_bounds,
                window_len=self.config.window_len,
                pool_steps=self.config.pool_steps,
                seed=seed,
                epoch=self._epoch,
                visits=schedule.visits(seed, self._epoch) if schedule else None,
            )
            self._order = (self._epoch, order)
        return self._order[1]

    def _bounds(self, cursor: int) -> list[tuple[int, int]]:
        """Global window ranges of the batches from `cursor` to the end of the epoch."""
        ranks = self.config.world_size
        batch = self.config.batch_size * self.config.world_size
        total = len(self._current_order())
        starts = list(range(cursor, total, batch))
        remainder = (total - cursor) % batch
        fewest = max(ranks, self.config.smallest_batch)
        if remainder and (self.config.drop_last or (remainder < fewest and len(starts) > 1)):
            starts.pop()  # too few windows for all ranks: they join the previous batch
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
        if not bounds:  # drop_last: the rest does not fill a batch
            self._begin(self._epoch + 1)
            return
        batches = self._batches(self._current_order(), bounds)
        with Ahead(batches, self.config.prefetch if self.config.workers else 0) as producer:
            for _, stop in bounds:
                self._check_process()
                batch = producer.get()
                self._cursor = stop
                if stop == bounds[-1][1]:
                    self._begin(self._epoch + 1)
                yield batch
                del batch  # otherwise this generator keeps its memory from being reused

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._first = 0
        self._cursor = 0

    def _batches(
        self, order: EpochOrder, bounds: list[tuple[int, int]]
    ) -> Generator[Batch, None, None]:
        """Gather this rank's batches while the next pool is being read."""
        step = self.config.world_size
        rank = self.config.rank
        with PoolsAhead(order, self._prepared_reader(order), self.config.workers) as pools:
            for start, stop in bounds:
                first = start + rank
                batch, arrays = self._buffers.batch(len(range(first, stop, step)))
                filled = 0
                for pool in _pools_between(order, first, stop):
                    low, high = (int(bound) for bound in order.pool_bounds[pool : pool + 2])
                    begin = first + max(0, -(-(low - first) // step)) * step
                    if begin >= min(stop, high):
                        continue
                    steps, windows = pools.get(pool)
                    own_windows = windows[begin - low : min(stop, high) - low : step]
                    part = slice(filled, filled + len(own_windows))
                    self._gather(steps, own_windows, {name: arrays[name][part] for name in arrays})
                    filled += len(own_windows)
                del arrays
                yield batch
                del batch

    def _gather(self, steps: Steps, windows: Windows, into: dict[str, np.ndarray]) -> None:
        gather(steps, windows, self.config.prefix_len, into)
        into["episode"][:] = windows.episode
        into["offset"][:] = windows.offset
        if self._ending is not None:
            into["ending"][:] = self._ending[windows.episode]
        if self.config.transitions:
            self._follow(windows, into)

    def _follow(self, windows: Windows, into: dict[str, np.ndarray]) -> None:
        """Correct what follows the last steps of episodes, see `StreamConfig.transitions`."""
        assert self._ending is not None, "transitions read it"
        episode = windows.episode
        before = np.minimum(windows.offset, self.config.prefix_len)
        column = self._source.lengths[episode] - 1 - (windows.offset - before)
        row = np.flatnonzero(column < before + windows.length)
        column = column[row]
        terminated = self._ending[episode[row]] == TERMINATED
        into["last"][:] = into["terminal"][:] = False
        into["last"][row, column] = True
        into["terminal"][row, column] = terminated
        into["next_action"][row, column] = 0.0
        if self._finals is not None:
            into["next_obs"][row, column] = self._finals[episode[row]]
        else:
            into["next_obs"][row, column] = 0.0
            into["mask"][row, column] &= terminated

    def _prepared_reader(self, order: EpochOrder) -> StepReader:
        """A reader whose pools are large enough for the order; kept between epochs."""
        unit_steps = np.add.reduceat(self._source.lengths, self._source.unit_bounds[:-1])
        rows = max(int(unit_steps[list(units)].sum()) for units in order.pool_units)
        if self._reader is None or self._reader[0] < rows:
            self._reader = None  # free the old pools before allocating larger ones
            self._reader = (rows, self._source.reader(self._columns, rows))
        return self._reader[1]


def _columns(
    source: StepSource, config: StreamConfig
) -> tuple[dict[str, StreamedColumn], dict[str, StreamedColumn]]:
    """Columns to read, and columns of a batch, of which some are derived from others."""
    columns = source.columns(config.fields, config.return_to_go)
    derived = {LAST_ACTION: ACTION} if config.last_action else {}
    derived |= FOLLOWING if config.transitions else {}
    for name in derived:
        if name in columns:
            option = "last_action" if name == LAST_ACTION else "transitions"
            raise DatasetError(
                f"{name!r} is a stored field: list it in fields, or set {option}, not both"
            )
    fields = list(dict.fromkeys([*config.fields, *derived.values()]))
    read = source.columns(fields, config.return_to_go)
    return read, columns | {name: read[of] for name, of in derived.items()}


class _Buffers:
    """Batch memory that is reused once nothing refers to it: fresh pages cost more than filling.

    Pinned memory comes from torch, whose cache also waits for copies to the accelerator.
    """

    IDLE_REFERENCES = 3
    """References from the list, the loop and the argument of `getrefcount`."""

    def __init__(self, columns: Mapping[str, StreamedColumn], config: StreamConfig) -> None:
        if config.pin_memory and (torch is None or not torch.accelerator.is_available()):
            raise DatasetError(
                "pin_memory needs an accelerator that torch can use; there is none: leave it off"
            )
        steps = (config.prefix_len + config.window_len,)
        self._rows: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            name: (steps + column.shape, column.streamed_dtype) for name, column in columns.items()
        }
        self._rows["mask"] = (steps, np.dtype("bool"))
        self._rows["episode"] = self._rows["offset"] = ((), np.dtype("int64"))
        if config.return_to_go or config.transitions:
            self._rows["ending"] = ((), np.dtype("uint8"))
        if config.transitions:
            self._rows["last"] = self._rows["terminal"] = (steps, np.dtype("bool"))
        self._pinned = config.pin_memory
        joined = max(config.world_size, config.smallest_batch) - 1
        self._most_windows = config.batch_size + -(-joined // config.world_size)
        self._kept = config.prefetch + 3
        self._arrays: dict[str, list[np.ndarray]] = {name: [] for name in self._rows}

    def batch(self, windows: int) -> tuple[Batch, dict[str, np.ndarray]]:
        """An unfilled batch as tensors, and the same memory as arrays."""
        if torch is None:
            arrays = {name: self._idle(name)[:windows] for name in self._rows}
            return cast(Batch, dict(arrays)), arrays
        if self._pinned:
            tensors = {}
            for name, (shape, dtype) in self._rows.items():
                kind = torch.from_numpy(np.empty(0, dtype)).dtype
                tensors[name] = torch.empty((windows, *shape), dtype=kind, pin_memory=True)
            return tensors, {name: tensor.numpy() for name, tensor in tensors.items()}
        arrays = {name: self._idle(name)[:windows] for name in self._rows}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, arrays

    def _idle(self, name: str) -> np.ndarray:
        for array in self._arrays[name]:
            if sys.getrefcount(array) == self.IDLE_REFERENCES:
                return array
        shape, dtype = self._rows[name]
        fresh = np.empty((self._most_windows, *shape), dtype)
        if len(self._arrays[name]) < self._kept:
            self._arrays[name].append(fresh)
        return fresh


def _pools_between(order: EpochOrder, first: int, stop: int) -> range:
    """The pools that hold the positions `first` to `stop - 1` of the order."""
    low, high = np.searchsorted(order.pool_bounds, (first, stop - 1), side="right")
    return range(int(low) - 1, int(high))
