"""MuJoCo Warp: all robots in one batch on a GPU, or on the CPU where there is none.

The model, the terrain and the barriers are those of the back end `mujoco`; float32 instead of
float64 makes the difference, and:

* a shape has at most four contacts with the ground (MuJoCo: one for every prism it touches), which
  spread the same force over fewer points;
* constraints are solved to a tolerance of 1e-6 instead of 1e-8, which float32 cannot tell apart.
"""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from collectors.physics.interface import (
    Availability,
    BackendUnavailable,
    InitialState,
    PhysicsState,
)
from collectors.physics.mujoco.host import StateReader, write_draws
from collectors.physics.mujoco.model import GROUND, build_model, write_barriers, write_tile
from collectors.robots.robot import N_JOINTS, RobotCard
from collectors.scenarios.passages import Barrier
from collectors.scenarios.randomisation import DRAW_INDEX, JOINT_OFFSET
from collectors.scenarios.terrains import TerrainTile
from collectors.timing import DECIMATION

if TYPE_CHECKING:
    from collectors.physics.mujoco_warp.worlds import WorldLimits

_NAME = "mujoco_warp"
_PACKAGES = {"warp": "warp-lang", "mujoco_warp": "mujoco-warp"}
_MAX_STATE = 1e10
"""MuJoCo's mjMAXVAL: a state beyond it is no state."""


def availability() -> Availability:
    """Whether the packages are here; which device is used shows when it is built."""
    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        why_not = f"{' and '.join(missing)} not installed: pip install 'gaitforge[warp]'"
        return Availability(_NAME, False, why_not, "")
    return Availability(_NAME, True, "", metadata.version("mujoco-warp"))


class MujocoWarpBackend:
    """Every robot is a world of one batch; its draws, tile and barriers are rows of that batch.

    The state lives on the host between control steps: one block of positions, velocities and
    controls goes to the device for each, and one of positions, velocities and sensor data comes
    back. No solver warm start crosses a control step. `threads` are not used; `limits` are the
    memory that it starts with for contacts, doubled whenever a step needs more.

    Environment variables: GAITFORGE_WARP_DEVICE names Warp's device ("cuda:0", "cuda:1", "cpu");
    without it the first GPU is taken, and where there is none the CPU. Kernels are compiled when
    they are first needed and kept in Warp's cache (its own variable WARP_CACHE_PATH says where).

    Raises:
        BackendUnavailable: the packages are missing.
        RobotError: an MJCF that MuJoCo simulates and MuJoCo Warp does not.
        ValueError: a device that Warp does not have.
    """

    name = _NAME
    exact = False
    fixed_world = False

    def __init__(
        self,
        robot: RobotCard,
        num_robots: int,
        threads: int,
        limits: WorldLimits | None = None,
    ) -> None:
        found = availability()
        if not found.available:
            raise BackendUnavailable(found.why_not)
        from collectors.physics.mujoco_warp.worlds import WarpWorlds

        self.version = found.version
        self.num_robots = num_robots
        self._robot = robot
        self._nominal = build_model(robot)
        self._model = copy.copy(self._nominal)
        self._scratch = mujoco.MjData(self._model)
        self._reader = StateReader(self._nominal, robot)
        ground = self._nominal.geom(GROUND).id
        try:
            self._worlds = WarpWorlds(self._nominal, num_robots, DECIMATION, ground, limits)
        except NotImplementedError as error:
            lacks = " ".join(str(error).split())
            raise robot.wrong(f"MuJoCo Warp cannot simulate it: {lacks}") from None

        self._pos = np.tile(self._nominal.qpos0, (num_robots, 1))
        self._vel = np.zeros((num_robots, self._nominal.nv))
        self._sensors = np.zeros((num_robots, self._nominal.nsensordata))
        self._control = np.zeros((DECIMATION, num_robots, N_JOINTS))
        self._targets = np.tile(robot.default_joint_pos_rad, (num_robots, 1))
        self._joint_offset = np.zeros((num_robots, N_JOINTS))
        self._lag = np.zeros(num_robots, dtype=np.int64)
        self._period = np.ones((num_robots, 1))
        self._origin = np.zeros((num_robots, 2))
        self._origin_of_sensors = np.zeros((num_robots, 2))
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
        model, data = self._model, self._scratch
        write_draws(model, self._nominal, self._robot, draws)
        write_tile(model, tile)
        write_barriers(model, barriers)
        mujoco.mj_setConst(model, data)
        self._joint_offset[index] = draws[JOINT_OFFSET]
        self._lag[index] = int(draws[DRAW_INDEX["action_lag_substeps"]])
        self._period[index] = tile.period_m
        self._origin[index] = 0.0
        self._origin_of_sensors[index] = 0.0
        self._targets[index] = start.joint_pos
        self._pos[index, :3] = start.base_pos
        self._pos[index, 3:7] = start.base_quat
        self._pos[index, self._reader.qpos] = start.joint_pos
        self._vel[index] = 0.0
        self._vel[index, :6] = start.base_vel
        self._sensors[index] = 0.0
        data.qpos[:] = self._pos[index]
        mujoco.mj_kinematics(model, data)
        self._worlds.place(index, model, data, tile)
        self._reader.show_start(self.state, index, self._pos[index], self._vel[index], data)

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        """See `PhysicsBackend.push`."""
        self._vel[ids, :2] += velocity_xy
        self.state.base_lin_vel_world[ids, :2] += velocity_xy

    def step(self, joint_targets: np.ndarray) -> None:
        """See `PhysicsBackend.step`."""
        new = joint_targets + self._joint_offset
        for substep in range(DECIMATION):
            lagging = (substep < self._lag)[:, None]
            self._control[substep] = np.where(lagging, self._targets, new)
        self._targets[:] = new
        pos, vel, sensors = self._worlds.run(self._control, self._pos, self._vel)
        self._pos[:], self._vel[:], self._sensors[:] = pos, vel, sensors
        self._restart_diverged()
        self._origin_of_sensors[:] = self._origin
        self._wrap()
        self.state = self._read()

    def close(self) -> None:
        """Free the device's memory."""
        if hasattr(self, "_worlds"):
            del self._worlds

    def _restart_diverged(self) -> None:
        """Put robots whose state is no number at the model's own start, as MuJoCo does."""
        state = np.concatenate([self._pos, self._vel], axis=1)
        # NaN compares false.
        diverged = ~(np.abs(state) < _MAX_STATE).all(axis=1)
        self._pos[diverged] = self._nominal.qpos0
        self._vel[diverged] = 0.0
        self._sensors[diverged] = 0.0

    def _wrap(self) -> None:
        """Bring robots that left their tile back in on the other side."""
        crossed = self._period * np.floor(self._pos[:, :2] / self._period + 0.5)
        self._pos[:, :2] -= crossed
        self._origin += crossed

    def _read(self) -> PhysicsState:
        return self._reader.read(
            self._pos, self._vel, self._sensors, self._origin, self._origin_of_sensors
        )
