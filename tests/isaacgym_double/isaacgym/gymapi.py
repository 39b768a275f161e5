"""`acquire_gym()` and all that the tensor calls need, under Isaac Gym's names."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np

from ._assets import Asset, copies, load_urdf, make_box
from ._model import Actor
from ._sim import Env, Sim
from ._terrain import tiles_of_mesh
from ._values import (
    DOF_DTYPE,
    AssetOptions,
    ContactCollection,
    DofDriveMode,
    GymMisuse,
    IndexDomain,
    IndexRange,
    Mat33,
    PhysXParams,
    PlaneParams,
    Quat,
    RigidBodyProperties,
    RigidShapeProperties,
    SimParams,
    SimType,
    Tensor,
    TensorDataType,
    Transform,
    TriangleMeshParams,
    UpAxis,
    Vec3,
    Version,
)

SIM_PHYSX, SIM_FLEX = SimType
UP_AXIS_Y, UP_AXIS_Z = UpAxis
CC_NEVER, CC_LAST_SUBSTEP, CC_ALL_SUBSTEPS = ContactCollection
DOF_MODE_NONE, DOF_MODE_POS, DOF_MODE_VEL, DOF_MODE_EFFORT = DofDriveMode
DOMAIN_ACTOR, DOMAIN_ENV, DOMAIN_SIM = IndexDomain
DTYPE_FLOAT32, DTYPE_UINT32, DTYPE_UINT64, DTYPE_UINT8, DTYPE_INT16 = TensorDataType
INVALID_HANDLE = -1


class Gym:
    """The calls; each refuses with `GymMisuse` what the module `isaacgym` says it refuses."""

    def get_version(self) -> Version:
        """Version of the API."""
        return Version()

    def create_sim(
        self,
        compute_device: int = 0,
        graphics_device: int = 0,
        type: SimType = SimType.SIM_FLEX,
        params: SimParams | None = None,
    ) -> Sim:
        """A simulation; the devices are those of GPUs and of no consequence."""
        if type != SimType.SIM_PHYSX:
            raise GymMisuse("create_sim: the type has to be SIM_PHYSX; FleX is the default")
        return Sim(params or SimParams())

    def destroy_sim(self, sim: Sim) -> None:
        """Free it; its handle is of no more use."""
        sim.close()

    def get_sim_params(self, sim: Sim) -> SimParams:
        """A copy."""
        return copy.deepcopy(sim.params)

    def add_ground(self, sim: Sim, params: PlaneParams) -> None:
        """A ground plane under everything."""
        sim.building("add_ground")
        normal = params.normal
        if (normal.x, normal.y, normal.z) != (0.0, 0.0, 1.0):
            raise GymMisuse("add_ground: the normal, y by default, has to be z")
        _one_friction("add_ground", params)
        sim.plane = copy.deepcopy(params)

    def add_triangle_mesh(
        self, sim: Sim, vertices: np.ndarray, triangles: np.ndarray, params: TriangleMeshParams
    ) -> None:
        """A ground of one or more grids; see `tiles_of_mesh`."""
        sim.building("add_triangle_mesh")
        _one_friction("add_triangle_mesh", params)
        tiles = tiles_of_mesh(vertices, triangles, params)
        if {tile.heights.shape for tile in (*sim.tiles, *tiles)} != {tiles[0].heights.shape}:
            raise GymMisuse("add_triangle_mesh: all of the double's grids have one size")
        if sim.tile_friction not in (None, params.static_friction):
            raise GymMisuse("add_triangle_mesh: all of the double's meshes have one friction")
        sim.tile_friction = params.static_friction
        sim.tiles += tiles

    def load_asset(
        self, sim: Sim, rootpath: str, filename: str, options: AssetOptions | None = None
    ) -> Asset:
        """A robot from a URDF file."""
        sim.building("load_asset")
        return load_urdf(Path(rootpath) / filename, copy.deepcopy(options or AssetOptions()))

    def create_box(
        self,
        sim: Sim,
        width: float,
        height: float,
        depth: float,
        options: AssetOptions | None = None,
    ) -> Asset:
        """A box of sides along x, y, z in m."""
        sim.building("create_box")
        return make_box((width, height, depth), options or AssetOptions())

    def get_asset_dof_count(self, asset: Asset) -> int:
        """Number of joints."""
        return len(asset.dof_names)

    def get_asset_dof_names(self, asset: Asset) -> list[str]:
        """Joints in their order."""
        return list(asset.dof_names)

    def get_asset_rigid_body_count(self, asset: Asset) -> int:
        """Number of bodies."""
        return len(asset.body_names)

    def get_asset_rigid_body_names(self, asset: Asset) -> list[str]:
        """Bodies in their order."""
        return list(asset.body_names)

    def get_asset_rigid_shape_count(self, asset: Asset) -> int:
        """Number of shapes."""
        return len(asset.shapes)

    def get_asset_rigid_body_shape_indices(self, asset: Asset) -> list[IndexRange]:
        """Every body's shapes."""
        return copy.deepcopy(asset.shapes_of_body)

    def get_asset_dof_properties(self, asset: Asset) -> np.ndarray:
        """Structured array, one record a joint."""
        return asset.dof_properties.copy()

    def get_asset_rigid_shape_properties(self, asset: Asset) -> list[RigidShapeProperties]:
        """One a shape; copies."""
        return copies(asset.shapes)

    def set_asset_rigid_shape_properties(
        self, asset: Asset, shapes: list[RigidShapeProperties]
    ) -> bool:
        """For the actors made from now on."""
        if len(shapes) != len(asset.shapes):
            raise GymMisuse(f"{len(shapes)} shapes of an asset with {len(asset.shapes)}")
        asset.shapes = copies(shapes)
        return True

    def create_env(self, sim: Sim, lower: Vec3, upper: Vec3, num_per_row: int) -> Env:
        """An environment; every one has its origin at the world's."""
        sim.building("create_env")
        if Vec3() not in (lower, upper) or lower != upper or num_per_row < 1:
            raise GymMisuse("create_env: the double's bounds are (0, 0, 0), with 1 or more a row")
        sim.envs.append(Env(sim, len(sim.envs)))
        return sim.envs[-1]

    def create_actor(
        self,
        env: Env,
        asset: Asset,
        pose: Transform,
        name: str | None = None,
        group: int = -1,
        filter: int = -1,
        segmentationId: int = 0,
    ) -> int:
        """Place an asset; its handle counts in the environment.

        Shapes meet if their groups are the same and their filters have no bit in common; a filter
        that is not negative replaces those of the asset's shapes.
        """
        return env.sim.add_actor(env, asset, pose, name or "", group, filter).handle

    def get_env_count(self, sim: Sim) -> int:
        """Number of environments."""
        return len(sim.envs)

    def get_actor_count(self, env: Env) -> int:
        """Number of an environment's actors."""
        return len(env.actors)

    def get_sim_actor_count(self, sim: Sim) -> int:
        """Number of all actors."""
        return len(sim.actors)

    def get_sim_dof_count(self, sim: Sim) -> int:
        """Number of all joints."""
        return sum(len(actor.dofs) for actor in sim.actors)

    def get_sim_rigid_body_count(self, sim: Sim) -> int:
        """Number of all bodies."""
        return sum(actor.body_count for actor in sim.actors)

    def get_actor_index(self, env: Env, handle: int, domain: IndexDomain) -> int:
        """An actor's id in the environment or the simulation."""
        actor = _actor(env, handle)
        return actor.index if domain == IndexDomain.DOMAIN_SIM else actor.handle

    def get_actor_rigid_body_count(self, env: Env, handle: int) -> int:
        """Number of an actor's bodies."""
        return _actor(env, handle).body_count

    def get_actor_dof_count(self, env: Env, handle: int) -> int:
        """Number of an actor's joints."""
        return len(_actor(env, handle).dofs)

    def get_actor_rigid_body_index(
        self, env: Env, handle: int, index: int, domain: IndexDomain
    ) -> int:
        """A body's index, of its actor's own, in a domain."""
        actor = _actor(env, handle)
        if not 0 <= index < actor.body_count:
            return INVALID_HANDLE
        first = {
            IndexDomain.DOMAIN_ACTOR: 0,
            IndexDomain.DOMAIN_ENV: actor.first_body - env.actors[0].first_body,
            IndexDomain.DOMAIN_SIM: actor.first_body,
        }
        return first[domain] + index

    def find_actor_rigid_body_index(
        self, env: Env, handle: int, name: str, domain: IndexDomain
    ) -> int:
        """A named body's index in a domain, or -1."""
        names = _actor(env, handle).asset.body_names
        index = names.index(name) if name in names else INVALID_HANDLE
        return self.get_actor_rigid_body_index(env, handle, index, domain)

    def find_actor_rigid_body_handle(self, env: Env, handle: int, name: str) -> int:
        """A named body's index in the environment, or -1."""
        return self.find_actor_rigid_body_index(env, handle, name, IndexDomain.DOMAIN_ENV)

    def get_actor_dof_properties(self, env: Env, handle: int) -> np.ndarray:
        """Structured array, one record a joint."""
        return _actor(env, handle).dofs.copy()

    def set_actor_dof_properties(self, env: Env, handle: int, dofs: np.ndarray) -> bool:
        """Limits, damping, armature and drive mode of an actor's joints."""
        env.sim.set_dofs(_actor(env, handle), dofs)
        return True

    def get_actor_rigid_shape_properties(self, env: Env, handle: int) -> list[RigidShapeProperties]:
        """One a shape; copies."""
        return copies(_actor(env, handle).shapes)

    def set_actor_rigid_shape_properties(
        self, env: Env, handle: int, shapes: list[RigidShapeProperties]
    ) -> bool:
        """Materials of an actor's shapes."""
        env.sim.set_shapes(_actor(env, handle), shapes)
        return True

    def get_actor_rigid_body_properties(self, env: Env, handle: int) -> list[RigidBodyProperties]:
        """One a body; copies."""
        return _actor(env, handle).masses.properties()

    def set_actor_rigid_body_properties(
        self,
        env: Env,
        handle: int,
        bodies: list[RigidBodyProperties],
        recomputeInertia: bool = False,
    ) -> bool:
        """Masses and centres of mass; recomputed inertias grow with the mass."""
        env.sim.building("set_actor_rigid_body_properties")
        actor = _actor(env, handle)
        if len(bodies) != actor.body_count or any(body.mass <= 0 for body in bodies):
            raise GymMisuse(f"{len(bodies)} bodies, of {actor.body_count} with a mass each")
        actor.masses = actor.masses.with_properties(bodies, recomputeInertia)
        return True

    def prepare_sim(self, sim: Sim) -> bool:
        """End of building, begin of tensors."""
        sim.prepare()
        return True

    def acquire_actor_root_state_tensor(self, sim: Sim) -> Tensor:
        """(actors, 13) position, quaternion xyzw, velocity, angular velocity; world frame."""
        return sim.tensor("acquire_actor_root_state_tensor", "root")

    def acquire_dof_state_tensor(self, sim: Sim) -> Tensor:
        """(joints, 2) position and velocity."""
        return sim.tensor("acquire_dof_state_tensor", "dof")

    def acquire_net_contact_force_tensor(self, sim: Sim) -> Tensor:
        """(bodies, 3) force in N on each body; world frame."""
        return sim.tensor("acquire_net_contact_force_tensor", "contact")

    def acquire_rigid_body_state_tensor(self, sim: Sim) -> Tensor:
        """(bodies, 13) like root states."""
        return sim.tensor("acquire_rigid_body_state_tensor", "body")

    def refresh_actor_root_state_tensor(self, sim: Sim) -> bool:
        """Bring the tensor up to date."""
        return sim.refresh("refresh_actor_root_state_tensor", "root")

    def refresh_dof_state_tensor(self, sim: Sim) -> bool:
        """Bring the tensor up to date."""
        return sim.refresh("refresh_dof_state_tensor", "dof")

    def refresh_net_contact_force_tensor(self, sim: Sim) -> bool:
        """Bring the tensor up to date."""
        return sim.refresh("refresh_net_contact_force_tensor", "contact")

    def refresh_rigid_body_state_tensor(self, sim: Sim) -> bool:
        """Bring the tensor up to date."""
        return sim.refresh("refresh_rigid_body_state_tensor", "body")

    def set_actor_root_state_tensor(self, sim: Sim, states: Tensor) -> bool:
        """Root states of all actors."""
        return sim.set_root("set_actor_root_state_tensor", states)

    def set_actor_root_state_tensor_indexed(
        self, sim: Sim, states: Tensor, ids: Tensor, count: int
    ) -> bool:
        """Root states of some, from the whole tensor."""
        return sim.set_root("set_actor_root_state_tensor_indexed", states, (ids, count))

    def set_dof_state_tensor(self, sim: Sim, states: Tensor) -> bool:
        """Joint states of all actors."""
        return sim.set_dof("set_dof_state_tensor", states)

    def set_dof_state_tensor_indexed(
        self, sim: Sim, states: Tensor, ids: Tensor, count: int
    ) -> bool:
        """Joint states of some actors, from the whole tensor."""
        return sim.set_dof("set_dof_state_tensor_indexed", states, (ids, count))

    def set_dof_actuation_force_tensor(self, sim: Sim, efforts: Tensor) -> bool:
        """Torques in Nm of all joints, for one `simulate`."""
        return sim.set_efforts("set_dof_actuation_force_tensor", efforts)

    def simulate(self, sim: Sim) -> None:
        """Advance dt seconds."""
        sim.simulate()

    def fetch_results(self, sim: Sim, wait: bool) -> None:
        """Wait for the step's end, on the CPU pipeline."""
        sim.fetch()

    def get_frame_count(self, sim: Sim) -> int:
        """Number of calls of `simulate`."""
        return sim.frame


def acquire_gym() -> Gym:
    """The one Gym."""
    return _GYM


def _actor(env: Env, handle: int) -> Actor:
    env.sim.open("a call with an actor's handle")
    if not 0 <= handle < len(env.actors):
        raise GymMisuse(f"actor handle {handle}; the environment has {len(env.actors)} actors")
    return env.actors[handle]


def _one_friction(call: str, params: PlaneParams | TriangleMeshParams) -> None:
    if params.static_friction != params.dynamic_friction:
        raise GymMisuse(f"{call}: MuJoCo has one friction, static and dynamic alike")


_GYM = Gym()

__all__ = [
    "DOF_DTYPE",
    "AssetOptions",
    "ContactCollection",
    "DofDriveMode",
    "Gym",
    "GymMisuse",
    "IndexDomain",
    "IndexRange",
    "Mat33",
    "PhysXParams",
    "PlaneParams",
    "Quat",
    "RigidBodyProperties",
    "RigidShapeProperties",
    "Sim",
    "SimParams",
    "SimType",
    "Tensor",
    "TensorDataType",
    "Transform",
    "TriangleMeshParams",
    "UpAxis",
    "Vec3",
    "Version",
    "acquire_gym",
]
