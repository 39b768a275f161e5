"""A robot's body: its colliding shapes as primitives, and a plain MJCF of them.

Every frame of that MJCF is along the trunk's axes at joint zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mujoco
import numpy as np

from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, LEGS, N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.timing import SUBSTEP_S
from gaitforge.plugins.robots.describing.anatomy import NAMES, Anatomy
from gaitforge.plugins.robots.describing.drives import Drives
from gaitforge.plugins.robots.describing.notes import Notes
from gaitforge.plugins.robots.writing import set_inertial

_G = mujoco.mjtGeom
_PRIMITIVES = (
    _G.mjGEOM_SPHERE,
    _G.mjGEOM_CAPSULE,
    _G.mjGEOM_ELLIPSOID,
    _G.mjGEOM_CYLINDER,
    _G.mjGEOM_BOX,
)
_SPHERE_LEAD_M = 0.01
_SOLE_M = 0.005
_LEAST_HALF_HEIGHT_M = 0.02


@dataclass(frozen=True)
class Shape:
    """A shape in the trunk's frame with all joints at 0.

    Attributes:
        part: 0 for the trunk, 1 + i for what joint i moves.
        kind: a primitive.
        size, pos, axes: (3,), (3,) m, (3, 3) columns, as MuJoCo has them.
        vertices: (V, 3) vertices of the mesh that the primitive replaces.
    """

    part: int
    kind: mujoco.mjtGeom
    size: np.ndarray
    pos: np.ndarray
    axes: np.ndarray
    name: str = ""
    vertices: np.ndarray | None = None

    def outline(self) -> tuple[np.ndarray, float]:
        """Points (P, 3) and a radius; the shape is the hull of balls around the points."""
        a, b, c = self.size
        if self.kind == _G.mjGEOM_SPHERE:
            points = np.zeros((1, 3))
            radius = a
        elif self.kind == _G.mjGEOM_CAPSULE:
            points = np.array([[0, 0, b], [0, 0, -b]])
            radius = a
        elif self.kind == _G.mjGEOM_CYLINDER:
            turn = np.linspace(0, 2 * np.pi, 33)[:-1]
            rim = np.stack([a * np.cos(turn), a * np.sin(turn)], axis=1)
            points = np.concatenate([np.insert(rim, 2, end, axis=1) for end in (b, -b)])
            radius = 0.0
        elif self.kind == _G.mjGEOM_BOX:
            points = np.array([*np.ndindex(2, 2, 2)]) * 2.0 * self.size - self.size
            radius = 0.0
        else:
            turn, rise = np.meshgrid(np.linspace(0, 2 * np.pi, 33), np.linspace(0, np.pi, 17))
            ball = [np.sin(rise) * np.cos(turn), np.sin(rise) * np.sin(turn), np.cos(rise)]
            points = np.stack(ball, axis=-1).reshape(-1, 3) * [a, b, c]
            radius = 0.0
        return self.pos + points @ self.axes.T, float(radius)

    def true_outline(self) -> tuple[np.ndarray, float]:
        """Outline of the original mesh if there was one, else `outline`."""
        return (self.vertices, 0.0) if self.vertices is not None else self.outline()


def collision_shapes(anatomy: Anatomy, notes: Notes) -> list[Shape]:
    """The robot's colliding shapes; a mesh becomes the box or capsule that encloses it."""
    model = anatomy.model
    shapes = []
    fitted = 0
    for g in range(model.ngeom):
        part = anatomy.parts.get(int(model.geom_bodyid[g]))
        if part is None or not (model.geom_contype[g] or model.geom_conaffinity[g]):
            continue
        kind = _G(int(model.geom_type[g]))
        name = model.geom(g).name
        pos = anatomy.places(anatomy.data.geom_xpos[g])
        axes = anatomy.axes.T @ anatomy.data.geom_xmat[g].reshape(3, 3)
        if kind in _PRIMITIVES:
            shapes.append(Shape(part, kind, model.geom_size[g].copy(), pos, axes, name))
        elif kind == _G.mjGEOM_MESH:
            mesh = model.mesh(int(model.geom_dataid[g]))
            first = int(mesh.vertadr[0])
            count = int(mesh.vertnum[0])
            vertices = pos + model.mesh_vert[first : first + count] @ axes.T
            shapes.append(replace(_enclosing(vertices, axes), part=part, name=name))
            fitted += 1
        else:
            raise notes.wrong(f"shape '{name}' is of a kind that no robot here may have: {kind}")
    if fitted:
        text = f"{fitted} replaced by the smallest box or capsule around each"
        notes.decide("meshes", text, "colliding shapes have to be primitives")
    if notes.answers.trunk_half_size_m:
        half = np.array(notes.answers.trunk_half_size_m)
        box = Shape(0, _G.mjGEOM_BOX, half, np.zeros(3), np.eye(3))
        shapes = [box, *(shape for shape in shapes if shape.part)]
    elif not any(shape.part == 0 for shape in shapes):
        notes.ask("--trunk-box X,Y,Z (half sizes in m: the trunk has no colliding shape)")
    return shapes


def _enclosing(vertices: np.ndarray, axes: np.ndarray) -> Shape:
    """The smallest enclosing box or capsule along the mesh's principal axes or the trunk's."""
    candidates = []
    for frame in (axes, np.eye(3)):
        local = vertices @ frame
        low = local.min(axis=0)
        high = local.max(axis=0)
        half = (high - low) / 2
        middle = (high + low) / 2
        box = Shape(0, _G.mjGEOM_BOX, half, frame @ middle, frame, vertices=vertices)
        candidates.append((8 * half.prod(), box))
        along = int(np.argmax(half))
        turned = np.roll(frame, 2 - along, axis=1)  # its z is the longest axis
        around = (local - middle) @ np.roll(np.eye(3), 2 - along, axis=1)
        radius = float(np.linalg.norm(around[:, :2], axis=1).max())
        # The caps' spheres have to hold the vertices beyond the capsule's cylinder.
        rise = np.sqrt(np.maximum(radius**2 - (around[:, :2] ** 2).sum(axis=1), 0.0))
        length = float(np.maximum(np.abs(around[:, 2]) - rise, 0.0).max())
        size = np.array([radius, max(length, 1e-4), 0.0])
        volume = np.pi * radius**2 * (2 * length + 4 / 3 * radius)
        capsule = Shape(0, _G.mjGEOM_CAPSULE, size, frame @ middle, turned, vertices=vertices)
        candidates.append((volume, capsule))
    return min(candidates, key=lambda candidate: candidate[0])[1]


def foot_shapes(anatomy: Anatomy, shapes: Sequence[Shape], notes: Notes) -> list[Shape]:
    """Each calf's shape that reaches farthest from the knee; a sphere if one is about as far."""
    feet = []
    for leg in range(N_LEGS):
        knee = anatomy.anchors[JOINTS_PER_LEG * leg + 2]
        part = JOINTS_PER_LEG * (leg + 1)
        calf_shapes = [shape for shape in shapes if shape.part == part]
        if not calf_shapes:
            raise notes.wrong(
                f"no colliding shape is below the knee of {LEGS[leg]}, "
                f"{anatomy.joint_names[part - 1]}: give its foot a sphere in the file"
            )
        spheres = [_SPHERE_LEAD_M * (shape.kind == _G.mjGEOM_SPHERE) for shape in calf_shapes]
        reach = [farthest(shape, knee)[1] for shape in calf_shapes]
        feet.append(calf_shapes[int(np.argmax(np.add(reach, spheres)))])
    return feet


def farthest(shape: Shape, place: np.ndarray) -> tuple[np.ndarray, float]:
    """The middle (3,) of a shape's farthest balls from a place, and how far they reach."""
    points, radius = shape.true_outline()
    distance = np.linalg.norm(points - place, axis=1)
    middle = points[distance > distance.max() - _SOLE_M].mean(axis=0)
    return middle, float(distance.max()) + radius


def round_foot(shape: Shape, up: np.ndarray) -> Shape:
    """A sphere that touches the ground where a foot's shape does, `up` (3,) being the vertical."""
    if shape.kind == _G.mjGEOM_SPHERE:
        return shape
    slender = shape.kind in (_G.mjGEOM_CAPSULE, _G.mjGEOM_CYLINDER)
    radius = float(shape.size[0] if slender else shape.size.min())
    points, around = shape.true_outline()
    rise = points @ up
    sole = points[rise < rise.min() + _SOLE_M]
    centre = (sole.min(axis=0) + sole.max(axis=0)) / 2
    centre = centre + up * (rise.min() - around + radius - centre @ up)
    return _sphere(shape.part, radius, centre.round(5) + 0.0, shape.name)


def _sphere(part: int, radius: float, centre: np.ndarray, name: str) -> Shape:
    size = np.array([radius, 0.0, 0.0])
    return Shape(part, _G.mjGEOM_SPHERE, size, centre, np.eye(3), name)


def with_feet_and_knees(
    anatomy: Anatomy, shapes: Sequence[Shape], old: Sequence[Shape], new: Sequence[Shape]
) -> tuple[list[Shape], list[Shape], list[Shape], int]:
    """Shapes with feet `new` for `old`, and sphere knees; feet; knees; how many knees are added."""
    feet = [replace(foot, name=foot.name or f"{LEGS[i]}_foot") for i, foot in enumerate(new)]
    remaining = [s for s in shapes if not any(s is foot for foot in old)]
    knees = []
    added = 0
    radius = min(float(foot.size[0]) for foot in feet)
    for leg in range(N_LEGS):
        anchor = anatomy.anchors[JOINTS_PER_LEG * leg + 2]
        part = JOINTS_PER_LEG * leg + 2
        spheres = [s for s in remaining if s.part == part and s.kind == _G.mjGEOM_SPHERE]
        at_knee = [s for s in spheres if np.linalg.norm(s.pos - anchor) < s.size[0] / 2]
        added += not at_knee
        knee = at_knee[0] if at_knee else _sphere(part, radius, anchor, "")
        remaining = [shape for shape in remaining if shape is not knee]
        knees.append(replace(knee, name=knee.name or f"{LEGS[leg]}_knee"))
    return [*remaining, *feet, *knees], feet, knees, added


def trunk_half_size(shapes: Sequence[Shape]) -> np.ndarray:
    """(3,) m: how far the trunk's shapes reach from its origin along x, y and upwards."""
    low, high = _extent([shape for shape in shapes if shape.part == 0])
    half = np.maximum(-low, high)
    half[2] = max(high[2], _LEAST_HALF_HEIGHT_M)
    return half.round(4)


def width(shapes: Sequence[Shape]) -> float:
    """The outline across the legs in m; thighs and calves do not move sideways by themselves."""
    low, high = _extent([shape for shape in shapes if shape.part])
    return float((2 * max(-low[1], high[1])).round(4))


def _extent(shapes: Sequence[Shape]) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest coordinates (3,) of shapes."""
    outlines = [shape.outline() for shape in shapes]
    low = np.min([points.min(axis=0) - radius for points, radius in outlines], axis=0)
    high = np.max([points.max(axis=0) + radius for points, radius in outlines], axis=0)
    return low, high


_GROUND = 1
_BARRIERS = 2
_BOTH = 3
_FRICTION = (0.7, 0.02, 0.01)
_FOOT_FRICTION = (0.8, 0.02, 0.01)
"""Frictions of the shipped robots; a foot's is redrawn in every episode."""
_SOLVER_ITERATIONS = 6


def part_mass(anatomy: Anatomy, part: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass in kg, centre (3,) and inertia (3, 3) about it, of all bodies of a part."""
    model = anatomy.model
    data = anatomy.data
    bodies = [body for body, body_part in anatomy.parts.items() if body_part == part]
    masses = model.body_mass[bodies]
    places = (data.xipos[bodies] - data.xpos[anatomy.trunk]) @ anatomy.axes
    mass = float(masses.sum())
    centre = masses @ places / mass if mass else places[0]
    inertia = np.zeros((3, 3))
    for body, weight, offset in zip(bodies, masses, places - centre, strict=True):
        turned = anatomy.axes.T @ data.ximat[body].reshape(3, 3)
        inertia += turned @ np.diag(model.body_inertia[body]) @ turned.T
        inertia += weight * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    return mass, centre, inertia


def write_body(
    path: Path, robot: RobotCard, anatomy: Anatomy, shapes: Sequence[Shape], drives: Drives
) -> None:
    """Write the MJCF of a robot that lacks only its gains."""
    spec = _empty(robot)
    trunk = spec.worldbody.add_body(name=robot.trunk_body, pos=[0, 0, robot.nominal_height_m])
    trunk.add_freejoint(name="root" if "root" not in robot.joint_names else "free")
    bodies = [trunk]
    origins = np.zeros((1 + N_JOINTS, 3))
    for i in range(N_JOINTS):
        first = i % JOINTS_PER_LEG == 0
        above = 0 if first else i
        shared = not first and _body_of(anatomy, i) == _body_of(anatomy, i - 1)
        origins[1 + i] = origins[above] if shared else anatomy.anchors[i]
        if shared:
            body = bodies[above]
        else:
            offset = origins[1 + i] - origins[above]
            name = anatomy.model.body(_body_of(anatomy, i)).name or NAMES[i]
            body = bodies[above].add_body(name=name, pos=_clean(offset))
        bodies.append(body)
        axis = np.zeros(3)
        axis[0 if first else 1] = anatomy.signs[i]
        body.add_joint(
            name=robot.joint_names[i],
            type=mujoco.mjtJoint.mjJNT_HINGE,
            pos=_clean(anatomy.anchors[i] - origins[1 + i]),
            axis=axis,
            range=[drives.lower[i], drives.upper[i]],
            armature=drives.armature[i],
            damping=drives.damping[i],
        )
    for part, body in enumerate(bodies):
        if part == len(bodies) - 1 or bodies[part + 1] is not body:
            mass, centre, inertia = part_mass(anatomy, part)
            set_inertial(body, mass, _clean(centre - origins[part]), inertia)
    for shape in shapes:
        _add_shape(bodies[shape.part], robot, shape, origins[shape.part])
    spec.compile()
    path.write_text(spec.to_xml(), encoding="utf-8")


def _empty(robot: RobotCard) -> mujoco.MjSpec:
    """A spec with the options of the shipped robots."""
    spec = mujoco.MjSpec()
    spec.modelname = robot.name
    spec.comment = (  # without the user's words, which could hold what XML forbids in comments
        "From what and how it was made is in the card, robot.json.\n"
        "SI units, x forward, y left, z up; frames are along the trunk's while all joints are at 0."
        "\nconaffinity says what a shape may meet: 1 the ground, 2 barriers, 3 both."
    )
    spec.compiler.degree = False
    spec.option.timestep = SUBSTEP_S
    spec.option.iterations = spec.option.ls_iterations = _SOLVER_ITERATIONS
    spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_EULERDAMP)
    spec.default.geom.contype = 0
    spec.default.geom.conaffinity = _BARRIERS
    spec.default.geom.friction = _FRICTION
    return spec


def _add_shape(body: mujoco.MjsBody, robot: RobotCard, shape: Shape, origin: np.ndarray) -> None:
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, shape.axes.ravel())
    geom = body.add_geom(
        name=shape.name if shape.name in (*robot.foot_geoms, *robot.knee_geoms) else "",
        type=shape.kind,
        size=shape.size.round(6),
        pos=_clean(shape.pos - origin),
        quat=_clean(quat),
    )
    if shape.name in robot.foot_geoms:
        geom.conaffinity = _BOTH
        geom.friction = _FOOT_FRICTION
    elif shape.name in robot.knee_geoms:
        geom.conaffinity = _GROUND
    elif shape.part == 0:
        geom.conaffinity = _BOTH


def _body_of(anatomy: Anatomy, index: int) -> int:
    return int(anatomy.model.jnt_bodyid[anatomy.joints[index]])


def _clean(values: np.ndarray) -> np.ndarray:
    """Rounded as in the card, without a negative zero."""
    return values.round(6) + 0.0
