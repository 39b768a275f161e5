"""Builds a world in Isaac Gym: terrain tiles, robots and their barriers.

A pair's friction coefficients are averaged: feet have twice the wanted one, ground and barriers 0,
other shapes slide at BODY_FRICTION / 2.
"""

import os
from typing import Any

import numpy as np
from isaacgym import gymapi

BODY_FRICTION = 0.6
"""Friction of all shapes but feet: averaged 0.3 on barriers, as in MuJoCo, and on the ground, where
MuJoCo has 1."""
ROBOT_BIT = 1
BARRIER_BIT = 2
"""Shapes that share a filter bit do not collide."""
MAX_JOINT_SPEED = 100.0
MAX_BODY_SPEED = 1000.0
EFFORT_MARGIN = 10.0
"""Simulator's effort limit over the motors' torque limit. The PD law applies the latter, and
friction adds to it."""


class World:
    """A simulation with one environment per robot, the robot first and then its barriers.

    Args:
        settings: the worker's settings; arrays: the world file's.
        poses: (N, 7) float32 of the trunks in the scene, quaternions xyzw.

    Attributes:
        robot_actors: (N,) int32 actor ids; robot_bodies: (N, bodies) and barrier_bodies: (B,) rows
            of the rigid-body tensors; body_names and joint_names: in Isaac Gym's order.
        base_com: (N, 3) float32 centre of mass in each trunk's frame.
    """

    def __init__(
        self,
        gym: gymapi.Gym,
        settings: "dict[str, Any]",
        arrays: "dict[str, np.ndarray]",
        poses: np.ndarray,
    ):
        self._gym = gym
        self._settings = settings
        self._arrays = arrays
        cuda = settings["device"] != "cpu"
        device = int(settings["device"].split(":")[1]) if cuda else 0
        self.sim = gym.create_sim(device, -1, gymapi.SIM_PHYSX, sim_params(settings, cuda))
        if not self.sim:
            raise RuntimeError(f"Isaac Gym could not create a simulation on {settings['device']}")
        self._add_tiles()
        self._load_robot()
        self._boxes: dict[tuple[float, float, float], gymapi.Asset] = {}
        actors: list[int] = []
        bodies: list[list[int]] = []
        barriers: list[int] = []
        self.base_com = np.zeros((len(poses), 3), dtype=np.float32)
        for robot in range(len(poses)):
            env = gym.create_env(
                self.sim, gymapi.Vec3(0, 0, 0), gymapi.Vec3(0, 0, 0), max(1, int(len(poses) ** 0.5))
            )
            actor = self._add_robot(env, robot, poses[robot])
            actors.append(gym.get_actor_index(env, actor, gymapi.DOMAIN_SIM))
            bodies.append(
                [
                    gym.get_actor_rigid_body_index(env, actor, body, gymapi.DOMAIN_SIM)
                    for body in range(len(self.body_names))
                ]
            )
            for row in np.flatnonzero(arrays["barrier_robot"] == robot):
                box = self._add_barrier(env, robot, int(row))
                barriers.append(gym.get_actor_rigid_body_index(env, box, 0, gymapi.DOMAIN_SIM))
        self.robot_actors: np.ndarray = np.array(actors, dtype=np.int32)
        self.robot_bodies: np.ndarray = np.array(bodies, dtype=np.int64)
        self.barrier_bodies: np.ndarray = np.array(barriers, dtype=np.int64)
        if not gym.prepare_sim(self.sim):
            raise RuntimeError("Isaac Gym could not prepare the simulation")

    def _add_tiles(self) -> None:
        triangles = self._arrays["triangles"]
        for vertices in self._arrays["vertices"]:
            params = gymapi.TriangleMeshParams()
            params.nb_vertices, params.nb_triangles = len(vertices), len(triangles)
            params.static_friction = params.dynamic_friction = params.restitution = 0.0
            self._gym.add_triangle_mesh(self.sim, vertices.ravel(), triangles.ravel(), params)

    def _load_robot(self) -> None:
        gym = self._gym
        settings = self._settings
        folder, file = os.path.split(settings["urdf"])
        self._robot = gym.load_asset(self.sim, folder, file, robot_options())
        if not self._robot:
            raise RuntimeError(f"Isaac Gym could not load {settings['urdf']}")
        self.body_names = list(gym.get_asset_rigid_body_names(self._robot))
        self.joint_names = list(gym.get_asset_dof_names(self._robot))
        bodies = [settings["trunk"], *settings["hips"], *settings["feet"], *settings["knees"]]
        missing = [name for name in bodies if name not in self.body_names]
        missing += [name for name in settings["joints"] if name not in self.joint_names]
        if missing or len(self.joint_names) != len(settings["joints"]):
            raise RuntimeError(
                f"Isaac Gym read bodies {self.body_names} and joints {self.joint_names} from the "
                f"robot's URDF; missing: {missing}"
            )
        self._shape_ranges = gym.get_asset_rigid_body_shape_indices(self._robot)
        joints = [settings["joints"].index(name) for name in self.joint_names]
        self._joint_properties = gym.get_asset_dof_properties(self._robot)
        self._joint_properties["driveMode"].fill(int(gymapi.DOF_MODE_EFFORT))
        for name in ("stiffness", "damping", "friction"):
            self._joint_properties[name].fill(0.0)
        self._joint_properties["armature"] = np.array(settings["armature"])[joints]
        self._joint_properties["velocity"].fill(MAX_JOINT_SPEED)
        limits = np.array(settings["torque_limit"])[joints]
        self._joint_properties["effort"] = EFFORT_MARGIN * limits

    def _add_robot(self, env: gymapi.Env, robot: int, pose: np.ndarray) -> int:
        gym = self._gym
        actor = gym.create_actor(env, self._robot, transform(pose), "robot", robot, ROBOT_BIT, 0)
        self._set_shapes(env, actor, float(self._arrays["foot_friction"][robot]))
        gym.set_actor_dof_properties(env, actor, self._joint_properties)
        bodies = gym.get_actor_rigid_body_properties(env, actor)
        trunk = bodies[self.body_names.index(self._settings["trunk"])]
        self._load_trunk(trunk, robot)
        gym.set_actor_rigid_body_properties(env, actor, bodies, recomputeInertia=False)
        self.base_com[robot] = trunk.com.x, trunk.com.y, trunk.com.z
        return actor

    def _set_shapes(self, env: gymapi.Env, actor: int, foot_friction: float) -> None:
        """Set collision filters and friction of a robot's shapes."""
        gym = self._gym
        settings = self._settings
        shapes = gym.get_actor_rigid_shape_properties(env, actor)
        for body, which in enumerate(self._shape_ranges):
            name = self.body_names[body]
            beyond = name in settings["beyond_barriers"]
            friction = foot_friction if name in settings["feet"] else BODY_FRICTION
            for shape in shapes[which.start : which.start + which.count]:
                shape.friction = friction
                shape.restitution = 0.0
                shape.filter = ROBOT_BIT | BARRIER_BIT if beyond else ROBOT_BIT
        gym.set_actor_rigid_shape_properties(env, actor, shapes)

    def _load_trunk(self, trunk: gymapi.RigidBodyProperties, robot: int) -> None:
        """Add the drawn mass, scale the inertia, and move the centre of mass."""
        mass = trunk.mass + float(self._arrays["mass_offset"][robot])
        factor = mass / trunk.mass
        trunk.mass = mass
        trunk.invMass = 1.0 / mass
        trunk.inertia = scaled(trunk.inertia, factor)
        trunk.invInertia = scaled(trunk.invInertia, 1.0 / factor)
        x, y, z = (float(offset) for offset in self._arrays["com_offset"][robot])
        trunk.com = gymapi.Vec3(trunk.com.x + x, trunk.com.y + y, trunk.com.z + z)

    def _add_barrier(self, env: gymapi.Env, robot: int, row: int) -> int:
        gym = self._gym
        arrays = self._arrays
        x, y, z = (2.0 * float(half) for half in arrays["barrier_half"][row])
        size = (x, y, z)
        if size not in self._boxes:
            options = gymapi.AssetOptions()
            options.fix_base_link = True
            self._boxes[size] = gym.create_box(self.sim, x, y, z, options)
        half_yaw = float(arrays["barrier_yaw"][row]) / 2
        turn = [0.0, 0.0, np.sin(half_yaw), np.cos(half_yaw)]
        pose = transform(np.array([*arrays["barrier_centre"][row], *turn]))
        name = f"barrier_{row}"
        actor = gym.create_actor(env, self._boxes[size], pose, name, robot, BARRIER_BIT, 0)
        shapes = gym.get_actor_rigid_shape_properties(env, actor)
        for shape in shapes:
            shape.friction = 0.0
            shape.restitution = 0.0
            shape.filter = BARRIER_BIT
        gym.set_actor_rigid_shape_properties(env, actor, shapes)
        return actor


def sim_params(settings: "dict[str, Any]", cuda: bool) -> gymapi.SimParams:
    """Step, gravity, and legged_gym's PhysX options.

    Contacts of the last substep: those of all give wrong forces (IsaacGymEnvs' release notes).
    """
    params = gymapi.SimParams()
    params.dt = settings["substep_s"]
    params.substeps = 1
    params.up_axis = gymapi.UP_AXIS_Z
    params.gravity = gymapi.Vec3(0.0, 0.0, -settings["gravity_ms2"])
    params.use_gpu_pipeline = cuda
    params.physx.use_gpu = cuda
    params.physx.num_threads = settings["threads"]
    params.physx.solver_type = 1
    params.physx.num_position_iterations = 4
    params.physx.num_velocity_iterations = 0
    params.physx.contact_offset = 0.01
    params.physx.rest_offset = 0.0
    params.physx.bounce_threshold_velocity = 0.5
    params.physx.max_depenetration_velocity = 1.0
    params.physx.max_gpu_contact_pairs = 2**23
    params.physx.default_buffer_size_multiplier = 5
    params.physx.contact_collection = gymapi.CC_LAST_SUBSTEP
    return params


def robot_options() -> gymapi.AssetOptions:
    """Import options: every link stays a body, cylinders stay cylinders."""
    options = gymapi.AssetOptions()
    options.default_dof_drive_mode = int(gymapi.DOF_MODE_EFFORT)
    options.collapse_fixed_joints = False
    options.replace_cylinder_with_capsule = False
    options.flip_visual_attachments = False
    options.fix_base_link = False
    options.disable_gravity = False
    options.density = 0.001
    options.angular_damping = options.linear_damping = 0.0
    options.max_angular_velocity = options.max_linear_velocity = MAX_BODY_SPEED
    options.armature = 0.0
    options.thickness = 0.01
    if hasattr(options, "enable_gyroscopic_forces"):  # since Preview 4
        options.enable_gyroscopic_forces = True
    return options


def transform(pose: np.ndarray) -> gymapi.Transform:
    """Position and quaternion xyzw, (7,), as Isaac Gym's type."""
    x, y, z, qx, qy, qz, qw = (float(number) for number in pose)
    return gymapi.Transform(p=gymapi.Vec3(x, y, z), r=gymapi.Quat(qx, qy, qz, qw))


def scaled(matrix: gymapi.Mat33, factor: float) -> gymapi.Mat33:
    """A matrix times a number."""
    result = gymapi.Mat33()
    for row in "xyz":
        old = getattr(matrix, row)
        setattr(result, row, gymapi.Vec3(old.x * factor, old.y * factor, old.z * factor))
    return result
