"""MuJoCo on the CPU, and what back ends with MuJoCo models keep on the host.

On the CPU there is one model per robot, stepped by `mujoco.rollout` on threads.

The host keeps robots' rows, MuJoCo models with draws, and states from sensors.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from gaitforge.collectors.physics.interface import PhysicsBackend, PhysicsState, RobotStart
from gaitforge.collectors.physics.mujoco.model import (
    GROUND,
    barrier_bodies,
    build_model,
    sensor_slices,
    write_barriers,
    write_tile,
)
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
    nominal_draws,
)
from gaitforge.collectors.timing import DECIMATION, SUBSTEP_S
from gaitforge.common.kernels import compiled

# State on the host.
_OF_FIELDS = [(i, draw.quantity) for i, draw in enumerate(DRAWS) if draw.quantity.field]
_FIELD_DRAWS = np.array([index for index, _ in _OF_FIELDS])
_NOMINAL_FIELDS = nominal_draws()[_FIELD_DRAWS]


@dataclass(frozen=True)
class _Places:
    """Where a model has what a reset changes.

    Ids of the trunk, the feet, the ground and the barriers' bodies, and the joints' velocities.
    Looking names up takes longer than all else that a reset writes.
    """

    trunk: int
    feet: np.ndarray
    joints: np.ndarray
    ground: int
    barriers: list[int]

    @classmethod
    def of(cls, model: mujoco.MjModel, robot: RobotCard) -> "_Places":
        """Those of a robot's model."""
        return cls(
            model.body(robot.trunk_body).id,
            np.array([model.geom(name).id for name in robot.foot_geoms]),
            np.array([int(model.joint(name).dofadr[0]) for name in robot.joint_names]),
            model.geom(GROUND).id,
            barrier_bodies(model),
        )


def _write_draws(
    model: mujoco.MjModel,
    nominal: mujoco.MjModel,
    robot: RobotCard,
    places: _Places,
    draws: np.ndarray,
) -> None:
    """Write draws (N_DRAWS,), relative to the nominal model; RobotError if they are impossible."""
    trunk = places.trunk
    check_draws(robot, float(nominal.body_mass[trunk]), draws)
    mass = nominal.body_mass[trunk] + draws[DRAW_INDEX["base_mass_offset_kg"]]
    model.body_mass[trunk] = mass
    model.body_inertia[trunk] = nominal.body_inertia[trunk] * mass / nominal.body_mass[trunk]
    model.body_ipos[trunk] = nominal.body_ipos[trunk] + draws[COM_OFFSET]
    model.body_iquat[trunk] = nominal.body_iquat[trunk]
    if draws[DRAW_INDEX["payload_kg"]] > 0:
        _load(model, trunk, draws[DRAW_INDEX["payload_kg"]], draws[PAYLOAD_AT])
    model.geom_friction[places.feet, 0] = draws[DRAW_INDEX["friction"]]
    model.opt.gravity[2] = -draws[DRAW_INDEX["gravity_ms2"]]
    kp, kd = drawn_gains(robot, draws)
    model.actuator_gainprm[:, 0] = kp
    model.actuator_biasprm[:, 1] = -kp
    model.actuator_biasprm[:, 2] = -kd


def _write_fields(
    model: mujoco.MjModel, nominal: mujoco.MjModel, places: _Places, draws: np.ndarray
) -> None:
    """Write the draws (N_DRAWS,) of whole fields of the model."""
    for index, quantity in _OF_FIELDS:
        assert quantity.field is not None
        name, whose, how = quantity.field
        rows = (places.joints, 0) if whose == "joints" else (places.feet, 0)
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
        known: dict[int, _Places] = {}
        for nominal, robot in zip(nominals, robots, strict=True):
            if id(nominal) not in known:
                known[id(nominal)] = _Places.of(nominal, robot)
        self._places = [known[id(nominal)] for nominal in nominals]
        self._varied: set[int] = set()  # ids of models whose fields are not nominal

    def reset(self, index: int, start: RobotStart) -> None:
        """See `PhysicsBackend.reset`."""
        model = self._models[index]
        data = self._scratch
        places = self._places[index]
        nominal = self._nominals[index]
        _write_draws(model, nominal, self._robots[index], places, start.draws)
        varies = bool((start.draws[_FIELD_DRAWS] != _NOMINAL_FIELDS).any())
        if varies or id(model) in self._varied:
            _write_fields(model, nominal, places, start.draws)
            (self._varied.add if varies else self._varied.discard)(id(model))
        write_tile(model, places.ground, start.tile)
        write_barriers(model, places.barriers, start.barriers)
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
        self._models[index].geom_friction[self._places[index].feet, 0] = friction

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


# MuJoCo on the CPU.
_FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS
_WARN = mujoco.mjtWarning
_DIVERGED = list(map(int, (_WARN.mjWARN_BADQPOS, _WARN.mjWARN_BADQVEL, _WARN.mjWARN_BADQACC)))
"""MuJoCo's warnings of huge or non-finite numbers; it then continues from the file's pose."""


def installed_version() -> str:
    """MuJoCo's version; it is always available."""
    return mujoco.__version__


class MujocoBackend(HostBackend):
    """Every robot owns a copy of the model, with its randomisation and terrain tile.

    The PD law is MuJoCo's position actuator, evaluated at every substep. No solver warm start
    crosses a control step, so that a step is a function of the state alone. Replay is bit for bit
    with the same MuJoCo version and a C library with the same `sin` and the like
    (docs/results/collection.md, Replay on other processors).

    Attributes:
        pool: the `mujoco.rollout.Rollout` that steps; benchmarks wrap it.
    """

    name = "mujoco"
    package = "mujoco"
    version = mujoco.__version__
    exact = True
    several_robots = True
    model_fields = True

    def __init__(self, robot: RobotCard | Sequence[RobotCard], num_robots: int, threads: int):
        robots = [robot] * num_robots if isinstance(robot, RobotCard) else list(robot)
        nominals = _nominal_models(robots)
        super().__init__(robots, nominals, [copy.copy(model) for model in nominals])
        nominal = nominals[0]
        _no_log_file()
        self._datas = [mujoco.MjData(nominal) for _ in range(threads)]
        self._warned = [data.warning.number for data in self._datas]
        self.pool = Rollout(nthread=threads)
        self._chunk = max(1, num_robots // (threads * 8))

        n_state = mujoco.mj_stateSize(nominal, _FULL)
        self._full = np.zeros((num_robots, n_state))
        self._states = np.zeros((num_robots, DECIMATION, n_state))
        self._sensordata = np.zeros((num_robots, DECIMATION, nominal.nsensordata))
        self._sensors = self._sensordata[:, -1]
        self._control = np.zeros((num_robots, DECIMATION, N_JOINTS))
        # FULLPHYSICS starts with the time, then qpos and qvel.
        self._pos = self._full[:, 1 : 1 + nominal.nq]
        self._vel = self._full[:, 1 + nominal.nq : 1 + nominal.nq + nominal.nv]
        self.state = self._read()

    def reset(self, index: int, start: RobotStart) -> None:
        """See `PhysicsBackend.reset`."""
        self._full[index] = 0.0
        super().reset(index, start)

    def step(self, joint_targets: np.ndarray) -> None:
        """See `PhysicsBackend.step`; RobotError when the simulation diverges."""
        rows = self._rows
        rows.delay(joint_targets, self._control)
        self.pool.rollout(
            self._models,
            self._datas,
            self._full,
            self._control,
            nstep=DECIMATION,
            state=self._states,
            sensordata=self._sensordata,
            skip_checks=True,
            chunk_size=self._chunk,
        )
        if any(count[_DIVERGED].any() for count in self._warned):
            raise self._robots[0].wrong(
                "the simulation diverged: its gains are too stiff for the physics step of "
                f"{1000 * SUBSTEP_S:g} ms; lower kd_nms_per_rad or kp_nm_per_rad"
            )
        rows.sensor_origin[:] = rows.origin
        _keep_last(self._states, self._full, rows.period, rows.origin)
        self.state = self._read()

    def close(self) -> None:
        """Stop the threads."""
        self.pool.close()


def _nominal_models(robots: Sequence[RobotCard]) -> list[mujoco.MjModel]:
    """One model a row, shared by rows of the same robot; ValueError for other structures."""
    models: dict[str, mujoco.MjModel] = {}
    for robot in robots:
        if robot.name not in models:
            models[robot.name] = build_model(robot)
            if _structure(models[robot.name]) != _structure(models[robots[0].name]):
                raise ValueError(
                    f"robots '{robots[0].name}' and '{robot.name}' have other bodies, joints or "
                    "shapes; one simulation takes robots of one family"
                )
    return [models[robot.name] for robot in robots]


def _structure(model: mujoco.MjModel) -> tuple[object, ...]:
    """Names and kinds of a model's elements; threads can share data among equal structures."""
    elements = model.names.split(b"\0")[1:]  # the first is the model's own
    kinds = model.geom_type.tolist(), model.jnt_type.tolist(), model.body_parentid.tolist()
    return elements, kinds, model.nq, model.nv, model.nu, model.nsensordata


def _no_log_file() -> None:
    """Keep MuJoCo from writing MUJOCO_LOG.TXT into the working directory."""
    config = mujoco.MjLogConfig.get()
    config.logto_file = config.logto_console = False
    mujoco.MjLogConfig.set(config)


@compiled
def _keep_last(
    states: np.ndarray, full: np.ndarray, period: np.ndarray, origin: np.ndarray
) -> None:
    """Keep the last substep's states (N, S) and wrap robots (columns 1, 2) that left their tile."""
    for i in range(full.shape[0]):
        full[i] = states[i, -1]
        for axis in range(2):
            crossed = period[i, 0] * np.floor(full[i, 1 + axis] / period[i, 0] + 0.5)
            full[i, 1 + axis] -= crossed
            origin[i, axis] += crossed
