"""Commands: every skill draws within its ranges, in a robot's own size, and ramps to its target."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.robots.kinematics import (
    ATTITUDE_RAMP_RADS,
    HEIGHT_RAMP_MS,
    N_COMMANDS,
    NEUTRAL,
    C,
    commanded_distance_m,
    length_scale,
    ramped,
)
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.skills import SKILLS, check_skill
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from tests.collectors.making import ROBOT, similar_robot

skills = st.sampled_from(sorted(SKILLS))
seeds = st.integers(0, 2**32)


@given(skills, seeds)
def test_draws_lie_within_the_skills_ranges(skill: str, seed: int) -> None:
    command = SKILLS[skill].draw_command(np.random.default_rng(seed), ROBOT)
    ranges = NEUTRAL | SKILLS[skill].ranges
    assert command.shape == (N_COMMANDS,)
    for c in C:
        value = abs(command[c]) if c in SKILLS[skill].mirrored else command[c]
        low, high = ranges[c]
        assert low <= value <= high, c


@pytest.mark.parametrize("skill", sorted(SKILLS))
def test_draws_reach_both_ends_of_the_skills_ranges(skill: str) -> None:
    rng = np.random.default_rng(0)
    drawn = np.stack([SKILLS[skill].draw_command(rng, ROBOT) for _ in range(200)])
    for c, (low, high) in SKILLS[skill].ranges.items():
        values = np.abs(drawn[:, c]) if c in SKILLS[skill].mirrored else drawn[:, c]
        margin = 0.1 * (high - low) + 1e-12
        assert values.min() < low + margin, c
        assert values.max() > high - margin, c


def test_tilts_lean_to_either_side() -> None:
    rng = np.random.default_rng(1)
    rolls = np.array([SKILLS["tilt"].draw_command(rng, ROBOT)[C.BODY_ROLL] for _ in range(200)])
    assert 60 < (rolls > 0).sum() < 140


def test_only_stand_stands_and_has_no_speed() -> None:
    for skill in SKILLS:
        command = SKILLS[skill].draw_command(np.random.default_rng(2), ROBOT)
        moves = skill != "stand"
        assert command[C.LOCOMOTE] == float(moves)
        assert (command[C.VEL_X] > 0) == moves
        assert (command[C.GAIT_FREQUENCY] > 0) == moves


def test_every_skill_is_asked_for_on_known_terrains_and_the_first_two() -> None:
    for skill in SKILLS.values():
        assert set(skill.terrains or ()) <= set(TERRAINS)
        assert {"flat", "rough"} <= {terrain for terrain in TERRAINS if skill.commanded_on(terrain)}


@given(skills, seeds, st.floats(0.0, 1.0))
def test_the_curriculum_shrinks_speeds_towards_the_low_end(
    skill: str, seed: int, scale: float
) -> None:
    whole = SKILLS[skill].draw_command(np.random.default_rng(seed), ROBOT)
    scaled = SKILLS[skill].draw_command(np.random.default_rng(seed), ROBOT, speed_scale=scale)
    low = (NEUTRAL | SKILLS[skill].ranges)[C.VEL_X][0]
    assert scaled[C.VEL_X] == pytest.approx(low + scale * (whole[C.VEL_X] - low))
    np.testing.assert_array_equal(scaled[1:], whole[1:])


RAMPED = {
    C.VEL_X: None,
    C.BODY_HEIGHT: HEIGHT_RAMP_MS,
    C.BODY_PITCH: ATTITUDE_RAMP_RADS,
    C.BODY_ROLL: ATTITUDE_RAMP_RADS,
}
"""What moves from neutral, and how fast; None: at the command's own limit of acceleration."""


@given(skills, seeds)
def test_speed_height_and_attitude_ramp_to_their_targets_and_nothing_else_changes(
    skill: str, seed: int
) -> None:
    target = SKILLS[skill].draw_command(np.random.default_rng(seed), ROBOT)
    time = np.arange(400) * CONTROL_DT_S
    commands = ramped(np.tile(target, (len(time), 1)), time)
    for c, rate in RAMPED.items():
        towards = np.copysign(1.0, target[c]) * commands[:, c]
        moved = np.diff(towards)
        limit = target[C.ACCEL_LIMIT] if rate is None else rate
        assert towards[0] == 0.0, c
        assert (moved >= 0.0).all(), c
        assert moved.max() <= limit * CONTROL_DT_S + 1e-9, c
        assert commands[-1, c] == target[c]
        at_once = np.flatnonzero(towards == abs(target[c]))[0]
        assert at_once * CONTROL_DT_S < abs(target[c]) / limit + CONTROL_DT_S, "no slower either"
    kept = [c for c in C if c not in RAMPED]
    np.testing.assert_array_equal(commands[:, kept], np.tile(target[kept], (len(time), 1)))


def test_a_backward_speed_ramps_too() -> None:
    target = np.zeros((1, N_COMMANDS))
    target[0, C.VEL_X], target[0, C.ACCEL_LIMIT] = -1.0, 2.0
    assert ramped(target, np.array([0.25]))[0, C.VEL_X] == -0.5
    assert target[0, C.VEL_X] == -1.0, "the target stays as it was"


@given(skills, seeds)
def test_the_commanded_distance_is_that_of_the_ramped_speed(skill: str, seed: int) -> None:
    target = SKILLS[skill].draw_command(np.random.default_rng(seed), ROBOT)
    time = np.arange(EPISODE_STEPS) * CONTROL_DT_S
    speed = ramped(np.tile(target, (EPISODE_STEPS, 1)), time)[:, C.VEL_X]
    assert commanded_distance_m(target) == pytest.approx(speed.sum() * CONTROL_DT_S)


@given(skills, seeds, st.floats(0.4, 2.0))
def test_similar_robots_are_asked_for_similar_motion(skill: str, seed: int, factor: float) -> None:
    """Equal Froude numbers v^2 / (g l): what has no dimension stays as it is."""
    similar = similar_robot(factor)
    assert length_scale(similar) == pytest.approx(factor)

    def without_dimension(robot: RobotCard) -> dict[str, float]:
        command = SKILLS[skill].draw_command(np.random.default_rng(seed), robot)
        leg = robot.leg_length_m
        lengths = (C.BODY_HEIGHT, C.SWING_HEIGHT, C.STANCE_WIDTH, C.STANCE_LENGTH)
        found = {c.name: command[c] for c in C} | {c.name: command[c] / leg for c in lengths}
        found["VEL_X"] = command[C.VEL_X] ** 2 / leg
        found["VEL_Y"] = command[C.VEL_Y] ** 2 / leg
        found["YAW_RATE"] = command[C.YAW_RATE] * np.sqrt(leg)
        found["GAIT_FREQUENCY"] = command[C.GAIT_FREQUENCY] * np.sqrt(leg)
        return found

    assert without_dimension(similar) == pytest.approx(without_dimension(ROBOT))


@given(skills, seeds)
def test_stances_follow_the_robots_own_hips(skill: str, seed: int) -> None:
    long_and_wide = replace(ROBOT, hip_offset_m=ROBOT.hip_offset_m * [1.5, 2.0, 1.0])
    own = SKILLS[skill].draw_command(np.random.default_rng(seed), ROBOT)
    other = SKILLS[skill].draw_command(np.random.default_rng(seed), long_and_wide)
    across = long_and_wide.feet_below_m[0, 1] / ROBOT.feet_below_m[0, 1]
    assert other[C.STANCE_LENGTH] == pytest.approx(1.5 * own[C.STANCE_LENGTH])
    assert other[C.STANCE_WIDTH] == pytest.approx(across * own[C.STANCE_WIDTH])
    assert other[C.VEL_X] == own[C.VEL_X], "legs of the same length walk as fast"


def test_an_unknown_skill_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown skill 'fly'; allowed: stand, rush"):
        check_skill("fly")
