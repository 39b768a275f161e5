"""Commands: every skill draws within its ranges, and speed rises at the limit of acceleration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.commands import (
    COMMAND_NAMES,
    COMMAND_UNITS,
    N_COMMANDS,
    NEUTRAL,
    SKILLS,
    C,
    check_skill,
    draw_command,
    ramped,
)
from collectors.physics import CONTROL_DT_S
from collectors.terrains import TERRAINS

skills = st.sampled_from(sorted(SKILLS))
seeds = st.integers(0, 2**32)


def test_the_command_has_sixteen_named_numbers_with_units() -> None:
    assert N_COMMANDS == len(COMMAND_NAMES) == len(COMMAND_UNITS) == 16
    assert COMMAND_NAMES[0] == "vel_x"
    assert COMMAND_NAMES[-1] == "locomote"


@given(skills, seeds)
def test_draws_lie_within_the_skills_ranges(skill: str, seed: int) -> None:
    command = draw_command(skill, np.random.default_rng(seed))
    ranges = NEUTRAL | SKILLS[skill].ranges
    assert command.shape == (N_COMMANDS,)
    for c in C:
        value = abs(command[c]) if c in SKILLS[skill].mirrored else command[c]
        low, high = ranges[c]
        assert low <= value <= high, c


@pytest.mark.parametrize("skill", sorted(SKILLS))
def test_draws_reach_both_ends_of_the_skills_ranges(skill: str) -> None:
    rng = np.random.default_rng(0)
    drawn = np.stack([draw_command(skill, rng) for _ in range(200)])
    for c, (low, high) in SKILLS[skill].ranges.items():
        values = np.abs(drawn[:, c]) if c in SKILLS[skill].mirrored else drawn[:, c]
        margin = 0.1 * (high - low) + 1e-12
        assert values.min() < low + margin, c
        assert values.max() > high - margin, c


def test_tilts_lean_to_either_side() -> None:
    rng = np.random.default_rng(1)
    rolls = np.array([draw_command("tilt", rng)[C.BODY_ROLL] for _ in range(200)])
    assert 60 < (rolls > 0).sum() < 140


def test_only_stand_stands_and_has_no_speed() -> None:
    for skill in SKILLS:
        command = draw_command(skill, np.random.default_rng(2))
        moves = skill != "stand"
        assert command[C.LOCOMOTE] == float(moves)
        assert (command[C.VEL_X] > 0) == moves
        assert (command[C.GAIT_FREQUENCY] > 0) == moves


def test_every_skill_is_asked_for_on_known_terrains_and_the_first_two() -> None:
    for skill in SKILLS.values():
        assert set(skill.terrains) <= set(TERRAINS)
        assert {"flat", "rough"} <= set(skill.terrains)


@given(skills, seeds, st.floats(0.0, 1.0))
def test_the_curriculum_shrinks_speeds_towards_the_low_end(
    skill: str, seed: int, scale: float
) -> None:
    whole = draw_command(skill, np.random.default_rng(seed))
    scaled = draw_command(skill, np.random.default_rng(seed), speed_scale=scale)
    low = (NEUTRAL | SKILLS[skill].ranges)[C.VEL_X][0]
    assert scaled[C.VEL_X] == pytest.approx(low + scale * (whole[C.VEL_X] - low))
    np.testing.assert_array_equal(scaled[1:], whole[1:])


@given(skills, seeds)
def test_speed_rises_at_the_limit_of_acceleration_and_nothing_else_changes(
    skill: str, seed: int
) -> None:
    target = draw_command(skill, np.random.default_rng(seed))
    time = np.arange(400) * CONTROL_DT_S
    commands = ramped(np.tile(target, (len(time), 1)), time)
    speed = commands[:, C.VEL_X]
    assert speed[0] == 0.0
    assert (np.diff(speed) >= 0.0).all()
    assert np.diff(speed).max(initial=0.0) <= target[C.ACCEL_LIMIT] * CONTROL_DT_S + 1e-9
    assert speed[-1] == target[C.VEL_X]
    np.testing.assert_array_equal(commands[:, 1:], np.tile(target[1:], (len(time), 1)))


def test_a_backward_speed_ramps_too() -> None:
    target = np.zeros((1, N_COMMANDS))
    target[0, C.VEL_X], target[0, C.ACCEL_LIMIT] = -1.0, 2.0
    assert ramped(target, np.array([0.25]))[0, C.VEL_X] == -0.5
    assert target[0, C.VEL_X] == -1.0, "the target stays as it was"


def test_an_unknown_skill_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown skill 'fly'; skills: stand, rush"):
        check_skill("fly")
