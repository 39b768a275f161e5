"""The humanoids' tasks: rewards, observations and ends against the simulator's own state."""

from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np
import pytest

from gaitforge.learners.models.bodies import body_of, body_view
from gaitforge.plugins.gym.environments.tasks import TASKS, make_environment

pytest.importorskip("gymnasium")
pytest.importorskip("dm_control")

IDS = [name for name in TASKS if name.startswith("Humanoid-")]
MOD, BOARD, HILL = IDS
DT_S = 1 / 60


@pytest.fixture(scope="module", params=IDS)
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = make_environment(TASKS[request.param])
    yield made
    made.close()


def actions(steps: int, seed: int = 0, size: float = 0.6) -> np.ndarray:
    """Actions (steps, 21), some of them beyond [-1, 1]."""
    return np.random.default_rng(seed).normal(0, size, (steps, 21)).astype(np.float32)


def torso_axes(data: Any) -> np.ndarray:
    """(3, 3) rotation of the torso, from the integrated state."""
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, data.qpos[3:7])
    return matrix.reshape(3, 3)


def test_an_episode_is_a_function_of_its_seed(env: Any) -> None:
    def episode(seed: int) -> list[tuple[bytes, float, bool]]:
        start, _ = env.reset(seed=seed)
        seen = [(start.tobytes(), 0.0, False)]
        for action in actions(40):
            obs, reward, terminated, _, _ = env.step(action)
            seen.append((obs.tobytes(), reward, terminated))
            if terminated:
                break
        return seen

    first = episode(5)
    assert episode(6) != first
    assert episode(5) == first


def test_the_reward_is_isaac_gyms(env: Any) -> None:
    """Written again with other means: MuJoCo's matrices, joints and motors by name."""
    simulation = env.unwrapped
    model, data = simulation.model, simulation.data
    gear = {model.actuator(i).name: model.actuator_gear[i, 0] for i in range(model.nu)}
    env.reset(seed=1)
    target = np.array(simulation.target_m)
    compared = ended = 0
    for step, action in enumerate(actions(400)):
        before = data.qpos[:2].copy()
        _, reward, terminated, _, _ = env.step(action)
        if terminated:
            assert reward == -1.0
            ended += 1
            env.reset(seed=step)
            continue
        away = target - data.qpos[:2]
        axes, distance = torso_axes(data), np.linalg.norm(away)
        expected = (np.linalg.norm(target - before) - distance) / DT_S + 2.0
        expected += 0.1 * (axes[2, 2] > 0.93)
        heading = axes[:2, 0] @ away / distance
        expected += 0.5 if heading > 0.8 else 0.5 * heading / 0.8
        for i, used in enumerate(np.clip(action, -1, 1)):
            joint = model.joint(1 + i)
            share = gear[joint.name] / max(gear.values())
            low, high = joint.range
            place = abs((2 * data.joint(joint.name).qpos[0] - low - high) / (high - low))
            expected -= 0.01 * used**2
            expected -= 0.05 * abs(used * 0.1 * data.joint(joint.name).qvel[0]) * share
            expected -= (place > 0.98) * 0.25 * (place - 0.98) / 0.02 * share
        assert reward == pytest.approx(expected, abs=1e-6)
        compared += 1
    assert compared > 100
    assert ended > 3


def test_the_observation_is_the_state(env: Any) -> None:
    simulation = env.unwrapped
    model, data, slices = simulation.model, simulation.data, simulation.obs_slices
    env.reset(seed=2)
    obs, action = np.zeros(0), np.zeros(0)
    for action in actions(12):
        obs, _, _, _, _ = env.step(action)
    seen = {name: obs[slice(*bounds)] for name, bounds in slices.items()}
    axes = torso_axes(data)
    roll, pitch, yaw = seen["root_state"][4:7]
    turn = [np.cos([roll, pitch, yaw]), np.sin([roll, pitch, yaw])]
    (cr, cp, cy), (sr, sp, sy) = turn
    rebuilt = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]
    np.testing.assert_allclose(rebuilt, axes, atol=1e-6)
    np.testing.assert_allclose(seen["root_state"][:4], [data.qpos[2], *data.qvel[:3]], rtol=1e-6)
    np.testing.assert_allclose(seen["root_state"][7:], axes @ data.qvel[3:6], atol=1e-5)
    np.testing.assert_allclose(seen["joint_vel"], 0.1 * data.qvel[6:27], rtol=1e-6)
    np.testing.assert_allclose(seen["last_action"], np.clip(action, -1, 1))
    low, high = model.jnt_range[1:22].T
    np.testing.assert_allclose((seen["joint_pos"] + 1) / 2 * (high - low) + low, data.qpos[7:28],
                               atol=1e-5)  # fmt: skip
    forces = np.zeros((model.nbody, 3))
    for number, contact in enumerate(data.contact):
        wrench = np.zeros(6)
        mujoco.mj_contactForce(model, data, number, wrench)
        force = contact.frame.reshape(3, 3).T @ wrench[:3]
        forces[model.geom_bodyid[contact.geom[1]]] += force
        forces[model.geom_bodyid[contact.geom[0]]] -= force
    np.testing.assert_allclose(seen["contact_force"].reshape(16, 3), forces[1:17] / 100, atol=1e-3)
    assert np.abs(forces[1:17]).max() > 10
    for name, axis in (("board", 2), ("roller", 0)):
        if name in slices:
            pose = data.body(name).id - 17
            place, turn = np.split(data.qpos[28 + 7 * pose :][:7], [3])
            np.testing.assert_allclose(seen[name][:3], place - data.qpos[:3], atol=1e-6)
            matrix = np.zeros(9)
            mujoco.mju_quat2Mat(matrix, turn)
            np.testing.assert_allclose(seen[name][3:], matrix.reshape(3, 3)[:, axis], atol=1e-6)


def test_every_number_belongs_to_the_body_that_it_is_measured_on(env: Any) -> None:
    simulation = env.unwrapped
    model, slices = simulation.model, simulation.obs_slices
    width = env.observation_space.shape[0]
    assert sorted(i for bounds in slices.values() for i in range(*bounds)) == list(range(width))
    graph, chosen = body_view(body_of(slices, 21), slices, 21)
    assert chosen is None
    assert sorted(i for own in graph.observations for i in own) == list(range(width))
    assert sorted(i for own in graph.actions for i in own) == list(range(21))
    names = [model.body(i).name for i in range(1, 17)]
    assert list(graph.nodes) == names
    tree = {(names[model.body_parentid[i] - 1], names[i - 1]) for i in range(2, 17)}
    assert {(graph.nodes[a], graph.nodes[b]) for a, b in graph.edges} == tree

    def owners(groups: tuple[tuple[int, ...], ...]) -> dict[int, str]:
        return {i: node for node, own in zip(names, groups, strict=True) for i in own}

    holder = owners(graph.observations)
    moved = [model.body(model.jnt_bodyid[1 + i]).name for i in range(21)]
    for name in ("joint_pos", "joint_vel", "last_action"):
        assert [holder[i] for i in range(*slices[name])] == moved
    assert [holder[i] for i in range(*slices["contact_force"])][::3] == names
    assert [owners(graph.actions)[i] for i in range(21)] == moved
    others = {"root_state", "target", "board", "roller"} & slices.keys()
    assert {holder[i] for name in others for i in range(*slices[name])} == {"torso"}


def test_a_passive_humanoid_stands_at_first_and_falls(env: Any) -> None:
    task, simulation = TASKS[env.spec.id], env.unwrapped
    assert env.spec.max_episode_steps == task.facts.horizon == 1000
    assert simulation.model.opt.timestep * 2 == task.facts.control_dt_s
    for seed in range(4):
        env.reset(seed=seed)
        length, terminated = 0, False
        while not terminated:
            _, _, terminated, truncated, _ = env.step(np.zeros(21))
            length += 1
            assert not truncated
        assert 5 < length < 100
        x, y, z = simulation.data.qpos[:3]
        touches = any(0 in pair for pair in simulation.data.contact.geom.tolist())
        assert z - simulation.ground_m(x, y) < simulation.fall_height_m or touches


def test_the_roller_is_free_and_the_board_lies_on_it() -> None:
    simulation = make_environment(TASKS[BOARD]).unwrapped
    model, data = simulation.model, simulation.data
    simulation.reset(seed=0)
    data.qpos[2] = 5.0  # without the humanoid the two are balanced
    for _ in range(20):
        mujoco.mj_step(model, data)
    board, roller = (data.joint(model.body(name).jntadr[0]) for name in ("board", "roller"))
    np.testing.assert_allclose(board.qpos[:3], [0, 0, 0.225], atol=0.01)
    np.testing.assert_allclose(roller.qpos[:3], [0, 0, 0.1], atol=0.01)
    board.qvel[1] = 0.5
    for _ in range(20):
        mujoco.mj_step(model, data)
    # Without slip the board moves twice as far as the roller, which turns about its axis.
    assert board.qpos[1] == pytest.approx(2 * roller.qpos[1], rel=0.2)
    assert roller.qpos[1] > 0.02
    assert abs(roller.qvel[3:]).max() > 1.0


def test_hills_are_drawn_by_the_seed_and_are_where_the_ground_is() -> None:
    simulation = make_environment(TASKS[HILL]).unwrapped
    fields = []
    for seed in (3, 4, 3):
        simulation.reset(seed=seed)
        fields.append(simulation.model.hfield_data.copy())
    assert np.array_equal(fields[0], fields[2])
    assert not np.array_equal(fields[0], fields[1])
    assert fields[0].min() >= 0
    assert fields[0].max() <= 1
    geom, ends = (
        np.zeros(1, np.int32),
        np.random.default_rng(0).uniform([-3, -11], [80, 11], (50, 2)),
    )
    for x, y in ends:
        start = np.array([x, y, 3.0])
        away = mujoco.mj_ray(simulation.model, simulation.data, start, np.array([0, 0, -1.0]), None,
                             1, -1, geom)  # fmt: skip
        assert 3.0 - away == pytest.approx(simulation.ground_m(x, y), abs=0.08)


def test_a_missing_dm_control_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = "gaitforge.plugins.gym.environments.humanoids.find_spec"
    monkeypatch.setattr(find, lambda name: None)
    with pytest.raises(ValueError, match=r"dm_control, which is not installed: run .*humanoid"):
        make_environment(TASKS[MOD])
