"""MuJoCo on the CPU: one model per robot, stepped by `mujoco.rollout` on threads."""

import copy
from collections.abc import Sequence

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from gaitforge.collectors.exact_kernels import compiled
from gaitforge.collectors.physics.interface import RobotStart
from gaitforge.collectors.physics.mujoco.host import HostBackend
from gaitforge.collectors.physics.mujoco.model import build_model
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard
from gaitforge.collectors.timing import DECIMATION, SUBSTEP_S

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
