"""Exact quantiles of every channel in a few passes over the rows, in bounded memory.

Order statistics are found digit by digit, as in a radix sort. Values map to unsigned integers
("keys") of the same order. Each pass counts the next bits of the keys that begin with the bits
found so far; the counts give the next bits of each wanted rank. Counts of blocks are added, so the
result is exact and does not depend on how the rows are split.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gaitforge.datasets.analysis.dask_arrays import Scheduler, reduce_units
from gaitforge.datasets.errors import DatasetError
from gaitforge.datasets.selection.selection import Selection

BINS = 1 << 21
"""Counters of one pass, for all channels and ranks together: 16 MiB."""

DIGIT_BITS = 16
"""Bits that one pass finds, at most."""

ROWS_AT_ONCE = 1 << 15
"""Rows copied and counted together."""

BLOCK_ROWS = 256
"""Rows transposed together; 256 rows of 70 float32 channels fit a core's cache."""

DEFAULT_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def channel_quantiles(
    selection: Selection,
    field: str,
    quantiles: Sequence[float] = DEFAULT_QUANTILES,
    scheduler: Scheduler = None,
) -> np.ndarray:
    """(Q, *shape) float64 quantiles of every channel, equal to ``numpy.quantile`` of all rows.

    Order statistics are exact; between two of them the interpolation is linear in float64 (method 7
    of Hyndman and Fan 1996).

    Raises:
        DatasetError: a quantile outside 0..1, an empty selection, or an unknown field.
    """
    wanted = np.asarray(quantiles, np.float64)
    if wanted.ndim != 1 or len(wanted) == 0 or not ((wanted >= 0) & (wanted <= 1)).all():
        raise DatasetError(f"quantiles must be one or more numbers in 0..1, not {quantiles}")
    described = selection.schema.field(field)

    def count(digit: DigitCount) -> np.ndarray:
        return reduce_units(selection, field, digit, np.add, scheduler)

    rows = selection.steps if described.per == "step" else len(selection)
    channels = int(np.prod(described.shape, dtype=np.int64))
    found = interpolated_quantiles(count, np.dtype(described.dtype), rows, channels, wanted)
    return found.reshape(len(wanted), *described.shape)


def interpolated_quantiles(
    count: Callable[["DigitCount"], np.ndarray],
    dtype: np.dtype,
    rows: int,
    channels: int,
    quantiles: np.ndarray,
) -> np.ndarray:
    """(Q, channels) quantiles of ``rows`` rows, which are read by ``count`` only.

    ``count`` returns the sum of a ``DigitCount`` over all rows; ``channels`` is the number of
    values per row.
    """
    position = quantiles * (rows - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, rows - 1)
    ranks, where = np.unique(np.concatenate([below, above]), return_inverse=True)
    values = _order_statistics(count, dtype, channels, ranks)
    low, high = values[where[: len(quantiles)]], values[where[len(quantiles) :]]
    share = (position - below)[:, None]
    gap = high - low
    return np.where(share < 0.5, low + gap * share, high - gap * (1 - share))


def _order_statistics(
    count: Callable[["DigitCount"], np.ndarray], dtype: np.dtype, channels: int, ranks: np.ndarray
) -> np.ndarray:
    """The values at the 0-based ``ranks`` (R,) of each channel: (R, channels) float64."""
    width = 8 * dtype.itemsize
    left = np.repeat(ranks[:, None], channels, axis=1)
    prefix = np.zeros((len(ranks), channels), np.uint64)
    known = 0
    while known < width:
        found = [np.unique(prefix[:, channel]) for channel in range(channels)]
        slots = max(len(each) for each in found)
        room = max(1, (BINS // (channels * slots)).bit_length() - 1)
        digit = DigitCount(found, known, min(DIGIT_BITS, width - known, room))
        counts = count(digit)
        for channel in range(channels):
            slot = np.searchsorted(found[channel], prefix[:, channel])
            totals = counts[channel].cumsum(axis=1)[slot]
            bins = (totals <= left[:, channel, None]).sum(axis=1)
            before = totals - counts[channel][slot]
            left[:, channel] -= np.take_along_axis(before, bins[:, None], axis=1)[:, 0]
            prefix[:, channel] <<= np.uint64(digit.bits)
            prefix[:, channel] |= bins.astype(np.uint64)
        known += digit.bits
    return _values(prefix.astype(f"u{dtype.itemsize}"), dtype).astype(np.float64)


@dataclass(frozen=True, eq=False)
class DigitCount:
    """Counts the next ``bits`` of each channel's keys that begin with one of its prefixes.

    ``prefixes`` has one ascending array per channel: the first ``known`` bits of the wanted keys.
    """

    prefixes: Sequence[np.ndarray]
    known: int
    bits: int

    def __call__(self, rows: np.ndarray, _lengths: np.ndarray) -> np.ndarray:
        """(channels, slots, 2 ** bits) int64 counts of the rows (N, *shape)."""
        table = rows.reshape(len(rows), len(self.prefixes))
        slots = max(len(each) for each in self.prefixes)
        counts = np.zeros((len(self.prefixes), slots << self.bits), np.int64)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            columns = _keys(_columns(table[start : start + ROWS_AT_ONCE]))
            for channel, keys in enumerate(columns):
                digits = self._digits(keys, self.prefixes[channel])
                counts[channel] += np.bincount(digits, minlength=counts.shape[1])
        return counts.reshape(len(self.prefixes), slots, 1 << self.bits)

    def _digits(self, keys: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        """The number slot << bits | digit of each of a channel's keys that begin with a prefix."""
        width = 8 * keys.dtype.itemsize
        if self.known:
            keys = self._of_interest(keys, prefixes, width)
        shift = keys.dtype.type(width - self.known - self.bits)
        digits = (keys >> shift).astype(np.int64) & ((1 << self.bits) - 1)
        if self.known:
            heads = keys >> keys.dtype.type(width - self.known)
            digits += np.searchsorted(prefixes.astype(keys.dtype), heads) << self.bits
        return digits

    def _of_interest(self, keys: np.ndarray, prefixes: np.ndarray, width: int) -> np.ndarray:
        """The keys that begin with a prefix; a lookup table of first bits drops most others."""
        first = min(self.known, DIGIT_BITS)
        table = np.zeros(1 << first, bool)
        table[(prefixes >> np.uint64(self.known - first)).astype(np.int64)] = True
        keys = keys[table[keys >> keys.dtype.type(width - first)]]
        if self.known > first:
            heads = keys >> keys.dtype.type(width - self.known)
            keys = keys[np.isin(heads, prefixes.astype(keys.dtype))]
        return keys


def _columns(rows: np.ndarray) -> np.ndarray:
    """Rows (N, C) copied to contiguous columns (C, N), in blocks that fit the cache."""
    columns = np.empty(rows.shape[::-1], rows.dtype)
    for start in range(0, len(rows), BLOCK_ROWS):
        columns[:, start : start + BLOCK_ROWS] = rows[start : start + BLOCK_ROWS].T
    return columns


def _keys(values: np.ndarray) -> np.ndarray:
    """Finite values as unsigned integers of the same width and order, in place."""
    dtype = values.dtype
    keys = values.view(f"u{dtype.itemsize}")
    sign = keys.dtype.type(1 << (8 * dtype.itemsize - 1))
    if dtype.kind == "i":
        keys ^= sign
    elif dtype.kind == "f":  # IEEE 754: sign bit and magnitude, so negative values are inverted
        negative = (values.view(f"i{dtype.itemsize}") >> (8 * dtype.itemsize - 1)).view(keys.dtype)
        keys ^= negative | sign
    return keys


def _values(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The inverse of ``_keys``."""
    sign = keys.dtype.type(1 << (8 * dtype.itemsize - 1))
    if dtype.kind in "ub":
        bits = keys
    elif dtype.kind == "i":
        bits = keys ^ sign
    else:
        bits = np.where(keys & sign, keys ^ sign, ~keys)
    return np.ascontiguousarray(bits).view(dtype)
