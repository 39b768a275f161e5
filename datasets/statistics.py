"""Selections as lazy Dask arrays and xarray Datasets, and statistics of their channels.

Rows of Dask arrays are reduced on any Dask scheduler. Each task reads and reduces one unit (the
selected episodes that begin in one shard). Partial results are merged in a fixed binary tree, so
the result does not depend on scheduler or threads. The xarray Dataset of a selection has named
channels, units and catalog columns.

Mean, standard deviation and range are computed in blocks and merged; exact quantiles of as many
channels at a time as fit in memory. The spectral energy of stored signals is Figure 1 of the FCNet
paper, for a selection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from gaitforge.common.errors import DatasetError, missing_package
from gaitforge.datasets.schema import Actions, Field
from gaitforge.datasets.selection import (
    EpisodeSelection,
    PartRuns,
    part_runs,
    selection_of_runs,
)
from gaitforge.datasets.storage.store import PartStore

if TYPE_CHECKING:
    import dask.array as da
    import xarray

# Dask arrays, and reductions of their rows.
Partial = TypeVar("Partial")
Measure = Callable[[np.ndarray, np.ndarray], Partial]
"""(rows of a unit (R, *shape), lengths (E,) of the unit's episodes) -> partial result."""

Scheduler = str | Callable[..., Any] | None
"""What `dask.compute` takes: None (the active client, else threads), "threads", "synchronous"…"""

_Place = tuple[type[PartStore], str, str | None]
"""A store's class, address and tag."""


class UnitReader:
    """Reads one field of a selection, one unit at a time, in this process or another.

    Pickled, it holds the store's address and the selected rows, not the catalog; the other process
    opens the store and checks that its parts have the same content.
    """

    def __init__(self, selection: EpisodeSelection, field: str) -> None:
        self._selection, self._field, self._units = selection, field, selection.units()

    def read(self, number: int) -> np.ndarray:
        """(R, *shape) rows of unit `number`: its selected episodes, concatenated."""
        return self._selection.read_unit(self._field, self._units[number])

    def lengths(self, number: int) -> np.ndarray:
        """(E,) steps of the unit's episodes."""
        return self._selection.unit_rows(self._units[number])[1]

    def __reduce__(self) -> tuple[Any, ...]:
        store = self._selection.store
        runs = part_runs(self._selection)
        location = type(store), store.full_address, store.tag_name
        chosen = self._selection.hash_over([self._field], ()), self._selection.actions
        return _reopened, (location, runs, *chosen, self._field)


def selection_array(selection: EpisodeSelection, field: str) -> da.Array:
    """One field of a selection as a lazy array: (steps, *shape), or (episodes, *shape).

    Rows are in the order of the selection. A chunk holds one unit: the selected episodes that begin
    in one shard of one part. DatasetError: unknown field; when computed, a damaged or missing
    object.
    """
    described = selection.schema.field(field)
    units = selection.units()
    if described.per == "step":
        rows = [int(selection.unit_rows(unit)[1].sum()) for unit in units]
    else:
        rows = [unit.stop - unit.first for unit in units]
    reader = UnitReader(selection, field)
    name = f"{field}-{selection.hash_over([field], ())}"
    shape = described.shape
    dtype = np.dtype(described.dtype)
    return unit_blocks(_read_block, name, rows, dtype, shape, reader=reader)


def unit_blocks(
    block: Callable[..., np.ndarray],
    name: str,
    rows: Sequence[int],
    dtype: npt.DTypeLike,
    shape: tuple[int, ...] = (),
    **inputs: Any,
) -> da.Array:
    """A lazy array (sum of `rows`, *shape) of what `block` makes of each unit from the inputs."""
    import dask.array as da  # slow to import: 0.9 s

    if not rows:
        return da.zeros((0, *shape), dtype=dtype)
    chunks = (tuple(rows), *((size,) for size in shape))
    meta = np.empty((0,) * len(chunks), dtype)
    return da.map_blocks(block, chunks=chunks, dtype=dtype, meta=meta, name=name, **inputs)


def reduce_units(
    selection: EpisodeSelection,
    field: str,
    measure: Measure[Partial],
    merge: Callable[[Partial, Partial], Partial],
    scheduler: Scheduler = None,
) -> Partial:
    """Apply `measure` to every unit of a selection and merge the results in a fixed binary tree.

    Each thread holds one unit in memory. DatasetError: an empty selection, an unknown field, a
    damaged or missing object.
    """
    from dask import threaded  # slow to import: 0.1 s
    from dask.delayed import delayed

    selection.schema.field(field)
    if len(selection) == 0:
        raise DatasetError("the selection is empty; select at least one episode")
    reader = delayed(UnitReader(selection, field), traverse=False)
    measured = delayed(_measure_unit)
    merged = delayed(merge)
    level = [measured(reader, number, measure) for number in range(len(selection.units()))]
    while len(level) > 1:
        pairs = [merged(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    # By its name dask would load distributed first.
    return level[0].compute(scheduler=threaded.get if scheduler == "threads" else scheduler)


def _measure_unit(reader: UnitReader, number: int, measure: Measure[Partial]) -> Partial:
    return measure(reader.read(number), reader.lengths(number))


def _read_block(*, reader: UnitReader, block_id: tuple[int, ...]) -> np.ndarray:
    return reader.read(block_id[0])  # only the rows are cut into chunks


def _reopened(
    location: _Place, runs: PartRuns, recorded: str, actions: Actions, field: str
) -> UnitReader:
    selection = selection_of_runs(_opened(location), runs)
    if actions:  # without a choice they are the stored ones
        selection = selection.with_actions(actions)
    if selection.hash_over([field], ()) != recorded:
        raise DatasetError(f"{location[1]} was edited since the selection; select again")
    return UnitReader(selection, field)


@lru_cache(maxsize=8)
def _opened(location: _Place) -> PartStore:
    kind, address, tag = location
    return kind.open(address, tag)


# xarray Datasets.
def selection_dataset(
    selection: EpisodeSelection, fields: Sequence[str] | None = None
) -> xarray.Dataset:
    """The selection as an xarray Dataset of Dask arrays with `units` and `description`.

    Dimensions: `step` (episodes concatenated), `episode`, and for each field
    `<field>_channel`, or `<field>_axis_<k>` if it has several axes.

    Coordinates: `<field>_channel` names the channels after the schema's slices. Along
    `episode`: its ids, the other catalog columns, and `offset`, the episode's first row along
    `step`. Along `step`, lazily: `episode_row` (position along `episode`) and
    `step_in_episode`. DatasetError: xarray is not installed, or an unknown field.
    """
    try:
        import xarray
    except ImportError as error:
        raise DatasetError(missing_package("to_xarray", "xarray", "xarray")) from error
    schema = selection.schema
    variables: dict[str, object] = {}
    coordinates = _episode_coordinates(selection) | _step_coordinates(selection)
    for field in map(schema.field, schema.names() if fields is None else fields):
        units = {"units": field.unit, "description": field.description}
        dimensions = field.dimensions
        variables[field.name] = (dimensions, selection_array(selection, field.name), units)
        if len(field.shape) == 1:
            coordinates[dimensions[1]] = (dimensions[1:], channel_names(field))
    attributes = {"control_dt_s": schema.control_dt_s, "robot": schema.robot}
    return xarray.Dataset(variables, coordinates, attributes | {"selection": selection.hash})


def channel_names(field: Field) -> list[str]:
    """A name for each entry of the last axis, from the narrowest slice that contains it.

    `gravity[0]` in a slice of several entries, `vel_x` in a slice of one, `obs[7]` in none.
    """
    names = [f"{field.name}[{index}]" for index in range(field.shape[-1])]
    widest_first = sorted(field.slices.items(), key=lambda item: item[1][0] - item[1][1])
    for name, (start, stop) in widest_first:
        for index in range(start, stop):
            names[index] = name if stop - start == 1 else f"{name}[{index - start}]"
    return names


def _episode_coordinates(selection: EpisodeSelection) -> dict[str, Any]:
    episodes = selection.episodes()
    lengths = selection.lengths
    columns = {
        name: ("episode", episodes.column(name).to_numpy(zero_copy_only=False))
        for name in episodes.column_names
    }
    columns["part_start"] = columns.pop("start")
    return columns | {"offset": ("episode", np.cumsum(lengths) - lengths)}


def _step_coordinates(selection: EpisodeSelection) -> dict[str, Any]:
    lengths = [selection.unit_rows(unit)[1] for unit in selection.units()]
    rows = [int(unit_lengths.sum()) for unit_lengths in lengths]
    inputs = {"lengths": lengths, "firsts": [unit.first for unit in selection.units()]}
    coordinates = {}
    for name, block in (("episode_row", _episode_rows), ("step_in_episode", _steps_in_episodes)):
        array = unit_blocks(block, f"{name}-{selection.hash}", rows, np.int64, **inputs)
        coordinates[name] = ("step", array)
    return coordinates


def _episode_rows(
    *, firsts: list[int], lengths: list[np.ndarray], block_id: tuple[int]
) -> np.ndarray:
    unit_lengths = lengths[block_id[0]]
    return firsts[block_id[0]] + np.repeat(np.arange(len(unit_lengths)), unit_lengths)


def _steps_in_episodes(
    *, firsts: list[int], lengths: list[np.ndarray], block_id: tuple[int]
) -> np.ndarray:
    unit_lengths = lengths[block_id[0]]
    return np.arange(unit_lengths.sum()) - np.repeat(
        np.cumsum(unit_lengths) - unit_lengths, unit_lengths
    )


# Mean, standard deviation and range.
BLOCK_ROWS = 1 << 12


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Statistics over `count` rows, each array of the field's shape in float64.

    `squares` is the sum of squared differences from the mean.
    """

    count: int
    mean: np.ndarray
    squares: np.ndarray
    min: np.ndarray
    max: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Population standard deviation, sqrt(squares / count)."""
        return np.sqrt(self.squares / self.count)

    @classmethod
    def of(cls, rows: np.ndarray) -> ChannelStatistics:
        """Statistics of (N, *shape) rows, N at least 1."""
        values = rows.astype(np.float64)
        mean = values.mean(axis=0)
        squares = np.square(values - mean).sum(axis=0)
        return cls(len(rows), mean, squares, values.min(axis=0), values.max(axis=0))

    def scaled(self, factors: np.ndarray) -> ChannelStatistics:
        """Statistics of the rows times `factors`, an array of the field's shape."""
        low, high = np.sort([self.min * factors, self.max * factors], axis=0)
        return ChannelStatistics(
            self.count, self.mean * factors, self.squares * factors**2, low, high
        )

    def merge(self, other: ChannelStatistics) -> ChannelStatistics:
        """Statistics of both sets of rows together.

        Pairwise update of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances" (1979), equations 1.5a and 1.5b.
        """
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        between = np.square(gap) * (self.count * other.count / count)
        squares = self.squares + other.squares + between
        low = np.minimum(self.min, other.min)
        high = np.maximum(self.max, other.max)
        return ChannelStatistics(count, mean, squares, low, high)


def channel_statistics(
    selection: EpisodeSelection, field: str, scheduler: Scheduler = None
) -> ChannelStatistics:
    """Statistics of one field over the selection's rows; errors as in `reduce_units`."""
    return reduce_units(selection, field, _of_unit, ChannelStatistics.merge, scheduler)


def _of_unit(rows: np.ndarray, _lengths: np.ndarray) -> ChannelStatistics:
    blocks = (
        ChannelStatistics.of(rows[start : start + BLOCK_ROWS])
        for start in range(0, len(rows), BLOCK_ROWS)
    )
    return reduce(ChannelStatistics.merge, blocks)


# Exact quantiles.
HELD_BYTES = 1 << 29
"""Most bytes of the channels that are read together; at least one channel is."""

DEFAULT_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def channel_quantiles(
    selection: EpisodeSelection,
    field: str,
    quantiles: Sequence[float] = DEFAULT_QUANTILES,
    scheduler: Scheduler = None,
) -> np.ndarray:
    """(Q, *shape) float64 quantiles of every channel, equal to `numpy.quantile` of all rows.

    Rows are read once for every `HELD_BYTES` of the field. DatasetError: a quantile outside 0..1,
    an empty selection, or an unknown field.
    """
    levels = np.asarray(quantiles, np.float64)
    if levels.ndim != 1 or len(levels) == 0 or not ((levels >= 0) & (levels <= 1)).all():
        raise DatasetError(f"quantiles must be one or more numbers in 0..1, not {quantiles}")
    described = selection.schema.field(field)
    rows = selection.steps if described.per == "step" else len(selection)
    channels = int(np.prod(described.shape, dtype=np.int64))
    at_once = max(1, HELD_BYTES * channels // max(1, rows * described.row_bytes))
    blocks = []
    for first in range(0, channels, at_once):
        measure = partial(_columns, first, first + at_once)
        together = reduce_units(selection, field, measure, _joined, scheduler)
        blocks.append(row_quantiles(together, levels))
    return np.concatenate(blocks, axis=1).reshape(len(levels), *described.shape)


def row_quantiles(rows: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """(Q, *shape) float64 quantiles (Q,) of the rows (N, *shape).

    Order statistics are exact; between two of them the interpolation is linear in float64 (method 7
    of Hyndman and Fan 1996).
    """
    position = quantiles * (len(rows) - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, len(rows) - 1)
    ordered = np.partition(rows, np.union1d(below, above), axis=0)
    low, high = (ordered[ranks].astype(np.float64) for ranks in (below, above))
    share = (position - below).reshape(-1, *[1] * (rows.ndim - 1))
    gap = high - low
    return np.where(share < 0.5, low + gap * share, high - gap * (1 - share))


def _columns(first: int, stop: int, rows: np.ndarray, _lengths: np.ndarray) -> np.ndarray:
    return rows.reshape(len(rows), -1)[:, first:stop].copy()


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate([first, second])


# Spectral energy.
BLOCK_WINDOWS = 32
LARGEST_WINDOW = 256
"""Steps of the paper's windows."""


@dataclass(frozen=True, eq=False)
class SpectralEnergy:
    """Energy of each mode of each channel, summed over windows of n steps.

    `frequency_hz` (n // 2 + 1,) goes from 0 to half the control frequency; `energy`
    (n // 2 + 1, *shape) float64 has n times the square of the field's unit.
    """

    frequency_hz: np.ndarray
    energy: np.ndarray
    windows: int

    @property
    def share(self) -> np.ndarray:
        """`energy` divided by its sum over modes; 0 for a channel that is always 0."""
        total = self.energy.sum(axis=0)
        return np.divide(self.energy, total, out=np.zeros_like(self.energy), where=total > 0)

    def merge(self, other: SpectralEnergy) -> SpectralEnergy:
        """Energy of both sets of windows together; n must be the same."""
        return SpectralEnergy(
            self.frequency_hz, self.energy + other.energy, self.windows + other.windows
        )


def spectral_energy(
    selection: EpisodeSelection, field: str, n: int = 128, scheduler: Scheduler = None
) -> SpectralEnergy:
    """Energy per mode; `share` of it is Figure 1 of the FCNet paper, which has n = 256.

    Each episode is cut from its first step into windows of n steps; a shorter remainder is left
    out. The energy of mode k is |X_k|² of the raw window, doubled if the conjugate mode n - k is
    another one: by Parseval's theorem the shares are shares of the signal's energy. The mean is
    kept as mode 0. Energies are summed over windows before they are normalised. DatasetError: not
    a floating-point step field, n < 2, or no episode with n steps.
    """
    described = selection.schema.field(field)
    if described.per != "step" or not described.dtype.startswith("float"):
        raise DatasetError(f"field {field} has no spectrum; give a floating-point step field")
    if n < 2:
        raise DatasetError(f"a spectrum needs windows of 2 steps or more, not {n}")
    frequency = np.fft.rfftfreq(n, selection.schema.control_dt_s)
    energy = reduce_units(
        selection, field, partial(_energy_of_unit, frequency, n), SpectralEnergy.merge, scheduler
    )
    if energy.windows == 0:
        longest = int(selection.lengths.max(initial=0))
        raise DatasetError(f"no episode has n = {n} steps; n must be at most {longest}")
    return energy


def block_spectra(
    selection: EpisodeSelection, field: str, n: int | None = None, scheduler: Scheduler = None
) -> Iterator[dict[str, Any]]:
    """The spectra of a vector field's named blocks, as JSON values.

    One for the whole field if it has no names, or one for each channel.

    `energy_share` is the mean of a block's channels that are not always 0, and `energy_95_hz` the
    frequency up to which 95 % of it lies. None for n: a power of two, at most 256 and the longest
    episode.

    Raises:
        DatasetError: as `spectral_energy`.
    """
    described = selection.schema.field(field)
    if n is None:
        longest = max(1, int(selection.lengths.max(initial=1)))
        n = min(LARGEST_WINDOW, 1 << (longest.bit_length() - 1))
    energy = spectral_energy(selection, field, n, scheduler)
    blocks = described.slices
    if all(stop - start == 1 for start, stop in blocks.values()):
        blocks = {field: (0, described.shape[0])}
    for name, (start, stop) in blocks.items():
        share = energy.share[:, start:stop].sum(axis=1)
        share /= max(1, np.count_nonzero(energy.energy[:, start:stop].any(axis=0)))
        most = int(np.searchsorted(share.cumsum(), 0.95)) if share.any() else 0
        yield {
            "field": field,
            "block": name,
            "channels": stop - start,
            "window": n,
            "windows": energy.windows,
            "frequency_hz": energy.frequency_hz.tolist(),
            "energy_share": share.tolist(),
            "energy_95_hz": float(energy.frequency_hz[most]),
        }


def _energy_of_unit(
    frequency_hz: np.ndarray, n: int, rows: np.ndarray, lengths: np.ndarray
) -> SpectralEnergy:
    starts = np.cumsum(lengths) - lengths
    counts = lengths // n
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.repeat(starts, counts) + within * n
    energy = np.zeros((n // 2 + 1, *rows.shape[1:]))
    for start in range(0, len(firsts), BLOCK_WINDOWS):
        index = firsts[start : start + BLOCK_WINDOWS, None] + np.arange(n)
        energy += mode_energy(rows[index])
    return SpectralEnergy(frequency_hz, energy, len(firsts))


def mode_energy(windows: np.ndarray) -> np.ndarray:
    """(W, n, ...) -> (n // 2 + 1, ...): the energy of each mode, summed over windows.

    Over the modes it sums to n times that of the squares of all steps (Parseval's theorem).
    """
    n = windows.shape[1]
    modes = np.fft.rfft(windows.astype(np.float64), axis=1)
    energy = np.square(np.abs(modes)).sum(axis=0)
    energy[1 : (n + 1) // 2] *= 2
    return energy
