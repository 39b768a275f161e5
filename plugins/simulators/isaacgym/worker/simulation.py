"""Robots in Isaac Gym: worlds of tiles, robots and barriers, and a PD law on their tensors.

A pair's friction coefficients are averaged: feet have twice the wanted one, ground and barriers 0,
other shapes slide at BODY_FRICTION / 2.

Isaac Gym has quaternions xyzw, angular velocities in the world frame, positions of a body's origin
and linear velocities of its centre of mass (PhysX:
PxArticulationReducedCoordinate::getRootLinearVelocity).
"""

import mmap
import os
import time
from typing import Any, Optional

import numpy as np
import protocol
from isaacgym import gymapi, gymtorch

# isort: split
# Isaac Gym refuses to be imported after torch.
import torch

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
_EVENT = protocol.column_slices(protocol.EVENTS)


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


class Robots:
    """All robots of a world; resets, pushes and wraps are written together before the next step."""

    def __init__(
        self,
        gym: gymapi.Gym,
        settings: "dict[str, Any]",
        arrays: "dict[str, np.ndarray]",
        world: World,
        device: torch.device,
    ):
        self._gym = gym
        self._sim = world.sim
        self._device = device
        self._decimation = int(settings["decimation"])
        self._root = gymtorch.wrap_tensor(gym.acquire_actor_root_state_tensor(world.sim))
        self._dof = gymtorch.wrap_tensor(gym.acquire_dof_state_tensor(world.sim))
        self._bodies = gymtorch.wrap_tensor(gym.acquire_rigid_body_state_tensor(world.sim))
        self._forces = gymtorch.wrap_tensor(gym.acquire_net_contact_force_tensor(world.sim))
        gym.refresh_dof_state_tensor(world.sim)
        gym.refresh_actor_root_state_tensor(world.sim)
        gym.refresh_rigid_body_state_tensor(world.sim)
        gym.refresh_net_contact_force_tensor(world.sim)
        n = len(world.robot_actors)
        joints = protocol.JOINTS
        self._joint_state = self._dof.view(n, joints, 2)
        self._actors = self._tensor(world.robot_actors, torch.int32)
        self._rows = self._actors.long()
        card = [world.joint_names.index(name) for name in settings["joints"]]
        self._to_card = self._tensor(card, torch.long)
        self._from_card = torch.argsort(self._to_card)

        def rows_of(names: "list[str]") -> torch.Tensor:
            columns = [world.body_names.index(name) for name in names]
            return self._tensor(world.robot_bodies[:, columns], torch.long)

        self._trunk = rows_of([settings["trunk"]])[:, 0]
        self._hips = rows_of(settings["hips"])
        self._feet = rows_of(settings["feet"])
        self._knees = rows_of(settings["knees"])
        self._barriers = self._tensor(world.barrier_bodies, torch.long)
        self._barrier_robot = self._tensor(arrays["barrier_robot"], torch.long)
        self._com = self._tensor(world.base_com)
        self._place = self._tensor(arrays["place"])
        self._period = self._tensor(arrays["period"])[:, None]
        self._damping = self._tensor(settings["damping"])
        self._limit = self._tensor(settings["torque_limit"])
        self._kp = self._zeros(n, joints)
        self._kd = self._zeros(n, joints)
        self._previous = self._zeros(n, joints)
        self._torque = self._zeros(n, joints)
        self._lag = self._zeros(n, 1)
        self._periods = self._zeros(n, 2)
        self._changed = torch.zeros(n, dtype=torch.bool, device=device)
        self._started = torch.zeros(n, dtype=torch.bool, device=device)

    def take_events(self, events: torch.Tensor) -> None:
        """Apply resets and pushes, (N, width) of `protocol.EVENTS`."""
        self._started = events[:, 0] > 0.5
        robots = torch.nonzero(self._started)[:, 0]
        if len(robots):
            self._start(robots, events[robots])
        push = events[:, _EVENT["push"]]
        self._root[self._rows, 7:9] += push
        self._changed |= self._started | (push != 0.0).any(dim=1)

    def step(self, targets: torch.Tensor) -> torch.Tensor:
        """One control step towards joint targets (N, 12); (N, width) of `protocol.STATE`."""
        self._write_states()
        self._move(targets)
        state = self._read()
        self._wrap()
        return state

    def _start(self, robots: torch.Tensor, events: torch.Tensor) -> None:
        def value(name: str) -> torch.Tensor:
            return events[:, _EVENT[name]]

        quat = torch.roll(value("base_quat"), -1, 1)  # to xyzw
        spin = rotate(quat, value("base_ang_vel_body"))
        lever = rotate(quat, self._com[robots])
        velocity = value("base_lin_vel_world") + torch.cross(spin, lever, dim=1)
        position = value("base_pos") + self._place[robots]
        self._root[self._rows[robots]] = torch.cat([position, quat, velocity, spin], dim=1)
        joints = torch.stack([value("joint_pos"), value("joint_vel")], dim=2)
        self._joint_state[robots] = joints[:, self._from_card]
        self._previous[robots] = value("previous_targets")
        self._kp[robots] = value("kp")
        self._kd[robots] = value("kd")
        self._lag[robots] = value("lag_substeps")
        self._periods[robots] = value("periods")

    def _write_states(self) -> None:
        """Write changed states to the simulator."""
        gym = self._gym
        sim = self._sim
        changed = self._actors[self._changed]
        started = self._actors[self._started]
        unwrap = gymtorch.unwrap_tensor
        if len(changed):
            gym.set_actor_root_state_tensor_indexed(
                sim, unwrap(self._root), unwrap(changed), len(changed)
            )
        if len(started):
            gym.set_dof_state_tensor_indexed(sim, unwrap(self._dof), unwrap(started), len(started))
        self._changed.zero_()
        self._started.zero_()

    def _move(self, targets: torch.Tensor) -> None:
        """The PD law at every substep, with torque limits and joint friction.

        The simulator does not document whether its joint friction acts on torque-driven joints.
        """
        gym = self._gym
        sim = self._sim
        for substep in range(self._decimation):
            position = self._joint_state[:, self._to_card, 0]
            velocity = self._joint_state[:, self._to_card, 1]
            target = torch.where(self._lag > substep, self._previous, targets)
            torque = self._kp * (target - position) - self._kd * velocity
            self._torque = torch.max(torch.min(torque, self._limit), -self._limit)
            applied = (self._torque - self._damping * velocity)[:, self._from_card].contiguous()
            gym.set_dof_actuation_force_tensor(sim, gymtorch.unwrap_tensor(applied))
            if substep == self._decimation - 1:
                # Feet are read at the last substep's start.
                gym.refresh_rigid_body_state_tensor(sim)
            gym.simulate(sim)
            if self._device.type == "cpu":
                gym.fetch_results(sim, True)
            gym.refresh_dof_state_tensor(sim)
        self._previous = targets.clone()
        gym.refresh_actor_root_state_tensor(sim)
        gym.refresh_net_contact_force_tensor(sim)

    def _read(self) -> torch.Tensor:
        """(N, width) the columns of `protocol.STATE`."""
        n = len(self._rows)
        root = self._root[self._rows]
        quat = root[:, 3:7]
        spin = root[:, 10:13]
        velocity = root[:, 7:10] - torch.cross(spin, rotate(quat, self._com), dim=1)
        feet = self._bodies[self._feet]
        foot_pos = feet[..., :3] - self._place[:, None]
        on_trunk, on_any, on_body = self._barrier_forces()
        columns = [
            root[:, :3] - self._place,
            torch.roll(quat, 1, 1),  # to wxyz
            velocity,
            rotate(quat, spin, -1.0),
            self._joint_state[:, self._to_card, 0],
            self._joint_state[:, self._to_card, 1],
            self._torque,
            foot_pos.reshape(n, -1),
            feet[..., 7:10].reshape(n, -1),
            self._forces[self._feet].reshape(n, -1),
            self._forces[self._knees].reshape(n, -1),
            on_trunk,
            on_any[:, None],
            on_body[:, None],
            self._periods,
        ]
        return torch.cat(columns, dim=1)

    def _barrier_forces(self) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
        """Ground on trunks (N, 3), barriers on anything (N,), barriers on trunk and hips (N,).

        Isaac Gym gives net forces: on trunk and hips they count as barriers' while any barrier of
        the robot is touched, else as the ground's.
        """
        pressed = length(self._forces[self._barriers])
        on_any = self._zeros(len(self._rows)).index_add_(0, self._barrier_robot, pressed)
        touched = on_any > 0.0
        trunk = self._forces[self._trunk]
        hips = self._forces[self._hips]
        on_body = length(trunk) + length(hips).sum(dim=1)
        on_trunk = torch.where(touched[:, None], torch.zeros_like(trunk), trunk)
        return on_trunk, on_any, torch.where(touched, on_body, torch.zeros_like(on_body))

    def _wrap(self) -> None:
        """Move robots that left their tile to its other side, with the next write."""
        local = self._root[self._rows, :2] - self._place[:, :2]
        crossed = torch.floor(local / self._period + 0.5)
        self._root[self._rows, :2] -= crossed * self._period
        self._periods += crossed
        self._changed |= (crossed != 0.0).any(dim=1)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float32, device=self._device)

    def _tensor(self, values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype, device=self._device)


def rotate(quat: torch.Tensor, vector: torch.Tensor, sign: float = 1.0) -> torch.Tensor:
    """(N, 3) body vectors into the world by unit quaternions xyzw (N, 4); back with the sign -1."""
    xyz = quat[:, :3]
    w = quat[:, 3:]
    t = 2.0 * torch.cross(xyz, vector, dim=1)
    return vector + sign * w * t + torch.cross(xyz, t, dim=1)


def length(vector: torch.Tensor) -> torch.Tensor:
    """(...) of vectors (..., 3)."""
    return (vector * vector).sum(dim=-1).sqrt()


def isaacgym_version() -> str:
    """Isaac Gym's own version."""
    version = gymapi.acquire_gym().get_version()
    return f"{version.major}.{version.minor}"


class WorkerSimulation:
    """The robots of a worker in the current world; memory is of `protocol.memory_bytes`."""

    def __init__(self, settings: "dict[str, Any]", memory: mmap.mmap):
        self.device = torch.device(settings["device"])
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"no GPU: torch {torch.__version__} sees none for {self.device}")
        if self.device.type == "cpu":
            torch.set_num_threads(settings["threads"])
        self._settings = settings
        self._gym = gymapi.acquire_gym()
        views = protocol.block_views(memory, settings["robots"])
        self._clock = protocol.clock_view(memory)
        self._blocks = {name: torch.as_tensor(view) for name, view in views.items()}
        self._world: Optional[World] = None  # noqa: UP045
        self._robots: Optional[Robots] = None  # noqa: UP045

    def build(self) -> None:
        """Build the world of the world file; EVENTS holds the starts of all robots."""
        path = self._settings["world"]
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        os.unlink(path)
        if self._world is not None:
            self._robots = None  # its tensors must be freed before their world
            self._gym.destroy_sim(self._world.sim)
        columns = protocol.column_slices(protocol.EVENTS)
        starts = self._blocks["events"].numpy()
        position = starts[:, columns["base_pos"]] + arrays["place"]
        quat = np.roll(starts[:, columns["base_quat"]], -1, axis=1)
        poses = np.concatenate([position, quat], axis=1)
        self._world = World(self._gym, self._settings, arrays, poses)
        self._robots = Robots(self._gym, self._settings, arrays, self._world, self.device)

    def step(self, with_events: bool) -> None:
        """One control step; RuntimeError without a world."""
        started = time.perf_counter()
        if self._robots is None:
            raise RuntimeError("a step before a world was built")
        if with_events:
            self._robots.take_events(self._blocks["events"].to(self.device))
        state = self._robots.step(self._blocks["targets"].to(self.device))
        self._blocks["state"].copy_(state)
        self._clock += time.perf_counter() - started
