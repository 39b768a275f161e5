"""`acquire_gym()` with the calls and values that the worker uses, under Isaac Gym's names."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from . import _world

SIM_PHYSX, UP_AXIS_Z, CC_LAST_SUBSTEP = 0, 1, 1
DOF_MODE_EFFORT, DOMAIN_SIM = 3, 2
Asset, Env, GymMisuse = _world.Asset, _world.Env, _world.GymMisuse


@dataclass
class Vec3:
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


@dataclass
class Quat:
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    w: float = 1.0


@dataclass
class Transform:
    p: Vec3 = field(default_factory=Vec3)
    r: Quat = field(default_factory=Quat)

    def array(self) -> np.ndarray:
        """(7,) position and quaternion xyzw."""
        p, r = self.p, self.r
        return np.array([p.x, p.y, p.z, r.x, r.y, r.z, r.w])


@dataclass
class Mat33:
    x: Vec3 = field(default_factory=Vec3)
    y: Vec3 = field(default_factory=Vec3)
    z: Vec3 = field(default_factory=Vec3)


@dataclass
class SimParams:
    """Defaults that the worker has to change are Isaac Gym's."""

    dt: float = 1 / 60
    substeps: int = 2
    gravity: Vec3 = field(default_factory=lambda: Vec3(0.0, -9.8, 0.0))
    up_axis: int = 0
    physx: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(contact_collection=2))


class AssetOptions(SimpleNamespace):
    """What an asset is imported with; the double takes it all as the worker wants it."""


@dataclass
class TriangleMeshParams:
    nb_triangles: int = 0
    nb_vertices: int = 0
    static_friction: float = 1.0


@dataclass
class RigidShapeProperties:
    filter: int = 0
    friction: float = 1.0
    restitution: float = 0.0


@dataclass
class RigidBodyProperties:
    """Mass in kg, centre of mass in the body's frame, inertia about it in the body's axes."""

    mass: float = 0.0
    com: Vec3 = field(default_factory=Vec3)
    inertia: Mat33 = field(default_factory=Mat33)
    invMass: float = 0.0
    invInertia: Mat33 = field(default_factory=Mat33)


DOF_DTYPE = np.dtype(
    [("hasLimits", "?"), ("lower", "<f4"), ("upper", "<f4"), ("driveMode", "<i4")]
    + [(name, "<f4") for name in ("velocity", "effort", "stiffness", "damping", "friction")]
    + [("armature", "<f4")]
)


def mat33(matrix: np.ndarray) -> Mat33:
    return Mat33(*(Vec3(*row) for row in matrix.tolist()))


class Gym:
    def get_version(self):
        return SimpleNamespace(major=1, minor=0)

    def create_sim(self, compute, graphics, kind, params):
        gravity = params.gravity
        upright = params.up_axis == UP_AXIS_Z and gravity.z < 0 == gravity.x == gravity.y
        if kind != SIM_PHYSX or not upright or params.substeps != 1:
            raise GymMisuse("create_sim: PhysX, one substep, and z that points up")
        if params.physx.contact_collection != CC_LAST_SUBSTEP:
            raise GymMisuse("create_sim: CC_ALL_SUBSTEPS, the default, gives wrong contact forces")
        return _world.Sim(params.dt, gravity.z)

    def destroy_sim(self, sim):
        sim.envs.clear()

    def add_triangle_mesh(self, sim, vertices, triangles, params):
        sizes = {"float32": params.nb_vertices, "uint32": params.nb_triangles}
        for array, (dtype, count) in zip((vertices, triangles), sizes.items(), strict=True):
            # Others are read as raw bytes by the real simulator, and robots then fall through.
            if (array.dtype, array.shape) != (dtype, (3 * count,)) or not array.data.c_contiguous:
                raise GymMisuse(f"add_triangle_mesh: {array.dtype} {array.shape} for {dtype}")
        sim.building("add_triangle_mesh")
        sim.add_tile(vertices.reshape(-1, 3), params.static_friction)

    def load_asset(self, sim, rootpath, filename, options):
        """A robot of hinges; joint damping, friction and armature start at zero."""
        sim.building("load_asset")
        asset = _world.read_urdf(Path(rootpath) / filename)
        asset.dofs = np.zeros(len(asset.dof_names), DOF_DTYPE)
        asset.shapes = [RigidShapeProperties() for _ in range(sum(asset.shape_counts))]
        asset.bodies = [
            RigidBodyProperties(mass, Vec3(*com), mat33(inertia), 1 / mass)
            for mass, com, inertia in asset.masses()
        ]
        return asset

    def create_box(self, sim, x, y, z, options):
        """A box that is fixed, with its origin in the middle."""
        sim.building("create_box")
        return _world.Asset(
            ["box"], [], [1], np.array([x, y, z]) / 2, shapes=[RigidShapeProperties()]
        )

    def get_asset_dof_names(self, asset):
        return list(asset.dof_names)

    def get_asset_rigid_body_names(self, asset):
        return list(asset.body_names)

    def get_asset_rigid_body_shape_indices(self, asset):
        starts = np.cumsum([0, *asset.shape_counts]).tolist()
        return [
            SimpleNamespace(start=start, count=count)
            for start, count in zip(starts, asset.shape_counts, strict=False)
        ]

    def get_asset_dof_properties(self, asset):
        return asset.dofs.copy()

    def create_env(self, sim, lower, upper, num_per_row):
        """An environment; every one has its origin at the world's."""
        sim.building("create_env")
        sim.envs.append(_world.Env(sim))
        return sim.envs[-1]

    def create_actor(self, env, asset, pose, name, group, filter, segmentation):
        """Place an asset; its handle counts in the environment."""
        sim = env.sim
        sim.building("create_actor")
        if env is not sim.envs[-1]:
            raise GymMisuse("create_actor: a later environment exists already")
        actor = _world.Actor(copy.copy(asset), pose.array(), group, len(sim.actors()))
        actor.asset.shapes = copy.deepcopy(asset.shapes)
        for shape in actor.asset.shapes:
            shape.filter = filter
        env.actors.append(actor)
        return len(env.actors) - 1

    def get_actor_index(self, env, handle, domain):
        return env.actors[handle].index

    def get_actor_rigid_body_index(self, env, handle, index, domain):
        before = env.sim.actors()[: env.actors[handle].index]
        return sum(len(actor.asset.body_names) for actor in before) + index

    def set_actor_dof_properties(self, env, handle, dofs):
        env.actors[handle].asset.dofs = dofs.copy()

    def get_actor_rigid_shape_properties(self, env, handle):
        return copy.deepcopy(env.actors[handle].asset.shapes)

    def set_actor_rigid_shape_properties(self, env, handle, shapes):
        env.actors[handle].asset.shapes = copy.deepcopy(shapes)

    def get_actor_rigid_body_properties(self, env, handle):
        return copy.deepcopy(env.actors[handle].asset.bodies)

    def set_actor_rigid_body_properties(self, env, handle, bodies, recomputeInertia):
        env.sim.building("set_actor_rigid_body_properties")
        if recomputeInertia:
            raise GymMisuse("set_actor_rigid_body_properties: how it recomputes is not documented")
        env.actors[handle].asset.bodies = copy.deepcopy(bodies)

    def prepare_sim(self, sim):
        sim.building("prepare_sim")
        sim.prepare()
        return True

    def acquire_actor_root_state_tensor(self, sim):
        """(actors, 13) position, quaternion xyzw, velocity, angular velocity; world frame."""
        return sim.tensor("root")

    def acquire_dof_state_tensor(self, sim):
        """(joints, 2) position and velocity."""
        return sim.tensor("dof")

    def acquire_net_contact_force_tensor(self, sim):
        """(bodies, 3) force in N on each body; world frame."""
        return sim.tensor("contact")

    def acquire_rigid_body_state_tensor(self, sim):
        """(bodies, 13) like root states."""
        return sim.tensor("body")

    def refresh_actor_root_state_tensor(self, sim):
        sim.refresh("root")

    def refresh_dof_state_tensor(self, sim):
        sim.refresh("dof")

    def refresh_net_contact_force_tensor(self, sim):
        sim.refresh("contact")

    def refresh_rigid_body_state_tensor(self, sim):
        sim.refresh("body")

    def set_actor_root_state_tensor_indexed(self, sim, states, ids, count):
        sim.set_states("root", states, ids[:count])

    def set_dof_state_tensor_indexed(self, sim, states, ids, count):
        sim.set_states("dof", states, ids[:count])

    def set_dof_actuation_force_tensor(self, sim, efforts):
        """Torques in Nm of all joints, for one `simulate`."""
        sim.set_efforts(efforts)

    def simulate(self, sim):
        sim.simulate()

    def fetch_results(self, sim, wait):
        sim.fetched = True


_GYM = Gym()


def acquire_gym() -> Gym:
    return _GYM
