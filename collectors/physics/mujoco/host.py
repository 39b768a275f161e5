"""What MuJoCo back ends do on the host: write draws into a model, read states off its sensors."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import mujoco
import numpy as np

from collectors.compiling import compiled
from collectors.physics.interface import PhysicsState
from collectors.physics.mujoco.model import sensor_slices
from collectors.robots.robot import N_JOINTS, RobotCard
from collectors.rotations import lengths
from collectors.scenarios.randomisation import COM_OFFSET, DRAW_INDEX


def write_draws(
    model: mujoco.MjModel, nominal: mujoco.MjModel, robot: RobotCard, draws: np.ndarray
) -> None:
    """Write the draws that live in the model into it, always from the nominal one's values.

    Joint offsets and the lag are in the targets and not in the model.
    """
    trunk = nominal.body(robot.trunk_body).id
    feet = [nominal.geom(name).id for name in robot.foot_geoms]
    mass = nominal.body_mass[trunk] + draws[DRAW_INDEX["base_mass_offset_kg"]]
    model.body_mass[trunk] = mass
    model.body_inertia[trunk] = nominal.body_inertia[trunk] * mass / nominal.body_mass[trunk]
    model.body_ipos[trunk] = nominal.body_ipos[trunk] + draws[COM_OFFSET]
    model.geom_friction[feet, 0] = draws[DRAW_INDEX["friction"]]
    strength = draws[DRAW_INDEX["motor_strength"]]
    kp = robot.kp_nm_per_rad * draws[DRAW_INDEX["kp_factor"]] * strength
    kd = robot.kd_nms_per_rad * draws[DRAW_INDEX["kd_factor"]] * strength
    model.actuator_gainprm[:, 0] = kp
    model.actuator_biasprm[:, 1] = -kp
    model.actuator_biasprm[:, 2] = -kd


class StateReader:
    """Turns positions, velocities and sensor data of N robots into a `PhysicsState`."""

    def __init__(self, model: mujoco.MjModel, robot: RobotCard) -> None:
        joints = [model.joint(name) for name in robot.joint_names]
        self.qpos = np.array([int(joint.qposadr[0]) for joint in joints])
        self.qvel = np.array([int(joint.dofadr[0]) for joint in joints])
        self._feet = [model.geom(name).id for name in robot.foot_geoms]
        self._slices = sensor_slices(model)

    def read(
        self,
        pos: np.ndarray,
        vel: np.ndarray,
        sensors: np.ndarray,
        origin: np.ndarray,
        origin_of_sensors: np.ndarray,
    ) -> PhysicsState:
        """The state, in arrays of its own.

        Args:
            pos, vel: (N, nq) and (N, nv), inside the tile.
            sensors: (N, nsensordata) of the last substep's start.
            origin, origin_of_sensors: (N, 2) of the tile in the world, now and then.
        """

        robots = len(pos)
        # A joint's values of all robots lie together, as the task's sums over robots read them.
        base, joint = np.empty((4, robots, 4)), np.empty((2, N_JOINTS, robots)).transpose(0, 2, 1)
        _read_motion(pos, vel, origin, self.qpos, self.qvel, base, joint)

        def sensor(kind: str) -> np.ndarray:
            return sensors[:, self._slices[kind]].reshape(robots, -1, 3)

        foot_pos = sensor("foot_pos").copy()
        foot_pos[..., :2] += origin_of_sensors[:, None]
        return PhysicsState(
            base_pos=base[0, :, :3],
            base_quat=base[1],
            base_lin_vel_world=base[2, :, :3],
            base_ang_vel_body=base[3, :, :3],
            joint_pos=joint[0],
            joint_vel=joint[1],
            joint_torque=sensors[:, self._slices["torque"]].copy(),
            foot_pos=foot_pos,
            foot_vel=sensor("foot_vel").copy(),
            # The sensor reports the force of the foot on the ground.
            foot_force=-sensor("foot_force"),
            trunk_force=-sensor("trunk_force")[:, 0],
            knee_force=-sensor("knee_force"),
            barrier_force=lengths(sensor("barrier_force")).sum(axis=1),
            barrier_body_force=lengths(sensor("barrier_body_force")).sum(axis=1),
        )

    def show_start(
        self,
        state: PhysicsState,
        index: int,
        pos: np.ndarray,
        vel: np.ndarray,
        data: mujoco.MjData,
    ) -> None:
        """Show robot `index` at its start: no contact, no torque, feet where `data` has them.

        pos (nq,) and vel (nv,) are the robot's own; `data` holds the kinematics of pos.
        """
        state.base_pos[index] = pos[:3]
        state.base_quat[index] = pos[3:7]
        state.base_lin_vel_world[index] = vel[:3]
        state.base_ang_vel_body[index] = vel[3:6]
        state.joint_pos[index] = pos[self.qpos]
        state.joint_vel[index] = 0.0
        state.joint_torque[index] = 0.0
        state.foot_pos[index] = data.geom_xpos[self._feet]
        state.foot_vel[index] = 0.0
        state.foot_force[index] = 0.0
        state.trunk_force[index] = 0.0
        state.knee_force[index] = 0.0
        state.barrier_force[index] = 0.0
        state.barrier_body_force[index] = 0.0


@compiled
def _read_motion(
    pos: np.ndarray,
    vel: np.ndarray,
    origin: np.ndarray,
    qpos: np.ndarray,
    qvel: np.ndarray,
    base: np.ndarray,
    joint: np.ndarray,
) -> None:
    """Into base (4, N, 4) place, quaternion and velocities; into joint (2, N, 12) theirs."""
    for i in range(pos.shape[0]):
        for axis in range(3):
            base[0, i, axis] = pos[i, axis] + (origin[i, axis] if axis < 2 else 0.0)
            base[2, i, axis], base[3, i, axis] = vel[i, axis], vel[i, 3 + axis]
        base[1, i] = pos[i, 3:7]
        for k in range(len(qpos)):
            joint[0, i, k], joint[1, i, k] = pos[i, qpos[k]], vel[i, qvel[k]]
