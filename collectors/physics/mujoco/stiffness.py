"""Stability of gains at the physics step."""

import mujoco
import numpy as np

from gaitforge.collectors.physics.mujoco.model_check import posed
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.timing import SUBSTEP_S

_IN_THE_AIR_M = 10.0


def stiffness(
    robot: RobotCard, model: mujoco.MjModel, kp: np.ndarray, kd: np.ndarray
) -> tuple[float, str]:
    """How near gains (12,) come to instability in the air, and the joint that is nearest to it.

    Semi-implicit Euler with step h on M a = -kp q - (kd + d) v, d the joints' own damping, is
    stable while no eigenvalue of M^-1 (h (kd + d) + h^2 kp / 2) reaches 2: here the largest one
    over 2, so gains are stable below 1. M is the default pose's, with armature.
    """
    inertia, dofs = _inertia(robot, model)
    damping = np.zeros(model.nv)
    damping[dofs] = SUBSTEP_S * (kd + model.dof_damping[dofs]) + SUBSTEP_S**2 * kp / 2
    # Similar to a symmetric matrix: L^-1 D L^-T with M = L L^T.
    lower = np.linalg.cholesky(inertia)
    half = np.linalg.solve(lower, np.diag(damping))
    values, vectors = np.linalg.eigh(np.linalg.solve(lower, half.T))
    speeds = np.linalg.solve(lower.T, vectors[:, -1])
    joint = int(np.argmax(np.abs(speeds[dofs])))
    return float(values[-1]) / 2.0, robot.joint_names[joint]


def joint_inertia(robot: RobotCard, model: mujoco.MjModel) -> np.ndarray:
    """(12, 12) kg m^2 of the joints in the default pose, the trunk held, with armature."""
    inertia, dofs = _inertia(robot, model)
    return inertia[np.ix_(dofs, dofs)]


def _inertia(robot: RobotCard, model: mujoco.MjModel) -> tuple[np.ndarray, list[int]]:
    """The inertia matrix (nv, nv) in the default pose, and the joints' rows."""
    data = posed(robot, model, robot.default_joint_pos_rad, _IN_THE_AIR_M)
    mujoco.mj_forward(model, data)
    inertia = np.empty((model.nv, model.nv))
    mujoco.mj_fullM(model, data, inertia)
    return inertia, [int(model.joint(name).dofadr[0]) for name in robot.joint_names]
