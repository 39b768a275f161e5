"""Poses from foot places: inverse kinematics of the humanoid's legs."""

from dataclasses import dataclass

import mujoco
import numpy as np

from gaitforge.plugins.mocapact.humanoid.walker import PREFIX, CmuHumanoid

_LEG_JOINTS = ("femurrz", "femurry", "femurrx", "tibiarx", "footrz", "footrx")
_DAMPING = 1e-4
_ITERATIONS = 60
_TOLERANCE = 1e-7
_REACHED_M = 0.02
"""A place further from the nearest one within the joints' ranges is out of reach."""

_LIMIT_MARGIN_RAD = 0.02
"""Distance from the joints' stops, where a position actuator's range ends too."""

UPRIGHT_QUAT = np.full(4, 0.5)
"""wxyz of a root that stands upright and faces the world's x axis."""


@dataclass(frozen=True)
class Sole:
    """A sole in its foot's frame: centre (3,) in m; axes (3, 3) to toes, left and up as columns."""

    centre: np.ndarray
    axes: np.ndarray


class SolePlacement:
    """Joint angles that put the soles at given places."""

    def __init__(self, humanoid: CmuHumanoid):
        self._humanoid = humanoid
        self._data = mujoco.MjData(humanoid.model)
        self._soles = {side: self._sole(side) for side in "lr"}

    def place(self, qpos: np.ndarray, feet: dict[str, np.ndarray]) -> np.ndarray:
        """A copy of qpos (63,) with the legs moved so that both feet stand level, toes along x.

        Args:
            feet: side "l" or "r" -> (3,) the sole's centre in the world, m; ValueError if a foot
                cannot reach it.
        """
        pose = qpos.copy()
        for side, target in feet.items():
            self._place_foot(pose, side, target)
        return pose

    def hips(self, qpos: np.ndarray) -> dict[str, np.ndarray]:
        """Side "l" or "r" -> (3,) its hip joint in the world, m."""
        self._forward(qpos)
        return {side: self._data.xpos[self._humanoid.body(f"{side}femur")].copy() for side in "lr"}

    def center_of_mass(self, qpos: np.ndarray) -> np.ndarray:
        """(3,) in the world, m."""
        self._forward(qpos)
        return self._data.subtree_com[self._humanoid.whole].copy()

    def _place_foot(self, pose: np.ndarray, side: str, target: np.ndarray) -> None:
        model = self._humanoid.model
        sole = self._soles[side]
        foot = self._humanoid.body(f"{side}foot")
        joints = [model.joint(f"{PREFIX}{side}{name}").id for name in _LEG_JOINTS]
        columns = model.jnt_dofadr[joints]
        places = model.jnt_qposadr[joints]
        low, high = model.jnt_range[joints].T + np.array([[1.0], [-1.0]]) * _LIMIT_MARGIN_RAD
        jac_pos = np.empty((3, model.nv))
        jac_rot = np.empty((3, model.nv))
        error = np.zeros(6)
        for _ in range(_ITERATIONS):
            self._forward(pose)
            rotation = self._data.xmat[foot].reshape(3, 3)
            point = self._data.xpos[foot] + rotation @ sole.centre
            # The small rotation vector that turns the sole's axes to the world's.
            turn = 0.5 * np.cross((rotation @ sole.axes).T, np.eye(3)).sum(axis=0)
            error = np.concatenate([target - point, turn])
            if np.abs(error).max() < _TOLERANCE:
                return
            mujoco.mj_jac(model, self._data, jac_pos, jac_rot, point, foot)
            jac = np.concatenate([jac_pos, jac_rot])[:, columns]
            step = jac.T @ np.linalg.solve(jac @ jac.T + _DAMPING * np.eye(6), error)
            pose[places] = np.clip(pose[places] + step, low, high)
        if np.abs(error[:3]).max() > _REACHED_M:
            raise ValueError(f"the {side} foot does not reach {target.round(3).tolist()}")

    def _sole(self, side: str) -> Sole:
        """The plane through the underside of heel and toes: capsules of one radius."""
        model = self._humanoid.model
        humanoid = self._humanoid
        foot = humanoid.body(f"{side}foot")
        toes = humanoid.body(f"{side}toes")
        pose = np.zeros(model.nq)
        pose[3:7] = UPRIGHT_QUAT
        self._forward(pose)
        spheres = []
        radii = []
        for geom in np.flatnonzero(np.isin(model.geom_bodyid, (foot, toes))):
            half = model.geom_size[geom, 1] * self._data.geom_xmat[geom].reshape(3, 3)[:, 2]
            centre = self._data.geom_xpos[geom]
            spheres += [centre - half, centre + half]
            radii.append(model.geom_size[geom, 0])
        points = np.array(spheres)
        rotation = self._data.xmat[foot].reshape(3, 3)
        origin = self._data.xpos[foot]
        points = (points - origin) @ rotation
        centre = points.mean(axis=0)
        up = np.linalg.svd(points - centre)[2][-1]
        up *= np.sign(up @ (rotation.T @ np.array([0.0, 0.0, 1.0])))
        ahead = (self._data.xpos[toes] - origin) @ rotation
        ahead -= up * (up @ ahead)
        ahead /= np.linalg.norm(ahead)
        axes = np.column_stack([ahead, np.cross(up, ahead), up])
        return Sole(centre - up * max(radii), axes)

    def _forward(self, qpos: np.ndarray) -> None:
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._humanoid.model, self._data)
        mujoco.mj_comPos(self._humanoid.model, self._data)
