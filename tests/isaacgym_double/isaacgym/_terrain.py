"""Grounds of triangles, taken apart into the regular grids that MuJoCo's height fields can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._values import GymMisuse, TriangleMeshParams

_SAME_M = 1e-3
"""Coordinates that differ by less are of one grid line: float32 far from the origin rounds."""


@dataclass(frozen=True)
class Tile:
    """Heights (ny, nx) in m over a rectangle: centre and half sides (2,) in m."""

    heights: np.ndarray
    centre: np.ndarray
    half: np.ndarray


def tiles_of_mesh(
    vertices: np.ndarray, triangles: np.ndarray, params: TriangleMeshParams
) -> list[Tile]:
    """The grids of a mesh, in the order of their vertices.

    Every grid's vertices and triangles have to be consecutive. Its cells have to be halved from
    (x, y) to (x + 1, y + 1), as MuJoCo's are, by triangles that face up.

    Raises:
        GymMisuse: arrays of wrong type or length, or a mesh that is not made of such grids.
    """
    _check_array("vertices", vertices, np.dtype(np.float32), 3 * params.nb_vertices)
    _check_array("triangles", triangles, np.dtype(np.uint32), 3 * params.nb_triangles)
    shift = params.transform
    if (shift.r.x, shift.r.y, shift.r.z) != (0.0, 0.0, 0.0):
        raise GymMisuse("add_triangle_mesh: the double turns no meshes")
    corners = triangles.reshape(-1, 3)
    if not len(corners) or corners.max() >= params.nb_vertices:
        raise GymMisuse("add_triangle_mesh: triangles name vertices that do not exist")
    offset = np.array([shift.p.x, shift.p.y, shift.p.z])
    points = vertices.reshape(-1, 3)
    return [
        _tile(points[low:high].astype(float) + offset, corners[rows].astype(np.int64) - low)
        for low, high, rows in _pieces(corners, params.nb_vertices)
    ]


def _check_array(what: str, array: np.ndarray, dtype: np.dtype, length: int) -> None:
    """Wrong types are read as raw bytes by the real simulator, which then falls through."""
    if array.dtype != dtype or array.shape != (length,) or not array.flags["C_CONTIGUOUS"]:
        raise GymMisuse(
            f"add_triangle_mesh: {what} are {array.dtype} {array.shape}; "
            f"by its params they have to be flat, contiguous {dtype} ({length},)"
        )


def _pieces(corners: np.ndarray, n_vertices: int) -> list[tuple[int, int, slice]]:
    """First and last + 1 vertex and the triangles of every part that shares no vertex."""
    reached = np.maximum.accumulate(corners.max(axis=1))
    still_to_come = np.minimum.accumulate(corners.min(axis=1)[::-1])[::-1]
    ends = np.flatnonzero(still_to_come[1:] > reached[:-1]) + 1
    rows = [0, *ends.tolist(), len(corners)]
    firsts = [0, *still_to_come[ends].tolist(), n_vertices]
    return [(firsts[i], firsts[i + 1], slice(rows[i], rows[i + 1])) for i in range(len(rows) - 1)]


def _tile(points: np.ndarray, corners: np.ndarray) -> Tile:
    columns, xs = _lines(points[:, 0])
    rows, ys = _lines(points[:, 1])
    nx, ny = len(xs), len(ys)
    place = rows * nx + columns
    if len(points) != nx * ny or len(np.unique(place)) != len(points):
        raise GymMisuse(f"add_triangle_mesh: {len(points)} vertices are no grid of {nx} by {ny}")
    _check_halves(columns[corners], rows[corners], nx, ny)
    heights = np.empty(nx * ny, np.float32)
    heights[place] = points[:, 2]
    low, high = np.array([xs[0], ys[0]]), np.array([xs[-1], ys[-1]])
    return Tile(heights.reshape(ny, nx), (low + high) / 2, (high - low) / 2)


def _lines(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every vertex the number of its grid line, and the lines' coordinates."""
    order = np.argsort(values, kind="stable")
    new = np.diff(values[order]) > _SAME_M
    number = np.empty(len(values), np.int64)
    number[order] = np.concatenate([[0], np.cumsum(new)])
    lines = values[order][np.concatenate([[True], new])]
    steps = np.diff(lines)
    if len(lines) < 2 or np.ptp(steps) > 4 * _SAME_M:
        raise GymMisuse("add_triangle_mesh: vertices are not evenly spaced")
    return number, lines


def _check_halves(columns: np.ndarray, rows: np.ndarray, nx: int, ny: int) -> None:
    """Each cell of the grid is two triangles, (K, 3) columns and rows of their corners."""
    edge = np.stack([columns, rows], axis=2)
    first, second = edge[:, 1] - edge[:, 0], edge[:, 2] - edge[:, 0]
    facing = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    if (facing < 0).any():
        raise GymMisuse("add_triangle_mesh: triangles face down; what stands on them falls through")
    x, y = columns.min(axis=1), rows.min(axis=1)
    across, along = columns - x[:, None], rows - y[:, None]
    halved = ((across + along == 1).sum(axis=1) == 1) & (facing == 1)
    upper = along.sum(axis=1) == 2
    halves = np.unique((y * (nx - 1) + x) * 2 + upper)
    if not halved.all() or len(halves) != len(columns) or len(halves) != 2 * (nx - 1) * (ny - 1):
        raise GymMisuse(
            "add_triangle_mesh: cells have to be two triangles each, "
            "halved from (x, y) to (x + 1, y + 1)"
        )
