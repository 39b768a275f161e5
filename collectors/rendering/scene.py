"""A recorded episode as a scene to draw: states, ground, barriers, and a viewpoint.

World frame, m and rad. Positions are unwrapped: the periodic tile is laid out under the whole path.
"""

from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.legged.episodes import EpisodeDraws
from gaitforge.collectors.legged.rollout import EpisodeResult
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.rotations import yaw_of
from gaitforge.collectors.scenarios.passages import Barrier, Passage, place_barriers
from gaitforge.collectors.scenarios.terrains import TerrainTile, make_tile, tile_heights
from gaitforge.collectors.timing import CONTROL_DT_S

GROUND_MARGIN_M = 5.0
"""Ground beyond the path on every side, out of the camera's sight."""
_POSITION_SMOOTHING_S = 0.5
_HEADING_SMOOTHING_S = 1.0


@dataclass(frozen=True)
class GroundPatch:
    """Heights (ny, nx) in m on a grid whose first corner is `low_m` (2,)."""

    heights: np.ndarray
    low_m: np.ndarray
    resolution_m: float

    def at(self, points: np.ndarray) -> np.ndarray:
        """Bilinear heights (..., ) at world points (..., 2); the edge's height beyond the edge."""
        last = np.array(self.heights.shape[::-1]) - 1
        cell = np.clip((points - self.low_m) / self.resolution_m, 0.0, last)
        corner = np.minimum(cell.astype(np.int64), last - 1)
        x, y = np.moveaxis(corner, -1, 0)
        fx, fy = np.moveaxis(cell - corner, -1, 0)
        near = self.heights[y, x] * (1 - fx) + self.heights[y, x + 1] * fx
        far = self.heights[y + 1, x] * (1 - fx) + self.heights[y + 1, x + 1] * fx
        return near * (1 - fy) + far * fy


@dataclass(frozen=True)
class Scene:
    """An episode of T steps, ready to draw.

    Attributes:
        state: (T, 19) base position, quaternion wxyz, joint positions.
        barriers: the boxes of `passage`, which is None on open ground.
        view_pos: (T, 3) the point on the ground that the camera follows.
        view_yaw: (T,) rad, along the track, or the smoothed heading.
        ghost: (T, 19) states of a second robot, drawn translucent; None without.
    """

    robot: RobotCard
    state: np.ndarray
    ground: GroundPatch
    barriers: tuple[Barrier, ...]
    passage: Passage | None
    view_pos: np.ndarray
    view_yaw: np.ndarray
    ghost: np.ndarray | None = None


def scene_of(result: EpisodeResult, robot: RobotCard) -> Scene:
    """The scene of a recorded episode; ValueError if it was not recorded."""
    if result.record is None:
        raise ValueError(f"episode {result.spec.index} was not recorded; there is nothing to draw")
    spec = result.spec
    draws = result.draws
    tile = make_tile(spec.terrain, spec.level, draws.terrain_variant)
    return drawn_scene(robot, result.record.state, tile, draws)


def drawn_scene(
    robot: RobotCard, state: np.ndarray, tile: TerrainTile, draws: EpisodeDraws
) -> Scene:
    """The scene of states (T, 7 + J) on a tile, with the passage that was drawn."""
    state = state.astype(np.float64)
    ground = lay_out(tile, state[:, :2].min(axis=0), state[:, :2].max(axis=0))
    barriers = place_barriers(draws.passage, tile, draws.offset_xy, draws.yaw)
    position = _smoothed(state[:, :2], _POSITION_SMOOTHING_S)
    below = _smoothed(ground.at(position)[:, None], _HEADING_SMOOTHING_S)
    if draws.passage:
        yaw = np.full(len(state), draws.yaw)
    else:
        heading = np.unwrap(yaw_of(state[:, 3:7]))
        yaw = _smoothed(heading[:, None], _HEADING_SMOOTHING_S)[:, 0]
    view_pos = np.concatenate([position, below], axis=1)
    return Scene(robot, state, ground, tuple(barriers), draws.passage, view_pos, yaw)


def lay_out(tile: TerrainTile, low: np.ndarray, high: np.ndarray) -> GroundPatch:
    """A periodic tile repeated over the rectangle from `low` (2,) to `high` (2,) and a margin."""
    resolution = tile.resolution_m
    first = np.floor((low - GROUND_MARGIN_M) / resolution).astype(np.int64)
    last = np.ceil((high + GROUND_MARGIN_M) / resolution).astype(np.int64)
    x, y = np.meshgrid(
        *(np.arange(a, b + 1) * resolution for a, b in zip(first, last, strict=True))
    )
    points = np.stack([x, y], axis=-1)
    heights = tile_heights(tile, points.reshape(-1, 2)).reshape(x.shape)
    return GroundPatch(heights, first * resolution, resolution)


def frame_steps(steps: int, frames: int) -> np.ndarray:
    """(frames,) steps spread evenly over an episode, first and last included."""
    return np.linspace(0, steps - 1, frames).round().astype(np.int64)


def _smoothed(values: np.ndarray, seconds: float) -> np.ndarray:
    """(T, D) centred moving average, ends extrapolated by reflection."""
    half = max(1, round(seconds / CONTROL_DT_S / 2))
    padded = np.pad(values, ((half, half), (0, 0)), mode="reflect", reflect_type="odd")
    sums = np.cumsum(np.concatenate([np.zeros((1, values.shape[1])), padded]), axis=0)
    return (sums[2 * half + 1 :] - sums[: -2 * half - 1]) / (2 * half + 1)
