"""MuJoCo on the CPU: one model a robot, stepped in batches by `mujoco.rollout` on threads."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Sequence

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from collectors.passages import Barrier
from collectors.physics.interface import InitialState, PhysicsState
from collectors.physics.mujoco_model import build_model, sensor_slices, write_barriers, write_tile
from collectors.randomisation import COM_OFFSET, DRAW_INDEX, JOINT_OFFSET
from collectors.robots import N_JOINTS, RobotCard
from collectors.terrains import TerrainTile
from collectors.timing import DECIMATION

_FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS


class MujocoBackend:
    """Every robot owns a copy of the model, which holds its randomisation and its terrain tile.

    The PD law is MuJoCo's position actuator, evaluated at every substep. No solver warm start
    crosses a control step, so a step is a function of the state alone and stored episodes can be
    simulated again bit for bit.
    """

    name = "mujoco"
    version = mujoco.__version__

    def __init__(self, robot: RobotCard, num_robots: int, threads: int):
        self.num_robots = num_robots
        self._robot = robot
        nominal = build_model(robot)
        self._nominal = nominal
        self._trunk = nominal.body(robot.trunk_body).id
        self._feet = [nominal.geom(name).id for name in robot.foot_geoms]
        self._models = [copy.copy(nominal) for _ in range(num_robots)]
        self._datas = [mujoco.MjData(nominal) for _ in range(threads)]
        self._scratch = mujoco.MjData(nominal)
        self._pool = Rollout(nthread=threads)
        self._chunk = max(1, num_robots // (threads * 8))

        n_state = mujoco.mj_stateSize(nominal, _FULL)
        self._full = np.zeros((num_robots, n_state))
        self._states = np.zeros((num_robots, DECIMATION, n_state))
        self._sensors = np.zeros((num_robots, DECIMATION, nominal.nsensordata))
        self._control = np.zeros((num_robots, DECIMATION, N_JOINTS))
        self._targets = np.tile(robot.default_joint_pos_rad, (num_robots, 1))
        self._joint_offset = np.zeros((num_robots, N_JOINTS))
        self._lag = np.zeros(num_robots, dtype=np.int64)
        self._period = np.ones((num_robots, 1))
        self._origin = np.zeros((num_robots, 2))
        self._origin_of_sensors = np.zeros((num_robots, 2))
        self._slices = sensor_slices(nominal)
        # FULLPHYSICS starts with the time, then qpos and qvel.
        self._pos = self._full[:, 1 : 1 + nominal.nq]
        self._vel = self._full[:, 1 + nominal.nq : 1 + nominal.nq + nominal.nv]
        self._qpos = [int(nominal.joint(name).qposadr[0]) for name in robot.joint_names]
        self._qvel = [int(nominal.joint(name).dofadr[0]) for name in robot.joint_names]
        self.state = self._read()

    def reset(
        self,
        index: int,
        tile: TerrainTile,
        barriers: Sequence[Barrier],
        draws: np.ndarray,
        start: InitialState,
    ) -> None:
        """See `PhysicsBackend.reset`."""
        self._apply_draws(self._models[index], draws)
        write_tile(self._models[index], tile)
        write_barriers(self._models[index], barriers)
        # Derived constants last: they hold the total mass, and whether the ground shares the
        # world's frame.
        mujoco.mj_setConst(self._models[index], self._scratch)
        self._joint_offset[index] = draws[JOINT_OFFSET]
        self._lag[index] = int(draws[DRAW_INDEX["action_lag_substeps"]])
        self._period[index] = tile.period_m
        self._origin[index] = 0.0
        self._origin_of_sensors[index] = 0.0
        self._targets[index] = start.joint_pos
        self._full[index] = 0.0
        self._pos[index, :3] = start.base_pos
        self._pos[index, 3:7] = start.base_quat
        self._pos[index, self._qpos] = start.joint_pos
        self._vel[index, :6] = start.base_vel
        self._sensors[index] = 0.0
        self._read_start(index)

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        """See `PhysicsBackend.push`."""
        self._vel[ids, :2] += velocity_xy
        self.state.base_lin_vel_world[ids, :2] += velocity_xy

    def step(self, joint_targets: np.ndarray) -> None:
        """See `PhysicsBackend.step`."""
        new = joint_targets + self._joint_offset
        for substep in range(DECIMATION):
            lagging = (substep < self._lag)[:, None]
            self._control[:, substep] = np.where(lagging, self._targets, new)
        self._targets[:] = new
        self._pool.rollout(
            self._models,
            self._datas,
            self._full,
            self._control,
            nstep=DECIMATION,
            state=self._states,
            sensordata=self._sensors,
            skip_checks=True,
            chunk_size=self._chunk,
        )
        self._full[:] = self._states[:, -1]
        self._origin_of_sensors[:] = self._origin
        self._wrap()
        self.state = self._read()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()

    def _apply_draws(self, model: mujoco.MjModel, draws: np.ndarray) -> None:
        """Write the draws into a model, always from the nominal one's values."""
        nominal, trunk = self._nominal, self._trunk
        mass = nominal.body_mass[trunk] + draws[DRAW_INDEX["base_mass_offset_kg"]]
        model.body_mass[trunk] = mass
        model.body_inertia[trunk] = nominal.body_inertia[trunk] * mass / nominal.body_mass[trunk]
        model.body_ipos[trunk] = nominal.body_ipos[trunk] + draws[COM_OFFSET]
        model.geom_friction[self._feet, 0] = draws[DRAW_INDEX["friction"]]
        strength = draws[DRAW_INDEX["motor_strength"]]
        kp = self._robot.kp_nm_per_rad * draws[DRAW_INDEX["kp_factor"]] * strength
        kd = self._robot.kd_nms_per_rad * draws[DRAW_INDEX["kd_factor"]] * strength
        model.actuator_gainprm[:, 0] = kp
        model.actuator_biasprm[:, 1] = -kp
        model.actuator_biasprm[:, 2] = -kd

    def _wrap(self) -> None:
        """Bring robots that left their tile back in on the other side."""
        crossed = self._period * np.floor(self._pos[:, :2] / self._period + 0.5)
        self._pos[:, :2] -= crossed
        self._origin += crossed

    def _read_start(self, index: int) -> None:
        """Show a reset robot's start: no contact, no torque, feet where kinematics puts them."""
        model, data, state = self._models[index], self._scratch, self.state
        mujoco.mj_setState(model, data, self._full[index], _FULL)
        mujoco.mj_kinematics(model, data)
        state.base_pos[index] = self._pos[index, :3]
        state.base_quat[index] = self._pos[index, 3:7]
        state.base_lin_vel_world[index] = self._vel[index, :3]
        state.base_ang_vel_body[index] = self._vel[index, 3:6]
        state.joint_pos[index] = self._pos[index, self._qpos]
        state.joint_vel[index] = 0.0
        state.joint_torque[index] = 0.0
        state.foot_pos[index] = data.geom_xpos[self._feet]
        state.foot_vel[index] = 0.0
        state.foot_force[index] = 0.0
        state.trunk_force[index] = 0.0
        state.knee_force[index] = 0.0
        state.barrier_force[index] = 0.0
        state.barrier_body_force[index] = 0.0

    def _read(self) -> PhysicsState:
        last = self._sensors[:, -1]
        shape = (self.num_robots, -1, 3)

        def sensor(kind: str) -> np.ndarray:
            return last[:, self._slices[kind]].reshape(shape)

        base_pos = self._pos[:, :3].copy()
        base_pos[:, :2] += self._origin
        foot_pos = sensor("foot_pos").copy()
        foot_pos[..., :2] += self._origin_of_sensors[:, None]
        return PhysicsState(
            base_pos=base_pos,
            base_quat=self._pos[:, 3:7].copy(),
            base_lin_vel_world=self._vel[:, :3].copy(),
            base_ang_vel_body=self._vel[:, 3:6].copy(),
            joint_pos=self._pos[:, self._qpos],
            joint_vel=self._vel[:, self._qvel],
            joint_torque=last[:, self._slices["torque"]].copy(),
            foot_pos=foot_pos,
            foot_vel=sensor("foot_vel").copy(),
            # The sensor reports the force of the foot on the ground.
            foot_force=-sensor("foot_force"),
            trunk_force=-sensor("trunk_force")[:, 0],
            knee_force=-sensor("knee_force"),
            barrier_force=_total(sensor("barrier_force")),
            barrier_body_force=_total(sensor("barrier_body_force")),
        )


def _total(forces: np.ndarray) -> np.ndarray:
    """(N, K, 3) net forces on K parts to the sum of their sizes, (N,)."""
    return np.linalg.norm(forces, axis=2).sum(axis=1)
