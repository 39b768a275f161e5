"""Logs of a robot that stands in MuJoCo by its gains while a hand presses and turns its trunk."""

import mujoco
import numpy as np

from gaitforge.collectors.physics.mujoco.model import build_model
from gaitforge.collectors.robots.kinematics import standing_height_m
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.plugins.robot_runtime.sensors.logs import SensorLog
from gaitforge.plugins.robot_runtime.tests.sensor_logs import with_noise

_SETTLE_S = 1.5
_STIFFNESS = 15.0, 6.0
"""The hand's, in weights a leg length, and in weights times leg lengths a radian."""
_DAMPING_S = 0.04, 0.1
"""The hand's damping over its stiffness of the place; and in weights times leg lengths a rad/s."""
_PRESSED = 0.01
"""Leg lengths by which the hand presses the trunk down, so that no foot lifts."""


def physics_log(robot: RobotCard, seed: int, seconds: float = 20.0) -> SensorLog:
    """100 Hz on flat ground, with the collection's noise; feet roll and slip as physics has it.

    The trunk's pitch and roll swing by 0.1 to 0.16 rad, its yaw by a third of that.
    """
    rng = np.random.default_rng(seed)
    model = build_model(robot)
    data = mujoco.MjData(model)
    joints = [model.joint(name) for name in robot.joint_names]
    places = [int(joint.qposadr[0]) for joint in joints]
    rates = [int(joint.dofadr[0]) for joint in joints]
    data.qpos[:7] = [0, 0, standing_height_m(robot), 1, 0, 0, 0]
    data.qpos[places] = robot.default_joint_pos_rad
    data.ctrl[:] = robot.default_joint_pos_rad
    while data.time < _SETTLE_S:
        mujoco.mj_step(model, data)
    held = data.qpos[:3] - [0, 0, _PRESSED * robot.leg_length_m]
    trunk = model.body(robot.trunk_body).id
    angles = rng.uniform(0.12, 0.16, 3) * [1, 1, 0.33]
    periods = rng.uniform(1.7, 4.0, 3)
    every = round(0.01 / model.opt.timestep)
    rows = []
    for step in range(round(seconds / model.opt.timestep)):
        time_s = data.time - _SETTLE_S
        data.xfrc_applied[trunk] = _hand(
            robot, data, held, angles * np.sin(2 * np.pi * time_s / periods)
        )
        mujoco.mj_step(model, data)
        if step % every == 0:
            row = [data.qpos[places], data.qvel[rates], data.qpos[3:7], data.qvel[3:6]]
            rows.append([data.time, *np.concatenate(row)])
    parts = np.split(np.array(rows), [1, 13, 25, 29], axis=1)
    return with_noise(SensorLog(parts[0][:, 0], *parts[1:]), rng)


def _hand(
    robot: RobotCard, data: mujoco.MjData, held: np.ndarray, angles: np.ndarray
) -> np.ndarray:
    """(6,) force and torque in the world's frame, to a place and to roll, pitch and yaw."""
    weight = robot.weight_n
    leg = robot.leg_length_m
    place = weight / leg * _STIFFNESS[0]
    force = place * (held - data.qpos[:3] - _DAMPING_S[0] * data.qvel[:3])
    wanted = np.array([1.0, 0.0, 0.0, 0.0])
    for axis in (2, 1, 0):
        turn = np.array([np.cos(angles[axis] / 2), 0.0, 0.0, 0.0])
        turn[1 + axis] = np.sin(angles[axis] / 2)
        mujoco.mju_mulQuat(wanted, wanted.copy(), turn)
    error = np.empty(3)
    mujoco.mju_subQuat(error, wanted, data.qpos[3:7])
    local = weight * leg * (_STIFFNESS[1] * error - _DAMPING_S[1] * data.qvel[3:6])
    torque = np.empty(3)
    mujoco.mju_rotVecQuat(torque, local, data.qpos[3:7])
    return np.concatenate([force, torque])
