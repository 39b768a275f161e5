"""Selections as lazy Dask arrays and lazy xarray Datasets.

Rows of Dask arrays are reduced on any Dask scheduler. Each task reads and reduces one unit (the
selected episodes that begin in one shard). Partial results are merged in a fixed binary tree, so
the result does not depend on scheduler or threads.

The xarray Dataset of a selection has named channels, units and catalog columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from gaitforge.common.errors import DatasetError, missing_package
from gaitforge.datasets.schema import Field
from gaitforge.datasets.selection.episode_values import Actions
from gaitforge.datasets.selection.selection import (
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
