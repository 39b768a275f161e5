"""A selection as a lazy xarray Dataset with named channels, units and catalog columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gaitforge.common.errors import DatasetError, missing_package
from gaitforge.datasets.analysis.dask_arrays import selection_array, unit_blocks
from gaitforge.datasets.schema import Field
from gaitforge.datasets.selection.selection import EpisodeSelection

if TYPE_CHECKING:
    import xarray


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
