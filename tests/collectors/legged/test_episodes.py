"""What is random in an episode follows from its spec alone."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.legged.episodes import (
    ACTION_NOISE_CORRELATION,
    HELD_OUT_VARIANTS,
    PUSH_STEPS,
    TRAIN_VARIANTS,
    EpisodeDraws,
    draw_episode,
    draw_episodes,
)
from gaitforge.collectors.legged.observations import NOISE_DIM
from gaitforge.collectors.robots.kinematics import NEUTRAL, C, command_scale
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.randomisation import DEFAULT
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.timing import EPISODE_STEPS
from tests.collectors.making import ROBOT, spec


def drawn(**changes: Any) -> EpisodeDraws:
    return draw_episode(spec(**changes), ROBOT)


def assert_same(first: EpisodeDraws, second: EpisodeDraws) -> None:
    for field in fields(EpisodeDraws):
        np.testing.assert_array_equal(
            getattr(first, field.name), getattr(second, field.name), err_msg=field.name
        )


@given(st.integers(0, 2**63 - 1), st.sampled_from(sorted(SKILLS)), st.floats(0.0, 1.0))
def test_the_same_spec_draws_the_same_episode(seed: int, skill: str, noise: float) -> None:
    episode = spec(seed=seed, skill=skill, action_noise=noise)
    assert_same(draw_episode(episode, ROBOT), draw_episode(episode, ROBOT))


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.sampled_from(sorted(SKILLS)))))
def test_episodes_that_are_drawn_together_are_those_drawn_alone(
    chosen: list[tuple[int, str]],
) -> None:
    specs = [spec(seed=seed, skill=skill, action_noise=0.1) for seed, skill in chosen]
    together = draw_episodes(specs, [ROBOT] * len(specs))
    for episode, draws in zip(specs, together, strict=True):
        assert_same(draws, draw_episode(episode, ROBOT))


@given(st.integers(0, 2**63 - 1))
def test_the_numbers_of_an_episode_are_those_of_single_draws(seed: int) -> None:
    draws = drawn(seed=seed)
    rng = np.random.default_rng(seed)
    chance = rng.random()
    ranges = NEUTRAL | SKILLS["run"].ranges
    command = np.array([rng.uniform(*ranges[c]) for c in C]) * command_scale(ROBOT)
    np.testing.assert_array_equal(draws.command, command)
    np.testing.assert_array_equal(draws.draws, DEFAULT.draw(rng, seed, ROBOT))
    assert draws.terrain_variant == rng.integers(*TRAIN_VARIANTS)
    assert draws.yaw == rng.uniform(-np.pi, np.pi)
    for values, half in (
        (draws.offset_xy, 0.3),
        (draws.base_vel, 0.1),
        (draws.joint_offset, 0.1),
    ):
        np.testing.assert_array_equal(values, [rng.uniform(-half, half) for _ in values])
    assert draws.push_step == (rng.integers(*PUSH_STEPS) if chance < 0.5 else -1)
    np.testing.assert_array_equal(draws.push_velocity, rng.uniform(-0.5, 0.5, 2))
    noise = rng.random((EPISODE_STEPS + 1, NOISE_DIM), dtype=np.float32) * 2 - 1
    np.testing.assert_array_equal(draws.observation_noise, noise)


def test_other_seeds_draw_other_episodes() -> None:
    first, second = drawn(seed=1), drawn(seed=2)
    assert (first.draws != second.draws).any()
    assert (first.command != second.command).any()
    assert (first.observation_noise != second.observation_noise).any()


def test_the_index_of_an_episode_draws_nothing() -> None:
    assert_same(drawn(index=1, seed=5), drawn(index=2, seed=5))


def test_held_out_episodes_stand_on_tiles_that_are_never_collected_on() -> None:
    collected = {drawn(seed=seed).terrain_variant for seed in range(60)}
    held_out = {drawn(seed=seed, held_out=True).terrain_variant for seed in range(60)}
    assert collected == set(range(*TRAIN_VARIANTS))
    assert held_out == set(range(*HELD_OUT_VARIANTS))
    assert not collected & held_out


def test_about_half_of_the_episodes_hold_one_push_early_enough_to_recover() -> None:
    draws_of = [drawn(seed=seed) for seed in range(300)]
    pushed = [draws for draws in draws_of if draws.push_step >= 0]
    assert len(pushed) / len(draws_of) == pytest.approx(0.5, abs=0.1)
    assert all(PUSH_STEPS[0] <= draws.push_step < PUSH_STEPS[1] for draws in pushed)
    assert all(np.abs(draws.push_velocity).max() <= 0.5 for draws in pushed)


def test_observation_noise_is_within_its_bounds_and_has_no_mean() -> None:
    noise = np.concatenate([drawn(seed=seed).observation_noise for seed in range(20)])
    assert noise.shape == (20 * (EPISODE_STEPS + 1), NOISE_DIM)
    assert np.abs(noise).max() <= 1.0
    # The mean of n uniform draws on [-1, 1] has a standard deviation of 1 / sqrt(3 n).
    assert np.abs(noise.mean(axis=0)).max() < 5 / np.sqrt(3 * len(noise))
    assert noise.std() == pytest.approx(1 / np.sqrt(3), rel=0.01)


@pytest.mark.parametrize("std", [0.1, 0.3])
def test_action_noise_has_the_stated_strength_and_correlation(std: float) -> None:
    noise = np.stack([drawn(seed=seed, action_noise=std).action_noise for seed in range(40)])
    assert noise.shape == (40, EPISODE_STEPS, N_JOINTS)
    assert noise.std() == pytest.approx(std, rel=0.05)
    assert noise[:, 0].std() == pytest.approx(std, rel=0.15), "from the first step on"
    lag_one = (noise[:, 1:] * noise[:, :-1]).mean() / np.square(noise).mean()
    assert lag_one == pytest.approx(ACTION_NOISE_CORRELATION, abs=0.01)
    across_joints = np.corrcoef(noise.reshape(-1, N_JOINTS).T) - np.eye(N_JOINTS)
    assert np.abs(across_joints).max() < 0.2


def test_without_action_noise_there_is_none() -> None:
    assert not drawn().action_noise.any()


@pytest.mark.parametrize("steps", [10, 300])
def test_noise_is_as_long_as_the_episode(steps: int) -> None:
    draws = draw_episode(spec(), ROBOT, steps)
    assert len(draws.observation_noise) == steps + 1
    assert len(draws.action_noise) == steps


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"terrain": "moon"}, "unknown terrain 'moon'; allowed: flat"),
        ({"skill": "fly"}, "unknown skill 'fly'; allowed: stand"),
        ({"level": 10}, "level 10 is outside 0-9"),
        ({"level": -1}, "level -1 is outside 0-9"),
    ],
)
def test_an_impossible_episode_is_refused(changes: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        spec(**changes)
