"""The signals of one control step, see `collectors.scenarios.signals`."""

import numpy as np

from collectors.legged.rewards import StepView, track_linear_velocity
from collectors.robots.commands import C
from collectors.scenarios.signals import N_SIGNALS, S
from collectors.timing import CONTROL_DT_S


def signals(view: StepView, base_pos: np.ndarray, on_track: np.ndarray) -> np.ndarray:
    """(N, N_SIGNALS) float32 of one step.

    Torque is the largest |torque| of any joint, Nm; action rate the fastest joint target, rad/s.

    Args:
        base_pos: (N, 3) world, m; on_track: (N, 2 or more) along and across the track, m.
    """
    error = view.gravity - view.desired_gravity
    action_change = np.abs(view.action - view.last_action).max(axis=1)
    values = {
        S.VEL_X: view.lin_vel_heading[:, 0],
        S.VEL_X_COMMAND: view.command[:, C.VEL_X],
        S.SPEED: np.linalg.norm(view.lin_vel_heading, axis=1),
        S.TURN_RATE: np.linalg.norm(view.ang_vel_body, axis=1),
        S.HEIGHT_ERROR: view.height_error_m,
        S.TILT_ERROR: np.linalg.norm(error, axis=1),
        S.ROLL_ERROR: np.arcsin(np.clip(error[:, 1], -1.0, 1.0)),
        S.FEET_DOWN: view.foot_contact.sum(axis=1),
        S.POS_X: base_pos[:, 0],
        S.POS_Y: base_pos[:, 1],
        S.TRACKING: track_linear_velocity(view),
        S.STANCE_WIDTH: view.stance_width_m,
        S.ALONG: on_track[:, 0],
        S.ACROSS: on_track[:, 1],
        S.BARRIER_FORCE: view.barrier_force_n,
        S.BARRIER_BODY_FORCE: view.barrier_body_force_n,
        S.TORQUE: np.abs(view.joint_torque).max(axis=1),
        S.ACTION_RATE: action_change * view.robot.action_scale_rad / CONTROL_DT_S,
    }
    recorded = np.empty((len(base_pos), N_SIGNALS), dtype=np.float32)
    for signal, value in values.items():
        recorded[:, signal] = value
    return recorded
