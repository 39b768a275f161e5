"""Randomised quantities that the environment itself applies."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec, draw_episode
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.robots.robot import N_JOINTS, load_robot
from gaitforge.collectors.scenarios.randomisation import Randomisation

ROBOT = load_robot()
ACTION = np.zeros((2, N_JOINTS))
SEEDS = (1, 2)


@contextmanager
def standing(**randomisation: object) -> Iterator[LeggedEnvironment]:
    made = Randomisation.parsed(randomisation)
    env = LeggedEnvironment(ROBOT, 2, threads=1, randomisation=made)
    try:
        env.reset(np.arange(2), [EpisodeSpec(k, "flat", 0, "stand", k) for k in SEEDS])
        yield env
    finally:
        env.close()


def observed(env: LeggedEnvironment, steps: int) -> np.ndarray:
    """(steps, 2, 70) with the last joint targets held."""
    seen = [env.observe().policy]
    seen += [env.step(ACTION).observation.policy for _ in range(steps - 1)]
    return np.stack(seen)


def test_a_delay_shows_what_was_measured_steps_ago_and_commands_and_actions_at_once() -> None:
    quiet = {"sensor_noise": 0}
    with standing(**quiet) as now, standing(**quiet, observation_delay_steps=3) as late:
        at_once, delayed = observed(now, 12), observed(late, 12)
    measured = slice(0, POLICY_SLICES["last_action"][0])
    np.testing.assert_array_equal(delayed[3:, :, measured], at_once[:-3, :, measured])
    np.testing.assert_array_equal(delayed[:3, :, measured], at_once[[0] * 3][:, :, measured])
    np.testing.assert_array_equal(delayed[..., measured.stop :], at_once[..., measured.stop :])


def test_noise_grows_by_its_factor_and_only_on_its_sensor() -> None:
    velocity = slice(*POLICY_SLICES["joint_vel"])
    with standing(sensor_noise=0) as none, standing(sensor_noise_joint_vel=4) as more:
        clean, noisy = observed(none, 3), observed(more, 3)
    with standing() as usual:
        drawn = observed(usual, 3)
    np.testing.assert_allclose(
        (noisy - clean)[..., velocity], 4 * (drawn - clean)[..., velocity], atol=1e-5
    )
    others = np.delete(np.arange(noisy.shape[-1]), np.arange(velocity.start, velocity.stop))
    np.testing.assert_array_equal(noisy[..., others], drawn[..., others])


def test_pushes_come_again_after_their_interval_and_turn() -> None:
    kicks: list[tuple[int, float]] = []
    with standing(push_chance=1, push_speed_ms=0.5, push_interval_s=0.5) as env:
        push = env.physics.push

        def heard(ids: np.ndarray, velocity_xy: np.ndarray) -> None:
            kicks.extend(
                (int(env.step_count[0]), np.arctan2(v[1], v[0]))
                for i, v in zip(ids, velocity_xy, strict=True)
                if i == 0
            )
            push(ids, velocity_xy)

        env.physics.push = heard
        observed(env, 180)
        drawn = env.episode_draws[0]
    assert drawn is not None
    steps, angles = zip(*kicks, strict=True)
    assert steps == tuple(range(drawn.push_step, 179, 25))
    turns = np.diff(np.unwrap(angles)) % (2 * np.pi)
    np.testing.assert_allclose(turns, np.pi * (3 - np.sqrt(5)), atol=1e-9)


def test_slippery_ground_begins_where_it_is_drawn() -> None:
    changed: list[tuple[int, float]] = []
    with standing(patch_start_m=0.5, patch_friction=0.1) as env:
        env.physics.set_friction = lambda index, friction: changed.append((index, friction))
        env.observe()
        env.step(ACTION)
        assert changed == []
        state = env.physics.state
        ahead = np.stack([np.cos(env.track_yaw), np.sin(env.track_yaw)], axis=1)
        state.base_pos[0, :2] += 0.6 * ahead[0]
        env.observe()
        env.step(ACTION)
        env.step(ACTION)
    assert changed == [(0, 0.1)]


def test_a_start_without_offsets_is_the_default_pose_at_rest() -> None:
    spec = EpisodeSpec(0, "flat", 0, "stand", 5)
    drawn = draw_episode(spec, ROBOT, randomisation=Randomisation.parsed({"preset": "none"}))
    assert not drawn.joint_offset.any()
    assert not drawn.base_vel.any()
    assert drawn.push_step == -1


def test_what_a_simulator_cannot_vary_or_realise_is_refused() -> None:
    made = Randomisation.parsed({"base_mass_offset_kg": "-14:1"})
    with pytest.raises(ValueError, match=r"aliengo.*leaves -0\.9.* kg of 'trunk'"):
        LeggedEnvironment(ROBOT, 1, threads=1, randomisation=made)
    relative = Randomisation.parsed({"base_mass_offset_kg": "-10%:10%"})
    LeggedEnvironment(load_robot("mini_cheetah"), 1, 1, randomisation=relative).close()
