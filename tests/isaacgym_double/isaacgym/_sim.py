"""A simulation: environments while they are built, then batches and the buffers over them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np

from ._assets import Asset, copies
from ._batch import Batch
from ._buffers import Buffers
from ._model import Actor, Ground, Scene
from ._terrain import Tile
from ._values import (
    ContactCollection,
    DofDriveMode,
    GymMisuse,
    PlaneParams,
    RigidShapeProperties,
    SimParams,
    Tensor,
    TensorDataType,
    Transform,
    UpAxis,
)

MAX_MATERIALS = 64
"""Different (friction, restitution) of one simulation. PhysX itself stops at 64,000; randomised
friction is drawn from at most this many values, as legged_gym does."""


@dataclass(eq=False)
class Env:
    """One environment's actors."""

    sim: Sim
    index: int
    actors: list[Actor] = field(default_factory=list)


class Sim:
    """The state behind a `Sim` handle."""

    def __init__(self, params: SimParams):
        _check_params(params)
        self.params = copy.deepcopy(params)
        self.envs: list[Env] = []
        self.actors: list[Actor] = []
        self.frame = 0
        self.tiles: list[Tile] = []
        self.tile_friction: float | None = None
        self.plane: PlaneParams | None = None
        self._env_of_group: dict[int, int] = {}
        self._materials: set[tuple[float, float]] = set()
        self._batches: list[Batch] | None = None
        self._place: dict[int, tuple[int, int]] = {}
        self._buffers: Buffers | None = None
        self._closed = False
        self._fetched = True
        self._written: set[str] = set()

    def building(self, call: str) -> None:
        """Refuse what comes after `prepare_sim`."""
        self.open(call)
        if self._batches is not None:
            raise GymMisuse(f"{call}: only before prepare_sim")

    def prepared(self, call: str) -> Buffers:
        """The buffers; refuse what comes before `prepare_sim`."""
        self.open(call)
        if self._buffers is None:
            raise GymMisuse(f"{call}: only after prepare_sim")
        return self._buffers

    def open(self, call: str) -> None:
        """Refuse a simulation that was destroyed."""
        if self._closed:
            raise GymMisuse(f"{call}: the simulation was destroyed")

    def add_actor(
        self, env: Env, asset: Asset, pose: Transform, name: str, group: int, filter_bits: int
    ) -> Actor:
        """Create an actor; see `Gym.create_actor`."""
        self.building("create_actor")
        if env is not self.envs[-1]:
            raise GymMisuse("create_actor: a later environment exists already")
        if group < 0:
            raise GymMisuse("create_actor: the double has no collision group that meets all others")
        if self._env_of_group.setdefault(group, env.index) != env.index:
            raise GymMisuse(
                f"create_actor: group {group} is another environment's; they would meet"
            )
        shapes = copies(asset.shapes)
        for shape in shapes:
            shape.filter = shape.filter if filter_bits < 0 else filter_bits
        common = np.bitwise_and.reduce([shape.filter for shape in shapes])
        if len(shapes) > 1 and not common:
            raise GymMisuse(
                "create_actor: the double has no self-collisions: "
                "give all shapes of the actor a filter bit in common"
            )
        if not asset.fixed and any(not actor.asset.fixed for actor in env.actors):
            raise GymMisuse("create_actor: the double has one movable actor an environment")
        last = self.actors[-1] if self.actors else None
        actor = Actor(
            asset=asset,
            name=name,
            handle=len(env.actors),
            index=len(self.actors),
            pose=copy.deepcopy(pose),
            group=group,
            shapes=shapes,
            masses=asset.masses,
            dofs=asset.dof_properties.copy(),
            first_body=0 if last is None else last.first_body + last.body_count,
            first_dof=0 if last is None else last.first_dof + len(last.dofs),
        )
        self.actors.append(actor)
        env.actors.append(actor)
        return actor

    def set_shapes(self, actor: Actor, shapes: list[RigidShapeProperties]) -> None:
        """Change materials, also while it runs."""
        self.open("set_actor_rigid_shape_properties")
        if len(shapes) != len(actor.shapes):
            raise GymMisuse(f"{len(shapes)} shapes of an actor with {len(actor.shapes)}")
        actor.shapes = copies(shapes)
        if self._batches is not None:
            self._count_materials([actor])
            batch, row = self._place[actor.index]
            self._batches[batch].write_shapes(row)

    def set_dofs(self, actor: Actor, dofs: np.ndarray) -> None:
        """Change joints, also while it runs."""
        self.open("set_actor_dof_properties")
        if dofs.dtype != actor.dofs.dtype or dofs.shape != actor.dofs.shape:
            raise GymMisuse(f"set_actor_dof_properties: {dofs.shape} {dofs.dtype}")
        modes = {int(DofDriveMode.DOF_MODE_NONE), int(DofDriveMode.DOF_MODE_EFFORT)}
        if not set(dofs["driveMode"].tolist()) <= modes:
            raise GymMisuse("set_actor_dof_properties: the double drives joints by efforts alone")
        if dofs["stiffness"].any() or dofs["friction"].any():
            raise GymMisuse(
                "set_actor_dof_properties: the double has no stiffness, "
                "and no counterpart of PhysX's friction coefficient"
            )
        actor.dofs = dofs.copy()
        if self._batches is not None:
            batch, row = self._place[actor.index]
            self._batches[batch].write_dofs(row)

    def prepare(self) -> None:
        """Build the environments' models."""
        self.building("prepare_sim")
        self._count_materials(self.actors)
        ground = Ground(tuple(self.tiles), self.tile_friction or 0.0, self.plane)
        scenes: dict[Scene, list[tuple[Actor, list[Actor]]]] = {}
        for env in self.envs:
            movable = [actor for actor in env.actors if not actor.asset.fixed]
            boxes = [actor for actor in env.actors if actor.asset.fixed]
            if not movable:
                raise GymMisuse("prepare_sim: every environment of the double has a movable actor")
            meets = tuple(_meeting(movable[0], box) for box in boxes)
            scenes.setdefault(Scene(movable[0].asset, meets), []).append((movable[0], boxes))
        self._batches = [
            Batch(scene, actors, ground, self.params) for scene, actors in scenes.items()
        ]
        for number, batch in enumerate(self._batches):
            for row, boxes in enumerate(batch.boxes):
                for actor in (batch.movable[row], *boxes):
                    self._place[actor.index] = number, row
        self._buffers = Buffers(self.actors, self._batches)

    def tensor(self, call: str, name: str) -> Tensor:
        """The shared buffer of a kind of state."""
        buffer = getattr(self.prepared(call), name)
        return Tensor.of(buffer, TensorDataType.DTYPE_FLOAT32)

    def refresh(self, call: str, name: str) -> bool:
        """Copy the simulator's present state of a kind into its buffer."""
        buffers = self.prepared(call)
        if not self._fetched:
            raise GymMisuse(f"{call}: fetch_results comes first on the CPU pipeline")
        buffers.refresh(name)
        return True

    def set_root(self, call: str, states: Tensor, some: tuple[Tensor, int] | None = None) -> bool:
        """Keep root states, of all actors or of `some`: ids and their number."""
        buffers = self._first(call, "root states")
        buffers.set_root(call, states, None if some is None else buffers.ids(call, *some))
        self._written.add("root states")
        return True

    def set_dof(self, call: str, states: Tensor, some: tuple[Tensor, int] | None = None) -> bool:
        """Keep joint states, of all actors or of `some`: ids and their number."""
        buffers = self._first(call, "joint states")
        buffers.set_dof(call, states, None if some is None else buffers.ids(call, *some))
        self._written.add("joint states")
        return True

    def set_efforts(self, call: str, efforts: Tensor) -> bool:
        """Keep joint efforts for one step."""
        self._first(call, "efforts").set_efforts(call, efforts)
        self._written.add("efforts")
        return True

    def simulate(self) -> None:
        """Take over what was set, and step."""
        self.prepared("simulate").simulate()
        self._written.clear()
        self._fetched = False
        self.frame += 1

    def fetch(self) -> None:
        """The step's end, for which the CPU pipeline waits."""
        self.prepared("fetch_results")
        self._fetched = True

    def close(self) -> None:
        """Free threads and memory."""
        self.open("destroy_sim")
        for batch in self._batches or ():
            batch.close()
        self._closed = True

    def _first(self, call: str, what: str) -> Buffers:
        """The buffers, for the one setter call of a kind that a step may have."""
        buffers = self.prepared(call)
        if what in self._written:
            raise GymMisuse(f"{call}: {what} were already set in this step; merge the two calls")
        return buffers

    def _count_materials(self, actors: list[Actor]) -> None:
        for actor in actors:
            self._materials.update((shape.friction, shape.restitution) for shape in actor.shapes)
        if len(self._materials) > MAX_MATERIALS:
            raise GymMisuse(
                f"{len(self._materials)} different materials; at most {MAX_MATERIALS} are allowed"
            )


def _meeting(movable: Actor, box: Actor) -> tuple[bool, ...]:
    """Which of the movable actor's shapes meet the box, by group and filter bits."""
    same = movable.group == box.group
    return tuple(same and not shape.filter & box.shapes[0].filter for shape in movable.shapes)


def _check_params(params: SimParams) -> None:
    gravity = params.gravity
    if params.up_axis != UpAxis.UP_AXIS_Z or gravity.x or gravity.y or gravity.z >= 0:
        raise GymMisuse("create_sim: up_axis has to be Z and gravity to point down, along -z")
    if params.use_gpu_pipeline or params.physx.use_gpu:
        raise GymMisuse("create_sim: no GPU; use the CPU pipeline and CPU PhysX")
    if params.physx.contact_collection == ContactCollection.CC_ALL_SUBSTEPS:
        raise GymMisuse(
            "create_sim: CC_ALL_SUBSTEPS, the default, gives wrong contact forces; "
            "use CC_LAST_SUBSTEP"
        )
    if params.substeps < 1 or params.dt <= 0:
        raise GymMisuse(f"create_sim: dt {params.dt}, {params.substeps} substeps")
