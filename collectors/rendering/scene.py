"""A recorded episode as geometry that can be drawn: ground, barriers, leg joints, and a viewpoint.

Everything is in the world, m and rad, with the unwrapped positions of the record: the periodic tile
is laid out once under the whole path, so nothing jumps where the robot crossed the tile's seam.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectors.legged.rollout import EpisodeResult
from collectors.robots.robot import N_LEGS, RobotCard
from collectors.rotations import rotate, yaw_of
from collectors.scenarios.passages import Barrier, Passage, place_barriers
from collectors.scenarios.terrains import TerrainTile, make_tile, tile_heights
from collectors.timing import CONTROL_DT_S

GROUND_MARGIN_M = 5.0
"""Ground beyond the path on every side: a camera near the robot does not see its end."""
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
    """What there is to draw of an episode of T steps.

    Attributes:
        state: (T, 19) base position, quaternion wxyz, joint positions, as recorded.
        barriers: the boxes of `passage`, which is None on open ground.
        view_pos: (T, 3) the point on the ground that the viewer follows.
        view_yaw: (T,) rad, the viewer's "forward": along the track, or the smoothed heading.
    """

    robot: RobotCard
    state: np.ndarray
    ground: GroundPatch
    barriers: tuple[Barrier, ...]
    passage: Passage | None
    view_pos: np.ndarray
    view_yaw: np.ndarray

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return len(self.state)

    def way_m(self) -> np.ndarray:
        """(T,) distance that the viewer has come since the start."""
        stride = np.linalg.norm(np.diff(self.view_pos[:, :2], axis=0), axis=1)
        return np.concatenate([[0.0], np.cumsum(stride)])


def scene_of(result: EpisodeResult, robot: RobotCard) -> Scene:
    """The scene of a recorded episode.

    Raises:
        ValueError: the episode was run without recording it.
    """
    if result.record is None:
        raise ValueError(f"episode {result.spec.index} was not recorded; there is nothing to draw")
    spec, draws = result.spec, result.draws
    tile = make_tile(spec.terrain, spec.level, draws.terrain_variant)
    state = result.record.state.astype(np.float64)
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


def leg_points(robot: RobotCard, state: np.ndarray) -> np.ndarray:
    """(..., 4, 4, 3) world positions of each leg's hip, thigh joint, knee and foot, m.

    Args:
        state: (..., 19) as `Scene.state`. Angles as in `kinematics.LegKinematics`.
    """
    q = state[..., 7:].reshape(*state.shape[:-1], N_LEGS, 3)
    hip, thigh, knee = q[..., 0], q[..., 1], q[..., 1] + q[..., 2]
    side = robot.leg_signs[:, 1] * robot.thigh_offset_m

    def in_leg_plane(forward: np.ndarray, down: np.ndarray) -> np.ndarray:
        y = side * np.cos(hip) + down * np.sin(hip)
        z = side * np.sin(hip) - down * np.cos(hip)
        return np.stack([forward, y, z], axis=-1)

    none = np.zeros_like(hip)
    knee_x = -robot.thigh_length_m * np.sin(thigh)
    knee_down = robot.thigh_length_m * np.cos(thigh)
    foot_x = knee_x - robot.calf_length_m * np.sin(knee)
    foot_down = knee_down + robot.calf_length_m * np.cos(knee)
    chain = [
        np.zeros_like(q),
        in_leg_plane(none, none),
        in_leg_plane(knee_x, knee_down),
        in_leg_plane(foot_x, foot_down),
    ]
    points = np.stack(chain, axis=-2) + robot.hip_positions_m[:, None]
    return rotate(state[..., None, None, 3:7], points) + state[..., None, None, :3]


def frame_steps(steps: int, frames: int) -> np.ndarray:
    """(frames,) steps spread evenly over an episode, the first and the last included."""
    return np.linspace(0, steps - 1, frames).round().astype(np.int64)


def _smoothed(values: np.ndarray, seconds: float) -> np.ndarray:
    """(T, D) centred moving average; the ends go on as they came."""
    half = max(1, round(seconds / CONTROL_DT_S / 2))
    padded = np.pad(values, ((half, half), (0, 0)), mode="reflect", reflect_type="odd")
    sums = np.cumsum(np.concatenate([np.zeros((1, values.shape[1])), padded]), axis=0)
    return (sums[2 * half + 1 :] - sums[: -2 * half - 1]) / (2 * half + 1)
