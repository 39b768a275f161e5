"""Compute the signals of a control step; `gaitforge.collectors.scenarios.signals` names them."""

import numpy as np

from gaitforge.collectors.legged.rewards import StepView, track_linear_velocity
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.scenarios.signals import N_SIGNALS, S
from gaitforge.collectors.timing import CONTROL_DT_S


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
