"""What the tests of streams share: which steps and windows came."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import torch

from gaitforge.datasets import Selection
from gaitforge.datasets.stream.pool import EpochOrder, Windows
from tests.datasets.making import STREAMED_PARTS

PARTS = STREAMED_PARTS

Batch = dict[str, torch.Tensor]


def windows_of(batches: Iterable[Batch]) -> list[tuple[int, int, int]]:
    """(episode, offset, length) of every window in the order in which they came."""
    return [
        (episode, offset, int(mask.sum()))
        for batch in batches
        for episode, offset, mask in zip(
            batch["episode"].tolist(), batch["offset"].tolist(), batch["mask"], strict=True
        )
    ]


def steps_of(batches: Iterable[Batch]) -> Counter[tuple[int, int]]:
    """(episode, step) -> how often it came."""
    return Counter(
        (episode, offset + k)
        for episode, offset, length in windows_of(batches)
        for k in range(length)
    )


def every_step(selection: Selection) -> Counter[tuple[int, int]]:
    """Every (episode, step) of a selection once."""
    return Counter(
        (episode, step)
        for episode, length in enumerate(selection.lengths.tolist())
        for step in range(length)
    )


def same_batches(one: Iterable[Batch], other: Iterable[Batch]) -> bool:
    """Whether two streams give the same batches, bit for bit."""
    return all(
        list(a) == list(b) and all(a[name].equal(b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def all_windows(order: EpochOrder) -> Windows:
    """The windows of all pools in order."""
    pools = [order.windows(pool) for pool in range(len(order.pool_units))]
    names = ("episode", "offset", "length")
    return Windows(*(np.concatenate([getattr(each, name) for each in pools]) for name in names))
