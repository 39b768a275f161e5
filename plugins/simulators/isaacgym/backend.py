"""Isaac Gym in a worker process, under the user's Python 3.6 to 3.8.

This process never imports isaacgym. It prepares worlds (meshes, boxes, a URDF) and exchanges rows
of float32 with the worker through shared memory, once a control step.

Deviations from the MuJoCo back end, beside PhysX's own contacts and integration:
- Forces are net forces on a body. While a robot touches a barrier, forces on trunk and hips count
  as the barrier's, forces on a foot high above the ground not as the ground's, and forces on other
  feet hold both.
- Trunk, hips, thighs and calves slide on the ground with a coefficient of 0.3, not 1, and shapes
  that should meet barriers only meet the ground too: Isaac Gym averages the coefficients of a pair,
  and cannot filter the ground.
- Friction has 62 values; contacts are those of the last substep's end.
- On a GPU, PhysX sometimes misses contacts with triangle meshes (legged_gym's README).
"""

import subprocess
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.physics.interface import (
    BackendUnavailable,
    PhysicsBackend,
    PhysicsState,
    RobotStart,
)
from gaitforge.collectors.physics.mujoco.backend import RobotRows
from gaitforge.collectors.physics.mujoco.model import build_model
from gaitforge.collectors.physics.mujoco.urdf import robot_urdf
from gaitforge.collectors.robots.kinematics import standing_height_m
from gaitforge.collectors.robots.robot import N_LEGS, RobotCard
from gaitforge.collectors.scenarios.randomisation import (
    COM_OFFSET,
    DRAW_INDEX,
    DRAWS,
    check_draws,
    drawn_gains,
)
from gaitforge.collectors.scenarios.terrains import MAX_BARRIERS, tile_heights
from gaitforge.collectors.timing import DECIMATION, GRAVITY_MS2, SUBSTEP_S
from gaitforge.plugins.simulators.isaacgym import process
from gaitforge.plugins.simulators.isaacgym.process import FixedPart, TileBook, write_world
from gaitforge.plugins.simulators.isaacgym.worker import protocol

FOOT_CLEARANCE_M = 0.05
"""Half a terrain cell; a foot higher above the ground than this feels no ground."""
FRICTION_BUCKETS = 62
"""With the two materials of other shapes and of barriers these are legged_gym's 64 buckets."""
STEP_LIMIT_S = 60.0
"""Limit after which a step counts as hanging."""
_FRICTION = DRAWS[DRAW_INDEX["friction"]].default
_FRICTIONS = np.linspace(_FRICTION.low, _FRICTION.high, FRICTION_BUCKETS)
_EVENT = protocol.column_slices(protocol.EVENTS)
_STATE = protocol.column_slices(protocol.STATE)
_CARRIED = ("base_quat", "base_lin_vel_world", "base_ang_vel_body", "joint_pos", "joint_vel")
_AS_SENT = (*_CARRIED, "joint_torque", "trunk_force")
_IMPORT_LIMIT_S = 60.0
_VERSION_MARK = "gaitforge: isaacgym"
_IMPORT = (
    "from isaacgym import gymapi\n"
    "version = gymapi.acquire_gym().get_version()\n"
    f"print('{_VERSION_MARK}', '%d.%d' % (version.major, version.minor))\n"
)


def installed_version() -> str:
    """The version of the configured interpreter; BackendUnavailable if it cannot import it."""
    config = process.config_from_environment()
    return _isaacgym_version(config.python, min(config.timeout_s, _IMPORT_LIMIT_S))


@lru_cache(maxsize=8)
def _isaacgym_version(python: str, limit_s: float) -> str:
    """The version that an interpreter imports; BackendUnavailable, not cached, if it cannot."""
    try:
        done = subprocess.run(
            [python, "-c", _IMPORT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            env=process.child_environment(python),
            check=False,
        )
    except OSError as error:
        raise BackendUnavailable(f"{python} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise BackendUnavailable(f"{python} did not import isaacgym within {limit_s:g} s") from None
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.startswith(_VERSION_MARK):
            return line.removeprefix(_VERSION_MARK).strip()
    errors = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    reason = errors[-1].strip() if errors else f"it ended with exit status {done.returncode}"
    raise BackendUnavailable(f"{python} cannot import isaacgym: {reason}")


class IsaacGymBackend(PhysicsBackend):
    """Robots in Isaac Gym; those that were never reset stand on flat ground.

    A world is rebuilt at the first step after a reset that changed a `FixedPart`.

    Args:
        threads: PhysX's number of threads on the CPU.
        config: where Isaac Gym runs; by default from the environment.
        fresh_process: start a process for every world, by default on a GPU: consecutive simulations
            in one process leak memory (github.com/ci-group/revolve2, issue 15).

    Raises:
        BackendUnavailable: no interpreter is configured.
        WorkerError: the worker does not start.
    """

    name = "isaacgym"
    processor = "cuda"
    fixed_world = True

    def __init__(
        self,
        robot: RobotCard,
        num_robots: int,
        threads: int,
        config: process.IsaacGymConfig | None = None,
        fresh_process: bool | None = None,
    ):
        self.num_robots = num_robots
        self._robot = robot
        self._config = config or process.config_from_environment()
        on_gpu = self._config.device != "cpu"
        self._fresh_process = on_gpu if fresh_process is None else fresh_process
        self._model = build_model(robot)
        self._data = mujoco.MjData(self._model)
        self._rows = RobotRows(self._model, robot, num_robots)
        self._facts: dict[str, Any] = asdict(robot_urdf(robot, self._model))
        self._urdf: str = self._facts.pop("text")
        self._facts |= {
            "joints": robot.joint_names,
            "torque_limit": robot.torque_limit_nm.tolist(),
            "substep_s": SUBSTEP_S,
            "decimation": DECIMATION,
            "gravity_ms2": GRAVITY_MS2,
            "threads": threads,
        }
        self._tiles = TileBook()
        self._wanted: list[FixedPart] = []
        self._built: list[FixedPart] = []
        self._events = np.zeros((num_robots, protocol.width(protocol.EVENTS)), dtype=np.float32)
        self._eventful = False
        self._former_s = 0.0
        self._worker = self._start_worker()
        self.version = str(self._worker.hello["isaacgym"])
        self.state = self._read()
        self._stand_everywhere()

    def realised(self, draws: np.ndarray) -> np.ndarray:
        """See `PhysicsBackend.realised`: one of 62 frictions, and no lag beyond a control step."""
        draws = draws.copy()
        share = (draws[..., DRAW_INDEX["friction"]] - _FRICTION.low) / np.ptp(_FRICTIONS)
        bucket = np.rint(share * (FRICTION_BUCKETS - 1)).astype(np.int64)
        draws[..., DRAW_INDEX["friction"]] = _FRICTIONS[np.clip(bucket, 0, FRICTION_BUCKETS - 1)]
        lag = DRAW_INDEX["action_lag_substeps"]
        draws[..., lag] = np.minimum(draws[..., lag], DECIMATION)
        return draws

    def trunk_kg(self, index: int) -> float:
        """See `PhysicsBackend.trunk_kg`."""
        return float(self._model.body(self._robot.trunk_body).mass[0])

    def reset(self, index: int, start: RobotStart) -> None:
        """See `PhysicsBackend.reset`."""
        if len(start.barriers) > MAX_BARRIERS:
            raise ValueError(f"{len(start.barriers)} barriers; a model holds {MAX_BARRIERS}")
        check_draws(self._robot, self.trunk_kg(index), start.draws)
        draws = self.realised(start.draws)
        self._wanted[index] = FixedPart(
            self._tiles.number(start.tile),
            tuple(start.barriers),
            float(draws[DRAW_INDEX["friction"]]),
            float(draws[DRAW_INDEX["base_mass_offset_kg"]]),
            tuple(draws[COM_OFFSET].tolist()),
        )
        event = self._events[index]
        event[_EVENT["kp"]], event[_EVENT["kd"]] = drawn_gains(self._robot, draws)
        event[_EVENT["lag_substeps"]] = draws[DRAW_INDEX["action_lag_substeps"]]
        self._rows.start(index, start, self._data.qpos, self._data.qvel)
        mujoco.mj_kinematics(self._model, self._data)
        self.state.show_start(index, start, self._rows.feet(self._data))
        self._write_start(index)

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        """See `PhysicsBackend.push`."""
        self.state.base_lin_vel_world[ids, :2] += velocity_xy
        self._events[ids, _EVENT["push"]] += velocity_xy
        self._eventful = True

    def step(self, joint_targets: np.ndarray) -> None:
        """See `PhysicsBackend.step`; WorkerError if the worker died, hung or failed."""
        targets = joint_targets + self._rows.joint_offset
        if self._eventful and self._wanted != self._built:
            self._build()
        self._worker.blocks["targets"][:] = targets
        if self._eventful:
            self._worker.blocks["events"][:] = self._events
        command = protocol.STEP_WITH_EVENTS if self._eventful else protocol.STEP
        self._worker.ask(command, min(STEP_LIMIT_S, self._config.timeout_s))
        if self._eventful:
            self._events[:, _EVENT["reset"]] = 0.0
            self._events[:, _EVENT["push"]] = 0.0
            self._eventful = False
        self._rows.targets[:, 0] = targets
        self.state = self._read()

    @property
    def worker_s(self) -> float:
        """Seconds that workers spent on steps; the rest of `step` is overhead."""
        return self._former_s + self._worker.step_s

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _start_worker(self) -> process.WorkerProcess:
        return process.WorkerProcess(self._config, self.num_robots, self._facts, self._urdf)

    def _build(self) -> None:
        """Build the world; robots that were not reset keep their state."""
        for index in np.flatnonzero(self._events[:, 0] == 0.0).tolist():
            self._write_start(index)
        if self._built and self._fresh_process:
            self._former_s += self._worker.step_s
            self._worker.close()
            self._worker = self._start_worker()
        write_world(self._worker.world_path, self._tiles, self._wanted)
        self._worker.blocks["events"][:] = self._events
        self._worker.ask(protocol.BUILD)
        self._built = list(self._wanted)

    def _stand_everywhere(self) -> None:
        """Place robots that were never reset: the world holds all robots."""
        position = np.array([0.0, 0.0, standing_height_m(self._robot)])
        start = RobotStart(position, self._robot.default_joint_pos_rad)
        self._wanted = [FixedPart(0, (), 0.0, 0.0, ())] * self.num_robots
        for index in range(self.num_robots):
            self.reset(index, start)

    def _write_start(self, index: int) -> None:
        """Write the start of robot `index`, taken from `state`."""
        event = self._events[index]
        state = self.state
        period = self._rows.period[index]
        position = state.base_pos[index].copy()
        periods = np.floor(position[:2] / period + 0.5)
        position[:2] -= periods * period
        event[_EVENT["reset"]] = 1.0
        event[_EVENT["push"]] = 0.0
        event[_EVENT["base_pos"]] = position
        event[_EVENT["periods"]] = periods
        for name in _CARRIED:
            event[_EVENT[name]] = getattr(state, name)[index]
        event[_EVENT["previous_targets"]] = self._rows.targets[index, 0]
        self._eventful = True

    def _read(self) -> PhysicsState:
        """The worker's rows as a state."""
        rows = self._worker.blocks["state"].astype(np.float64)
        away = rows[:, _STATE["periods"]] * self._rows.period

        def feet(name: str) -> np.ndarray:
            return rows[:, _STATE[name]].reshape(-1, N_LEGS, 3)

        base_pos = rows[:, _STATE["base_pos"]]
        foot_pos = feet("foot_pos")
        base_pos[:, :2] += away
        foot_pos[..., :2] += away[:, None]
        foot_force = feet("foot_force")
        barrier_force = rows[:, _STATE["barrier_force"]][:, 0]
        for index in np.flatnonzero(barrier_force).tolist():
            ground = tile_heights(
                self._tiles.tiles[self._wanted[index].tile], foot_pos[index, :, :2]
            )
            height = foot_pos[index, :, 2] - self._robot.foot_radius_m - ground
            foot_force[index, height > FOOT_CLEARANCE_M] = 0.0
        return PhysicsState(
            **{name: rows[:, _STATE[name]] for name in _AS_SENT},
            base_pos=base_pos,
            foot_pos=foot_pos,
            foot_vel=feet("foot_vel"),
            foot_force=foot_force,
            knee_force=feet("knee_force"),
            barrier_force=barrier_force,
            barrier_body_force=rows[:, _STATE["barrier_body_force"]][:, 0],
        )
