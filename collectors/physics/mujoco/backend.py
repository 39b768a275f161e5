"""MuJoCo on the CPU: one model a robot, stepped in batches by `mujoco.rollout` on threads."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from collectors.compiling import compiled
from collectors.physics.interface import Availability, InitialState, PhysicsState
from collectors.physics.mujoco.host import StateReader, write_draws
from collectors.physics.mujoco.model import build_model, write_barriers, write_tile
from collectors.robots.robot import N_JOINTS, RobotCard
from collectors.scenarios.passages import Barrier
from collectors.scenarios.randomisation import DRAW_INDEX, JOINT_OFFSET
from collectors.scenarios.terrains import TerrainTile
from collectors.timing import DECIMATION

_FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS


def availability() -> Availability:
    """It is always here: `mujoco` is no optional package."""
    return Availability(MujocoBackend.name, True, "", MujocoBackend.version)


class MujocoBackend:
    """Every robot owns a copy of the model, which holds its randomisation and its terrain tile.

    The PD law is MuJoCo's position actuator, evaluated at every substep. No solver warm start
    crosses a control step, so a step is a function of the state alone and stored episodes can be
    simulated again bit for bit.

    Attributes:
        pool: the `mujoco.rollout.Rollout` that every step goes through, or what stands in for it to
            measure it.
    """

    name = "mujoco"
    version = mujoco.__version__
    exact = True
    fixed_world = False

    def __init__(self, robot: RobotCard, num_robots: int, threads: int):
        self.num_robots = num_robots
        self._robot = robot
        nominal = build_model(robot)
        self._nominal = nominal
        self._models = [copy.copy(nominal) for _ in range(num_robots)]
        self._datas = [mujoco.MjData(nominal) for _ in range(threads)]
        self._scratch = mujoco.MjData(nominal)
        self.pool: Any = Rollout(nthread=threads)
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
        self._reader = StateReader(nominal, robot)
        # FULLPHYSICS starts with the time, then qpos and qvel.
        self._pos = self._full[:, 1 : 1 + nominal.nq]
        self._vel = self._full[:, 1 + nominal.nq : 1 + nominal.nq + nominal.nv]
        self.state = self._read()

    def realised(self, draws: np.ndarray) -> np.ndarray:
        """See `PhysicsBackend.realised`."""
        return draws

    def reset(
        self,
        index: int,
        tile: TerrainTile,
        barriers: Sequence[Barrier],
        draws: np.ndarray,
        start: InitialState,
    ) -> None:
        """See `PhysicsBackend.reset`."""
        write_draws(self._models[index], self._nominal, self._robot, draws)
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
        self._pos[index, self._reader.qpos] = start.joint_pos
        self._vel[index, :6] = start.base_vel
        self._sensors[index] = 0.0
        mujoco.mj_setState(self._models[index], self._scratch, self._full[index], _FULL)
        mujoco.mj_kinematics(self._models[index], self._scratch)
        start_pos, start_vel = self._pos[index], self._vel[index]
        self._reader.show_start(self.state, index, start_pos, start_vel, self._scratch)

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        """See `PhysicsBackend.push`."""
        self._vel[ids, :2] += velocity_xy
        self.state.base_lin_vel_world[ids, :2] += velocity_xy

    def step(self, joint_targets: np.ndarray) -> None:
        """See `PhysicsBackend.step`."""
        new = joint_targets + self._joint_offset
        _delay(self._control, self._targets, new, self._lag)
        self.pool.rollout(
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
        self._origin_of_sensors[:] = self._origin
        _keep_last(self._states, self._full, self._period, self._origin)
        self.state = self._read()

    def close(self) -> None:
        """Stop the threads."""
        self.pool.close()

    def _read(self) -> PhysicsState:
        last = self._sensors[:, -1]
        return self._reader.read(self._pos, self._vel, last, self._origin, self._origin_of_sensors)


@compiled
def _delay(control: np.ndarray, old: np.ndarray, new: np.ndarray, lag: np.ndarray) -> None:
    """Controls (N, DECIMATION, 12): the old targets for `lag` substeps, then the new ones.

    The new ones are then the old.
    """
    for i in range(control.shape[0]):
        for substep in range(control.shape[1]):
            control[i, substep] = old[i] if substep < lag[i] else new[i]
        old[i] = new[i]


@compiled
def _keep_last(
    states: np.ndarray, full: np.ndarray, period: np.ndarray, origin: np.ndarray
) -> None:
    """The last substep's states (N, S), robots that left their tile brought in on the other side.

    Columns 1 and 2 are the trunk's place; origin (N, 2) says where the tile lies by now.
    """
    for i in range(full.shape[0]):
        full[i] = states[i, -1]
        for axis in range(2):
            crossed = period[i, 0] * np.floor(full[i, 1 + axis] / period[i, 0] + 0.5)
            full[i, 1 + axis] -= crossed
            origin[i, axis] += crossed
