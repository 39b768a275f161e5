"""State on the host: robots' rows; MuJoCo models with draws, states from sensors."""

from collections.abc import Sequence

import mujoco
import numpy as np

from gaitforge.collectors.exact_kernels import compiled
from gaitforge.collectors.physics.interface import PhysicsBackend, PhysicsState, RobotStart
from gaitforge.collectors.physics.mujoco.model import sensor_slices, write_barriers, write_tile
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard
from gaitforge.collectors.rotations import lengths
from gaitforge.collectors.scenarios.quantities import MAX_LAG_SUBSTEPS
from gaitforge.collectors.scenarios.randomisation import (
    COM_OFFSET,
    DRAW_INDEX,
    DRAWS,
    JOINT_OFFSET,
    PAYLOAD_AT,
    check_draws,
    drawn_gains,
)
from gaitforge.collectors.timing import DECIMATION

_OF_FIELDS = [(i, draw.quantity) for i, draw in enumerate(DRAWS) if draw.quantity.field]


def _write_draws(
    model: mujoco.MjModel, nominal: mujoco.MjModel, robot: RobotCard, draws: np.ndarray
) -> None:
    """Write draws (N_DRAWS,), relative to the nominal model; RobotError if they are impossible."""
    trunk = nominal.body(robot.trunk_body).id
    check_draws(robot, float(nominal.body_mass[trunk]), draws)
    feet = [nominal.geom(name).id for name in robot.foot_geoms]
    mass = nominal.body_mass[trunk] + draws[DRAW_INDEX["base_mass_offset_kg"]]
    model.body_mass[trunk] = mass
    model.body_inertia[trunk] = nominal.body_inertia[trunk] * mass / nominal.body_mass[trunk]
    model.body_ipos[trunk] = nominal.body_ipos[trunk] + draws[COM_OFFSET]
    model.body_iquat[trunk] = nominal.body_iquat[trunk]
    if draws[DRAW_INDEX["payload_kg"]] > 0:
        _load(model, trunk, draws[DRAW_INDEX["payload_kg"]], draws[PAYLOAD_AT])
    model.geom_friction[feet, 0] = draws[DRAW_INDEX["friction"]]
    model.opt.gravity[2] = -draws[DRAW_INDEX["gravity_ms2"]]
    kp, kd = drawn_gains(robot, draws)
    model.actuator_gainprm[:, 0] = kp
    model.actuator_biasprm[:, 1] = -kp
    model.actuator_biasprm[:, 2] = -kd
    joints = [int(nominal.joint(name).dofadr[0]) for name in robot.joint_names]
    for index, quantity in _OF_FIELDS:
        assert quantity.field is not None
        name, whose, how = quantity.field
        rows = (joints, 0) if whose == "joints" else (feet, 0)
        rows = rows if getattr(nominal, name).ndim > 1 else rows[0]
        value = getattr(nominal, name)[rows]
        getattr(model, name)[rows] = (
            value * draws[index] if how == "factor" else value + draws[index]
        )


def _load(model: mujoco.MjModel, body: int, load_kg: float, position: np.ndarray) -> None:
    """Add a point mass at `position` (3,) in a body's frame, by the parallel axis theorem."""
    mass = float(model.body_mass[body])
    centre = model.body_ipos[body].copy()
    axes = np.empty(9)
    mujoco.mju_quat2Mat(axes, model.body_iquat[body])
    turn = axes.reshape(3, 3)
    inertia = turn @ np.diag(model.body_inertia[body]) @ turn.T
    both = (mass * centre + load_kg * position) / (mass + load_kg)
    for each_kg, at in ((mass, centre - both), (load_kg, position - both)):
        inertia += each_kg * (at @ at * np.eye(3) - np.outer(at, at))
    moments, principal = np.linalg.eigh(inertia)
    principal[:, 2] *= np.linalg.det(principal)  # a rotation, no reflection
    mujoco.mju_mat2Quat(model.body_iquat[body], principal.ravel())
    model.body_mass[body] = mass + load_kg
    model.body_ipos[body] = both
    model.body_inertia[body] = moments


class RobotRows:
    """Data of N robots that back ends keep on the host, float64.

    Attributes:
        targets: (N, K, 12) rad, of the last control steps, newest first; joint_offset: (N, 12)
            rad; lag: (N,) substeps.
        period: (N, 1) the tile's period, m; origin: (N, 2) m, present place of a robot's tile;
            sensor_origin: its place when sensors were read.
    """

    def __init__(self, model: mujoco.MjModel, robot: RobotCard, num_robots: int) -> None:
        joints = [model.joint(name) for name in robot.joint_names]
        self._qpos = np.array([int(joint.qposadr[0]) for joint in joints])
        self._qvel = np.array([int(joint.dofadr[0]) for joint in joints])
        self._feet = [model.geom(name).id for name in robot.foot_geoms]
        self._slices = sensor_slices(model)
        kept = -(-MAX_LAG_SUBSTEPS // DECIMATION)
        self.targets = np.tile(robot.default_joint_pos_rad, (num_robots, kept, 1))
        self.joint_offset = np.zeros((num_robots, N_JOINTS))
        self.lag = np.zeros(num_robots, dtype=np.int64)
        self.period = np.ones((num_robots, 1))
        self.origin = np.zeros((num_robots, 2))
        self.sensor_origin = np.zeros((num_robots, 2))

    def start(self, index: int, start: RobotStart, pos: np.ndarray, vel: np.ndarray) -> None:
        """Start robot `index`; writes its positions (nq,) and velocities (nv,)."""
        self.joint_offset[index] = start.draws[JOINT_OFFSET]
        self.lag[index] = int(start.draws[DRAW_INDEX["action_lag_substeps"]])
        self.period[index] = start.tile.period_m
        self.origin[index] = self.sensor_origin[index] = 0.0
        self.targets[index] = start.joint_pos
        pos[:3] = start.base_pos
        pos[3:7] = start.base_quat
        pos[self._qpos] = start.joint_pos
        vel[:] = 0.0
        vel[:6] = start.base_vel

    def delay(self, new: np.ndarray, control: np.ndarray) -> None:
        """Write the lagging targets of each substep into control (N, DECIMATION, 12).

        Args:
            new: (N, 12) rad, the targets of this control step.
        """
        _delay(control, self.targets, new + self.joint_offset, self.lag)

    def feet(self, data: mujoco.MjData) -> np.ndarray:
        """(4, 3) positions of the feet."""
        return data.geom_xpos[self._feet]

    def read(self, pos: np.ndarray, vel: np.ndarray, sensors: np.ndarray) -> PhysicsState:
        """The state, in new arrays.

        Args:
            pos, vel: (N, nq) and (N, nv), inside the tile.
            sensors: (N, nsensordata) of the last substep's start.
        """
        robots = len(pos)
        # Values of one joint are contiguous over robots: the task sums over robots.
        base = np.empty((4, robots, 4))
        joint = np.empty((2, N_JOINTS, robots)).transpose(0, 2, 1)
        _read_motion(pos, vel, self.origin, self._qpos, self._qvel, base, joint)

        def sensor(kind: str) -> np.ndarray:
            return sensors[:, self._slices[kind]].reshape(robots, -1, 3)

        foot_pos = sensor("foot_pos").copy()
        foot_pos[..., :2] += self.sensor_origin[:, None]
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
            # The sensor reads the foot's force on the ground.
            foot_force=-sensor("foot_force"),
            trunk_force=-sensor("trunk_force")[:, 0],
            knee_force=-sensor("knee_force"),
            barrier_force=lengths(sensor("barrier_force")).sum(axis=1),
            barrier_body_force=lengths(sensor("barrier_body_force")).sum(axis=1),
        )


class HostBackend(PhysicsBackend):
    """A back end of MuJoCo models whose state is on the host between control steps.

    Args:
        robots, nominals: each row's robot and its model without draws.
        models: the models that starts are written into; rows may share one.

    Attributes:
        _pos, _vel: (N, nq) and (N, nv), inside the tile.
        _sensors: (N, nsensordata) of the last substep's start.
    """

    _pos: np.ndarray
    _vel: np.ndarray
    _sensors: np.ndarray

    def __init__(
        self,
        robots: Sequence[RobotCard],
        nominals: Sequence[mujoco.MjModel],
        models: Sequence[mujoco.MjModel],
    ) -> None:
        self.num_robots = len(robots)
        self._robots = robots
        self._nominals = nominals
        self._models = models
        self._scratch = mujoco.MjData(nominals[0])
        self._rows = RobotRows(nominals[0], robots[0], len(robots))

    def reset(self, index: int, start: RobotStart) -> None:
        """See `PhysicsBackend.reset`."""
        model = self._models[index]
        data = self._scratch
        _write_draws(model, self._nominals[index], self._robots[index], start.draws)
        write_tile(model, start.tile)
        write_barriers(model, start.barriers)
        # Derived constants last: they depend on masses and on where the ground is.
        mujoco.mj_setConst(model, data)
        self._sensors[index] = 0.0
        self._rows.start(index, start, self._pos[index], self._vel[index])
        data.qpos[:] = self._pos[index]
        mujoco.mj_kinematics(model, data)
        self.state.show_start(index, start, self._rows.feet(data))

    def trunk_kg(self, index: int) -> float:
        """See `PhysicsBackend.trunk_kg`."""
        return float(self._nominals[index].body(self._robots[index].trunk_body).mass[0])

    def set_friction(self, index: int, friction: float) -> None:
        """See `PhysicsBackend.set_friction`."""
        model = self._models[index]
        feet = self._robots[index].foot_geoms
        model.geom_friction[[model.geom(name).id for name in feet], 0] = friction

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        """See `PhysicsBackend.push`."""
        self._vel[ids, :2] += velocity_xy
        self.state.base_lin_vel_world[ids, :2] += velocity_xy

    def _read(self) -> PhysicsState:
        return self._rows.read(self._pos, self._vel, self._sensors)


@compiled
def _delay(control: np.ndarray, targets: np.ndarray, new: np.ndarray, lag: np.ndarray) -> None:
    """Control (N, S, 12): until `lag` substeps have passed, targets (N, K, 12) of steps before."""
    substeps = control.shape[1]
    for i in range(control.shape[0]):
        for substep in range(substeps):
            if substep >= lag[i]:
                control[i, substep] = new[i]
            else:
                control[i, substep] = targets[i, (lag[i] - substep - 1) // substeps]
        for k in range(targets.shape[1] - 1, 0, -1):
            targets[i, k] = targets[i, k - 1]
        targets[i, 0] = new[i]


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
    """Into base (4, N, 4) position, quaternion, velocities; into joint (2, N, 12) the joints'."""
    for i in range(pos.shape[0]):
        for axis in range(3):
            base[0, i, axis] = pos[i, axis] + (origin[i, axis] if axis < 2 else 0.0)
            base[2, i, axis] = vel[i, axis]
            base[3, i, axis] = vel[i, 3 + axis]
        base[1, i] = pos[i, 3:7]
        for k in range(len(qpos)):
            joint[0, i, k] = pos[i, qpos[k]]
            joint[1, i, k] = vel[i, qvel[k]]
