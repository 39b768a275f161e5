"""One pass over episodes: what each channel does in each of them, in a few numbers.

Arrays are (E, C): episodes by channels, so the memory does not depend on the number of steps.
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gaitforge.datasets.schema import Schema
from gaitforge.datasets.statistics import ChannelStatistics
from gaitforge.plugins.doctor.data import Arrays, Columns

CHUNK_STEPS = 1 << 13
"""Steps that are measured at once, so that they stay in the processor's cache."""

FROZEN_STEPS = 16
"""Repeats of a value in a row that count as frozen, of a sensor that otherwise changes."""

TIME = re.compile(r"(.*_)?(time|timestamp|time_s)")
"""Names of fields that hold a clock."""

_LEAST_FEATURES = 48
_MEDIAN_ROWS = 1000
_ROWS = "row of the data"


Parts = defaultdict[str, list[np.ndarray]]


@dataclass
class Measures:
    """Episodes and what was measured of them; no `fields` where only the catalog was read.

    Attributes:
        rows: (E,) their numbers in the data.
        columns: catalog column -> (E,).
        fields: step field -> name -> (E, C) or (E,); see `measured`.
        statistics: field -> statistics of its channels, of the fields whose data state them.
    """

    schema: Schema
    rows: np.ndarray
    columns: Columns
    fields: Mapping[str, dict[str, np.ndarray]] = field(default_factory=dict)
    statistics: Mapping[str, ChannelStatistics] = field(default_factory=dict)

    def ids(self, rows: np.ndarray) -> np.ndarray:
        """(N,) ids of the episodes with the numbers `rows`."""
        return self.columns["episode"][np.searchsorted(self.rows, rows)]

    def codes(self, *names: str) -> np.ndarray:
        """(E,) number of each episode's combination of values, of the columns that there are."""
        present = [name for name in names if name in self.columns]
        codes = [np.unique(self.columns[n].astype(str), return_inverse=True)[1] for n in present]
        keys = np.stack([np.zeros_like(self.rows), *codes], axis=1)
        return np.unique(keys, axis=0, return_inverse=True)[1].ravel()


class Collector:
    """Collects the measures of spans as they are read; `stated`: fields to take statistics of."""

    def __init__(self, stated: Container[str]) -> None:
        self._stated = stated
        self._columns: Parts = defaultdict(list)
        self._fields: defaultdict[str, Parts] = defaultdict(lambda: defaultdict(list))
        self._statistics: dict[str, ChannelStatistics] = {}

    def add(self, rows: np.ndarray, lengths: np.ndarray, arrays: Arrays, columns: Columns) -> None:
        """Measure episodes `rows` of the data, whose steps lie end to end in `arrays`."""
        for name, values in {_ROWS: rows, **columns}.items():
            self._columns[name].append(values)
        for name, values in arrays.items():
            flat = flattened(values)
            for first, stop, steps in chunks(lengths):
                for key, value in measured(flat[steps], lengths[first:stop], name).items():
                    self._fields[name][key].append(value)
                if name in self._stated:
                    statistics = ChannelStatistics.of(flat[steps])
                    before = self._statistics.get(name)
                    self._statistics[name] = (
                        statistics if before is None else before.merge(statistics)
                    )

    def measures(self, schema: Schema) -> Measures:
        """The measures of all episodes that were added."""
        columns = _joined(self._columns)
        rows = columns.pop(_ROWS, np.zeros(0, np.int64))
        fields = {name: _joined(parts) for name, parts in self._fields.items()}
        return Measures(schema, rows, columns, fields, self._statistics)


def _joined(parts: Parts) -> dict[str, np.ndarray]:
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def flattened(values: np.ndarray) -> np.ndarray:
    """(T, *shape) as (T, C); integers, booleans and half floats as wider floats."""
    flat = values.reshape(len(values), -1)
    if flat.dtype.kind == "f" and flat.itemsize > 2:
        return flat
    return flat.astype(np.float64 if flat.dtype.itemsize > 2 else np.float32)


def chunks(lengths: np.ndarray) -> Iterator[tuple[int, int, slice]]:
    """First and stop of some consecutive episodes, and their steps, about `CHUNK_STEPS` each."""
    stops = np.cumsum(lengths)
    cuts = np.flatnonzero(np.diff(stops // CHUNK_STEPS)) + 1
    for first, stop in pairwise([0, *cuts.tolist(), len(lengths)]):
        yield first, stop, slice(int(stops[first] - lengths[first]), int(stops[stop - 1]))


def measured(rows: np.ndarray, lengths: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Measures of a field's rows (T, C) in consecutive episodes.

    Of every field: `low` and `high`; `jump`, the largest change within a step; `repeats`, the
    share of steps that repeat the value; `frozen`, whether `FROZEN_STEPS` do so in a row; `bad`,
    the values that are not finite, in whose place the rest sees the value before; `key`, a
    checksum. Of observations and actions `usual`, the median of all these steps, and `away`, the
    number of steps with another value. Of actions and rewards also `at_low` and `at_high`, steps at
    an episode's extremes; of actions `rough` and `moves`, mean square of the second and mean size
    of the first difference, and `features`, means over equal stretches; of rewards `sum`; of a
    clock `back`, the least change within a step.
    """
    stops = np.cumsum(lengths)
    starts = stops - lengths
    key = _checksums(rows, stops)
    rows, bad = _filled(rows)
    steps = np.zeros_like(rows)
    np.subtract(rows[1:], rows[:-1], out=steps[:-1])
    still = steps == 0
    steps[stops - 1] = 0
    still[stops - 1] = False
    size = np.abs(steps)
    inner = np.maximum(lengths - 1, 1)[:, None]
    low = np.minimum.reduceat(rows, starts)
    high = np.maximum.reduceat(rows, starts)
    measures = {
        "low": low,
        "high": high,
        "jump": np.maximum.reduceat(size, starts),
        "repeats": (np.add.reduceat(still, starts, dtype=np.int32) / inner).astype(np.float32),
        "frozen": np.logical_or.reduceat(runs(still), starts),
        "bad": np.add.reduceat(bad, starts, dtype=np.int32),
        "key": key,
    }
    if name in ("obs", "action"):
        # Steps away from the chunk's median, which is the value of a channel that hardly changes.
        sample = rows[:: -(-len(rows) // _MEDIAN_ROWS)]
        usual = np.sort(sample, axis=0)[len(sample) // 2]
        measures["usual"] = np.tile(usual, (len(lengths), 1))
        measures["away"] = np.add.reduceat(rows != usual, starts, dtype=np.int32)
    if name in ("action", "reward"):
        for end, extreme in (("at_low", low), ("at_high", high)):
            measures[end] = np.add.reduceat(
                rows == extreme.repeat(lengths, axis=0), starts, dtype=int
            )
    if name == "action":
        second = np.zeros_like(rows)
        np.subtract(steps[1:], steps[:-1], out=second[:-1])
        second[stops - 1] = 0
        second[np.maximum(stops - 2, 0)] = 0
        measures["rough"] = np.add.reduceat(np.square(second), starts) / inner
        measures["moves"] = np.add.reduceat(size, starts) / inner
        measures["features"] = _features(rows, starts, lengths)
    elif name == "reward":
        measures["sum"] = np.add.reduceat(rows, starts, dtype=np.float64).sum(axis=1)
    elif TIME.fullmatch(name) and rows.shape[1] == 1:
        steps[stops - 1] = np.inf
        measures["back"] = np.minimum.reduceat(steps, starts)
    return measures


def _checksums(rows: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """(E,) uint64: CRC32 of each episode's bytes."""
    flat = np.ascontiguousarray(rows)
    bounds = pairwise([0, *stops.tolist()])
    return np.array([zlib.crc32(flat[a:b].view(np.uint8).data) for a, b in bounds], np.uint64)


def runs(still: np.ndarray) -> np.ndarray:
    """(T, C) whether a value is repeated `FROZEN_STEPS` times in a row from here on."""
    run = still.copy()
    candidates = np.flatnonzero(still.sum(axis=0) >= FROZEN_STEPS)
    run[:, np.setdiff1d(np.arange(still.shape[1]), candidates)] = False
    if len(candidates):
        columns = run[:, candidates]
        have = 1
        while have < FROZEN_STEPS:
            columns[:-have] &= columns[have:].copy()
            columns[-have:] = False
            have *= 2
        run[:, candidates] = columns
    return run


def roughness(action: dict[str, np.ndarray]) -> np.ndarray:
    """(E,) root mean square of the actions' second difference, over their range in all episodes."""
    spread = action["high"].max(axis=0) - action["low"].min(axis=0)
    return np.sqrt((action["rough"] / np.square(np.maximum(spread, 1e-9))).mean(axis=1))


def _filled(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows with the last finite value where one is not finite, and (T, C) where that is."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = rows.sum(dtype=np.float64)
    bad = np.zeros(rows.shape, bool)
    if np.isfinite(total):
        return rows, bad
    bad = ~np.isfinite(rows)
    last = np.maximum.accumulate(np.where(bad, 0, np.arange(len(rows))[:, None]), axis=0)
    return np.nan_to_num(np.take_along_axis(rows, last, axis=0), posinf=0.0, neginf=0.0), bad


def _features(rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(E, K) float32: means of each channel over equal stretches of an episode."""
    stretches = -(-_LEAST_FEATURES // rows.shape[1])
    at = starts[:, None] + lengths[:, None] * np.arange(stretches) // stretches
    sizes = np.diff(at, axis=1, append=(starts + lengths)[:, None])
    means = np.add.reduceat(rows, at.ravel(), dtype=np.float64)
    means /= np.maximum(sizes.ravel(), 1)[:, None]
    return means.reshape(len(starts), -1).astype(np.float32)
