"""Humanoid-Board: stand on a board that lies on a free roller (Sferrazza et al. 2024, Section 5.2).

Sizes and heights are those of github.com/carlosferrazza/BodyTransformer, reinforcement_learning/
IsaacGymEnvs: assets/mjcf/box_bob.xml, cylinder_bob.xml, isaacgymenvs/cfg/task/HumanoidBob.yaml. The
roller's axis points forward, so the board rolls sideways. Staying at the start is the target.
Deviations: board and roller are observed, and an episode also ends when anything but the roller
touches the ground.
"""

from typing import ClassVar

import mujoco
import numpy as np

from gaitforge.collectors.gym.humanoids.humanoid import Humanoid

ROLLER_M = (0.1, 0.2)
"""Radius and half length."""
BOARD_M = (0.2, 0.3, 0.025)
"""Half sizes."""
BOARD_Z_M = 2 * ROLLER_M[0] + BOARD_M[2]


class HumanoidBoard(Humanoid):
    """The humanoid on a board on a roller, both of the density of water.

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
