"""Small worlds in the double of Isaac Gym, for the tests of the double itself."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "isaacgym_double"
DT_S = 0.005
GRAVITY_MS2 = 9.81

# Two legs that are not in the alphabet's order, one with a foot on a fixed joint.
URDF = """
<robot name="two-legs">
  <link name="trunk">
    <inertial><origin xyz="0.02 -0.01 0.03"/><mass value="3"/>
      <inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0.001" ixz="0" iyz="0"/></inertial>
    <collision><geometry><box size="0.4 0.2 0.1"/></geometry></collision>
  </link>
  <link name="right">
    <inertial><origin xyz="0 0 -0.1"/><mass value="0.5"/>
      <inertia ixx="0.01" iyy="0.01" izz="0.002" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0 0 -0.1"/><geometry><cylinder radius="0.02" length="0.16"/></geometry>
    </collision>
  </link>
  <link name="foot">
    <inertial><mass value="0.1"/>
      <inertia ixx="0.001" iyy="0.001" izz="0.001" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><geometry><sphere radius="0.03"/></geometry></collision>
  </link>
  <link name="left">
    <inertial><origin xyz="0 0.1 0"/><mass value="0.4"/>
      <inertia ixx="0.01" iyy="0.002" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
  </link>
  <joint name="right_joint" type="revolute">
    <parent link="trunk"/><child link="right"/><origin xyz="0.1 -0.1 0" rpy="0.1 0 0"/>
    <axis xyz="0 1 0"/><limit lower="-1" upper="1.5" effort="30" velocity="20"/>
    <dynamics damping="5"/>
  </joint>
  <joint name="foot_joint" type="fixed" dont_collapse="true">
    <parent link="right"/><child link="foot"/><origin xyz="0 0 -0.2"/>
  </joint>
  <joint name="left_joint" type="revolute">
    <parent link="trunk"/><child link="left"/><origin xyz="0.1 0.1 0"/>
    <axis xyz="1 0 0"/><limit lower="-2" upper="2" effort="40" velocity="20"/>
  </joint>
</robot>
"""


@dataclass
class Double:
    """The modules of the double, as a program in a fresh interpreter imports them."""

    gymapi: Any
    gymtorch: Any

    @property
    def gym(self) -> Any:
        """The one Gym."""
        return self.gymapi.acquire_gym()

    def params(self) -> Any:
        """Parameters that suit the double."""
        params = self.gymapi.SimParams()
        params.dt, params.substeps = DT_S, 1
        params.up_axis = self.gymapi.UP_AXIS_Z
        params.gravity = self.gymapi.Vec3(0.0, 0.0, -GRAVITY_MS2)
        params.physx.contact_collection = self.gymapi.CC_LAST_SUBSTEP
        return params

    def options(self, **changes: Any) -> Any:
        """Asset options that suit the double."""
        options = self.gymapi.AssetOptions()
        options.angular_damping = 0.0
        options.default_dof_drive_mode = int(self.gymapi.DOF_MODE_EFFORT)
        for name, value in changes.items():
            setattr(options, name, value)
        return options

    def pose(self, x: float = 0.0, y: float = 0.0, z: float = 0.0) -> Any:
        """A place, upright."""
        return self.gymapi.Transform(p=self.gymapi.Vec3(x, y, z))


@contextmanager
def imported_double() -> Iterator[Double]:
    """Import the double as if torch had not been imported yet; forget it afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        with pytest.MonkeyPatch.context() as hidden:
            hidden.delitem(sys.modules, "torch")
            gymapi = importlib.import_module("isaacgym.gymapi")
        yield Double(gymapi, importlib.import_module("isaacgym.gymtorch"))
        for name in [name for name in sys.modules if name.split(".")[0] == "isaacgym"]:
            del sys.modules[name]


@dataclass
class World:
    """A simulation under construction, and its tensors once it is `ready`."""

    double: Double
    params: Any = None
    envs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api, self.gym = self.double.gymapi, self.double.gym
        params = self.params or self.double.params()
        self.sim = self.gym.create_sim(0, -1, self.api.SIM_PHYSX, params)

    def ground(self, friction: float = 1.0) -> Self:
        """Add a plane at z 0."""
        plane = self.api.PlaneParams()
        plane.normal = self.api.Vec3(0.0, 0.0, 1.0)
        plane.static_friction = plane.dynamic_friction = friction
        self.gym.add_ground(self.sim, plane)
        return self

    def mesh(self, vertices: np.ndarray, triangles: np.ndarray) -> None:
        """Add a ground of triangles."""
        params = self.api.TriangleMeshParams()
        params.nb_vertices, params.nb_triangles = len(vertices), len(triangles)
        self.gym.add_triangle_mesh(
            self.sim,
            vertices.astype(np.float32).ravel(),
            triangles.astype(np.uint32).ravel(),
            params,
        )

    def env(self) -> Any:
        """Add an environment."""
        zero = self.api.Vec3()
        self.envs.append(self.gym.create_env(self.sim, zero, zero, 1))
        return self.envs[-1]

    def robot_asset(self, folder: Path, **options: Any) -> Any:
        """The robot of two legs; its shapes do not meet each other."""
        (folder / "robot.urdf").write_text(URDF)
        asset = self.gym.load_asset(
            self.sim, str(folder), "robot.urdf", self.double.options(**options)
        )
        self.set_shapes(asset, filter=1)
        return asset

    def box_asset(self, side: float = 0.2, friction: float = 1.0, **options: Any) -> Any:
        """A cube."""
        asset = self.gym.create_box(self.sim, side, side, side, self.double.options(**options))
        self.set_shapes(asset, friction=friction)
        return asset

    def set_shapes(self, asset: Any, **changes: Any) -> None:
        """Change a property of all of an asset's shapes."""
        shapes = self.gym.get_asset_rigid_shape_properties(asset)
        for shape in shapes:
            for name, value in changes.items():
                setattr(shape, name, value)
        self.gym.set_asset_rigid_shape_properties(asset, shapes)

    def place(self, env: Any, asset: Any, pose: Any, group: int | None = None) -> int:
        """Add an actor in its environment's group."""
        group = self.envs.index(env) if group is None else group
        return self.gym.create_actor(env, asset, pose, "actor", group, -1, 0)

    def ready(self) -> Self:
        """Prepare, and take hold of the tensors."""
        gym, sim, wrap = self.gym, self.sim, self.double.gymtorch.wrap_tensor
        gym.prepare_sim(sim)
        self.root: torch.Tensor = wrap(gym.acquire_actor_root_state_tensor(sim))
        self.dof: torch.Tensor = wrap(gym.acquire_dof_state_tensor(sim))
        self.contact: torch.Tensor = wrap(gym.acquire_net_contact_force_tensor(sim))
        self.body: torch.Tensor = wrap(gym.acquire_rigid_body_state_tensor(sim))
        return self

    def unwrap(self, tensor: torch.Tensor) -> Any:
        """As setters take it."""
        return self.double.gymtorch.unwrap_tensor(tensor)

    def ids(self, *numbers: int, dtype: torch.dtype = torch.int32) -> Any:
        """Actor ids."""
        return self.unwrap(torch.tensor(numbers, dtype=dtype))

    def set_root(self, *ids: int) -> None:
        """Hand over root states of some actors."""
        self.gym.set_actor_root_state_tensor_indexed(
            self.sim, self.unwrap(self.root), self.ids(*ids), len(ids)
        )

    def set_dof(self, *ids: int) -> None:
        """Hand over joint states of some actors."""
        self.gym.set_dof_state_tensor_indexed(
            self.sim, self.unwrap(self.dof), self.ids(*ids), len(ids)
        )

    def step(self, count: int = 1, efforts: torch.Tensor | None = None) -> Self:
        """Simulate, and refresh all tensors at the end."""
        for _ in range(count):
            if efforts is not None:
                self.gym.set_dof_actuation_force_tensor(self.sim, self.unwrap(efforts))
            self.gym.simulate(self.sim)
            self.gym.fetch_results(self.sim, True)
        self.refresh()
        return self

    def refresh(self) -> None:
        """All tensors."""
        self.gym.refresh_actor_root_state_tensor(self.sim)
        self.gym.refresh_dof_state_tensor(self.sim)
        self.gym.refresh_net_contact_force_tensor(self.sim)
        self.gym.refresh_rigid_body_state_tensor(self.sim)
