"""Assets: robots from URDF files, read by MuJoCo, and boxes."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np

from ._masses import Masses
from ._values import (
    DOF_DTYPE,
    AssetOptions,
    DofDriveMode,
    GymMisuse,
    IndexRange,
    RigidShapeProperties,
)


@dataclass(eq=False)
class Asset:
    """What actors are made from.

    Bodies and joints are in Isaac Gym's order: depth first, siblings by the alphabet, whatever the
    file's order. `spec` is the robot's; a box has `half_size_m` instead. `shapes_of_body` are shape
    numbers a body; `com_m` is for the box's middle (0, 0, 0).
    """

    fixed: bool
    body_names: list[str]
    dof_names: list[str]
    dof_properties: np.ndarray
    masses: Masses
    shapes: list[RigidShapeProperties]
    shapes_of_body: list[IndexRange]
    spec: mujoco.MjSpec | None = None
    half_size_m: np.ndarray = field(default_factory=lambda: np.zeros(3))


def shape_name(number: int) -> str:
    """MuJoCo's name of a robot's shape."""
    return f"shape_{number}"


def make_box(size_m: tuple[float, float, float], options: AssetOptions) -> Asset:
    """A box with its origin in the middle and the options' density."""
    _check_options(options)
    half = np.array(size_m) / 2
    if (half <= 0).any():
        raise GymMisuse(f"create_box: sides of {size_m} m")
    mass = 8 * half.prod() * options.density
    squares = half**2
    inertia = mass / 3 * np.diag(squares.sum() - squares)
    return Asset(
        fixed=options.fix_base_link,
        body_names=["box"],
        dof_names=[],
        dof_properties=np.zeros(0, DOF_DTYPE),
        masses=Masses(np.array([mass]), np.zeros((1, 3)), inertia[None]),
        shapes=[RigidShapeProperties()],
        shapes_of_body=[IndexRange(0, 1)],
        half_size_m=half,
    )


def load_urdf(path: Path, options: AssetOptions) -> Asset:
    """A robot of revolute and fixed joints with primitive shapes.

    Joint damping, friction and armature start at zero whatever the file says.

    Raises:
        GymMisuse: a file that does not load, and options or contents that the double lacks.
    """
    _check_options(options)
    if options.fix_base_link:
        raise GymMisuse("load_asset: the double fixes boxes alone")
    try:
        spec = mujoco.MjSpec.from_file(str(path))
    except (ValueError, mujoco.FatalError) as error:
        raise GymMisuse(f"load_asset: {path}: {str(error).splitlines()[0]}") from None
    _check_joints(path, options)
    # Links held by a fixed joint that is not to be collapsed stay bodies of their own.
    spec.compiler.fusestatic = False
    spec.compiler.discardvisual = False
    root = spec.worldbody.first_body()
    root.add_freejoint()
    bodies = _in_gym_order(root)
    shapes = [shape for body in bodies for shape in body.geoms]
    for number, shape in enumerate(shapes):
        _prepare_shape(shape, number, options)
    hinges = [joint for body in bodies for joint in body.joints if _is_hinge(joint)]
    dofs = np.zeros(len(hinges), DOF_DTYPE)
    for dof, joint in zip(dofs, hinges, strict=True):
        limited = joint.range[0] < joint.range[1]
        dof["hasLimits"] = limited
        dof["lower"], dof["upper"] = joint.range if limited else (-np.inf, np.inf)
        dof["driveMode"] = options.default_dof_drive_mode
        dof["velocity"] = _limit(path, joint.name, "velocity")
        dof["effort"] = joint.actfrcrange[1]
        joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
        joint.damping, joint.frictionloss, joint.armature = np.zeros(3), 0.0, 0.0
    names = [body.name for body in bodies]
    counts = [len(body.geoms) for body in bodies]
    starts = np.cumsum([0, *counts])
    return Asset(
        fixed=False,
        body_names=names,
        dof_names=[joint.name for joint in hinges],
        dof_properties=dofs,
        masses=_masses(spec.compile(), names),
        shapes=[RigidShapeProperties() for _ in shapes],
        shapes_of_body=[IndexRange(int(starts[i]), n) for i, n in enumerate(counts)],
        spec=spec,
    )


def copies(shapes: list[RigidShapeProperties]) -> list[RigidShapeProperties]:
    """Getters of properties give copies, setters keep them."""
    return [copy.copy(shape) for shape in shapes]


def _check_options(options: AssetOptions) -> None:
    """What the double has no physics for has to be off, for what moves."""
    if options.fix_base_link:
        return
    for name in ("angular_damping", "linear_damping", "armature", "disable_gravity"):
        if getattr(options, name):
            raise GymMisuse(
                f"AssetOptions.{name} is {getattr(options, name)}; the double models none"
            )
    if options.default_dof_drive_mode not in (
        DofDriveMode.DOF_MODE_NONE,
        DofDriveMode.DOF_MODE_EFFORT,
    ):
        raise GymMisuse("AssetOptions.default_dof_drive_mode: the double has efforts alone")


def _check_joints(path: Path, options: AssetOptions) -> None:
    for joint in ElementTree.parse(path).getroot().iter("joint"):
        name, kind = joint.get("name"), joint.get("type")
        if kind not in ("revolute", "continuous", "fixed"):
            raise GymMisuse(f"load_asset: {name} is {kind}; the double has hinges alone")
        kept = joint.get("dont_collapse") == "true" or not options.collapse_fixed_joints
        if kind == "fixed" and not kept:
            raise GymMisuse(f"load_asset: the double cannot collapse the fixed joint {name}")


def _limit(path: Path, joint: str, what: str) -> float:
    found = ElementTree.parse(path).getroot().find(f"./joint[@name='{joint}']/limit")
    return 0.0 if found is None else float(found.get(what, 0.0))


def _in_gym_order(body: mujoco.MjsBody) -> list[mujoco.MjsBody]:
    below = sorted(body.bodies, key=lambda child: child.name)
    return [body, *(found for child in below for found in _in_gym_order(child))]


def _is_hinge(joint: mujoco.MjsJoint) -> bool:
    return joint.type == mujoco.mjtJoint.mjJNT_HINGE


def _prepare_shape(shape: mujoco.MjsGeom, number: int, options: AssetOptions) -> None:
    """Name a shape, and let it meet nothing: an environment's explicit pairs say what meets."""
    kinds = mujoco.mjtGeom
    if shape.type == kinds.mjGEOM_CYLINDER and options.replace_cylinder_with_capsule:
        # As long as the cylinder between the middles of its caps.
        shape.type = kinds.mjGEOM_CAPSULE
    if shape.type not in (
        kinds.mjGEOM_SPHERE,
        kinds.mjGEOM_CAPSULE,
        kinds.mjGEOM_CYLINDER,
        kinds.mjGEOM_BOX,
    ):
        raise GymMisuse("load_asset: the double has no meshes")
    shape.name = shape_name(number)
    shape.contype = shape.conaffinity = 0


def _masses(model: mujoco.MjModel, names: list[str]) -> Masses:
    bodies = [model.body(name).id for name in names]
    axes = np.zeros((len(bodies), 9))
    for turn, body in zip(axes, bodies, strict=True):
        mujoco.mju_quat2Mat(turn, model.body_iquat[body])
    axes = axes.reshape(-1, 3, 3)
    inertia = axes * model.body_inertia[bodies][:, None] @ axes.transpose(0, 2, 1)
    return Masses(model.body_mass[bodies], model.body_ipos[bodies], inertia)
