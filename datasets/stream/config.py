"""How a selection is streamed; apart from the stream, so that it can be named without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from datasets.errors import DatasetError

DEFAULT_POOL_STEPS = 1 << 20


class StreamSettings(TypedDict, total=False):
    """Keyword arguments of every ``windows``; see ``StreamConfig``."""

    fields: Sequence[str]
    seed: int
    epoch: int
    rank: int
    world_size: int
    return_to_go: bool
    last_action: bool
    partial_returns: bool
    drop_last: bool
    smallest_batch: int
    pool_steps: int
    workers: int
    prefetch: int
    pin_memory: bool


@dataclass(frozen=True)
class StreamConfig:
    """How a selection is streamed.

    Attributes:
        window_len: K, steps of a window. 1 gives single steps for models without memory: no
            padding, and every step of a pool is shuffled by itself.
        batch_size: windows of a batch on each rank.
        fields: fields a step to put into the batches.
        seed, epoch: of the order; it depends on nothing else but the selection, ``window_len``
            and ``pool_steps``.
        rank, world_size: ranks take every ``world_size``-th window of one global order.
        return_to_go: add ``return_to_go`` (B, K) and ``ending`` (B,) from the field ``reward``; see
            ``returns``.
        last_action: add ``last_action`` (B, K, *shape), the field ``action`` of the step before in
            the same episode, zeros at its first step. A window that begins in the middle of an
            episode begins with the action before it.
        partial_returns: also take episodes that were cut off, with the sum of their stored rewards.
        drop_last: leave out what does not fill a batch on every rank.
        smallest_batch: an epoch's last batch joins the one before if it has fewer windows than
            this, or than there are ranks, over all ranks. With any number of ranks up to this,
            the ranks' batches together are those of one rank.
        pool_steps: steps that are shuffled together. Memory is bounded by two pools of
            ``pool_steps`` (or of one shard's episodes, if that is more) and ``prefetch + 3``
            batches; a materialised selection needs no pools.
        workers: threads that read and decode; 0 does all work in the caller's own thread, with
            one pool and no batch ahead. The order does not depend on it.
        prefetch: batches kept ready, if there are workers.
        pin_memory: put batches into page-locked memory, for copies to an accelerator that overlap
            with computing.

    Raises:
        DatasetError: a value outside its range.
    """

    window_len: int = 64
    batch_size: int = 1024
    fields: Sequence[str] = ("obs", "action")
    seed: int = 0
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    return_to_go: bool = False
    last_action: bool = False
    partial_returns: bool = False
    drop_last: bool = False
    smallest_batch: int = 1
    pool_steps: int = DEFAULT_POOL_STEPS
    workers: int = 2
    prefetch: int = 2
    pin_memory: bool = False

    def __post_init__(self) -> None:
        sizes = ("window_len", "batch_size", "smallest_batch", "pool_steps", "prefetch")
        for name in (*sizes, "world_size"):
            if getattr(self, name) < 1:
                raise DatasetError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in ("seed", "epoch", "workers"):
            if getattr(self, name) < 0:
                raise DatasetError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0 <= self.rank < self.world_size:
            raise DatasetError(f"rank must be in 0..{self.world_size - 1}, not {self.rank}")
        object.__setattr__(self, "fields", tuple(self.fields))
