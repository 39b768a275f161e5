"""Check the inertias that a file states against what a body of that mass and size can have."""

from dataclasses import dataclass
from itertools import product

import mujoco
import numpy as np

from gaitforge.collectors.modelling.describing.notes import Notes

_TOLERANCE = 1e-3
"""Relative error of a stated tensor, as files round it."""

_REFUSED_ABOVE = 300.0
_REFUSED_BELOW = 1 / 3000
_NOTED_BELOW = 1 / 300
"""Largest moment over that of a solid box. Where colliding shapes cover a part of a link only, it
reaches about 50; kg cm2 taken for kg m2 make it 10,000."""

_LEAST_SIZE_M = 0.005
_LEAST_MASS_KG = 0.005
_MOST_DENSITY = 1e5
"""kg/m3 of a link's box; tungsten has 19,300, and shapes may be smaller than the link."""

_SLIPS = {
    1e3: "are masses or inertias in g and g m2?",
    1e4: "is it in kg cm2? divide by 1e4",
    1e6: "is it in kg mm2? divide by 1e6",
    1e9: "is it in g mm2? divide by 1e9",
    1e-3: "was it divided by 1e3 once too often, or is the mass in g?",
    1e-4: "was it converted from kg cm2 twice? multiply by 1e4",
    1e-6: "was it converted from kg mm2 twice? multiply by 1e6",
    1e-9: "was it converted from g mm2 twice? multiply by 1e9",
}
"""A moment over the box's -> the likely slip of units."""

_SHOWN = 4


@dataclass(frozen=True)
class _Link:
    """A body with a stated inertia: kg, m and kg m2.

    Attributes:
        moments: (3,) principal moments, ascending. box: (3,) moments of a solid box of its mass
            and `size_m` (3,), zeros if nothing tells the size.
        moves: whether it has joints; others are fixed to it.
    """

    name: str
    mass: float
    size_m: np.ndarray
    moments: np.ndarray
    box: np.ndarray
    moves: bool

    @property
    def ratio(self) -> float:
        """Largest moment over the box's; 1 if the size or mass is too small to say."""
        if self.mass < _LEAST_MASS_KG or self.size_m.max() < _LEAST_SIZE_M or not self.moves:
            return 1.0
        return float(self.moments[2] / self.box.max())

    @property
    def is_impossible(self) -> bool:
        """Whether no body has these moments: one below 0, or larger than the others' sum."""
        low, middle, high = self.moments
        slack = _TOLERANCE * np.abs(self.moments).max()
        return bool(low < -slack or low + middle < high - slack)

    def as_box(self) -> str:
        """The box in words."""
        size = " x ".join(f"{length:.3g}" for length in self.size_m)
        x, y, z = self.box
        moments = f"ixx {x:.2g}, iyy {y:.2g}, izz {z:.2g}"
        return f"a box of its {self.mass:.3g} kg and {size} m has {moments}"


def check_inertias(spec: mujoco.MjSpec, notes: Notes) -> None:
    """Refuse impossible inertias and slips of units, by the links' names; note what is odd.

    RobotError gives the inertia of a box of the link's mass and size, to write into the file.
    """
    links = _links(spec)
    impossible = [link for link in links if link.is_impossible]
    balanced = [link for link in impossible if spec.compiler.balanceinertia and link.moments[0] > 0]
    if balanced:
        names = _listed([link.name for link in balanced])
        notes.decide("inertia", f"of {names}: equal moments, their mean", "balanceinertia")
    if refused := [link for link in impossible if link not in balanced]:
        raise notes.wrong(_impossible(refused))
    wrong = [link for link in links if not _REFUSED_BELOW < link.ratio < _REFUSED_ABOVE]
    if wrong:
        raise notes.wrong(f"{_compared(wrong)}; {wrong[0].as_box()} kg m2")
    if small := [link for link in links if link.ratio < _NOTED_BELOW]:
        notes.decide("caution", _compared(small), "inertia beside mass and size")
    if dense := [link for link in links if _density(link) > _MOST_DENSITY]:
        names = _listed([link.name for link in dense])
        text = f"mass of {names}: {_density(dense[0]):.2g} kg/m3; is it in g?"
        notes.decide("caution", text, "mass beside size")


def _impossible(links: list[_Link]) -> str:
    moments = ", ".join(f"{moment:.3g}" for moment in links[0].moments)
    remedy = f"write what {links[0].as_box()} kg m2" if links[0].box.any() else "mend <inertia>"
    names = [link.name for link in links[1:]]
    also = f"; the same of {_listed(names)}" if names else ""
    small = links[0].moments[0] > 0
    balance = "; or <compiler balanceinertia> makes the three moments equal" if small else ""
    return (
        f"link {links[0].name} has an impossible inertia, principal moments {moments} kg m2: none "
        f"may be negative or larger than the sum of the others; {remedy}{balance}{also}"
    )


def _compared(links: list[_Link]) -> str:
    first = links[0]
    factor = f"{first.ratio:.0e} times" if first.ratio > 1 else f"1/{1 / first.ratio:.0e} of"
    nearest = min(_SLIPS, key=lambda slip: abs(np.log10(first.ratio / slip)))
    return (
        f"inertia of {_listed([link.name for link in links])}: {first.moments[2]:.3g} kg m2 is "
        f"{factor} that of a box of its mass and size; {_SLIPS[nearest]}"
    )


def _density(link: _Link) -> float:
    """kg/m3 of the link's box; 0 where its size is not known in all directions."""
    thin = link.size_m.min() < _LEAST_SIZE_M or not link.moves
    return 0.0 if thin else link.mass / float(np.prod(link.size_m))


def _links(spec: mujoco.MjSpec) -> list[_Link]:
    stated = [body.explicitinertial and body.mass > 0 for body in spec.bodies]
    if not any(stated):
        return []
    links: list[_Link] = []
    for body, size, has_inertia in zip(spec.bodies, _sizes(spec), stated, strict=True):
        if not has_inertia:
            continue
        tensor = np.diag(body.inertia)
        full = np.array(body.fullinertia)
        if np.isfinite(full).all() and full.any():
            xx, yy, zz, xy, xz, yz = full
            tensor = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        squares = np.square(size)
        box = body.mass / 12 * (squares.sum() - squares)
        moments = np.linalg.eigvalsh(tensor)
        moves = bool(body.joints) or body.parent.name == "world"
        links.append(_Link(body.name, float(body.mass), size, moments, box, moves))
    return links


def _sizes(spec: mujoco.MjSpec) -> list[np.ndarray]:
    """(3,) extents of each body's shapes and of the joints of what hangs on it, m."""
    copy = _with_harmless_inertias(spec)
    model = copy.compile()
    sizes: list[np.ndarray] = []
    corners = np.array(list(product((-1.0, 1.0), repeat=3)))
    for body in [element.id for element in copy.bodies]:  # known since it was compiled
        points = [np.zeros((1, 3)), model.body_pos[model.body_parentid == body]]
        for geom in np.flatnonzero(model.geom_bodyid == body):
            center, half = np.split(model.geom_aabb[geom], 2)
            turn = np.zeros(9)
            mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
            box = (center + corners * half) @ turn.reshape(3, 3).T
            points.append(box + model.geom_pos[geom])
        sizes.append(np.ptp(np.concatenate(points), axis=0))
    return sizes


def _with_harmless_inertias(spec: mujoco.MjSpec) -> mujoco.MjSpec:
    """A copy that compiles, whatever inertias the file states."""
    copy = spec.copy()
    for body in copy.bodies:
        if body.explicitinertial:
            body.fullinertia = [np.nan, 0, 0, 0, 0, 0]
            body.inertia = [max(body.mass, 1e-6)] * 3
    return copy


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    hidden = len(names) - _SHOWN
    return f"{shown} and {hidden} more" if hidden > 0 else shown
