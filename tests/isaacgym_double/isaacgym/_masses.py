"""Masses of an actor's bodies, as arrays inside and as lists of properties outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._values import Mat33, RigidBodyProperties, Vec3


@dataclass(frozen=True, eq=False)
class Masses:
    """Of B bodies: mass (B,) in kg, centre of mass (B, 3), inertia about it (B, 3, 3)."""

    mass: np.ndarray
    com: np.ndarray
    inertia: np.ndarray

    def properties(self) -> list[RigidBodyProperties]:
        """One a body."""
        inverse = np.linalg.inv(self.inertia)
        return [
            RigidBodyProperties(
                mass=mass,
                invMass=1 / mass,
                com=Vec3(*com),
                inertia=_rows(inertia),
                invInertia=_rows(inverted),
            )
            for mass, com, inertia, inverted in zip(
                self.mass.tolist(),
                self.com.tolist(),
                self.inertia.tolist(),
                inverse.tolist(),
                strict=True,
            )
        ]

    def with_properties(
        self, bodies: Sequence[RigidBodyProperties], recompute_inertia: bool
    ) -> Masses:
        """What is set; recomputed inertias are those before, grown with the mass."""
        mass = np.array([body.mass for body in bodies])
        com = np.array([(body.com.x, body.com.y, body.com.z) for body in bodies])
        if recompute_inertia:
            return Masses(mass, com, self.inertia * (mass / self.mass)[:, None, None])
        rows = [(body.inertia.x, body.inertia.y, body.inertia.z) for body in bodies]
        inertia = np.array([[(v.x, v.y, v.z) for v in matrix] for matrix in rows])
        return Masses(mass, com, inertia)


def _rows(matrix: list[list[float]]) -> Mat33:
    return Mat33(*(Vec3(*row) for row in matrix))
