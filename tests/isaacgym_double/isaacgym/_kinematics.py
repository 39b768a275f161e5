"""States of all links of many robots from their joints, in closed form."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import mujoco
import numpy as np


def rotate(quat: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Vectors (..., 3) turned by unit quaternions (..., 4), wxyz."""
    scalar, vector = quat[..., :1], quat[..., 1:]
    cross = 2 * np.cross(vector, vectors)
    return vectors + scalar * cross + np.cross(vector, cross)


def multiply(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Products of quaternions (..., 4), wxyz."""
    a, b = first[..., :1], second[..., :1]
    u, v = first[..., 1:], second[..., 1:]
    scalar = a * b - (u * v).sum(axis=-1, keepdims=True)
    return np.concatenate([scalar, a * v + b * u + np.cross(u, v)], axis=-1)


class LinkTree:
    """A free root and hinges at the links' origins; links in Isaac Gym's order, parents first."""

    def __init__(self, model: mujoco.MjModel, links: list[str], qpos: list[int], qvel: list[int]):
        bodies = [model.body(name).id for name in links]
        addresses = dict(zip(qpos, qvel, strict=True))
        self._links = []
        for body in bodies[1:]:
            joint = int(model.body_jntadr[body])
            hinge = None
            if joint >= 0:
                address = int(model.jnt_qposadr[joint])
                hinge = (address, addresses[address], model.jnt_axis[joint].copy())
            parent = bodies.index(int(model.body_parentid[body]))
            self._links.append(
                (parent, model.body_pos[body].copy(), model.body_quat[body].copy(), hinge)
            )

    def body_states(self, qpos: np.ndarray, qvel: np.ndarray, com: np.ndarray) -> np.ndarray:
        """(n, links, 13): origin, quaternion wxyz, centre of mass's velocity, angular velocity.

        qpos, qvel (n, ...) are MuJoCo's, com (n, links, 3) in the links' frames.
        """
        quats = [qpos[:, 3:7]]
        places, speeds = [qpos[:, :3]], [qvel[:, :3]]
        spins = [rotate(quats[0], qvel[:, 3:6])]
        for parent, offset, turn, hinge in self._links:
            arm = rotate(quats[parent], offset[None])
            quat = multiply(quats[parent], turn[None])
            spin = spins[parent]
            if hinge is not None:
                address, velocity, axis = hinge
                half = qpos[:, address, None] / 2
                spin = spin + rotate(quat, axis[None]) * qvel[:, velocity, None]
                quat = multiply(quat, np.concatenate([np.cos(half), np.sin(half) * axis], axis=1))
            quats.append(quat)
            spins.append(spin)
            places.append(places[parent] + arm)
            speeds.append(speeds[parent] + np.cross(spins[parent], arm))
        quat, spin = np.stack(quats, axis=1), np.stack(spins, axis=1)
        speed = np.stack(speeds, axis=1) + np.cross(spin, rotate(quat, com))
        return np.concatenate([np.stack(places, axis=1), quat, speed, spin], axis=2)
