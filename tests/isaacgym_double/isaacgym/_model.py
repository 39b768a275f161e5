"""The MuJoCo model of one environment: a movable actor, fixed boxes, and the ground under it."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from ._assets import Asset, shape_name
from ._masses import Masses
from ._terrain import Tile
from ._values import (
    DofDriveMode,
    PlaneParams,
    RigidShapeProperties,
    SimParams,
    Transform,
)

GROUND, PLANE = "ground", "plane"
_AWAY_M = -1000.0
_HFIELD_BASE_M = 0.5


@dataclass(eq=False)
class Actor:
    """An asset placed in an environment; `index` counts over the simulation, `handle` in it."""

    asset: Asset
    name: str
    handle: int
    index: int
    pose: Transform
    group: int
    shapes: list[RigidShapeProperties]
    masses: Masses
    dofs: np.ndarray
    first_body: int
    first_dof: int

    @property
    def body_count(self) -> int:
        """Number of its bodies."""
        return len(self.asset.body_names)


@dataclass(frozen=True)
class Ground:
    """What is under all environments."""

    tiles: tuple[Tile, ...]
    tile_friction: float
    plane: PlaneParams | None


@dataclass(frozen=True)
class Scene:
    """A model's structure: the movable asset, and which of its shapes each fixed box meets."""

    movable: Asset
    boxes: tuple[tuple[bool, ...], ...]


def box_name(slot: int) -> str:
    """MuJoCo's name of a fixed box and of its body."""
    return f"fixed_box_{slot}"


def pose_array(pose: Transform) -> np.ndarray:
    """(7,) position and quaternion wxyz."""
    r = pose.r
    return np.array([pose.p.x, pose.p.y, pose.p.z, r.w, r.x, r.y, r.z])


def build_model(scene: Scene, ground: Ground, params: SimParams) -> mujoco.MjModel:
    """A model with a sensor of the net contact force on every body, movable ones first.

    The integrator and the solver's iterations are those of the robots' MJCF files, so that runs
    through the double compare with runs on those.
    """
    asset = scene.movable
    spec = asset.spec.copy() if asset.spec is not None else _free_box(asset)
    for body in spec.bodies[1:]:
        # Centres of mass move away from where shortcuts for simple bodies hold.
        body.simple = 0
    _set_options(spec, params)
    everything = (True,) * len(asset.shapes)
    others: list[tuple[str, tuple[bool, ...]]]
    others = [(name, everything) for name in _add_ground(spec, ground)]
    for slot, meets in enumerate(scene.boxes):
        body = spec.worldbody.add_body(name=box_name(slot))
        body.add_geom(
            name=box_name(slot),
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[1.0] * 3,
            contype=0,
            conaffinity=0,
        )
        others.append((box_name(slot), meets))
    for other, meets in others:
        for number in np.flatnonzero(meets):
            spec.add_pair(geomname1=other, geomname2=shape_name(int(number)), condim=3)
    for joint in asset.dof_names:
        motor = spec.add_actuator(
            name=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT, target=joint, ctrllimited=False
        )
        motor.set_to_motor()
        motor.forcelimited = True
        motor.forcerange = [-1.0, 1.0]
    for body in (*asset.body_names, *map(box_name, range(len(scene.boxes)))):
        spec.add_sensor(
            name=body,
            type=mujoco.mjtSensor.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_BODY,
            objname=body,
            # The force, the net of all contacts, one result.
            intprm=[1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE), 3, 1],
        )
    return spec.compile()


def _free_box(asset: Asset) -> mujoco.MjSpec:
    spec = mujoco.MjSpec()
    body = spec.worldbody.add_body(name=asset.body_names[0])
    body.add_freejoint()
    body.explicitinertial = True
    body.mass, body.inertia = asset.masses.mass[0], np.diag(asset.masses.inertia[0])
    shape = body.add_geom(
        name=shape_name(0), type=mujoco.mjtGeom.mjGEOM_BOX, size=asset.half_size_m
    )
    shape.contype = shape.conaffinity = 0
    return spec


def _set_options(spec: mujoco.MjSpec, params: SimParams) -> None:
    gravity = params.gravity
    spec.option.timestep = params.dt / params.substeps
    spec.option.gravity = [gravity.x, gravity.y, gravity.z]
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
    spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    spec.option.iterations = spec.option.ls_iterations = 6
    spec.option.disableflags = int(mujoco.mjtDisableBit.mjDSBL_EULERDAMP)


def _add_ground(spec: mujoco.MjSpec, ground: Ground) -> list[str]:
    """Height field and plane; what of them there is."""
    names = []
    if ground.tiles:
        ny, nx = ground.tiles[0].heights.shape
        spec.add_hfield(
            name=GROUND, nrow=ny, ncol=nx, size=[1, 1, 1, 0.5], userdata=np.zeros(nx * ny)
        )
        # A body of its own: its place can change, and the shape stays at the body's origin.
        body = spec.worldbody.add_body(name=GROUND, pos=[0.0, 0.0, _AWAY_M])
        shape = body.add_geom(name=GROUND, type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname=GROUND)
        shape.contype = shape.conaffinity = 0
        names.append(GROUND)
    if ground.plane is not None:
        height = [0.0, 0.0, -ground.plane.distance]
        shape = spec.worldbody.add_geom(
            name=PLANE, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], pos=height
        )
        shape.contype = shape.conaffinity = 0
        names.append(PLANE)
    return names


def write_tile(model: mujoco.MjModel, tile: Tile | None) -> None:
    """Put a tile under an environment, or take the ground away."""
    body, geom = model.body(GROUND).id, model.geom(GROUND).id
    if tile is None:
        model.body_pos[body] = 0.0, 0.0, _AWAY_M
        return
    low = float(tile.heights.min())
    relief = max(float(tile.heights.max()) - low, 0.01)
    size = (*tile.half, relief, _HFIELD_BASE_M)
    model.hfield_size[0] = size
    model.hfield_data[:] = ((tile.heights - low) / relief).ravel()
    model.body_pos[body] = *tile.centre, low
    model.geom_size[geom] = size[:3]
    model.geom_rbound[geom] = np.linalg.norm([*tile.half, max(relief, _HFIELD_BASE_M)])
    thick = relief + _HFIELD_BASE_M
    model.geom_aabb[geom] = 0, 0, relief - thick / 2, *tile.half, thick / 2


def write_box(model: mujoco.MjModel, slot: int, box: Actor) -> None:
    """Size and place of a fixed box."""
    body, geom = model.body(box_name(slot)).id, model.geom(box_name(slot)).id
    pose = pose_array(box.pose)
    model.body_pos[body], model.body_quat[body] = pose[:3], pose[3:]
    model.geom_size[geom] = box.asset.half_size_m
    model.geom_rbound[geom] = np.linalg.norm(box.asset.half_size_m)
    model.geom_aabb[geom] = 0, 0, 0, *box.asset.half_size_m


def write_friction(
    model: mujoco.MjModel, movable: Actor, boxes: list[Actor], ground: Ground
) -> None:
    """Friction of every pair: the average of its two shapes', as PhysX combines them."""
    plane = 0.0 if ground.plane is None else ground.plane.static_friction
    other = {GROUND: ground.tile_friction, PLANE: plane}
    other.update({box_name(slot): box.shapes[0].friction for slot, box in enumerate(boxes)})
    own = {shape_name(i): shape.friction for i, shape in enumerate(movable.shapes)}
    both = other | own
    friction = {model.geom(name).id: value for name, value in both.items() if _has(model, name)}
    for pair in range(model.npair):
        first, second = int(model.pair_geom1[pair]), int(model.pair_geom2[pair])
        model.pair_friction[pair, :2] = (friction[first] + friction[second]) / 2


def _has(model: mujoco.MjModel, geom: str) -> bool:
    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, geom) >= 0


def write_dofs(model: mujoco.MjModel, movable: Actor) -> None:
    """Limits and passive properties of joints; a joint not driven by efforts answers to none."""
    for name, dof in zip(movable.asset.dof_names, movable.dofs, strict=True):
        joint = model.joint(name).id
        address = model.jnt_dofadr[joint]
        model.jnt_limited[joint] = bool(dof["hasLimits"])
        if dof["hasLimits"]:
            model.jnt_range[joint] = dof["lower"], dof["upper"]
        model.dof_damping[address] = dof["damping"]
        model.dof_armature[address] = dof["armature"]
        effort = dof["effort"] if dof["driveMode"] == DofDriveMode.DOF_MODE_EFFORT else 0.0
        model.actuator_forcerange[model.actuator(name).id] = -effort, effort


def write_masses(model: mujoco.MjModel, movable: Actor) -> None:
    """Masses, centres of mass and inertias; bodies with the asset's own values keep MuJoCo's."""
    new, own = movable.masses, movable.asset.masses
    for row, name in enumerate(movable.asset.body_names):
        body = model.body(name).id
        model.body_mass[body], model.body_ipos[body] = new.mass[row], new.com[row]
        if (new.inertia[row] != own.inertia[row]).any():
            values, axes = np.linalg.eigh(new.inertia[row])
            axes[:, 0] *= np.sign(np.linalg.det(axes))
            model.body_inertia[body] = values
            mujoco.mju_mat2Quat(model.body_iquat[body], axes.ravel())
