"""What the double of Isaac Gym refuses: call orders and arguments that spoil a simulation."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.collectors.physics.double_worlds import FOLDER, Double, World, imported_double
from tests.collectors.physics.test_isaacgym_double import grid


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    with imported_double() as found:
        yield found


@pytest.fixture
def raises_misuse(double: Double) -> Callable[[str], Any]:
    """raises_misuse(text): a context whose call has to be refused with that text."""
    return lambda text: pytest.raises(double.gymapi.GymMisuse, match=text)


@pytest.fixture
def world(double: Double, tmp_path: Path) -> World:
    """Two environments, each a robot of two joints and a fixed box, ready: robots are 0 and 2."""
    return unprepared(double, tmp_path).ready()


def unprepared(double: Double, folder: Path) -> World:
    world = World(double).ground()
    asset, box = world.robot_asset(folder), world.box_asset(fix_base_link=True)
    for _ in range(2):
        env = world.env()
        world.place(env, asset, double.pose(z=1.0))
        world.place(env, box, double.pose(x=5.0))
    return world


def test_torch_comes_after_isaacgym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    assert torch.__version__
    with pytest.raises(ImportError, match="torch was imported before isaacgym"):
        importlib.import_module("isaacgym")


def test_tensors_efforts_and_steps_come_after_prepare_sim(
    double: Double, tmp_path: Path, raises_misuse: Callable[[str], Any]
) -> None:
    world = unprepared(double, tmp_path)
    gym, sim = world.gym, world.sim
    for name in ("actor_root_state", "dof_state", "rigid_body_state", "net_contact_force"):
        for verb in ("acquire", "refresh"):
            with raises_misuse(f"{verb}_{name}_tensor: only after prepare_sim"):
                getattr(gym, f"{verb}_{name}_tensor")(sim)
    with raises_misuse("set_dof_actuation_force_tensor: only after prepare_sim"):
        gym.set_dof_actuation_force_tensor(sim, world.unwrap(torch.zeros(4)))
    with raises_misuse("simulate: only after prepare_sim"):
        gym.simulate(sim)


def test_what_is_built_is_built_before_prepare_sim(
    double: Double, world: World, tmp_path: Path, raises_misuse: Callable[[str], Any]
) -> None:
    gym, env = world.gym, world.envs[1]
    box = unprepared(double, tmp_path).box_asset()
    for call, what in (
        ("create_env", world.env),
        ("create_actor", lambda: world.place(env, box, double.pose())),
        ("create_box", world.box_asset),
        ("load_asset", lambda: world.robot_asset(tmp_path)),
        ("add_ground", world.ground),
        ("add_triangle_mesh", lambda: world.mesh(np.zeros((3, 3)), np.zeros((1, 3)))),
        ("prepare_sim", lambda: gym.prepare_sim(world.sim)),
    ):
        with raises_misuse(f"{call}: only before prepare_sim"):
            what()
    bodies = gym.get_actor_rigid_body_properties(env, 0)
    bodies[0].mass += 1.0
    with raises_misuse("set_actor_rigid_body_properties: only before prepare_sim"):
        gym.set_actor_rigid_body_properties(env, 0, bodies, recomputeInertia=True)


def test_an_environment_is_finished_before_the_next(
    double: Double, tmp_path: Path, raises_misuse: Callable[[str], Any]
) -> None:
    world = unprepared(double, tmp_path)
    with raises_misuse("a later environment exists"):
        world.place(world.envs[0], world.box_asset(fix_base_link=True), double.pose(), group=0)


@pytest.mark.parametrize("again", ["", "_indexed"])
def test_a_setter_is_called_once_a_step(
    world: World, raises_misuse: Callable[[str], Any], again: str
) -> None:
    ids = () if not again else (world.ids(0), 1)
    root, dof = world.unwrap(world.root), world.unwrap(world.dof)
    gym, sim = world.gym, world.sim
    for _ in range(2):
        world.set_root(0)
        world.set_dof(2)
        with raises_misuse("root states were already set in this step"):
            getattr(gym, f"set_actor_root_state_tensor{again}")(sim, root, *ids)
        with raises_misuse("joint states were already set in this step"):
            getattr(gym, f"set_dof_state_tensor{again}")(sim, dof, *ids)
        efforts = world.unwrap(torch.zeros(4))
        gym.set_dof_actuation_force_tensor(sim, efforts)
        with raises_misuse("efforts were already set in this step"):
            gym.set_dof_actuation_force_tensor(sim, efforts)
        world.step()


def test_ids_are_int32_numbers_of_movable_actors(
    world: World, raises_misuse: Callable[[str], Any]
) -> None:
    cases: list[tuple[list[Any], torch.dtype, str]] = [
        ([0], torch.int64, "actor ids are DTYPE_UINT64; they have to be int32"),
        ([0.0], torch.float32, "actor ids are DTYPE_FLOAT32; they have to be int32"),
        ([[0]], torch.int32, "1 actor ids of a tensor"),
        ([0, 4], torch.int32, "actor ids run from 0 to 3"),
        ([-1], torch.int32, "actor ids run from 0 to 3"),
        ([2, 0, 2], torch.int32, "an actor id is there twice"),
        # An environment's number instead of an actor's: 1 is the first one's box.
        ([0, 1], torch.int32, "1 is (a fixed actor's id|an actor's without joints)"),
    ]
    setters = {
        "root": world.gym.set_actor_root_state_tensor_indexed,
        "dof": world.gym.set_dof_state_tensor_indexed,
    }
    for kind, set_states in setters.items():
        states = world.unwrap(getattr(world, kind))
        for ids, dtype, text in cases:
            with raises_misuse(text):
                tensor = world.unwrap(torch.tensor(ids, dtype=dtype))
                set_states(world.sim, states, tensor, len(ids))
        with raises_misuse("3 actor ids of a tensor"):
            set_states(world.sim, states, world.ids(0, 2), 3)


def test_states_are_the_whole_contiguous_float32_tensor(
    world: World, raises_misuse: Callable[[str], Any]
) -> None:
    for states, text in (
        (torch.zeros(4, 13, dtype=torch.float64), "Isaac Gym has no torch.float64"),
        (torch.zeros(4, 13, dtype=torch.int32), "numbers are DTYPE_UINT32; they have to be float"),
        (torch.zeros(2, 13), "the whole tensor has 52"),
        (torch.zeros(13, 4).T, "not contiguous"),
        (torch.full((4, 13), torch.nan), "not finite"),
        (torch.zeros(4, 13), "not of length 1"),
    ):
        with raises_misuse(text):
            world.gym.set_actor_root_state_tensor_indexed(
                world.sim, world.unwrap(states), world.ids(0), 1
            )
    with raises_misuse("the whole tensor has 4"):
        world.gym.set_dof_actuation_force_tensor(world.sim, world.unwrap(torch.zeros(2)))
    world.root[1, 0] += 1.0
    with raises_misuse("a fixed actor cannot be moved"):
        world.gym.set_actor_root_state_tensor(world.sim, world.unwrap(world.root))


def test_results_are_fetched_before_tensors_are_refreshed(
    world: World, raises_misuse: Callable[[str], Any]
) -> None:
    world.gym.simulate(world.sim)
    with raises_misuse("fetch_results comes first"):
        world.gym.refresh_dof_state_tensor(world.sim)
    world.gym.fetch_results(world.sim, True)
    world.refresh()
    assert (world.dof[:, 1] != 0.0).any() or (world.root[::2, 9] < 0.0).all()


def test_a_destroyed_simulation_is_gone(world: World, raises_misuse: Callable[[str], Any]) -> None:
    world.gym.destroy_sim(world.sim)
    with raises_misuse("refresh_dof_state_tensor: the simulation was destroyed"):
        world.gym.refresh_dof_state_tensor(world.sim)


def test_materials_are_at_most_64(double: Double, raises_misuse: Callable[[str], Any]) -> None:
    def with_frictions(number: int) -> World:
        world = World(double)
        asset = world.box_asset()
        for friction in range(number):
            world.set_shapes(asset, friction=0.01 * friction)
            world.place(world.env(), asset, double.pose())
        return world

    world = with_frictions(64).ready()
    shapes = world.gym.get_actor_rigid_shape_properties(world.envs[0], 0)
    shapes[0].friction = 5.0
    with raises_misuse("65 different materials; at most 64"):
        world.gym.set_actor_rigid_shape_properties(world.envs[0], 0, shapes)
    with raises_misuse("65 different materials; at most 64"):
        with_frictions(65).ready()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda api, p: setattr(p, "up_axis", api.UP_AXIS_Y), "up_axis has to be Z"),
        (lambda api, p: setattr(p, "gravity", api.Vec3(0, -9.8, 0)), "gravity to point down"),
        (lambda api, p: setattr(p, "use_gpu_pipeline", True), "no GPU"),
        (lambda api, p: setattr(p.physx, "use_gpu", True), "no GPU"),
        (
            lambda api, p: setattr(p.physx, "contact_collection", api.CC_ALL_SUBSTEPS),
            "CC_ALL_SUBSTEPS, the default, gives wrong contact forces",
        ),
        (lambda api, p: setattr(p, "substeps", 0), "0 substeps"),
    ],
)
def test_parameters_that_mislead_or_need_a_gpu(
    double: Double,
    raises_misuse: Callable[[str], Any],
    change: Callable[[Any, Any], None],
    text: str,
) -> None:
    params = double.params()
    change(double.gymapi, params)
    with raises_misuse(text):
        World(double, params)


def test_the_default_engine_is_the_wrong_one(
    double: Double, raises_misuse: Callable[[str], Any]
) -> None:
    with raises_misuse("has to be SIM_PHYSX"):
        double.gym.create_sim(0, -1, params=double.params())


def test_misspelt_parameters_are_no_parameters(double: Double) -> None:
    with pytest.raises(AttributeError):
        double.params().physx.num_thread = 4
    with pytest.raises(AttributeError):
        double.gym.prepare_simulation(None)


def test_meshes_are_checked(double: Double, raises_misuse: Callable[[str], Any]) -> None:
    points, triangles = grid(4, 5)
    vertices = points.reshape(-1, 3)
    nx = 4
    corner = (np.arange(4)[:, None] * nx + np.arange(3)).ravel()
    other = [[corner, corner + 1, corner + nx], [corner + 1, corner + nx + 1, corner + nx]]
    stretched = vertices * np.where(vertices[:, :1] > 0.3, [1.5, 1.0, 1.0], 1.0)
    for mesh, text in (
        ((vertices, triangles[:, ::-1]), "face down"),
        ((vertices, np.concatenate([np.stack(half, axis=1) for half in other])), "halved from"),
        ((vertices, triangles[1:]), "two triangles each"),
        ((vertices[:-1], triangles), "vertices that do not exist"),
        ((stretched, triangles), "not evenly spaced"),
    ):
        with raises_misuse(text):
            World(double).mesh(*mesh)


def test_meshes_are_flat_float32_and_uint32(
    double: Double, raises_misuse: Callable[[str], Any]
) -> None:
    points, triangles = grid(3, 3)
    params = double.gymapi.TriangleMeshParams()
    params.nb_vertices, params.nb_triangles = 9, 8
    world = World(double)
    good, corners = points.astype(np.float32).ravel(), triangles.astype(np.uint32).ravel()
    for vertices, faces, text in (
        (good.astype(float), corners, "vertices are float64"),
        (good.reshape(9, 3), corners, r"vertices are float32 \(9, 3\)"),
        (good, corners.astype(np.int64), "triangles are int64"),
        (good, corners[:-3], r"have to be flat, contiguous uint32 \(24,\)"),
    ):
        with raises_misuse(text):
            world.gym.add_triangle_mesh(world.sim, vertices, faces, params)
    params.dynamic_friction = 0.5
    with raises_misuse("one friction"):
        world.gym.add_triangle_mesh(world.sim, good, corners, params)
