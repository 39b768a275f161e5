"""Environments of one structure, stepped together: each its own MuJoCo model and state."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from ._kinematics import LinkTree, rotate
from ._model import (
    Actor,
    Ground,
    Scene,
    build_model,
    pose_array,
    write_box,
    write_dofs,
    write_friction,
    write_masses,
    write_tile,
)
from ._values import SimParams

_FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS
_NOWHERE = -1
_XYZW = [1, 2, 3, 0]
_WXYZ = [3, 0, 1, 2]
_STATE_XYZW = [0, 1, 2, 4, 5, 6, 3, *range(7, 13)]


class Batch:
    """States are float64 inside; positions, velocities and forces are of the world frame.

    `actors` are an environment's each: the movable one and its boxes. States of bodies are
    (..., 13) as in Isaac Gym: position of the link's origin, quaternion xyzw, velocity of the
    centre of mass, angular velocity.
    """

    def __init__(
        self,
        scene: Scene,
        actors: list[tuple[Actor, list[Actor]]],
        ground: Ground,
        params: SimParams,
    ):
        nominal = build_model(scene, ground, params)
        self.movable = [movable for movable, _ in actors]
        self.boxes = [boxes for _, boxes in actors]
        self._ground = ground
        self._substeps = params.substeps
        self._models = [copy.copy(nominal) for _ in actors]
        threads = max(1, params.physx.num_threads)
        self._datas = [mujoco.MjData(nominal) for _ in range(threads)]
        self._scratch = mujoco.MjData(nominal)
        self._pool = Rollout(nthread=threads)

        asset = scene.movable
        n, n_state = len(actors), mujoco.mj_stateSize(nominal, _FULL)
        self._full = np.zeros((n, n_state))
        self._states = np.zeros((n, params.substeps, n_state))
        self._sensors = np.zeros((n, params.substeps, nominal.nsensordata))
        # FULLPHYSICS starts with the time, then qpos and qvel.
        self._pos = self._full[:, 1 : 1 + nominal.nq]
        self._vel = self._full[:, 1 + nominal.nq : 1 + nominal.nq + nominal.nv]
        self._qpos = [int(nominal.joint(name).qposadr[0]) for name in asset.dof_names]
        self._qvel = [int(nominal.joint(name).dofadr[0]) for name in asset.dof_names]
        self._tree = LinkTree(nominal, asset.body_names, self._qpos, self._qvel)
        self._tile = np.full(n, _NOWHERE)
        tiles = ground.tiles
        self._centre = np.array([tile.centre for tile in tiles]).reshape(-1, 2)
        self._half = np.array([tile.half for tile in tiles]).reshape(-1, 2)
        self._com = np.zeros((n, len(asset.body_names), 3))
        for row, (movable, boxes) in enumerate(actors):
            model = self._models[row]
            for slot, box in enumerate(boxes):
                write_box(model, slot, box)
            write_masses(model, movable)
            self.write_shapes(row)
            self.write_dofs(row)
            self._pos[row, :7] = pose_array(movable.pose)
            self._com[row] = movable.masses.com

    def write_shapes(self, row: int) -> None:
        """Take over the friction of a movable actor and its boxes."""
        write_friction(self._models[row], self.movable[row], self.boxes[row], self._ground)

    def write_dofs(self, row: int) -> None:
        """Take over the joint properties of a movable actor."""
        model = self._models[row]
        write_dofs(model, self.movable[row])
        mujoco.mj_setConst(model, self._scratch)
        # Links on fixed joints are one with what carries them: their contacts are as soft.
        model.body_invweight0[:] = model.body_invweight0[model.body_weldid]

    def root_states(self) -> np.ndarray:
        """(n, 13)."""
        quat = self._pos[:, 3:7]
        angular = rotate(quat, self._vel[:, 3:6])
        linear = self._vel[:, :3] + np.cross(angular, rotate(quat, self._com[:, 0]))
        return np.concatenate([self._pos[:, :3], quat[:, _XYZW], linear, angular], axis=1)

    def set_root_states(self, rows: np.ndarray, states: np.ndarray) -> None:
        """Put movable actors (K,) into states (K, 13)."""
        quat = states[:, 3:7][:, _WXYZ].astype(float)
        quat /= np.linalg.norm(quat, axis=1, keepdims=True)
        angular = states[:, 10:13].astype(float)
        inverse = quat * [1, -1, -1, -1]
        self._pos[rows, :3] = states[:, :3]
        self._pos[rows, 3:7] = quat
        arm = rotate(quat, self._com[rows, 0])
        self._vel[rows, :3] = states[:, 7:10] - np.cross(angular, arm)
        self._vel[rows, 3:6] = rotate(inverse, angular)

    def dof_states(self) -> np.ndarray:
        """(n, joints, 2) positions and velocities."""
        return np.stack([self._pos[:, self._qpos], self._vel[:, self._qvel]], axis=2)

    def set_dof_states(self, rows: np.ndarray, states: np.ndarray) -> None:
        """Put the joints of movable actors (K,) into states (K, joints, 2)."""
        self._pos[rows[:, None], self._qpos] = states[..., 0]
        self._vel[rows[:, None], self._qvel] = states[..., 1]

    def body_states(self) -> np.ndarray:
        """(n, bodies, 13) of the movable actors, like root states."""
        return self._tree.body_states(self._pos, self._vel, self._com)[..., _STATE_XYZW]

    def contact_forces(self) -> np.ndarray:
        """(n, bodies and boxes, 3) net force on each, of the last substep's start."""
        # The sensor reports the force of the body on what it meets.
        return -self._sensors[:, -1].reshape(len(self._models), -1, 3)

    def step(self, efforts: np.ndarray) -> None:
        """Advance one `simulate` under joint efforts (n, joints)."""
        if self._ground.tiles:
            self._place_tiles()
        control = np.repeat(efforts[:, None].astype(float), self._substeps, axis=1)
        self._pool.rollout(
            self._models,
            self._datas,
            self._full,
            control,
            nstep=self._substeps,
            state=self._states,
            sensordata=self._sensors,
            skip_checks=True,
        )
        self._full[:] = self._states[:, -1]

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()

    def _place_tiles(self) -> None:
        """Put the tile under every robot that has left its own."""
        place = self._pos[:, :2]
        here = np.clip(self._tile, 0, None)
        away = np.abs(place - self._centre[here]) > self._half[here]
        for row in np.flatnonzero(away.any(axis=1) | (self._tile == _NOWHERE)):
            over = (np.abs(place[row] - self._centre) <= self._half).all(axis=1)
            found = int(over.argmax()) if over.any() else _NOWHERE
            if found != self._tile[row]:
                self._tile[row] = found
                tile = None if found == _NOWHERE else self._ground.tiles[found]
                write_tile(self._models[row], tile)
