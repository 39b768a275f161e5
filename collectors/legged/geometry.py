"""Geometry of trunks relative to the ground and the world."""

from dataclasses import dataclass
from math import cos, sin, sqrt
from typing import Self

import numpy as np

from gaitforge.collectors.exact_kernels import compiled
from gaitforge.collectors.legged.observations import N_SCAN, SCAN_POINTS
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.rotations import heading_angle, wrapped
from gaitforge.collectors.scenarios.terrains import TerrainBatch, cell_height

FOOTPRINT = np.abs(SCAN_POINTS[:, 0]) <= 0.4
"""Points of the height scan under the robot."""
_FOOT_SQUARES = np.array([np.square(axis).sum() for axis in SCAN_POINTS[FOOTPRINT].T])


@dataclass(frozen=True)
class Geometry:
    """Geometry of N trunks, float64.

    Attributes:
        scan: (N, N_SCAN) world heights of the ground at `SCAN_POINTS`, m.
        height: (N,) trunk above the mean ground under the robot, m.
        slope: (N, 2) rise of the terrain plane along and across the heading, m/m.
        gravity: (N, 3) unit vector in the trunk's frame; lin_vel_body: (N, 3) m/s.
        velocity_heading: (N, 3) m/s along the heading and to its left, rad/s about the vertical.
        yaw: (N,) rad; heading: (N, 2) its cosine and sine.
    """

    scan: np.ndarray
    height: np.ndarray
    slope: np.ndarray
    gravity: np.ndarray
    lin_vel_body: np.ndarray
    velocity_heading: np.ndarray
    yaw: np.ndarray
    heading: np.ndarray

    @property
    def lin_vel_heading(self) -> np.ndarray:
        """(N, 2) m/s along the heading and to its left."""
        return self.velocity_heading[:, :2]

    @property
    def yaw_rate(self) -> np.ndarray:
        """(N,) rad/s about the vertical."""
        return self.velocity_heading[:, 2]

    @classmethod
    def of(cls, state: PhysicsState, terrain: TerrainBatch) -> Self:
        """The geometry of N robots, each on its own tile."""
        velocities = state.base_lin_vel_world, state.base_ang_vel_body
        gravity, in_body, along, yaw, heading = _turn_velocities(state.base_quat, *velocities)
        tiles = terrain.heights, terrain.period_m, terrain.resolution_m
        scan, sums = _scan_ground(*tiles, state.base_pos, heading)
        height = state.base_pos[:, 2] - sums[:, 0] / FOOTPRINT.sum()
        slope = sums[:, 1:] / _FOOT_SQUARES
        return cls(scan, height, slope, gravity, in_body, along, yaw, heading)

    def desired_gravity(self, command: np.ndarray) -> np.ndarray:
        """(N, 3) gravity in a trunk with the commanded (N, 16) attitude over the terrain."""
        return _lean(self.slope, command[:, C.BODY_PITCH : C.BODY_ROLL + 1])

    def stance_width(self, foot_offset: np.ndarray, side: np.ndarray) -> np.ndarray:
        """(N,) distance between left and right feet across the heading, m.

        Args:
            foot_offset: (N, 4, 3) feet relative to the trunk, world frame, m.
            side: (4,) 1 for left legs, -1 for right ones.
        """
        cos = self.heading[:, :1]
        sin = self.heading[:, 1:]
        across = -sin * foot_offset[..., 0] + cos * foot_offset[..., 1]
        return (across * side).sum(axis=1) / 2


def heights_above(
    points: np.ndarray, state: PhysicsState, geometry: Geometry, terrain: TerrainBatch
) -> np.ndarray:
    """(N, K) heights of the trunks above the ground at points (K, 2) of their heading frames, m."""
    tiles = terrain.heights, terrain.period_m, terrain.resolution_m
    ground = _ground(*tiles, state.base_pos, geometry.heading, np.ascontiguousarray(points))
    return state.base_pos[:, 2:3] - ground


@compiled
def on_track(
    base_pos: np.ndarray, yaw: np.ndarray, origin: np.ndarray, track_yaw: np.ndarray
) -> np.ndarray:
    """(N, 3): each trunk's position along and across its track, m, and heading on it, rad.

    Args:
        base_pos: (N, 3) m; yaw: (N,) rad; origin (N, 2) m and track_yaw (N,) rad: the tracks.
    """
    places = np.empty((len(yaw), 3))
    for i in range(len(yaw)):
        x = base_pos[i, 0] - origin[i, 0]
        y = base_pos[i, 1] - origin[i, 1]
        c = cos(track_yaw[i])
        s = sin(track_yaw[i])
        places[i] = c * x + s * y, c * y - s * x, wrapped(yaw[i] - track_yaw[i])
    return places


@compiled
def _scan_ground(
    tiles: np.ndarray,
    period: np.ndarray,
    resolution: np.ndarray,
    base_pos: np.ndarray,
    heading: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The scan (N, N_SCAN), and sums over the points under the robot for a least-squares plane.

    The grid is symmetric, so the sums (N, 3) decouple: of heights, and of heights times x and
    times y.
    """
    scan = np.empty((len(base_pos), N_SCAN))
    sums = np.zeros((len(base_pos), 3))
    for i in range(len(base_pos)):
        c, s = heading[i]
        for k in range(N_SCAN):
            ahead, left = SCAN_POINTS[k]
            x = c * ahead - s * left + base_pos[i, 0]
            y = s * ahead + c * left + base_pos[i, 1]
            scan[i, k] = cell_height(tiles[i], x, y, period[i], resolution[i])
            if FOOTPRINT[k]:
                sums[i, 0] += scan[i, k]
                sums[i, 1] += scan[i, k] * ahead
                sums[i, 2] += scan[i, k] * left
    return scan, sums


@compiled
def _ground(
    tiles: np.ndarray,
    period: np.ndarray,
    resolution: np.ndarray,
    base_pos: np.ndarray,
    heading: np.ndarray,
    points: np.ndarray,
) -> np.ndarray:
    """(N, K) world heights of the ground."""
    ground = np.empty((len(base_pos), len(points)))
    for i in range(len(base_pos)):
        c, s = heading[i]
        for k in range(len(points)):
            x = c * points[k, 0] - s * points[k, 1] + base_pos[i, 0]
            y = s * points[k, 0] + c * points[k, 1] + base_pos[i, 1]
            ground[i, k] = cell_height(tiles[i], x, y, period[i], resolution[i])
    return ground


@compiled
def _turn_velocities(
    quat: np.ndarray, lin_vel_world: np.ndarray, ang_vel_body: np.ndarray
) -> tuple[np.ndarray, ...]:
    """`rotations.yaw_of`, `gravity_in_body` and `rotate_inverse`; velocities along the heading.

    Returns gravity, lin_vel_body, velocity_heading, yaw and heading of `Geometry`.
    """
    n = len(quat)
    yaw = np.empty(n)
    heading = np.empty((n, 2))
    gravity = np.empty((n, 3))
    lin_vel_body = np.empty((n, 3))
    velocity_heading = np.empty((n, 3))
    for i in range(n):
        w, x, y, z = quat[i]
        yaw[i] = heading_angle(w, x, y, z)
        c, s = heading[i] = cos(yaw[i]), sin(yaw[i])
        gx = 2.0 * (w * y - x * z)
        gy = -2.0 * (w * x + y * z)
        gz = 2.0 * (x * x + y * y) - 1.0
        gravity[i] = gx, gy, gz
        vx, vy, vz = lin_vel_world[i]
        tx = 2.0 * (y * vz - z * vy)
        ty = 2.0 * (z * vx - x * vz)
        tz = 2.0 * (x * vy - y * vx)
        lin_vel_body[i, 0] = vx - w * tx + (y * tz - z * ty)
        lin_vel_body[i, 1] = vy - w * ty + (z * tx - x * tz)
        lin_vel_body[i, 2] = vz - w * tz + (x * ty - y * tx)
        p, q, r = ang_vel_body[i]
        turning = -((gx * p + gz * r) + gy * q)
        velocity_heading[i] = c * vx + s * vy, c * vy - s * vx, turning
    return gravity, lin_vel_body, velocity_heading, yaw, heading


@compiled
def _lean(slope: np.ndarray, attitude: np.ndarray) -> np.ndarray:
    """Gravity over the terrain plane, turned by the commanded pitch, then roll."""
    desired = np.empty((len(slope), 3))
    for i in range(len(slope)):
        along, across = slope[i]
        x = -along / sqrt(1.0 + along * along)
        z = -1.0 / sqrt(1.0 + along * along + across * across)
        # sign: rounding must leave no y of 1e-8 where there is no slope across.
        y = -np.sign(across) * sqrt(max(1.0 - x * x - z * z, 0.0))
        pitch, roll = attitude[i]
        sp = sin(pitch)
        cp = cos(pitch)
        sr = sin(roll)
        cr = cos(roll)
        x, z = cp * x - sp * z, sp * x + cp * z
        desired[i] = x, cr * y + sr * z, -sr * y + cr * z
    return desired
