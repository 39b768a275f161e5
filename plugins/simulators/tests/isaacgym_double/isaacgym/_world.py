"""Robots, each among its boxes on its own tile of ground: a MuJoCo model an environment."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

_XYZW, _WXYZ = [1, 2, 3, 0], [3, 0, 1, 2]
_EFFORT_DRIVEN = 3


class GymMisuse(RuntimeError):
    """A call that Isaac Gym forbids, or one whose result nobody should rely on."""


@dataclass(eq=False)
class Asset:
    """A robot (`spec`) or a fixed box; bodies and joints depth first, siblings by the alphabet."""

    body_names: list[str]
    dof_names: list[str]
    shape_counts: list[int]
    half_size_m: np.ndarray | None = None
    spec: Any = None
    dofs: np.ndarray = field(default_factory=lambda: np.zeros(0))
    shapes: list[Any] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    def masses(self) -> Iterator[tuple[float, list[float], np.ndarray]]:
        """Mass, centre of mass and inertia about it (3, 3) of every body, in its frame."""
        model = self.spec.compile()
        for name in self.body_names:
            body, axes = model.body(name), np.zeros(9)
            mujoco.mju_quat2Mat(axes, body.iquat)
            turn = axes.reshape(3, 3)
            yield float(body.mass[0]), body.ipos.tolist(), turn * body.inertia @ turn.T


@dataclass(eq=False)
class Actor:
    """An asset at a pose (7,), quaternion xyzw; `index` counts over the simulation."""

    asset: Asset
    pose: np.ndarray
    group: int
    index: int


@dataclass(eq=False)
class Env:
    """A robot and its boxes."""

    sim: "Sim"
    actors: list[Actor] = field(default_factory=list)


def read_urdf(path: Path) -> Asset:
    """A robot of hinges and fixed joints, with a free root."""
    spec = mujoco.MjSpec.from_file(str(path))
    spec.compiler.fusestatic = spec.compiler.discardvisual = False
    root = spec.worldbody.first_body()
    bodies = _depth_first(root)
    joints = [joint for body in bodies for joint in body.joints]
    root.add_freejoint()
    for joint in joints:
        joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
    names = [body.name for body in bodies], [joint.name for joint in joints]
    return Asset(*names, [len(body.geoms) for body in bodies], spec=spec)


def _depth_first(body: Any) -> list[Any]:
    below = sorted(body.bodies, key=lambda child: child.name)
    return [body, *(each for child in below for each in _depth_first(child))]


class Sim:
    def __init__(self, dt: float, gravity: float):
        self._dt, self._gravity = dt, gravity
        self.envs: list[Env] = []
        self._tiles: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._worlds: list[_World] = []
        self._tensors: dict[str, np.ndarray] = {}
        self._written: set[str] = set()
        self.fetched = True

    def building(self, call: str) -> None:
        if self._worlds:
            raise GymMisuse(f"{call}: only before prepare_sim")

    def actors(self) -> list[Actor]:
        return [actor for env in self.envs for actor in env.actors]

    def add_tile(self, points: np.ndarray, friction: float) -> None:
        """A grid of points (n, 3) in any order; triangles between them are taken on trust."""
        if friction:
            raise GymMisuse("the double's ground and boxes have no friction of their own")
        x, y = (np.unique(points[:, axis]) for axis in (0, 1))
        rows = points[np.lexsort(points[:, :2].T)]
        low, high = np.array([x[0], y[0]]), np.array([x[-1], y[-1]])
        self._tiles.append(
            (rows[:, 2].reshape(len(y), len(x)), (low + high) / 2.0, (high - low) / 2.0)
        )

    def prepare(self) -> None:
        assets = [actor.asset for actor in self.actors()]
        bodies = sum(len(asset.body_names) for asset in assets)
        dofs = sum(len(asset.dof_names) for asset in assets)
        shapes = {"root": (len(assets), 13), "dof": (dofs, 2), "contact": (bodies, 3)}
        shapes["body"] = bodies, 13
        self._tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        first_body = first_dof = 0
        for env in self.envs:
            tile = self._tile_under(env.actors[0].pose)
            world = _World(env, tile, self._dt, self._gravity, first_body, first_dof)
            first_body, first_dof = world.bodies.stop, world.dofs.stop
            self._worlds.append(world)
        for name in self._tensors:
            self.refresh(name)

    def _tile_under(self, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        for tile in self._tiles:
            if (np.abs(pose[:2] - tile[1]) <= tile[2]).all():
                return tile
        raise GymMisuse(f"the double's robots start on a tile, and not at {pose[:2]}")

    def tensor(self, name: str) -> np.ndarray:
        if not self._worlds:
            raise GymMisuse(f"the {name} tensor: only after prepare_sim")
        return self._tensors[name]

    def refresh(self, name: str) -> None:
        """A tensor changes here alone."""
        if not self.fetched:
            raise GymMisuse(f"refresh of {name}: fetch_results comes first on the CPU pipeline")
        for world in self._worlds:
            world.show(name, self._tensors[name])

    def set_states(self, name: str, states: np.ndarray, ids: np.ndarray) -> None:
        self._write(name, states, self._tensors[name].shape)
        if ids.dtype != np.int32 or len(set(ids.tolist())) != len(ids):
            raise GymMisuse(f"{name} states: actor ids are different numbers of int32, not {ids}")
        worlds = {world.robot: world for world in self._worlds}
        for index in ids.tolist():
            if index not in worlds:
                raise GymMisuse(f"{name} states: {index} is no robot's id; allowed: {list(worlds)}")
            worlds[index].set_states(name, states)

    def set_efforts(self, efforts: np.ndarray) -> None:
        count = len(self._tensors["dof"])
        self._write("efforts", efforts.reshape(-1), (count,))
        for world in self._worlds:
            world.set_efforts(efforts.reshape(-1))

    def _write(self, what: str, numbers: np.ndarray, shape: tuple[int, ...]) -> None:
        """Refuse numbers of another type or shape, and the second call of a kind in a step."""
        if numbers.dtype != np.float32 or numbers.shape != shape or not np.isfinite(numbers).all():
            raise GymMisuse(f"{what}: {numbers.dtype} {numbers.shape} for float32 {shape}")
        if what in self._written:
            raise GymMisuse(f"{what} were already set in this step; merge the two calls")
        self._written.add(what)

    def simulate(self) -> None:
        for world in self._worlds:
            world.step()
        self._written.clear()
        self.fetched = False


class _World:
    """An environment's model and state, and which rows of the tensors are its."""

    def __init__(
        self, env: Env, tile: Any, dt: float, gravity: float, first_body: int, first_dof: int
    ):
        actor, *boxes = env.actors
        robot = actor.asset
        spec = robot.spec.copy()
        spec.option.timestep, spec.option.gravity = dt, [0.0, 0.0, gravity]
        # The integrator and the solver's iterations of the robots' MJCF files: runs compare.
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
        spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
        spec.option.iterations = spec.option.ls_iterations = 6
        spec.option.disableflags = int(mujoco.mjtDisableBit.mjDSBL_EULERDAMP)
        _add_ground(spec, tile)
        for slot, box in enumerate(boxes):
            _add_box(spec, slot, box)
        _write_robot(spec, actor, boxes)
        self._model = model = spec.compile()
        # Links on fixed joints are one with what carries them: their contacts are as soft.
        model.body_invweight0[:] = model.body_invweight0[model.body_weldid]
        self._data = mujoco.MjData(model)
        self.robot = actor.index
        self._rest = np.zeros((len(boxes), 13))
        self._rest[:, :7] = np.array([box.pose for box in boxes]).reshape(-1, 7)
        names = [*robot.body_names, *map(_box_name, range(len(boxes)))]
        self._ids = [model.body(name).id for name in names]
        self._own = self._ids[: len(robot.body_names)]
        self._qpos = [int(model.joint(name).qposadr[0]) for name in robot.dof_names]
        self._qvel = [int(model.joint(name).dofadr[0]) for name in robot.dof_names]
        self._limit = np.where(robot.dofs["driveMode"] == _EFFORT_DRIVEN, robot.dofs["effort"], 0.0)
        self.bodies = slice(first_body, first_body + len(names))
        self.dofs = slice(first_dof, first_dof + len(robot.dof_names))
        self._data.qpos[:7] = actor.pose[[0, 1, 2, 6, 3, 4, 5]]

    def show(self, name: str, tensor: np.ndarray) -> None:
        data = self._data
        if name == "dof":
            tensor[self.dofs] = np.transpose([data.qpos[self._qpos], data.qvel[self._qvel]])
        elif name == "contact":
            mujoco.mj_rnePostConstraint(self._model, data)
            tensor[self.bodies] = data.cfrc_ext[self._ids, 3:]
        elif name == "body":
            tensor[self.bodies] = np.concatenate([self._states(), self._rest])
        else:
            rows = slice(self.robot, self.robot + 1 + len(self._rest))
            tensor[rows] = np.concatenate([self._states()[:1], self._rest])

    def _states(self) -> np.ndarray:
        """(links, 13) of the robot."""
        model, data = self._model, self._data
        for update in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_comVel):
            update(model, data)
        spin, about = data.cvel[self._own, :3], data.subtree_com[self._own[0]]
        speed = data.cvel[self._own, 3:] + np.cross(spin, data.xipos[self._own] - about)
        quat = data.xquat[self._own][:, _XYZW]
        return np.concatenate([data.xpos[self._own], quat, speed, spin], axis=1)

    def set_states(self, name: str, tensor: np.ndarray) -> None:
        data = self._data
        if name == "dof":
            data.qpos[self._qpos], data.qvel[self._qvel] = tensor[self.dofs].T
            return
        state, axes = tensor[self.robot].astype(float), np.zeros(9)
        data.qpos[:3], data.qpos[3:7] = state[:3], state[3:7][_WXYZ]
        mujoco.mju_normalize4(data.qpos[3:7])
        mujoco.mju_quat2Mat(axes, data.qpos[3:7])
        turn, spin = axes.reshape(3, 3), state[10:13]
        data.qvel[:3] = state[7:10] - np.cross(spin, turn @ self._model.body_ipos[self._own[0]])
        data.qvel[3:6] = turn.T @ spin

    def set_efforts(self, efforts: np.ndarray) -> None:
        self._data.qfrc_applied[self._qvel] = np.clip(efforts[self.dofs], -self._limit, self._limit)

    def step(self) -> None:
        self._data.qacc_warmstart[:] = 0.0
        mujoco.mj_step(self._model, self._data)
        self._data.qfrc_applied[:] = 0.0


def _add_ground(spec: Any, tile: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    heights, centre, half = tile
    low = float(heights.min())
    relief = max(float(np.ptp(heights)), 0.01)
    ny, nx = heights.shape
    data = (heights - low).ravel()
    spec.add_hfield(name="ground", nrow=ny, ncol=nx, size=[*half, relief, 0.5], userdata=data)
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_HFIELD,
        hfieldname="ground",
        pos=[*centre, low],
        contype=0,
        conaffinity=1,
    )


def _box_name(slot: int) -> str:
    return f"fixed box {slot}"


def _add_box(spec: Any, slot: int, box: Actor) -> None:
    body = spec.worldbody.add_body(name=_box_name(slot), pos=box.pose[:3], quat=box.pose[3:][_WXYZ])
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=box.asset.half_size_m,
        contype=0,
        conaffinity=2 << slot,
    )
    if box.asset.shapes[0].friction:
        raise GymMisuse("the double's ground and boxes have no friction of their own")


def _write_robot(spec: Any, actor: Actor, boxes: list[Actor]) -> None:
    """Masses, joints, friction, and what meets what: shapes of one group without a common bit."""
    robot = actor.asset
    if not np.bitwise_and.reduce([shape.filter for shape in robot.shapes]):
        raise GymMisuse("the double has no self-collisions: give all shapes a bit in common")
    shapes = iter(robot.shapes)
    for name, properties in zip(robot.body_names, robot.bodies, strict=True):
        body, rows = spec.body(name), properties.inertia
        body.explicitinertial = True
        body.mass, com = properties.mass, properties.com
        body.ipos, body.iquat = [com.x, com.y, com.z], [1, 0, 0, 0]
        body.fullinertia = [rows.x.x, rows.y.y, rows.z.z, rows.x.y, rows.x.z, rows.y.z]
        for geom in body.geoms:
            shape = next(shapes)
            meets = [box.group == actor.group and not shape.filter & box.asset.shapes[0].filter
                     for box in boxes]  # fmt: skip
            geom.contype = 1 + sum(2 << slot for slot in np.flatnonzero(meets).tolist())
            geom.conaffinity, geom.priority = 0, 1
            # PhysX averages a pair's coefficients; the other one's is 0.
            geom.friction[0] = shape.friction / 2
    for name, dof in zip(robot.dof_names, robot.dofs, strict=True):
        joint = spec.joint(name)
        joint.armature, joint.damping, joint.frictionloss = float(dof["armature"]), np.zeros(3), 0.0
