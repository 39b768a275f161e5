"""The task: rewards, how episodes end, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collectors.commands import C, draw_command
from collectors.environment import MAX_ACTION, LeggedEnvironment
from collectors.episodes import EPISODE_STEPS, PUSH_STEPS, draw_episode
from collectors.gait import GaitReference, leg_phases
from collectors.observations import POLICY_SLICES
from collectors.physics import CONTROL_DT_S
from collectors.randomisation import nominal_draws
from collectors.rewards import REWARDS, total_reward
from collectors.robots import N_JOINTS
from tests.collectors.making import FLAT, LEGS_UP, ROBOT, perfect_view, spec, start_at

BEST_PER_S = 3.2


@pytest.fixture
def env() -> Iterator[LeggedEnvironment]:
    """Two robots on flat ground, one running and one standing."""
    made = LeggedEnvironment(ROBOT, 2, threads=1)
    made.reset(np.arange(2), [spec(0, seed=4), spec(1, seed=5, skill="stand")])
    yield made
    made.close()


def command(**changes: float) -> np.ndarray:
    drawn = draw_command("run", np.random.default_rng(0))
    for name, value in changes.items():
        drawn[C[name.upper()]] = value
    return drawn


def test_a_perfect_step_earns_the_stated_maximum() -> None:
    assert total_reward(perfect_view(command()))[0] == pytest.approx(BEST_PER_S)
    positive = sum(term.weight for term in REWARDS.values() if term.weight > 0)
    assert positive == pytest.approx(BEST_PER_S)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"lin_vel_body": np.array([[0.5, 0.0, 0.0]])}, 1.0 * (1 - np.exp(-1))),
        ({"lin_vel_body": np.array([[0.0, -0.5, 0.0]])}, 1.0 * (1 - np.exp(-1))),
        ({"ang_vel_body": np.array([[0.0, 0.0, 0.5]])}, 0.5 * (1 - np.exp(-1))),
        ({"gravity": np.array([[0.1, -0.1, -1.0]])}, 1.0 * (1 - np.exp(-1))),
        ({"height_m": np.array([0.38 + 0.05])}, 0.4 * (1 - np.exp(-0.625))),
        ({"stance_width_m": np.array([0.3 - 0.05])}, 0.3 * (1 - np.exp(-2.5 / 3))),
        ({"lin_vel_body": np.array([[0.0, 0.0, 1.0]])}, 0.3),
        ({"ang_vel_body": np.array([[1.0, 2.0, 0.0]])}, 0.15),
        ({"joint_torque": np.full((1, N_JOINTS), 10.0)}, 2e-5 * 1200),
        (
            {
                "joint_torque": np.full((1, N_JOINTS), 10.0),
                "joint_vel": np.full((1, N_JOINTS), -5.0),
            },
            2e-5 * 1200 + 2e-5 * 600,
        ),
        ({"action": np.full((1, N_JOINTS), 0.5)}, 0.005 * 3),
        ({"foot_vel": np.full((1, 4, 3), 0.5)}, 0.04 * 2),
        ({"knee_force_n": np.array([[2.0, 0.5, 0.0, 3.0]])}, 1.0),
        ({"joint_pos": np.tile([0.0, 0.8, -0.646], 4)[None]}, 2.0 * 4 * 0.05 * 2.129 / 2),
    ],
)
def test_every_imperfection_costs_what_its_term_says(changes: dict[str, Any], lost: float) -> None:
    asked = command(vel_x=0.0, vel_y=0.0, yaw_rate=0.0, body_height=0.0, stance_width=0.3)
    view = perfect_view(asked)
    assert total_reward(replace(view, **changes))[0] == pytest.approx(BEST_PER_S - lost, abs=1e-9)


def test_feet_in_the_air_do_not_slip() -> None:
    view = replace(
        perfect_view(command()),
        foot_vel=np.full((1, 4, 3), 0.5),
        foot_contact=np.zeros((1, 4), dtype=bool),
    )
    assert total_reward(view)[0] == pytest.approx(BEST_PER_S)


def test_the_gait_alone_stands_well_on_flat_ground_for_a_whole_episode() -> None:
    gait = GaitReference(ROBOT)
    env = LeggedEnvironment(ROBOT, 1, threads=1)
    try:
        seed = next(s for s in range(99) if draw_episode(spec(seed=s)).push_step < 0)
        env.reset(np.arange(1), [spec(seed=seed, skill="stand")])
        # The nominal robot in the same episode.
        env.physics.reset(0, FLAT, nominal_draws(), start_at())
        rewards = []
        for step in range(1, EPISODE_STEPS + 1):
            targets = gait.joint_targets(env.command(), env.clock())
            action = (targets - ROBOT.default_joint_pos_rad) / ROBOT.action_scale_rad
            transition = env.step(action)
            rewards.append(float(transition.reward[0]))
            assert not transition.terminated[0]
            assert transition.truncated[0] == (step == EPISODE_STEPS)
    finally:
        env.close()
    best = BEST_PER_S * CONTROL_DT_S
    assert max(rewards) <= best
    assert np.mean(rewards[25:100]) > 0.8 * best


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
        ("upside down", start_at(z=1.0, quat=np.array([0.0, 1.0, 0.0, 0.0]))),
        ("on its side", start_at(z=1.0, quat=np.array([np.sqrt(0.5), np.sqrt(0.5), 0.0, 0.0]))),
        ("trunk on the ground", start_at(z=0.055, joint_pos=LEGS_UP)),
    ],
)
def test_a_fallen_robot_ends_its_episode_and_no_other(
    env: LeggedEnvironment, what: str, start: Any
) -> None:
    env.physics.reset(0, FLAT, nominal_draws(), start)
    action = np.zeros((2, N_JOINTS))
    action[0] = (LEGS_UP - ROBOT.default_joint_pos_rad) / ROBOT.action_scale_rad
    transition = env.step(action)
    assert transition.terminated.tolist() == [True, False], what
    assert not transition.truncated.any()
    assert not env.success(0, terminated=True)


def test_the_environment_never_starts_an_episode_by_itself(env: LeggedEnvironment) -> None:
    env.physics.reset(0, FLAT, nominal_draws(), start_at(z=1.0, quat=np.array([0.0, 1.0, 0, 0])))
    for step in range(1, 4):
        assert env.step(np.zeros((2, N_JOINTS))).terminated[0]
        assert env.step_count.tolist() == [step, step]


@pytest.mark.parametrize("shape", [(1, 12), (2, 11), (12,), (2, 12, 1)])
def test_actions_of_another_shape_are_refused(env: LeggedEnvironment, shape: tuple) -> None:
    with pytest.raises(ValueError, match=r"action has shape .* not \(2, 12\)"):
        env.step(np.zeros(shape))
    assert not env.step_count.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_actions_that_are_not_finite_are_refused(env: LeggedEnvironment, value: float) -> None:
    action = np.zeros((2, N_JOINTS))
    action[1, 5] = value
    with pytest.raises(ValueError, match="not finite"):
        env.step(action)
    assert not env.step_count.any()


def test_the_last_action_is_the_executed_one(env: LeggedEnvironment) -> None:
    action = np.linspace(-30, 30, 2 * N_JOINTS).reshape(2, N_JOINTS)
    observation = env.step(action).observation
    start, stop = POLICY_SLICES["last_action"]
    executed = np.clip(action, -MAX_ACTION, MAX_ACTION).astype(np.float32)
    np.testing.assert_array_equal(observation.policy[:, start:stop], executed)


def test_actions_are_joint_targets_about_the_default_pose(env: LeggedEnvironment) -> None:
    targets = env.joint_targets(np.full((2, N_JOINTS), 0.4))
    np.testing.assert_allclose(targets, np.tile(ROBOT.default_joint_pos_rad + 0.1, (2, 1)))


def test_a_push_comes_in_its_step_and_only_to_its_robot() -> None:
    drawn = {seed: draw_episode(spec(seed=seed, skill="stand")) for seed in range(40)}
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


def test_a_reset_starts_some_robots_and_leaves_the_others(env: LeggedEnvironment) -> None:
    for _ in range(5):
        env.step(np.zeros((2, N_JOINTS)))
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


def test_the_clock_starts_at_zero_and_runs_at_the_commanded_frequency(
    env: LeggedEnvironment,
) -> None:
    assert not env.clock().any()
    for _ in range(10):
        env.step(np.zeros((2, N_JOINTS)))
    frequency = env.target_command[:, C.GAIT_FREQUENCY]
    np.testing.assert_allclose(env.clock(), 10 * CONTROL_DT_S * frequency)
