"""The humanoid of the Body Transformer paper's tasks (Sferrazza et al. 2024, Section 5.2).

The body is dm_control's (`suite/humanoid.xml`), from which Isaac Gym's nv_humanoid.xml derives.
Reward, start and scales are those of Isaac Gym's humanoid (github.com/isaac-sim/IsaacGymEnvs,
isaacgymenvs/tasks/humanoid.py and cfg/task/Humanoid.yaml); observed are the paper's 100 numbers
(github.com/carlosferrazza/BodyTransformer, reinforcement_learning/IsaacGymEnvs/isaacgymenvs/tasks/
humanoid_forces.py), then the last action and the target. Deviations: motors, springs and dampers
are dm_control's; the angle to the target is horizontal (theirs reads z for y); an episode ends by
the torso's height, as in Isaac Gym and the paper's text, where the authors' code ends it at any
contact of a limb other than the feet; feet never start in the ground.

Humanoid-Mod runs on flat ground, Humanoid-Board stands on a board that lies on a free roller, and
Humanoid-Hill runs over irregular waves.
"""

import math
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np

from gaitforge.common.errors import missing_package
from gaitforge.common.kernels import compiled
from gaitforge.datasets.schema import consecutive_slices
from gaitforge.plugins.gym.environments.tasks import HUMANOID_DT_S

SUBSTEPS = 2
JOINTS = 21
BODIES = 16
FIELDS = {
    "root_state": 10,
    "joint_pos": JOINTS,
    "joint_vel": JOINTS,
    "contact_force": 3 * BODIES,
    "last_action": JOINTS,
    "target": 3,
}
"""Field of the observation -> width. root_state: the torso's height (m), velocity (m/s), roll,
pitch, yaw (rad) and angular velocity (rad/s), both velocities on world axes; joint_pos: -1 and 1
are the ends of the range; joint_vel: 10 rad/s; contact_force: on each body, 100 N on world axes;
target: horizontal angle to it from the heading (rad), then the torso's z axis on the vertical and
its x axis on the direction to the target."""
_POS, _VEL, _FORCE, _ACTION, _TARGET, _ = accumulate(FIELDS.values())
"""Where the fields after the first begin."""

ALIVE = 2.0
HEADING = 0.5
UPRIGHT = 0.1
DEATH = -1.0
ACTIONS = 0.01
ENERGY = 0.05
AT_LIMIT = 0.25
LIMIT = 0.98
VELOCITY_SCALE = 0.1
FORCE_SCALE = 0.01
START_POS_RAD = 0.2
START_VEL_RAD_S = 0.1


class Humanoid(gymnasium.Env[np.ndarray, np.ndarray]):
    """One humanoid; an action in [-1, 1] is the share of each motor's torque, in joint order.

    Attributes:
        start_height_m, fall_height_m: of the torso above the ground, at the start and where an
            episode ends with the reward `DEATH`.
        target_m: horizontal place whose approach is rewarded, in m/s.
        further: fields of the observation after `FIELDS`.
    """

    start_height_m: ClassVar[float] = 1.34
    fall_height_m: ClassVar[float] = 0.8
    target_m: ClassVar[tuple[float, float]] = (1000.0, 0.0)
    further: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        spec = humanoid_spec()
        self.add_world(spec)
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        self.obs_slices = consecutive_slices({**FIELDS, **self.further})
        width = sum(FIELDS.values()) + sum(self.further.values())
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (JOINTS,), np.float32)
        model = self.model
        data = self.data
        low, high = model.jnt_range[1 : 1 + JOINTS].T
        self._range = low, high
        joint_of_motor = model.actuator_trnid[:, 0] - 1
        efforts = np.empty(JOINTS)
        efforts[joint_of_motor] = model.actuator_gear[:, 0]
        self._joint_of_motor, self._effort_shares = joint_of_motor, efforts / efforts.max()
        # Views into the simulator's state and into the observation: a step allocates next to none.
        self._root_pos = data.qpos[:7]
        self._joint_pos = data.qpos[7 : 7 + JOINTS]
        self._joint_vel = data.qvel[6 : 6 + JOINTS]
        self._motors = data.ctrl
        forces = data.cfrc_ext[1 : 1 + BODIES, 3:]
        self._obs = np.zeros(width)
        self._seen = {name: self._obs[slice(*bounds)] for name, bounds in self.obs_slices.items()}
        self._action, target_m = np.zeros(JOINTS), np.array(self.target_m)
        middle = (low + high) / 2
        half = (high - low) / 2
        state = data.qpos, data.qvel, forces
        self._observed = (*state, self._action, middle, half, target_m)
        self._potential = 0.0

    def add_world(self, spec: mujoco.MjSpec) -> None:
        """Add what the task has beside the humanoid and a flat ground, the geom "floor"."""

    def draw_world(self) -> float:
        """Draw the world of an episode from `np_random`; returns the ground's height (m)."""
        return 0.0

    def ground_m(self, x: float, y: float) -> float:
        """Height of the ground at a place, in metres."""
        return 0.0

    def fallen(self) -> bool:
        """Whether the episode ends in a failure."""
        x, y, z = self._root_pos[:3].tolist()
        return z - self.ground_m(x, y) < self.fall_height_m

    def observe_further(self) -> None:
        """Write the fields `further` into the observation."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See `gymnasium.Env.reset`: upright, with random joint angles and velocities."""
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self._root_pos[:3] = 0.0, 0.0, self.start_height_m + self.draw_world()
        angles = self.np_random.uniform(-START_POS_RAD, START_POS_RAD, JOINTS)
        np.clip(angles, *self._range, out=self._joint_pos)
        self._joint_vel[:] = self.np_random.uniform(-START_VEL_RAD_S, START_VEL_RAD_S, JOINTS)
        self._action[:] = 0.0
        mujoco.mj_forward(self.model, self.data)
        # Lifted as deep as a bent foot is in the ground.
        bodies = self.model.geom_bodyid[self.data.contact.geom]
        is_humanoid = (bodies >= 1) & (bodies <= BODIES)
        depths_m = -self.data.contact.dist[is_humanoid[:, 0] != is_humanoid[:, 1]]
        self._root_pos[2] += depths_m.max(initial=0.0)
        mujoco.mj_forward(self.model, self.data)
        self._observe()
        return self._obs.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`; an action (21,) is clipped to [-1, 1]."""
        np.minimum(np.maximum(action, -1.0), 1.0, out=self._action)
        self._motors[:] = self._action[self._joint_of_motor]
        mujoco.mj_step(self.model, self.data, SUBSTEPS)
        before = self._potential
        self._observe()
        if self.fallen():
            return self._obs.astype(np.float32), DEATH, True, False, {}
        reward = _reward(self._obs, self._effort_shares, self._potential - before)
        return self._obs.astype(np.float32), reward, False, False, {}

    def _observe(self) -> None:
        # Sum of the contact forces of the last substep on each body.
        mujoco.mj_rnePostConstraint(self.model, self.data)
        distance_m = _write_observation(*self._observed, self._obs)
        self._potential = -distance_m / HUMANOID_DT_S
        self.observe_further()


@compiled
def _write_observation(
    qpos: np.ndarray,
    qvel: np.ndarray,
    forces: np.ndarray,
    action: np.ndarray,
    middle: np.ndarray,
    half: np.ndarray,
    target_m: np.ndarray,
    obs: np.ndarray,
) -> float:
    """Write `FIELDS` into an observation; returns the horizontal distance to the target (m)."""
    w = qpos[3]
    x = qpos[4]
    y = qpos[5]
    z = qpos[6]
    # Rows of the torso's rotation matrix; its columns are the torso's axes in the world.
    r00 = w * w + x * x - y * y - z * z
    r01 = 2 * (x * y - w * z)
    r02 = 2 * (x * z + w * y)
    r10 = 2 * (x * y + w * z)
    r11 = w * w - x * x + y * y - z * z
    r12 = 2 * (y * z - w * x)
    r20 = 2 * (x * z - w * y)
    r21 = 2 * (y * z + w * x)
    r22 = w * w - x * x - y * y + z * z
    yaw = math.atan2(r10, r00)
    obs[0] = qpos[2]
    obs[1:4] = qvel[:3]
    obs[4] = math.atan2(r21, r22)
    obs[5] = math.asin(max(-1.0, min(1.0, -r20)))
    obs[6] = yaw
    obs[7] = r00 * qvel[3] + r01 * qvel[4] + r02 * qvel[5]
    obs[8] = r10 * qvel[3] + r11 * qvel[4] + r12 * qvel[5]
    obs[9] = r20 * qvel[3] + r21 * qvel[4] + r22 * qvel[5]
    for i in range(JOINTS):
        obs[_POS + i] = (qpos[7 + i] - middle[i]) / half[i]
        obs[_VEL + i] = VELOCITY_SCALE * qvel[6 + i]
        obs[_ACTION + i] = action[i]
    for body in range(BODIES):
        for axis in range(3):
            obs[_FORCE + 3 * body + axis] = FORCE_SCALE * forces[body, axis]
    dx = target_m[0] - qpos[0]
    dy = target_m[1] - qpos[1]
    distance = math.sqrt(dx * dx + dy * dy)
    angle = math.atan2(dy, dx) - yaw
    obs[_TARGET] = math.atan2(math.sin(angle), math.cos(angle))
    obs[_TARGET + 1] = r22
    obs[_TARGET + 2] = (r00 * dx + r10 * dy) / max(distance, 1e-9)
    return distance


@compiled
def _reward(obs: np.ndarray, effort_shares: np.ndarray, progress_m_s: float) -> float:
    """Reward of a step that ended with this observation, whose last action is the step's."""
    reward = progress_m_s + ALIVE + HEADING * min(1.0, obs[_TARGET + 2] / 0.8)
    if obs[_TARGET + 1] > 0.93:
        reward += UPRIGHT
    for i in range(JOINTS):
        action = obs[_ACTION + i]
        beyond = max(0.0, abs(obs[_POS + i]) - LIMIT)
        cost = ENERGY * abs(action * obs[_VEL + i]) + AT_LIMIT * beyond / (1.0 - LIMIT)
        reward -= ACTIONS * action * action + cost * effort_shares[i]
    return reward


def humanoid_spec() -> mujoco.MjSpec:
    """dm_control's humanoid on a flat ground, without sensors and pictures' materials.

    Raises:
        ValueError: dm_control is not installed.
    """
    package = find_spec("dm_control")
    if package is None or not package.submodule_search_locations:
        raise ValueError(missing_package("the humanoid", "dm_control", "humanoid"))
    # The file alone: importing dm_control's suite looks for a display.
    path = Path(package.submodule_search_locations[0]) / "suite" / "humanoid.xml"
    spec = mujoco.MjSpec.from_file(str(path))
    for part in (*spec.sensors, *spec.textures, *spec.materials):
        spec.delete(part)
    for geom in spec.geoms:
        geom.material = ""
    spec.option.timestep = HUMANOID_DT_S / SUBSTEPS
    return spec


class HumanoidMod(Humanoid):
    """Run on flat ground: the base task as it is."""


# Sizes and heights of the board's task are those of github.com/carlosferrazza/BodyTransformer,
# reinforcement_learning/IsaacGymEnvs: assets/mjcf/box_bob.xml, cylinder_bob.xml, isaacgymenvs/cfg/
# task/HumanoidBob.yaml.
ROLLER_M = (0.1, 0.2)
"""Radius and half length."""
BOARD_M = (0.2, 0.3, 0.025)
"""Half sizes."""
BOARD_Z_M = 2 * ROLLER_M[0] + BOARD_M[2]


class HumanoidBoard(Humanoid):
    """The humanoid on a board on a roller, both of the density of water.

    The roller's axis points forward, so the board rolls sideways. Staying at the start is the
    target. Deviations: board and roller are observed, and an episode also ends when anything but
    the roller touches the ground.

    Fields `board` and `roller`: place relative to the torso (m) and the board's normal or the
    roller's axis, on world axes.
    """

    start_height_m: ClassVar[float] = 1.532
    fall_height_m: ClassVar[float] = 1.3
    target_m: ClassVar[tuple[float, float]] = (0.0, 0.0)
    further: ClassVar[dict[str, int]] = {"board": 6, "roller": 6}

    def __init__(self) -> None:
        super().__init__()
        self._floor, self._roller_geom = (
            mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_GEOM, name)
            for name in ("floor", "roller")
        )
        start = int(self.model.jnt_qposadr[-2])
        # Places and quaternions, written by the integrator; `xpos` is one substep older.
        self._roller, self._board = (
            self.data.qpos[first : first + 7] for first in (start, start + 7)
        )
        self._axes = np.eye(3)

    def add_world(self, spec: mujoco.MjSpec) -> None:
        """See `Humanoid.add_world`."""
        for name, height, kind, size, quat in (
            ("roller", ROLLER_M[0], mujoco.mjtGeom.mjGEOM_CYLINDER, (*ROLLER_M, 0), _ALONG_X),
            ("board", BOARD_Z_M, mujoco.mjtGeom.mjGEOM_BOX, BOARD_M, (1, 0, 0, 0)),
        ):
            body = spec.worldbody.add_body(name=name, pos=(0, 0, height))
            body.add_freejoint()
            body.add_geom(name=name, type=kind, size=size, quat=quat)

    def fallen(self) -> bool:
        """See `Humanoid.fallen`; also whether board or humanoid touch the ground."""
        # MuJoCo sorts a pair by type, a plane first.
        pairs = self.data.contact.geom.tolist()
        touches = any(
            first == self._floor and second != self._roller_geom for first, second in pairs
        )
        return touches or super().fallen()

    def observe_further(self) -> None:
        """See `Humanoid.observe_further`."""
        torso = self._root_pos[:3]
        for name, pose, axis in (("board", self._board, 2), ("roller", self._roller, 0)):
            seen = self._seen[name]
            np.subtract(pose[:3], torso, out=seen[:3])
            mujoco.mju_rotVecQuat(seen[3:], self._axes[axis], pose[3:])


_ALONG_X = (2**-0.5, 0, 2**-0.5, 0)
"""Quaternion (wxyz) that turns the z axis, a cylinder's, to x."""


# The terrain is that of github.com/carlosferrazza/BodyTransformer (reinforcement_learning/
# IsaacGymEnvs/isaacgymenvs/tasks/humanoid_forces.py, class Terrain): squares of 8 m in cells of
# 0.1 m, each with 1 to 10 waves of 0.01 to 0.15 m along both axes.
SQUARE_M = 8.0
CELL_M = 0.1
SQUARES = (3, 12)
"""Across (y) and along (x); more than anyone runs in an episode. Beside the strip one falls."""
BEHIND_M = 4.0
"""Length of the strip behind the start, which is at the middle of its first square."""
MAX_HEIGHT_M = 0.15
WAVES = (1, 10)
AMPLITUDES_M = (0.01, 0.15)


class HumanoidHill(Humanoid):
    """The base task on a height field.

    Deviations: it is drawn anew for every episode, as a strip in which the start lies; an episode
    ends by the height above the ground.
    """

    def __init__(self) -> None:
        super().__init__()
        shape = int(self.model.hfield_nrow[0]), int(self.model.hfield_ncol[0])
        self._heights_m = np.zeros(shape, np.float32)

    def add_world(self, spec: mujoco.MjSpec) -> None:
        """See `Humanoid.add_world`: the ground becomes a height field."""
        rows, columns = (round(count * SQUARE_M / CELL_M) for count in SQUARES)
        size = (columns * CELL_M / 2, rows * CELL_M / 2, 2 * MAX_HEIGHT_M, 1.0)
        flat = np.zeros(rows * columns)
        spec.add_hfield(name="hills", nrow=rows, ncol=columns, size=size, userdata=flat)
        floor = spec.geom("floor")
        floor.type = mujoco.mjtGeom.mjGEOM_HFIELD
        floor.hfieldname = "hills"
        floor.pos = (size[0] - BEHIND_M, 0, -MAX_HEIGHT_M)

    def draw_world(self) -> float:
        """See `Humanoid.draw_world`: waves; the height is the highest within 0.5 m."""
        cells = round(SQUARE_M / CELL_M)
        phase = np.arange(cells) * (2 * np.pi / cells)
        tiles = self._heights_m.reshape(SQUARES[0], cells, SQUARES[1], cells)
        for row, column in np.ndindex(SQUARES):
            waves = phase * self.np_random.integers(WAVES[0], WAVES[1] + 1)
            half_m = 0.5 * self.np_random.uniform(*AMPLITUDES_M)
            across = half_m * np.cos(waves)
            along = half_m * np.sin(waves)
            tiles[row, :, column] = across[:, None] + along
        self.model.hfield_data[:] = (self._heights_m / (2 * MAX_HEIGHT_M) + 0.5).ravel()
        row, column = self._cell(0.0, 0.0)
        return float(self._heights_m[row - 5 : row + 6, column - 5 : column + 6].max())

    def ground_m(self, x: float, y: float) -> float:
        """See `Humanoid.ground_m`."""
        return float(self._heights_m[self._cell(x, y)])

    def _cell(self, x: float, y: float) -> tuple[int, int]:
        rows, columns = self._heights_m.shape
        row = int(y / CELL_M + rows / 2)
        column = int((x + BEHIND_M) / CELL_M)
        return min(max(row, 0), rows - 1), min(max(column, 0), columns - 1)
