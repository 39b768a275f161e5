"""Reward terms: functions of a step's view to (N,), and their weights per second.

The environment multiplies by the control step. Sources: legged_gym (tracking, vertical speed,
action rate, collision), Isaac Lab (frames of tracking), HIMLoco's public Aliengo setup (power),
walk-these-ways (slip, commanded attitude, height and stance). Positive terms add up to at most 3.2
a second, 12.3 per episode of 192 steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import numpy as np

from gaitforge.collectors.exact_kernels import elementwise
from gaitforge.collectors.legged.geometry import Geometry
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.collectors.robots.batch import RobotBatch
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS


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


def track_linear_velocity(view: StepView) -> np.ndarray:
    """exp(-|v_xy - v*_xy|^2 / 0.25), heading frame (Isaac Lab: track_lin_vel_xy_yaw_frame_exp)."""
    error = view.geometry.lin_vel_heading - view.command[:, C.VEL_X : C.VEL_Y + 1]
    return _bell(_squares(error), 0.25)


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


REWARDS: dict[Callable[[StepView], np.ndarray], float] = {
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
"""Weight per second of each term."""

LARGEST_RETURN = sum(max(weight, 0.0) for weight in REWARDS.values()) * EPISODE_STEPS * CONTROL_DT_S
"""Upper bound of an episode's return: every positive term is at most 1."""


def total_reward(view: StepView) -> np.ndarray:
    """(N,) weighted sum per second."""
    total = np.zeros(len(view.command))
    for term, weight in REWARDS.items():
        total += weight * term(view)
    return total
