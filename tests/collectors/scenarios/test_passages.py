"""Bars and wall pairs: their sizes, the commands that take them, their boxes, and the way back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.robots.kinematics import C, commanded_distance_m
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.skills import MAX_CRAWL_M, SKILLS
from gaitforge.collectors.scenarios.terrains import (
    MAX_STEER_SIDE_MS,
    MAX_STEER_TURN_RADS,
    N_LEVELS,
    TRACK_HALF_WIDTH_M,
    Barrier,
    Passage,
    make_tile,
    place_barriers,
    steer,
)
from gaitforge.collectors.timing import CONTROL_DT_S
from tests.collectors.making import FLAT, ROBOT, SMALL_ROBOT, height_between, similar_robot

PASSAGES = {s.name: s.passage for s in SKILLS.values() if s.passage is not None}
EASY_TO_HARD_M = {"crawl": (0.50, 0.29), "squeeze": (0.50, 0.34), "tilt": (0.34, 0.26)}
DEPTH_M = {"bar": (0.1, 0.6), "walls": (0.1, 1.0)}
WIDEST_ROLL_RAD = 1.1

seeds = st.integers(0, 2**32)
levels = st.integers(0, N_LEVELS - 1)
skills = st.sampled_from(sorted(PASSAGES))
robots = st.sampled_from([ROBOT, SMALL_ROBOT])
angles = st.floats(-np.pi, np.pi)
speed_scales = st.floats(0.0, 1.0)


def drawn(
    skill: str, level: int, seed: int, robot: RobotCard = ROBOT, speed_scale: float = 1.0
) -> tuple[Passage, np.ndarray, np.ndarray]:
    """A passage on flat ground, the command that takes it, and the command before."""
    rng = np.random.default_rng(seed)
    before = SKILLS[skill].draw_command(rng, robot, speed_scale)
    passage, command = SKILLS[skill].draw_passage("flat", level, before, rng, robot)
    assert passage is not None
    return passage, command, before


@pytest.mark.parametrize("level", [0, 4, 9])
@pytest.mark.parametrize("skill", sorted(PASSAGES))
def test_openings_are_those_of_the_level_give_or_take_half_of_one(skill: str, level: int) -> None:
    easy, hard = EASY_TO_HARD_M[skill]
    expected = easy + level / 9 * (hard - easy)
    half_a_level = (easy - hard) / 18
    openings = [drawn(skill, level, seed)[0].opening_m for seed in range(100)]
    low = expected - half_a_level * (level < 9)
    high = expected + half_a_level * (level > 0)
    # 2 mm: the bar's heights are rounded shares of the robot's.
    assert min(openings) == pytest.approx(low, abs=0.002)
    assert max(openings) == pytest.approx(high, abs=0.002)
    assert all(low - 0.002 <= opening <= high + 0.002 for opening in openings)


@given(skills, levels, seeds, speed_scales)
def test_the_block_lies_where_its_kind_says(
    skill: str, level: int, seed: int, speed_scale: float
) -> None:
    passage, _, _ = drawn(skill, level, seed, speed_scale=speed_scale)
    assert passage.kind == ("bar" if skill == "crawl" else "walls")
    assert passage.start_m > ROBOT.trunk_half_size_m[0] + 0.1, "the trunk starts in front of it"
    shortest, longest = DEPTH_M[passage.kind]
    assert shortest <= passage.depth_m <= longest
    assert passage.end_m == passage.start_m + passage.depth_m


@given(skills, levels, seeds, robots, speed_scales)
def test_the_whole_trunk_is_out_within_the_commanded_way(
    skill: str, level: int, seed: int, robot: RobotCard, speed_scale: float
) -> None:
    passage, command, _ = drawn(skill, level, seed, robot, speed_scale)
    out = passage.end_m + robot.trunk_half_size_m[0]
    shortest = DEPTH_M[passage.kind][0] * robot.leg_length_m / 0.5
    within = out <= 0.85 * commanded_distance_m(command) + 1e-9
    assert within or passage.depth_m == pytest.approx(shortest)


@given(levels, seeds, robots)
def test_crawling_stays_under_the_bar(level: int, seed: int, robot: RobotCard) -> None:
    passage, command, before = drawn("crawl", level, seed, robot)
    lowest = -MAX_CRAWL_M * robot.leg_length_m / 0.5
    top = robot.nominal_height_m + command[C.BODY_HEIGHT] + robot.trunk_half_size_m[2]
    assert lowest <= command[C.BODY_HEIGHT] <= before[C.BODY_HEIGHT], "never higher than drawn"
    margin = 0.03 * robot.leg_length_m / 0.5
    assert passage.opening_m - top >= margin - 1e-9 or command[C.BODY_HEIGHT] == lowest
    changed = command != before
    assert not np.delete(changed, C.BODY_HEIGHT).any()


def outline(robot: RobotCard, roll: float) -> float:
    """Width over the hips when the legs hang vertically from a rolled trunk."""
    return robot.width_m - 2 * robot.hip_offset_m[0, 1] * (1 - np.cos(roll))


@given(levels, seeds, robots)
def test_a_tilted_robot_fits_its_gap(level: int, seed: int, robot: RobotCard) -> None:
    passage, command, before = drawn("tilt", level, seed, robot)
    roll = abs(command[C.BODY_ROLL])
    assert 0.3 <= roll <= WIDEST_ROLL_RAD
    assert np.sign(command[C.BODY_ROLL]) == np.sign(before[C.BODY_ROLL])
    assert outline(robot, roll) < passage.opening_m or roll == WIDEST_ROLL_RAD
    assert command[C.STANCE_WIDTH] + 2 * robot.foot_radius_m < passage.opening_m
    assert command[C.STANCE_WIDTH] <= before[C.STANCE_WIDTH]
    assert not np.delete(command != before, [C.BODY_ROLL, C.STANCE_WIDTH]).any()


@given(levels, seeds, robots)
def test_squeezing_feet_fit_between_the_walls(level: int, seed: int, robot: RobotCard) -> None:
    passage, command, before = drawn("squeeze", level, seed, robot)
    assert passage.opening_m > robot.width_m
    assert command[C.STANCE_WIDTH] + 2 * robot.foot_radius_m < passage.opening_m
    np.testing.assert_array_equal(command, before)


@pytest.mark.parametrize(
    ("skill", "terrain"),
    [
        *((skill, "flat") for skill in sorted(set(SKILLS) - set(PASSAGES))),
        *((skill, "slope") for skill in sorted(PASSAGES)),
    ],
)
def test_elsewhere_is_open_ground_and_nothing_is_drawn(skill: str, terrain: str) -> None:
    rng = np.random.default_rng(3)
    command = SKILLS[skill].draw_command(rng, ROBOT)
    untouched = rng.bit_generator.state
    passage, same = SKILLS[skill].draw_passage(terrain, 5, command, rng, ROBOT)
    assert passage is None
    np.testing.assert_array_equal(same, command)
    assert rng.bit_generator.state == untouched


@given(skills, levels, seeds, st.floats(0.6, 1.6))
def test_similar_robots_meet_similar_passages(
    skill: str, level: int, seed: int, factor: float
) -> None:
    own, _, _ = drawn(skill, level, seed)
    other, _, _ = drawn(skill, level, seed, similar_robot(factor))
    assert other.kind == own.kind
    assert other.opening_m == pytest.approx(factor * own.opening_m)
    assert other.start_m == pytest.approx(factor * own.start_m)
    shortest, longest = DEPTH_M[own.kind]
    assert factor * shortest <= other.depth_m + 1e-9
    assert other.depth_m <= factor * longest + 1e-9


@given(levels, seeds)
def test_gaps_follow_the_robots_width_and_bars_its_height(level: int, seed: int) -> None:
    wide = replace(ROBOT, width_m=ROBOT.width_m + 0.1)
    tall = replace(ROBOT, nominal_height_m=1.1 * ROBOT.nominal_height_m)
    for skill in ("squeeze", "tilt"):
        own, other = (drawn(skill, level, seed, robot)[0].opening_m for robot in (ROBOT, wide))
        assert other == pytest.approx(own + 0.1)
    own, other = (drawn("crawl", level, seed, robot)[0].opening_m for robot in (ROBOT, tall))
    half = ROBOT.trunk_half_size_m[2]
    grown = (1.1 * ROBOT.nominal_height_m + half) / (ROBOT.nominal_height_m + half)
    assert other == pytest.approx(grown * own)


BAR = Passage("bar", 0.5, 0.4, 0.35)
WALLS = Passage("walls", 0.55, 0.6, 0.32)
passages = st.sampled_from([BAR, WALLS])


def ends(barrier: Barrier) -> np.ndarray:
    """(3, 2) where a box that is not turned begins and ends along x, y and z."""
    assert barrier.yaw_rad == 0.0
    centre, half = np.array(barrier.centre_m), np.array(barrier.half_size_m)
    return np.stack([centre - half, centre + half], axis=1)


def test_a_bar_spans_the_track_at_its_height() -> None:
    (bar,) = place_barriers(BAR, FLAT, np.zeros(2), 0.0)
    half_width = TRACK_HALF_WIDTH_M
    expected = [[0.5, 0.9], [-half_width, half_width], [0.35, 0.95]]
    np.testing.assert_allclose(ends(bar), expected, atol=1e-9)


def test_walls_leave_their_gap_about_the_tracks_middle() -> None:
    left, right = place_barriers(WALLS, FLAT, np.zeros(2), 0.0)
    np.testing.assert_allclose(ends(left)[:2], [[0.55, 1.15], [0.16, 0.26]], atol=1e-9)
    np.testing.assert_allclose(ends(right)[:2], [[0.55, 1.15], [-0.26, -0.16]], atol=1e-9)
    for wall in (left, right):
        below, above = ends(wall)[2]
        assert below < 0.0, "nobody looks under a wall that stands on rough ground"
        assert above == pytest.approx(0.5)


@given(angles, st.integers(0, 20))
def test_barriers_stand_on_the_mean_ground_of_their_block(yaw: float, variant: int) -> None:
    tile = make_tile("rough", 9, variant)
    (bar,) = place_barriers(BAR, tile, np.zeros(2), yaw)
    along, across = np.meshgrid(np.linspace(0.5, 0.9, 21), np.linspace(-0.3, 0.3, 21))
    c, s = np.cos(yaw), np.sin(yaw)
    points = np.stack([c * along - s * across, s * along + c * across], axis=-1).reshape(-1, 2)
    ground = bar.centre_m[2] - bar.half_size_m[2] - BAR.opening_m
    # The block is sampled at 25 points of ground that varies by 6 cm.
    assert ground == pytest.approx(height_between(tile, points).mean(), abs=0.015)


@given(passages, angles, angles, st.floats(-0.3, 0.3), st.floats(-0.3, 0.3))
def test_barriers_turn_with_the_track(
    passage: Passage, yaw: float, turn: float, x: float, y: float
) -> None:
    c, s = np.cos(turn), np.sin(turn)
    rotation = np.array([[c, -s], [s, c]])
    origin = np.array([x, y])
    before = place_barriers(passage, FLAT, origin, yaw)
    after = place_barriers(passage, FLAT, rotation @ origin, yaw + turn)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new.centre_m[:2], rotation @ old.centre_m[:2], atol=1e-9)
        assert new.centre_m[2] == old.centre_m[2]
        assert new.half_size_m == old.half_size_m
        assert new.yaw_rad == yaw + turn


@given(st.floats(-2.0, 2.0), angles)
def test_steering_leads_back_within_its_bounds(across: float, heading: float) -> None:
    command = np.arange(16.0)[None]
    steered = steer(command, np.array([across]), np.array([heading]))
    side, turn = steered[0, C.VEL_Y], steered[0, C.YAW_RATE]
    assert abs(side) <= MAX_STEER_SIDE_MS
    assert abs(turn) <= MAX_STEER_TURN_RADS
    assert side * across <= 0.0
    assert turn * heading <= 0.0
    assert (side != 0.0) == (across != 0.0)
    assert (turn != 0.0) == (heading != 0.0)
    rest = [c for c in C if c not in (C.VEL_Y, C.YAW_RATE)]
    np.testing.assert_array_equal(steered[0, rest], command[0, rest])
    np.testing.assert_array_equal(command[0], np.arange(16.0), "not changed in place")


@pytest.mark.slow
@given(st.floats(-0.7, 0.7), st.floats(-1.0, 1.0), st.floats(0.0, 0.8))
def test_who_follows_the_steering_comes_back_to_the_track(
    across: float, heading: float, speed: float
) -> None:
    command = np.zeros((1, 16))
    command[0, C.VEL_X] = speed
    for _ in range(round(12.0 / CONTROL_DT_S)):
        steered = steer(command, np.array([across]), np.array([heading]))[0]
        ahead, side = steered[C.VEL_X], steered[C.VEL_Y]
        across += CONTROL_DT_S * (ahead * np.sin(heading) + side * np.cos(heading))
        heading += CONTROL_DT_S * steered[C.YAW_RATE]
    assert abs(across) < 0.01
    assert abs(heading) < 0.01
