"""The 70 stored numbers: their order, what each holds, and their noise."""

import numpy as np
import pytest

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.observations import (
    NOISE_DIM,
    OBS_DIM,
    POLICY_SLICES,
    PRIVILEGED_DIM,
    PRIVILEGED_SLICES,
    policy_observation,
)
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.rotations import gravity_in_body
from tests.collectors.making import DEFAULT_POSE, ROBOT, spec

ORDER = [
    ("projected_gravity", 3),
    ("joint_vel", 12),
    ("sin_joint_pos", 12),
    ("cos_joint_pos", 12),
    ("base_ang_vel_body", 3),
    ("last_action", 12),
    ("command", 16),
]


def block(observation: np.ndarray, name: str) -> np.ndarray:
    start, stop = POLICY_SLICES[name]
    return observation[:, start:stop]


def test_the_observation_is_the_papers_in_its_order() -> None:
    starts = np.cumsum([0, *(size for _, size in ORDER)])
    expected = {
        name: (int(start), int(start) + size)
        for (name, size), start in zip(ORDER, starts[:-1], strict=True)
    }
    assert list(POLICY_SLICES.items()) == list(expected.items())
    assert starts[-1] == OBS_DIM == 70


def make(noise: np.ndarray, rows: int = 4) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    parts = {
        "gravity": rng.normal(size=(rows, 3)),
        "joint_vel": rng.normal(size=(rows, N_JOINTS)),
        "joint_pos": rng.normal(size=(rows, N_JOINTS)),
        "base_ang_vel_body": rng.normal(size=(rows, 3)),
        "last_action": rng.normal(size=(rows, N_JOINTS)),
        "command": rng.normal(size=(rows, 16)),
    }
    return policy_observation(**parts, noise=noise), parts


@pytest.mark.parametrize("sign", [0.0, 1.0, -1.0])
def test_noise_moves_every_measurement_by_its_bound(sign: float) -> None:
    found, parts = make(np.full((4, NOISE_DIM), sign))
    measured = parts["joint_pos"] + sign * 0.01
    expected = {
        "projected_gravity": parts["gravity"] + sign * 0.05,
        "joint_vel": parts["joint_vel"] + sign * 1.5,
        "sin_joint_pos": np.sin(measured),
        "cos_joint_pos": np.cos(measured),
        "base_ang_vel_body": parts["base_ang_vel_body"] + sign * 0.2,
        "last_action": parts["last_action"],
        "command": parts["command"],
    }
    assert found.dtype == np.float32
    for name, values in expected.items():
        np.testing.assert_allclose(block(found, name), values, atol=1e-6, err_msg=name)


def test_a_running_robots_observation_is_its_state_plus_its_episodes_noise() -> None:
    env = LeggedEnvironment(ROBOT, 3, threads=1)
    try:
        env.reset(np.arange(3), [spec(k, seed=k, terrain="rough", level=3) for k in range(3)])
        rng = np.random.default_rng(0)
        action = np.zeros((3, N_JOINTS))
        for step in range(12):
            observation = env.observe() if step == 0 else env.step(action).observation
            state = env.physics.state
            noise = np.stack([d.observation_noise[step] for d in env.episode_draws if d])
            expected = policy_observation(
                gravity_in_body(state.base_quat),
                state.joint_vel,
                state.joint_pos,
                state.base_ang_vel_body,
                action,
                env.command(),
                noise,
            )
            np.testing.assert_array_equal(observation.policy, expected)
            np.testing.assert_array_equal(observation.command, env.command())
            action = rng.normal(0, 0.3, (3, N_JOINTS))
    finally:
        env.close()


def test_the_privileged_block_is_laid_out_without_gaps_and_without_noise() -> None:
    stops = [stop for _, stop in PRIVILEGED_SLICES.values()]
    starts = [start for start, _ in PRIVILEGED_SLICES.values()]
    assert starts == [0, *stops[:-1]]
    env = LeggedEnvironment(ROBOT, 2, threads=1)
    try:
        env.reset(np.arange(2), [spec(k, seed=k) for k in range(2)])
        observation = env.step(np.zeros((2, N_JOINTS))).observation
        privileged = observation.privileged
        state = env.physics.state
        assert env.view is not None
        geometry = env.view.geometry
    finally:
        env.close()
    assert privileged.shape == (2, PRIVILEGED_DIM)
    assert privileged.dtype == np.float32
    expected = {
        "projected_gravity": gravity_in_body(state.base_quat),
        "base_ang_vel_body": state.base_ang_vel_body,
        "base_lin_vel_body": geometry.lin_vel_body,
        "velocity_heading": geometry.velocity_heading,
        "joint_pos_error": state.joint_pos - DEFAULT_POSE,
        "joint_vel": state.joint_vel,
    }
    for name, values in expected.items():
        found = privileged[:, slice(*PRIVILEGED_SLICES[name])]
        np.testing.assert_allclose(found, values, rtol=1e-6, atol=1e-6, err_msg=name)
    assert not privileged[:, slice(*PRIVILEGED_SLICES["passage"])].any(), "open ground"
    # On flat ground all points of the scan lie equally far below the trunk.
    start, stop = PRIVILEGED_SLICES["height_scan"]
    assert np.ptp(privileged[:, start:stop], axis=1).max() < 1e-6


@pytest.mark.parametrize(("skill", "kind"), [("crawl", -1.0), ("squeeze", 1.0), ("tilt", 1.0)])
def test_the_privileged_block_tells_where_the_passage_is(skill: str, kind: float) -> None:
    env = LeggedEnvironment(ROBOT, 2, threads=1)
    try:
        env.reset(np.arange(2), [spec(seed=5, skill=skill, level=4), spec(seed=6)])
        draws = env.episode_draws[0]
        assert draws is not None
        passage = draws.passage
        assert passage is not None
        for _ in range(5):
            privileged = env.step(np.zeros((2, N_JOINTS))).observation.privileged
            along, across, heading = env.on_track()[0]
            to_start, to_end = passage.start_m - along, passage.end_m - along
            expected = [kind, to_start, to_end, passage.opening_m, across, heading]
            found = privileged[:, slice(*PRIVILEGED_SLICES["passage"])]
            np.testing.assert_allclose(found, [expected, [0.0] * 6], atol=1e-6)
    finally:
        env.close()
