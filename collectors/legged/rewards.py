"""Rewards and signals of a control step, and the geometry of trunks that they use.

A reward term is a function of a step's view to (N,), and has a weight per second. The environment
multiplies by the control step. Sources: legged_gym (tracking, vertical speed, action rate,
collision), Isaac Lab (frames of tracking), HIMLoco's public Aliengo setup (power),
walk-these-ways (slip, commanded attitude, height and stance). Positive terms add up to at most 3.2
a second, 12.3 per episode of 192 steps.

The geometry of trunks is relative to the ground and the world.

The signals of a control step are named in `gaitforge.collectors.scenarios.skills`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, exp, sin, sqrt
from typing import Self

import numpy as np

from gaitforge.collectors.legged.observations import N_SCAN, SCAN_POINTS
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.collectors.robots.kinematics import C, RobotBatch
from gaitforge.collectors.rotations import heading_angle, wrapped
from gaitforge.collectors.scenarios.skills import N_SIGNALS, S
from gaitforge.collectors.scenarios.terrains import (
    ALL_ROWS,
    Ground,
    Rows,
    TerrainBatch,
    cell_height,
)
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from gaitforge.common.errors import names_allowed
from gaitforge.common.kernels import compiled, elementwise

# Geometry of trunks.
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

    @classmethod
    def empty(cls, rows: int) -> Self:
        """Arrays without values."""
        widths = ((N_SCAN,), (), (2,), (3,), (3,), (3,), (), (2,))
        return cls(*(np.empty((rows, *width)) for width in widths))

    @property
    def lin_vel_heading(self) -> np.ndarray:
        """(N, 2) m/s along the heading and to its left."""
        return self.velocity_heading[:, :2]

    @property
    def yaw_rate(self) -> np.ndarray:
        """(N,) rad/s about the vertical."""
        return self.velocity_heading[:, 2]

    @classmethod
    def of(cls, state: PhysicsState, terrain: TerrainBatch, rows: Rows = ALL_ROWS) -> Self:
        """The geometry of N robots, which are these rows of the terrain's."""
        velocities = state.base_lin_vel_world, state.base_ang_vel_body
        gravity, in_body, along, yaw, heading = _turn_velocities(state.base_quat, *velocities)
        scan, sums = _scan_ground(*terrain.under(rows), state.base_pos, heading)
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
    return state.base_pos[:, 2:3] - ground_at(
        terrain.under(ALL_ROWS), state.base_pos, geometry.heading, points
    )


def ground_at(
    ground: Ground, base_pos: np.ndarray, heading: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """(N, K) world heights of the ground at points (K, 2) of heading frames, m.

    Args:
        base_pos: (N, 2 or 3) m; heading: (N, 2) cosine and sine.
    """
    return _ground(*ground, base_pos, heading, np.ascontiguousarray(points))


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
    slot: np.ndarray,
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
            scan[i, k] = cell_height(tiles[slot[i]], x, y, period[i], resolution[i])
            if FOOTPRINT[k]:
                sums[i, 0] += scan[i, k]
                sums[i, 1] += scan[i, k] * ahead
                sums[i, 2] += scan[i, k] * left
    return scan, sums


@compiled
def _ground(
    tiles: np.ndarray,
    slot: np.ndarray,
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
            ground[i, k] = cell_height(tiles[slot[i]], x, y, period[i], resolution[i])
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


# Reward terms.
@dataclass(frozen=True)
class StepView:
    """Inputs of rewards, terminations and signals after a control step; (N, ...) float64.

    Velocities are tracked along the heading and about the vertical (`geometry`), since a trunk may
    be rolled by a radian. `command` is the one in force during the step; `desired_gravity` is
    gravity's unit vector in a body with the commanded attitude.
    """

    robots: RobotBatch
    command: np.ndarray
    state: PhysicsState
    geometry: Geometry
    desired_gravity: np.ndarray
    foot_contact: np.ndarray
    stance_width_m: np.ndarray
    knee_force_n: np.ndarray
    trunk_force_n: np.ndarray
    action: np.ndarray
    last_action: np.ndarray

    @property
    def height_error_m(self) -> np.ndarray:
        """(N,) height of the trunk minus the commanded one."""
        return self.geometry.height - self.robots.nominal_height_m - self.command[:, C.BODY_HEIGHT]


def _squares(values: np.ndarray) -> np.ndarray:
    return np.einsum("nk,nk->n", values, values)


@elementwise
def _bell(square: float, width: float) -> float:
    return exp(-square / width)


def _velocity_error(view: StepView) -> np.ndarray:
    return view.geometry.lin_vel_heading - view.command[:, C.VEL_X : C.VEL_Y + 1]


def track_linear_velocity(view: StepView) -> np.ndarray:
    """exp(-|v_xy - v*_xy|^2 / 0.25), heading frame (Isaac Lab: track_lin_vel_xy_yaw_frame_exp)."""
    return _bell(_squares(_velocity_error(view)), 0.25)


def track_yaw_rate(view: StepView) -> np.ndarray:
    """exp(-(w_z - w*_z)^2 / 0.25), about the vertical (Isaac Lab: track_ang_vel_z_world_exp)."""
    return _bell(np.square(view.geometry.yaw_rate - view.command[:, C.YAW_RATE]), 0.25)


def track_attitude(view: StepView) -> np.ndarray:
    """exp(-|g - g*|^2 / 0.02): commanded pitch and roll relative to the terrain plane."""
    return _bell(_squares(view.geometry.gravity - view.desired_gravity), 0.02)


def track_height(view: StepView) -> np.ndarray:
    """exp(-(h - h*)^2 / 0.004)."""
    return _bell(np.square(view.height_error_m), 0.004)


def track_stance_width(view: StepView) -> np.ndarray:
    """exp(-(w - w*)^2 / 0.003): distance between the left and the right feet."""
    return _bell(np.square(view.stance_width_m - view.command[:, C.STANCE_WIDTH]), 0.003)


def vertical_speed(view: StepView) -> np.ndarray:
    """v_z^2."""
    return np.square(view.geometry.lin_vel_body[:, 2])


def roll_pitch_rate(view: StepView) -> np.ndarray:
    """w_x^2 + w_y^2."""
    return _squares(view.state.base_ang_vel_body[:, :2])


def power(view: StepView) -> np.ndarray:
    """Sum of |torque x joint speed| in W."""
    return np.abs(view.state.joint_torque * view.state.joint_vel).sum(axis=1)


def torque(view: StepView) -> np.ndarray:
    """Sum of squared torques."""
    return _squares(view.state.joint_torque)


def action_rate(view: StepView) -> np.ndarray:
    """|a_t - a_{t-1}|^2."""
    return _squares(view.action - view.last_action)


def foot_slip(view: StepView) -> np.ndarray:
    """Sum of squared horizontal speeds of the feet on the ground."""
    x = view.state.foot_vel[..., 0]
    y = view.state.foot_vel[..., 1]
    return ((x * x + y * y) * view.foot_contact).sum(axis=1)


def knee_collision(view: StepView) -> np.ndarray:
    """Number of knees on the ground with more than 1 N."""
    return (view.knee_force_n > 1.0).sum(axis=1).astype(np.float64)


def barrier_contact(view: StepView) -> np.ndarray:
    """1 while any part presses on a bar or a wall with more than 1 N."""
    return (view.state.barrier_force > 1.0).astype(np.float64)


def unrest(view: StepView) -> np.ndarray:
    """|w|^2 of a trunk commanded to stand."""
    return (1.0 - view.command[:, C.LOCOMOTE]) * _squares(view.state.base_ang_vel_body)


def joint_limits(view: StepView) -> np.ndarray:
    """Sum of rad beyond 95 % of the joint range."""
    middle = (view.robots.joint_upper_rad + view.robots.joint_lower_rad) / 2
    half = 0.95 * (view.robots.joint_upper_rad - view.robots.joint_lower_rad) / 2
    return np.maximum(np.abs(view.state.joint_pos - middle) - half, 0.0).sum(axis=1)


def speed_error(view: StepView) -> np.ndarray:
    """|v_xy - v*_xy| in m/s, heading frame (Body Transformer's A1: world_vel_l2norm)."""
    return np.sqrt(_squares(_velocity_error(view)))


def alive(view: StepView) -> np.ndarray:
    """1 in every step (Body Transformer's A1: alive)."""
    return np.ones(len(view.command))


Rewards = Mapping[Callable[[StepView], np.ndarray], float]
"""Term -> its weight per second."""

REWARDS: Rewards = {
    track_linear_velocity: 1.0,
    track_yaw_rate: 0.5,
    track_attitude: 1.0,
    track_height: 0.4,
    track_stance_width: 0.3,
    vertical_speed: -0.3,
    roll_pitch_rate: -0.03,
    power: -2e-5,
    torque: -2e-5,
    action_rate: -0.01,
    foot_slip: -0.04,
    knee_collision: -0.5,
    barrier_contact: -1.0,
    unrest: -1.0,
    joint_limits: -2.0,
}
"""The terms of data sets and of evaluations that name no others."""

TERMS = {term.__name__: term for term in (*REWARDS, speed_error, alive)}
"""Name -> reward term."""


def rewards_of(weights: Mapping[str, float]) -> Rewards:
    """The terms with these names and weights per second; `REWARDS` for none.

    Raises:
        ValueError: an unknown term.
    """
    for name in weights:
        if name not in TERMS:
            raise ValueError(f"no reward term '{name}'; {names_allowed(name, TERMS)}")
    return {TERMS[name]: weight for name, weight in weights.items()} or REWARDS


def largest_return(rewards: Rewards = REWARDS, steps: int = EPISODE_STEPS) -> float:
    """Upper bound of an episode's return: every term with a positive weight is at most 1."""
    return sum(max(weight, 0.0) for weight in rewards.values()) * steps * CONTROL_DT_S


LARGEST_RETURN = largest_return()


def total_reward(view: StepView, rewards: Rewards = REWARDS) -> np.ndarray:
    """(N,) weighted sum per second."""
    total = np.zeros(len(view.command))
    for term, weight in rewards.items():
        total += weight * term(view)
    return total


def signals(view: StepView, on_track: np.ndarray) -> np.ndarray:
    """(N, N_SIGNALS) float32 of one step.

    Torque is the largest |torque| of any joint, Nm; action rate the fastest joint target, rad/s;
    power the sum over the joints of |torque times velocity|, W.

    Args:
        on_track: (N, 2 or more) along and across the track, m.
    """
    error = view.geometry.gravity - view.desired_gravity
    action_change = np.abs(view.action - view.last_action).max(axis=1)
    values = {
        S.VEL_X: view.geometry.lin_vel_heading[:, 0],
        S.VEL_X_COMMAND: view.command[:, C.VEL_X],
        S.VEL_Y: view.geometry.lin_vel_heading[:, 1],
        S.YAW_RATE: view.geometry.yaw_rate,
        S.SPEED: np.linalg.norm(view.geometry.lin_vel_heading, axis=1),
        S.TURN_RATE: np.linalg.norm(view.state.base_ang_vel_body, axis=1),
        S.HEIGHT_ERROR: view.height_error_m,
        S.TILT_ERROR: np.linalg.norm(error, axis=1),
        S.ROLL_ERROR: np.arcsin(np.clip(error[:, 1], -1.0, 1.0)),
        S.FEET_DOWN: view.foot_contact.sum(axis=1),
        S.POS_X: view.state.base_pos[:, 0],
        S.POS_Y: view.state.base_pos[:, 1],
        S.TRACKING: track_linear_velocity(view),
        S.STANCE_WIDTH: view.stance_width_m,
        S.ALONG: on_track[:, 0],
        S.ACROSS: on_track[:, 1],
        S.BARRIER_FORCE: view.state.barrier_force,
        S.BARRIER_BODY_FORCE: view.state.barrier_body_force,
        S.TORQUE: np.abs(view.state.joint_torque).max(axis=1),
        S.POWER: np.abs(view.state.joint_torque * view.state.joint_vel).sum(axis=1),
        S.ACTION_RATE: action_change * view.robots.action_scale_rad[:, 0] / CONTROL_DT_S,
    }
    recorded = np.empty((len(on_track), N_SIGNALS), dtype=np.float32)
    for signal, value in values.items():
        recorded[:, signal] = value
    return recorded
