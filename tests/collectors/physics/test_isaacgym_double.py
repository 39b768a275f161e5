"""The double of Isaac Gym: its conventions, against closed forms and MuJoCo read the plain way."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from collections.abc import Iterator
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from tests.collectors.physics.double_worlds import (
    DT_S,
    GRAVITY_MS2,
    URDF,
    Double,
    World,
    imported_double,
)


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    with imported_double() as found:
        yield found


def boxes(double: Double, *heights: float, friction: float = 1.0, ground: float = 1.0) -> World:
    """A cube of 0.2 m an environment over a plane, at heights of its middle."""
    world = World(double).ground(ground)
    asset = world.box_asset(friction=friction)
    for height in heights:
        world.place(world.env(), asset, double.pose(z=height))
    return world.ready()


def robots(double: Double, folder: Path, number: int = 1) -> World:
    """Robots of two legs in the air, a fixed box beside each."""
    world = World(double)
    asset, box = world.robot_asset(folder), world.box_asset(fix_base_link=True)
    for _ in range(number):
        env = world.env()
        world.place(env, asset, double.pose(z=50.0))
        world.place(env, box, double.pose(x=5.0))
    return world.ready()


def test_bodies_and_joints_are_depth_first_by_the_alphabet(double: Double, tmp_path: Path) -> None:
    world = World(double)
    asset = world.robot_asset(tmp_path)
    assert world.gym.get_asset_rigid_body_names(asset) == ["trunk", "left", "right", "foot"]
    assert world.gym.get_asset_dof_names(asset) == ["left_joint", "right_joint"]
    dofs = world.gym.get_asset_dof_properties(asset)
    np.testing.assert_array_equal(dofs["lower"], np.array([-2.0, -1.0], np.float32))
    np.testing.assert_array_equal(dofs["effort"], np.array([40.0, 30.0], np.float32))
    assert not dofs["damping"].any(), "the file's is not taken over"
    ranges = world.gym.get_asset_rigid_body_shape_indices(asset)
    assert [(shapes.start, shapes.count) for shapes in ranges] == [(0, 1), (1, 0), (1, 1), (2, 1)]


def test_ids_count_actors_and_bodies_over_all_environments(double: Double, tmp_path: Path) -> None:
    world = robots(double, tmp_path, 2)
    gym, sim, last = world.gym, double.gymapi.DOMAIN_SIM, world.envs[1]
    assert [gym.get_actor_index(env, 0, sim) for env in world.envs] == [0, 2]
    assert gym.find_actor_rigid_body_index(last, 0, "foot", sim) == 8
    assert gym.get_actor_rigid_body_index(last, 1, 0, sim) == 9
    assert gym.find_actor_rigid_body_handle(last, 1, "box") == 4
    assert [tuple(t.shape) for t in (world.root, world.dof, world.contact, world.body)] == [
        (4, 13),
        (4, 2),
        (10, 3),
        (10, 13),
    ]


def test_free_fall_is_stepped_substep_by_substep(double: Double) -> None:
    params = double.params()
    params.substeps = 5
    world = World(double, params)
    world.place(world.env(), world.box_asset(), double.pose(z=10.0))
    world.ready().step(40)
    time, substep = 40 * DT_S, DT_S / 5
    assert world.root[0, 9].item() == pytest.approx(-GRAVITY_MS2 * time, rel=1e-5)
    fallen = GRAVITY_MS2 * time * (time + substep) / 2
    assert world.root[0, 2].item() == pytest.approx(10.0 - fallen, abs=1e-5)


def test_quaternions_are_xyzw_and_spins_of_the_world_frame(double: Double) -> None:
    world = boxes(double, 50.0)
    half = float(np.sqrt(0.5))
    # Lying on its side, turned about x; the body's y points up.
    world.root[0, 3:7] = torch.tensor([half, 0.0, 0.0, half])
    world.root[0, 10:13] = torch.tensor([0.0, 0.0, 2.0])
    world.set_root(0)
    world.step(20)
    turned = 2.0 * 20 * DT_S / 2
    # A turn about the world's z after one about x by a right angle.
    expected = [half * np.cos(turned), half * np.sin(turned), half * np.sin(turned)]
    found = world.root[0, 3:7].numpy()
    np.testing.assert_allclose(found[:3], expected, atol=1e-5)
    assert found[3] == pytest.approx(half * np.cos(turned), abs=1e-5)
    np.testing.assert_allclose(world.root[0, 10:13].numpy(), [0.0, 0.0, 2.0], atol=1e-5)


def test_the_velocity_is_the_centre_of_masss(double: Double, tmp_path: Path) -> None:
    world = World(double)
    env = world.env()
    world.place(env, world.box_asset(), double.pose(z=50.0))
    bodies = world.gym.get_actor_rigid_body_properties(env, 0)
    bodies[0].com = double.gymapi.Vec3(0.3, 0.0, 0.0)
    world.gym.set_actor_rigid_body_properties(env, 0, bodies)
    world.ready()
    world.root[0, 10:13] = torch.tensor([0.0, 0.0, 4.0])
    world.set_root(0)
    world.step(50)
    # The centre of mass falls straight, as far as a first-order integrator keeps it from drifting;
    # the origin circles it at 1.2 m/s.
    angle = 4.0 * 50 * DT_S
    np.testing.assert_allclose(world.root[0, 7:9].numpy(), 0.0, atol=0.02)
    origin = [0.3 - 0.3 * np.cos(angle), -0.3 * np.sin(angle)]
    np.testing.assert_allclose(world.root[0, :2].numpy(), origin, atol=0.01)
    np.testing.assert_array_equal(world.body[0].numpy(), world.root[0].numpy())


def test_states_of_bodies_are_those_of_mujocos_kinematics(double: Double, tmp_path: Path) -> None:
    world = robots(double, tmp_path, 2)
    rng = np.random.default_rng(0)
    for actor in (0, 2):
        quat = rng.normal(size=4)
        world.root[actor, 3:7] = torch.from_numpy(quat / np.linalg.norm(quat))
        world.root[actor, 7:13] = torch.from_numpy(rng.normal(size=6))
    world.dof[:] = torch.from_numpy(rng.uniform(-0.9, 0.9, (4, 2)))
    world.set_root(0, 2)
    world.set_dof(0, 2)
    world.step(3)

    spec = mujoco.MjSpec.from_string(URDF)
    spec.compiler.fusestatic = False
    spec.worldbody.first_body().add_freejoint()
    model = spec.compile()
    data = mujoco.MjData(model)
    for env, actor in enumerate((0, 2)):
        root = world.root[actor].numpy().astype(float)
        data.qpos[:7] = [*root[:3], root[6], *root[3:6]]
        for row, joint in enumerate(("left_joint", "right_joint")):
            position, velocity = world.dof[2 * env + row].numpy()
            data.joint(joint).qpos[0], data.joint(joint).qvel[0] = position, velocity
        mujoco.mj_kinematics(model, data)
        turn = data.xmat[1].reshape(3, 3)
        data.qvel[3:6] = turn.T @ root[10:13]
        data.qvel[:3] = root[7:10] - np.cross(root[10:13], turn @ model.body_ipos[1])
        mujoco.mj_forward(model, data)
        for row, name in enumerate(("trunk", "left", "right", "foot")):
            body = model.body(name).id
            found = world.body[5 * env + row].numpy()
            np.testing.assert_allclose(found[:3], data.xpos[body], atol=1e-5)
            np.testing.assert_allclose(found[[6, 3, 4, 5]], data.xquat[body], atol=1e-5)
            velocity = np.zeros(6)
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, body, velocity, 0)
            np.testing.assert_allclose(found[7:10], velocity[3:], atol=1e-5)
            np.testing.assert_allclose(found[10:], velocity[:3], atol=1e-5)


def test_friction_of_a_pair_is_the_average(double: Double) -> None:
    ends = []
    for own, ground in [(0.1, 0.3), (0.3, 0.1), (0.2, 0.2), (0.3, 0.3)]:
        world = boxes(double, 0.1, friction=own, ground=ground).step(10)
        world.root[0, 7] = 0.5
        world.set_root(0)
        ends.append(world.step(20).root[0].numpy().copy())
    np.testing.assert_array_equal(ends[0], ends[2])
    np.testing.assert_array_equal(ends[1], ends[2])
    lost = [0.5 - end[7] for end in ends]
    assert lost[2] == pytest.approx(0.2 * GRAVITY_MS2 * 20 * DT_S, rel=0.1)
    assert lost[3] > 1.3 * lost[2]


def test_contact_forces_are_net_forces_on_each_body(double: Double) -> None:
    world = World(double)
    env = world.env()
    world.place(env, world.box_asset(density=200.0), double.pose(z=0.3))
    world.place(env, world.box_asset(fix_base_link=True), double.pose(z=0.1))
    world.ready().step(200)
    weight = 0.2**3 * 200.0 * GRAVITY_MS2
    np.testing.assert_allclose(world.contact[0].numpy(), [0, 0, weight], atol=0.02 * weight)
    np.testing.assert_allclose(world.contact[1].numpy(), -world.contact[0].numpy(), atol=1e-5)


def test_environments_and_filtered_shapes_do_not_meet(double: Double) -> None:
    world = World(double)
    free, fixed = world.box_asset(), world.box_asset(fix_base_link=True)
    for bits in (0b10, 0b01):
        world.set_shapes(free, filter=0b11)
        world.set_shapes(fixed, filter=bits)
        env = world.env()
        world.place(env, free, double.pose(z=0.3))
        world.place(env, fixed, double.pose(z=0.1))
    world.set_shapes(free, filter=0b01)
    world.set_shapes(fixed, filter=0b10)
    env = world.env()
    world.place(env, free, double.pose(z=0.3))
    world.place(env, fixed, double.pose(z=0.1), group=77)
    env = world.env()
    world.place(env, free, double.pose(z=0.3))
    world.place(env, fixed, double.pose(z=0.1))
    world.ready().step(100)
    fallen = 0.3 - world.root[::2, 2].numpy()
    np.testing.assert_allclose(fallen[:3], fallen[0])
    assert fallen[0] > 1.0
    assert abs(fallen[3]) < 0.01, "only the last pair meets"


def test_efforts_turn_their_own_joint_for_one_step(double: Double, tmp_path: Path) -> None:
    world = robots(double, tmp_path, 2)
    efforts = torch.tensor([0.5, 0.0, 0.0, -0.5])
    world.step(1, efforts)
    speeds = world.dof[:, 1].clone()
    # A body at the joint with the other parts' inertia above it: between the leg's own and less.
    own = 0.5 * DT_S / 0.01
    assert 0.2 * own < speeds[0] < 5 * own
    assert -5 * own < speeds[3] < 0.0
    world.step(1)
    assert world.dof[0, 1].item() == pytest.approx(speeds[0].item(), rel=0.05)


def test_efforts_are_clipped_and_only_driven_joints_obey(double: Double, tmp_path: Path) -> None:
    world = World(double)
    asset = world.robot_asset(tmp_path)
    for effort, mode in ((40.0, "EFFORT"), (4.0, "EFFORT"), (40.0, "NONE")):
        env = world.env()
        world.place(env, asset, double.pose(z=50.0))
        dofs = world.gym.get_actor_dof_properties(env, 0)
        dofs["effort"] = effort
        dofs["driveMode"] = int(getattr(double.gymapi, f"DOF_MODE_{mode}"))
        world.gym.set_actor_dof_properties(env, 0, dofs)
    world.ready().step(1, torch.tensor([8.0, 0.0] * 3))
    strong, clipped, free = world.dof[::2, 1].tolist()
    assert clipped == pytest.approx(strong / 2, rel=1e-3)
    assert free == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("recompute", "factor"), [(False, 1.0), (True, 3.0)])
def test_inertia_follows_the_mass_if_it_is_recomputed(
    double: Double, tmp_path: Path, recompute: bool, factor: float
) -> None:
    world = World(double).ground()
    env = world.env()
    world.place(env, world.box_asset(), double.pose(z=0.1))
    bodies = world.gym.get_actor_rigid_body_properties(env, 0)
    before, bodies[0].mass = bodies[0].inertia.x.x, 3.0 * bodies[0].mass
    assert before == pytest.approx(8.0 * 0.2**2 / 6)
    world.gym.set_actor_rigid_body_properties(env, 0, bodies, recomputeInertia=recompute)
    after = world.gym.get_actor_rigid_body_properties(env, 0)[0]
    assert after.inertia.x.x == pytest.approx(factor * before)
    world.ready().step(100)
    assert world.contact[0, 2].item() == pytest.approx(24.0 * GRAVITY_MS2, rel=0.01)


def test_tensors_change_on_refresh_alone(double: Double) -> None:
    world = boxes(double, 50.0)
    world.gym.simulate(world.sim)
    world.gym.fetch_results(world.sim, True)
    assert world.root[0, 9] == 0.0
    assert world.body[0, 9] == 0.0
    world.gym.refresh_actor_root_state_tensor(world.sim)
    assert world.root[0, 9] < 0.0
    assert world.body[0, 9] == 0.0
    world.root[0, 9] = 7.0
    world.gym.refresh_actor_root_state_tensor(world.sim)
    assert world.root[0, 9] < 0.0, "what is written and not set is forgotten"


def test_set_states_show_in_other_tensors_after_a_step(double: Double, tmp_path: Path) -> None:
    world = robots(double, tmp_path)
    world.root[0, 0] = 9.0
    world.dof[1, 0] = 1.0
    world.set_root(0)
    world.set_dof(0)
    world.refresh()
    assert world.root[0, 0] == 9.0
    assert world.dof[1, 0] == 1.0
    assert not world.body[:4, 0].eq(9.0).any()
    world.step()
    assert world.body[0, 0].item() == pytest.approx(9.0, abs=1e-3)
    assert world.dof[1, 0].item() == pytest.approx(1.0, abs=1e-3)


def test_only_the_named_actors_are_set(double: Double) -> None:
    world = boxes(double, 10.0, 20.0, 30.0)
    world.root[:, 2] = 90.0
    world.set_root(2)
    world.step()
    np.testing.assert_allclose(world.root[:, 2].numpy(), [10.0, 20.0, 90.0], atol=1e-3)


def grid(nx: int, ny: int, step: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """Points (ny, nx, 3) of a flat grid around the origin, and its triangles."""
    x = (np.arange(nx) - (nx - 1) / 2) * step
    y = (np.arange(ny) - (ny - 1) / 2) * step
    points = np.stack([*np.meshgrid(x, y), np.zeros((ny, nx))], axis=2)
    corner = (np.arange(ny - 1)[:, None] * nx + np.arange(nx - 1)).ravel()
    halves = [[corner, corner + 1, corner + nx + 1], [corner, corner + nx + 1, corner + nx]]
    return points, np.concatenate([np.stack(half, axis=1) for half in halves])


@pytest.mark.parametrize("at_once", [True, False])
def test_actors_rest_on_the_tile_under_them(double: Double, at_once: bool) -> None:
    points, triangles = grid(9, 11)
    places = np.array([[0.0, 0.0, 0.4], [10.0, 0.0, -0.3], [10.0, 5.0, 0.0]])
    slope = points + np.array([100.0, 0.0, 0.0])
    slope[..., 2] = 0.1 * points[..., 0]
    tiles = [*((points + place).reshape(-1, 3) for place in places), slope.reshape(-1, 3)]
    world = World(double)
    if at_once:
        all_triangles = [triangles + i * len(tiles[0]) for i in range(len(tiles))]
        world.mesh(np.concatenate(tiles), np.concatenate(all_triangles))
    else:
        for tile in tiles:
            world.mesh(tile, triangles)
    asset = world.box_asset()
    for x, y in [*places[:, :2], (100.5, 0.0), (50.0, 0.0)]:
        world.place(world.env(), asset, double.pose(x, y, 0.6))
    world.ready().step(160)
    heights = world.root[:, 2].numpy()
    np.testing.assert_allclose(heights[:3], places[:, 2] + 0.1, atol=0.005)
    # On a slope a cube's middle is half a side above it along its normal.
    assert heights[3] == pytest.approx(0.05 + 0.1 * np.hypot(1.0, 0.1), abs=0.01)
    assert heights[4] < -1.0, "beside all tiles there is nothing"
    # Moved to another tile.
    world.root[0, :3] = torch.tensor([10.0, 5.0, 0.2])
    world.root[0, 7:] = 0.0
    world.set_root(0)
    world.step(100)
    assert world.root[0, 2].item() == pytest.approx(0.1, abs=0.005)
