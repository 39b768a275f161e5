"""The task: rewards, tracks and steering, how episodes end, and what it refuses."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.legged.environment import MAX_ACTION, LeggedEnvironment
from gaitforge.collectors.legged.episodes import PUSH_STEPS, EpisodeSpec, draw_episode
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.legged.rewards import REWARDS, total_reward
from gaitforge.collectors.robots.kinematics import C, leg_phases, ramped
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.skills import SKILLS, S
from gaitforge.collectors.scenarios.terrains import steer
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from tests.collectors.making import LEGS_UP, ROBOT, changed_view, perfect_view, spec, start_at

BEST_PER_S = 3.2


@pytest.fixture
def env() -> Iterator[LeggedEnvironment]:
    """Two robots on flat ground, one running and one standing."""
    made = LeggedEnvironment(ROBOT, 2, threads=1)
    made.reset(np.arange(2), [spec(0, seed=4), spec(1, seed=5, skill="stand")])
    yield made
    made.close()


def command(**changes: float) -> np.ndarray:
    drawn = SKILLS["run"].draw_command(np.random.default_rng(0), ROBOT)
    for name, value in changes.items():
        drawn[C[name.upper()]] = value
    return drawn


def test_a_perfect_step_earns_the_stated_maximum() -> None:
    assert total_reward(perfect_view(command()))[0] == pytest.approx(BEST_PER_S)
    positive = sum(weight for weight in REWARDS.values() if weight > 0)
    assert positive == pytest.approx(BEST_PER_S)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"velocity_heading": np.array([[0.5, 0.0, 0.0]])}, 1.0 * (1 - np.exp(-1))),
        ({"velocity_heading": np.array([[0.0, -0.5, 0.0]])}, 1.0 * (1 - np.exp(-1))),
        ({"velocity_heading": np.array([[0.0, 0.0, 0.5]])}, 0.5 * (1 - np.exp(-1))),
        ({"gravity": np.array([[0.1, -0.1, -1.0]])}, 1.0 * (1 - np.exp(-1))),
        ({"height": np.array([0.38 + 0.05])}, 0.4 * (1 - np.exp(-0.625))),
        ({"stance_width_m": np.array([0.3 - 0.05])}, 0.3 * (1 - np.exp(-2.5 / 3))),
        ({"lin_vel_body": np.array([[0.0, 0.0, 1.0]])}, 0.3),
        ({"base_ang_vel_body": np.array([[1.0, 2.0, 0.0]])}, 0.15),
        ({"joint_torque": np.full((1, N_JOINTS), 10.0)}, 2e-5 * 1200),
        (
            {
                "joint_torque": np.full((1, N_JOINTS), 10.0),
                "joint_vel": np.full((1, N_JOINTS), -5.0),
            },
            2e-5 * 1200 + 2e-5 * 600,
        ),
        ({"action": np.full((1, N_JOINTS), 0.5)}, 0.01 * 3),
        ({"barrier_force": np.array([1.1])}, 1.0),
        ({"barrier_force": np.array([0.9])}, 0.0),
        ({"foot_vel": np.full((1, 4, 3), 0.5)}, 0.04 * 2),
        ({"knee_force_n": np.array([[2.0, 0.5, 0.0, 3.0]])}, 1.0),
        ({"joint_pos": np.tile([0.0, 0.8, -0.646], 4)[None]}, 2.0 * 4 * 0.05 * 2.129 / 2),
    ],
)
def test_every_imperfection_costs_what_its_term_says(changes: dict[str, Any], lost: float) -> None:
    asked = command(vel_x=0.0, vel_y=0.0, yaw_rate=0.0, body_height=0.0, stance_width=0.3)
    view = perfect_view(asked)
    assert total_reward(changed_view(view, **changes))[0] == pytest.approx(
        BEST_PER_S - lost, abs=1e-9
    )


def test_who_is_asked_to_stand_pays_for_turning_and_swaying() -> None:
    standing = perfect_view(command(locomote=0.0, yaw_rate=0.0))
    walking = perfect_view(command(locomote=1.0, yaw_rate=0.0))
    turn = np.array([[0.1, -0.2, 0.3]])
    paid = total_reward(changed_view(walking, base_ang_vel_body=turn)) - total_reward(
        changed_view(standing, base_ang_vel_body=turn)
    )
    assert paid[0] == pytest.approx(0.1**2 + 0.2**2 + 0.3**2)
    assert total_reward(standing)[0] == pytest.approx(BEST_PER_S)


def test_feet_in_the_air_do_not_slip() -> None:
    view = changed_view(
        perfect_view(command()),
        foot_vel=np.full((1, 4, 3), 0.5),
        foot_contact=np.zeros((1, 4), dtype=bool),
    )
    assert total_reward(view)[0] == pytest.approx(BEST_PER_S)


def test_the_observation_after_the_last_step_is_the_true_final_one(env: LeggedEnvironment) -> None:
    rng = np.random.default_rng(0)
    transition = env.step(rng.normal(0, 0.2, (2, N_JOINTS)))
    while not transition.truncated[1]:
        transition = env.step(rng.normal(0, 0.2, (2, N_JOINTS)))
        assert env.step_count[1] <= EPISODE_STEPS
    again = env.observe()
    np.testing.assert_array_equal(transition.observation.policy, again.policy)
    assert env.step_count[1] == EPISODE_STEPS


@pytest.mark.parametrize(
    ("what", "start"),
    [
        ("upside down", start_at(z=1.0, base_quat=np.array([0.0, 1.0, 0.0, 0.0]))),
        ("on its side", start_at(z=1.0, base_quat=np.sqrt([0.5, 0.5, 0.0, 0.0]))),
        ("trunk on the ground", start_at(z=0.055, joint_pos=LEGS_UP)),
    ],
)
def test_a_fallen_robot_ends_its_episode_and_no_other(
    env: LeggedEnvironment, what: str, start: Any
) -> None:
    env.physics.reset(0, start)
    action = np.zeros((2, N_JOINTS))
    action[0] = (LEGS_UP - ROBOT.default_joint_pos_rad) / ROBOT.action_scale_rad
    transition = env.step(action)
    assert transition.terminated.tolist() == [True, False], what
    assert not transition.truncated.any()
    assert not env.success(0, terminated=True)
    env.step(action)
    assert env.step_count.tolist() == [2, 2], "it starts no episode by itself"


@pytest.mark.parametrize(
    ("side", "beyond", "ends"),
    [(1.0, 1.1, False), (1.0, -1.4, True), (-1.0, -1.1, False), (-1.0, 1.4, True)],
)
def test_leaning_counts_from_the_commanded_attitude(side: float, beyond: float, ends: bool) -> None:
    def tilts(seed: int) -> bool:
        roll = draw_episode(tilting(seed), ROBOT).command[C.BODY_ROLL]
        return side * roll > 1.0

    def tilting(seed: int) -> EpisodeSpec:
        return spec(seed=seed, skill="tilt", level=9)

    env = LeggedEnvironment(ROBOT, 1, threads=1)
    try:
        env.reset(np.arange(1), [tilting(next(filter(tilts, range(99))))])
        half = (env.target_command[0, C.BODY_ROLL] + beyond) / 2
        quat = np.array([np.cos(half), np.sin(half), 0.0, 0.0])
        env.physics.reset(0, start_at(z=5.0, base_quat=quat))
        env.step_count[:] = 100  # The whole roll is commanded by then.
        terminated = env.step(np.zeros((1, N_JOINTS))).terminated[0]
    finally:
        env.close()
    # 72 degrees are 1.27 rad.
    assert terminated == ends


def test_actions_of_another_shape_and_what_is_not_finite_are_refused(
    env: LeggedEnvironment,
) -> None:
    for shape in ((1, 12), (2, 11), (12,)):
        with pytest.raises(ValueError, match=r"action has shape .* not \(2, 12\)"):
            env.step(np.zeros(shape))
    for value in (np.nan, -np.inf):
        action = np.zeros((2, N_JOINTS))
        action[1, 5] = value
        with pytest.raises(ValueError, match="not finite"):
            env.step(action)
    assert not env.step_count.any()


def test_actions_are_clipped_joint_targets_about_the_default_pose(env: LeggedEnvironment) -> None:
    targets = env.joint_targets(np.full((2, N_JOINTS), 0.4))
    np.testing.assert_allclose(targets, np.tile(ROBOT.default_joint_pos_rad + 0.1, (2, 1)))
    action = np.linspace(-30, 30, 2 * N_JOINTS).reshape(2, N_JOINTS)
    observation = env.step(action).observation
    start, stop = POLICY_SLICES["last_action"]
    executed = np.clip(action, -MAX_ACTION, MAX_ACTION).astype(np.float32)
    np.testing.assert_array_equal(observation.policy[:, start:stop], executed)


def test_a_push_comes_in_its_step_and_only_to_its_robot() -> None:
    drawn = {seed: draw_episode(spec(seed=seed, skill="stand"), ROBOT) for seed in range(40)}
    pushed = next(s for s, d in drawn.items() if d.push_step >= 0 and d.push_velocity[0] > 0.3)
    calm = next(s for s, d in drawn.items() if d.push_step < 0)
    env = LeggedEnvironment(ROBOT, 2, threads=1)
    try:
        env.reset(
            np.arange(2), [spec(k, seed=s, skill="stand") for k, s in enumerate((pushed, calm))]
        )
        jumps = np.zeros((PUSH_STEPS[1], 2))
        for step in range(PUSH_STEPS[1]):
            before = env.physics.state.base_lin_vel_world[:, 0].copy()
            env.step(np.zeros((2, N_JOINTS)))
            jumps[step] = env.physics.state.base_lin_vel_world[:, 0] - before
    finally:
        env.close()
    step = drawn[pushed].push_step
    assert int(np.argmax(jumps[:, 0])) == step
    assert jumps[step, 0] == pytest.approx(drawn[pushed].push_velocity[0], abs=0.15)
    assert abs(jumps[step, 1]) < 0.15


def place(env: LeggedEnvironment, along: float, across: float, heading: float) -> None:
    """Put every robot somewhere on its own track, in the air and without barriers."""
    for index in range(env.num_robots):
        yaw = env.track_yaw[index]
        x, y = env.track_origin[index]
        c, s = np.cos(yaw), np.sin(yaw)
        start = start_at(
            x=float(x + c * along - s * across),
            y=float(y + s * along + c * across),
            z=2.0,
            yaw=float(yaw + heading),
        )
        env.physics.reset(index, start)


PASSAGE_SPECS = [
    spec(0, seed=0, skill="crawl", level=5),
    spec(1, seed=1, skill="squeeze", level=5),
    spec(2, seed=2, skill="tilt", level=5),
    spec(3, seed=3, skill="tilt", terrain="slope"),
]


@pytest.fixture(scope="module")
def passages() -> Iterator[LeggedEnvironment]:
    """Four robots in front of a bar, of walls to squeeze and to tilt through, and of nothing."""
    made = LeggedEnvironment(ROBOT, 4, threads=1)
    made.reset(np.arange(4), PASSAGE_SPECS)
    np.testing.assert_allclose(made.on_track(), np.zeros((4, 3)), atol=1e-9)
    yield made
    made.close()


@given(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
@settings(max_examples=25)
def test_in_front_of_a_passage_the_command_steers_and_on_open_ground_it_does_not(
    passages: LeggedEnvironment, across: float, heading: float
) -> None:
    place(passages, 0.1, across, heading)
    observation = passages.observe()
    time = passages.step_count * CONTROL_DT_S
    ramped_target = ramped(passages.target_command, time)
    steered = steer(ramped_target, np.full(4, across), np.full(4, heading))
    expected = np.concatenate([steered[:3], ramped_target[3:]])
    np.testing.assert_allclose(observation.command, expected, atol=1e-9)
    start, stop = POLICY_SLICES["command"]
    np.testing.assert_allclose(observation.policy[:, start:stop], expected, atol=1e-6)


def test_the_reward_asks_for_the_steered_command() -> None:
    env = LeggedEnvironment(ROBOT, 2, threads=1)
    try:
        env.reset(np.arange(2), [spec(seed=1, skill="squeeze"), spec(seed=1, skill="squeeze")])
        # Both move left; only to the second, right of its track, is that the way back.
        for index, across in enumerate((0.25, -0.25)):
            start = start_at(z=2.0, lin_vel=(0.0, 0.3, 0.0))
            env.physics.reset(index, start)
            env.track_origin[index], env.track_yaw[index] = (0.0, -across), 0.0
        away, back = env.step(np.zeros((2, N_JOINTS))).reward
    finally:
        env.close()
    # Velocity errors of 0.6 and 0 m/s, at 1 a second.
    assert back - away == pytest.approx((1 - np.exp(-0.36 / 0.25)) * CONTROL_DT_S, rel=0.1)


@pytest.mark.parametrize("skill", ["crawl", "tilt"])
def test_what_stands_in_the_way_can_be_run_into(skill: str) -> None:
    env = LeggedEnvironment(ROBOT, 2, threads=1)
    try:
        specs = [spec(seed=2, skill=skill, level=9), spec(seed=2, skill="run")]
        env.reset(np.arange(2), specs)
        hit = np.zeros(2)
        for _ in range(12):
            # Ahead along their own tracks, upright and unlearned.
            ahead = 3.0 * np.stack([np.cos(env.track_yaw), np.sin(env.track_yaw)], axis=1)
            env.physics.push(np.arange(2), ahead - env.physics.state.base_lin_vel_world[:, :2])
            env.step(np.zeros((2, N_JOINTS)))
            hit = np.maximum(hit, env.physics.state.barrier_force)
        assert hit[0] > 10.0
        assert hit[1] == 0.0
        assert env.track(0).values[:, S.BARRIER_FORCE].max() == pytest.approx(hit[0])
        assert not env.success(0, terminated=False)
    finally:
        env.close()


def test_a_track_records_torque_and_action_rate(env: LeggedEnvironment) -> None:
    rng = np.random.default_rng(1)
    before = np.zeros((2, N_JOINTS))
    torque, rate = [], []
    for _ in range(6):
        action = rng.normal(0, 1.0, (2, N_JOINTS))
        env.step(action)
        torque.append(np.abs(env.physics.state.joint_torque).max(axis=1))
        moved = env.joint_targets(action) - env.joint_targets(before)
        rate.append(np.abs(moved).max(axis=1) / CONTROL_DT_S)
        before = action
    for index in range(2):
        values = env.track(index).values
        np.testing.assert_allclose(values[:, S.TORQUE], np.array(torque)[:, index], rtol=1e-6)
        np.testing.assert_allclose(values[:, S.ACTION_RATE], np.array(rate)[:, index], rtol=1e-5)
        assert values[:, S.TORQUE].max() <= ROBOT.torque_limit_nm.max() + 1e-6


def test_a_reset_starts_some_robots_and_leaves_the_others(env: LeggedEnvironment) -> None:
    assert not env.clock().any()
    for _ in range(5):
        env.step(np.zeros((2, N_JOINTS)))
    frequency = env.target_command[:, C.GAIT_FREQUENCY]
    np.testing.assert_allclose(env.clock(), 5 * CONTROL_DT_S * frequency)
    before = env.observe().policy[1]
    env.reset(np.array([0]), [spec(7, seed=9)])
    assert env.step_count.tolist() == [0, 5]
    np.testing.assert_array_equal(env.observe().policy[1], before)
    assert not env.observe().policy[0, slice(*POLICY_SLICES["last_action"])].any()
    assert env.observe().reward[0] == 0.0


def test_a_trot_moves_diagonal_legs_together() -> None:
    asked = command(gait_phase=0.5, gait_offset=0.0, gait_bound=0.0)[None]
    phases = leg_phases(asked, np.array([0.3]))[0]
    assert phases[0] == pytest.approx(phases[3])
    assert phases[1] == pytest.approx(phases[2])
    assert abs(phases[0] - phases[1]) == pytest.approx(0.5)
