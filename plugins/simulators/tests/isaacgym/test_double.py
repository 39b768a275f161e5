"""The double of Isaac Gym keeps Isaac Gym's conventions, which the worker is written for."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from gaitforge.collectors.physics.mujoco.model import build_model
from gaitforge.collectors.physics.mujoco.urdf import RobotUrdf, robot_urdf
from gaitforge.plugins.simulators.isaacgym.process import grid_triangles, tile_vertices
from gaitforge.plugins.simulators.tests.isaacgym.double import DOUBLE
from tests.collectors.making import FLAT, ROBOT

URDF = robot_urdf(ROBOT, build_model(ROBOT))


@pytest.fixture
def gymapi(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The double's module, imported as if torch had not been."""
    monkeypatch.syspath_prepend(str(DOUBLE))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield importlib.import_module("isaacgym.gymapi")
    for name in [name for name in sys.modules if name.split(".")[0] == "isaacgym"]:
        del sys.modules[name]


def build(gymapi: Any, folder: Path) -> tuple[Any, Any, Any]:
    """A simulation of two robots in the air with a box each, not yet prepared; and their asset."""
    gym, params = gymapi.acquire_gym(), gymapi.SimParams()
    params.dt, params.substeps, params.up_axis = 0.005, 1, gymapi.UP_AXIS_Z
    params.gravity = gymapi.Vec3(0.0, 0.0, -9.81)
    params.physx.contact_collection = gymapi.CC_LAST_SUBSTEP
    sim = gym.create_sim(0, -1, gymapi.SIM_PHYSX, params)
    vertices, triangles = tile_vertices(FLAT).astype(np.float32), grid_triangles()
    mesh = gymapi.TriangleMeshParams(len(triangles), len(vertices), 0.0)
    gym.add_triangle_mesh(sim, vertices.ravel(), triangles.ravel(), mesh)
    (folder / "robot.urdf").write_text(URDF.text)
    asset = gym.load_asset(sim, str(folder), "robot.urdf", gymapi.AssetOptions())
    box = gym.create_box(sim, 0.1, 0.1, 0.1, gymapi.AssetOptions())
    for group in range(2):
        env = gym.create_env(sim, gymapi.Vec3(), gymapi.Vec3(), 1)
        gym.create_actor(env, asset, gymapi.Transform(gymapi.Vec3(z=9.0)), "robot", group, 1, 0)
        actor = gym.create_actor(env, box, gymapi.Transform(), "box", group, 2, 0)
        (shape,) = gym.get_actor_rigid_shape_properties(env, actor)
        shape.friction = 0.0
        gym.set_actor_rigid_shape_properties(env, actor, [shape])
    return gym, sim, asset


def plainly_read(urdf: RobotUrdf) -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_string(urdf.text)
    spec.compiler.fusestatic = False
    spec.body(urdf.trunk).add_freejoint()
    return spec.compile()


def test_states_are_xyzw_in_the_world_and_velocities_of_centres_of_mass(
    gymapi: Any, tmp_path: Path
) -> None:
    gym, sim, asset = build(gymapi, tmp_path)
    gym.prepare_sim(sim)
    root, dof = gym.acquire_actor_root_state_tensor(sim), gym.acquire_dof_state_tensor(sim)
    body = gym.acquire_rigid_body_state_tensor(sim)
    joints, bodies = gym.get_asset_dof_names(asset), gym.get_asset_rigid_body_names(asset)
    assert [len(root), len(dof), len(body)] == [4, 24, 2 * (len(bodies) + 1)]
    rng = np.random.default_rng(0)
    quat = rng.normal(size=(2, 4))
    root[[0, 2], 3:7] = quat / np.linalg.norm(quat, axis=1, keepdims=True)
    root[[0, 2], 7:13] = rng.normal(size=(2, 6))
    dof[:] = np.tile(ROBOT.default_joint_pos_rad, 2)[:, None] * [1.0, 0.5]
    gym.set_actor_root_state_tensor_indexed(sim, root, np.array([0, 2], np.int32), 2)
    gym.set_dof_state_tensor_indexed(sim, dof, np.array([0, 2], np.int32), 2)
    gym.simulate(sim)
    gym.fetch_results(sim, True)
    assert not body[:, 7:].any(), "a tensor changes when it is refreshed"
    gym.refresh_actor_root_state_tensor(sim)
    gym.refresh_dof_state_tensor(sim)
    gym.refresh_rigid_body_state_tensor(sim)

    model = plainly_read(URDF)
    data = mujoco.MjData(model)
    for env in range(2):
        state = root[2 * env].astype(float)
        data.qpos[:7] = [*state[:3], state[6], *state[3:6]]
        for joint, (position, velocity) in zip(joints, dof[12 * env :], strict=False):
            data.joint(joint).qpos[0], data.joint(joint).qvel[0] = position, velocity
        mujoco.mj_kinematics(model, data)
        turn = data.body(URDF.trunk).xmat.reshape(3, 3)
        lever = turn @ model.body(URDF.trunk).ipos
        data.qvel[3:6] = turn.T @ state[10:13]
        data.qvel[:3] = state[7:10] - np.cross(state[10:13], lever)
        mujoco.mj_forward(model, data)
        for row, name in enumerate(bodies):
            found, its = body[env * (len(bodies) + 1) + row], data.body(name)
            velocity = np.zeros(6)
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, its.id, velocity, 0)
            expected = [*its.xpos, *its.xquat[[1, 2, 3, 0]], *velocity[3:], *velocity[:3]]
            np.testing.assert_allclose(found, expected, atol=2e-5)
