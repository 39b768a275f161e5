"""Success criteria on hand-made tracks: one that fails for every condition, and ones that pass."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gaitforge.collectors.legged.rewards import signals
from gaitforge.collectors.robots.kinematics import NEUTRAL, C
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.skills import N_SIGNALS, SKILLS, S, Track
from gaitforge.collectors.scenarios.terrains import Passage
from gaitforge.collectors.timing import CONTROL_DT_S
from tests.collectors.making import ROBOT, changed_view, perfect_view

STEPS = 192
LAST_SECOND = slice(-50, None)
LAST_TWO_SECONDS = slice(-100, None)

Spoil = Callable[[np.ndarray], None]


def command_of(skill: str) -> np.ndarray:
    """The middle of a skill's ranges."""
    ranges = NEUTRAL | SKILLS[skill].ranges
    return np.array([sum(ranges[c]) / 2 for c in C])


BAR = Passage("bar", 0.45, 0.4, 0.35)
WALLS = Passage("walls", 0.55, 0.6, 0.32)
PASSAGE_OF = {"crawl": BAR, "squeeze": WALLS, "tilt": WALLS}
HALF_LENGTH_M = 0.3235


def perfect(skill: str, passage: Passage | None = None) -> Track:
    """An episode that follows the ramped command exactly, through a passage if there is one."""
    command = command_of(skill)
    time = np.arange(STEPS) * CONTROL_DT_S
    speed = np.minimum(command[C.VEL_X], command[C.ACCEL_LIMIT] * time)
    values = np.zeros((STEPS, N_SIGNALS))
    values[:, S.VEL_X] = values[:, S.VEL_X_COMMAND] = values[:, S.SPEED] = speed
    values[:, S.POS_X] = values[:, S.ALONG] = np.cumsum(speed) * CONTROL_DT_S
    values[:, S.FEET_DOWN] = 4
    values[:, S.TRACKING] = 1.0
    values[:, S.STANCE_WIDTH] = command[C.STANCE_WIDTH]
    return Track(values, command, passage, HALF_LENGTH_M)


def put(signal: S, value: float, when: slice = slice(None)) -> Spoil:
    def spoil(values: np.ndarray) -> None:
        values[when, signal] = value

    return spoil


def add(signal: S, value: float, when: slice = slice(None)) -> Spoil:
    def spoil(values: np.ndarray) -> None:
        values[when, signal] += value

    return spoil


def scale(factor: float, *signals: S) -> Spoil:
    def spoil(values: np.ndarray) -> None:
        values[:, list(signals)] *= factor

    return spoil


def drift(signal: S, metres: float) -> Spoil:
    def spoil(values: np.ndarray) -> None:
        values[LAST_SECOND, signal] += np.linspace(0, metres, 50)

    return spoil


def ends_at(along_m: float) -> Spoil:
    """Stop there, having followed the track until then."""

    def spoil(values: np.ndarray) -> None:
        values[:, S.ALONG] = np.minimum(values[:, S.ALONG], along_m)

    return spoil


def both(first: Spoil, second: Spoil) -> Spoil:
    def spoil(values: np.ndarray) -> None:
        first(values)
        second(values)

    return spoil


def cell(name: str) -> Track:
    """The perfect episode of a cell: a skill, of "tilt" on "open ground" or between "walls"."""
    skill, _, where = name.partition(" ")
    return perfect(skill, None if where == "on open ground" else PASSAGE_OF.get(skill))


CELLS = [*sorted(SKILLS), "tilt on open ground"]


@pytest.mark.parametrize("name", CELLS)
def test_the_perfect_episode_succeeds_(name: str) -> None:
    skill = name.split()[0]
    assert SKILLS[skill].succeeded(cell(name))


@pytest.mark.parametrize("skill", ["crawl", "squeeze"])
def test_crawling_and_squeezing_take_a_passage(skill: str) -> None:
    assert not SKILLS[skill].succeeded(perfect(skill)), "posing is not passing"


Spoiled = Callable[[float], Spoil]


def putting(signal: S, when: slice = slice(None)) -> Spoiled:
    return lambda value: put(signal, value, when)


def scaling(*signals: S) -> Spoiled:
    return lambda factor: scale(factor, *signals)


BOUNDS: list[tuple[str, Spoiled, float, float]] = [
    ("stand", putting(S.SPEED, LAST_SECOND), 0.09, 0.11),
    ("stand", putting(S.TURN_RATE, LAST_SECOND), 0.19, 0.21),
    ("stand", putting(S.HEIGHT_ERROR, LAST_SECOND), 0.029, 0.031),
    ("stand", putting(S.HEIGHT_ERROR, LAST_SECOND), -0.029, -0.031),
    ("stand", putting(S.TILT_ERROR, LAST_SECOND), 0.09, 0.11),
    ("stand", lambda way: drift(S.POS_X, way), 0.14, 0.16),
    ("stand", lambda way: both(drift(S.POS_X, way), drift(S.POS_Y, -way)), 0.10, 0.12),
    ("stand", lambda steps: put(S.FEET_DOWN, 3, slice(-int(steps), None)), 4, 5),
    ("rush", scaling(S.VEL_X), 0.81, 0.79),
    ("rush", scaling(S.POS_X), 0.75, 0.69),
    ("run", scaling(S.VEL_X), 0.81, 0.79),
    ("run", scaling(S.VEL_X), 1.19, 1.21),
    ("run", putting(S.TRACKING, LAST_TWO_SECONDS), 0.71, 0.69),
    ("crawl", putting(S.BARRIER_BODY_FORCE, slice(70, 71)), 0.99, 1.01),
    ("crawl", lambda more: ends_at(BAR.end_m + HALF_LENGTH_M + more), 0.001, -0.001),
    ("crawl", putting(S.ACROSS), 0.799, 0.801),
    ("crawl", putting(S.ACROSS), -0.799, -0.801),
    ("squeeze", putting(S.BARRIER_FORCE), 0.99, 1.01),
    ("squeeze", lambda steps: put(S.BARRIER_FORCE, 50.0, slice(40, 40 + int(steps))), 9, 10),
    ("squeeze", lambda more: ends_at(WALLS.end_m + HALF_LENGTH_M + more), 0.001, -0.001),
    ("squeeze", putting(S.ACROSS), 0.159, 0.161),
    ("squeeze", putting(S.ACROSS, slice(110, 112)), -0.159, -0.161),
    ("tilt", lambda more: ends_at(WALLS.end_m + HALF_LENGTH_M + more), 0.001, -0.001),
    ("tilt", putting(S.ACROSS), -0.159, -0.161),
    ("tilt on open ground", putting(S.ROLL_ERROR, LAST_TWO_SECONDS), 0.149, 0.151),
    ("tilt on open ground", putting(S.ROLL_ERROR, LAST_TWO_SECONDS), -0.149, -0.151),
    ("tilt on open ground", scaling(S.POS_X), 0.75, 0.69),
]
"""Cell, what is spoiled, by how much it succeeds and by how much it does not."""


@pytest.mark.parametrize(("name", "spoil", "within", "beyond"), BOUNDS)
def test_success_ends_at_its_bound(name: str, spoil: Spoiled, within: float, beyond: float) -> None:
    for amount, succeeds in ((within, True), (beyond, False)):
        track = cell(name)
        spoil(amount)(track.values)
        assert SKILLS[name.split()[0]].succeeded(track) == succeeds, amount


OTHERS: list[tuple[str, bool, str, Spoil]] = [
    ("rush", False, "fast too late", put(S.VEL_X, 0.0, slice(0, 100))),
    ("crawl", False, "never reaches the bar", ends_at(0.2)),
    ("crawl", False, "goes back under it", put(S.ALONG, BAR.end_m, slice(-1, None))),
    ("squeeze", False, "touches now and then", put(S.BARRIER_FORCE, 1.01, slice(0, 190, 19))),
    ("stand", True, "stumbled before the last second", put(S.SPEED, 1.0, slice(0, 140))),
    ("stand", True, "was pushed before the last second", add(S.POS_X, 3.0, slice(0, 140))),
    ("rush", True, "sways off its way", put(S.POS_Y, 0.0)),
    ("rush", True, "slows down once it was fast", put(S.VEL_X, 0.0, slice(120, None))),
    ("run", True, "was slow before the last two seconds", put(S.VEL_X, 0.0, slice(0, 90))),
    ("crawl", True, "its feet touch the bar", put(S.BARRIER_FORCE, 50.0)),
    ("crawl", True, "is not as low as it was told", put(S.HEIGHT_ERROR, 0.1)),
    ("crawl", True, "leaves the track before the bar", put(S.ACROSS, 1.5, slice(0, 10))),
    ("crawl", True, "leaves the track after the bar", put(S.ACROSS, 1.5, slice(-10, None))),
    ("squeeze", True, "has a wide stance", add(S.STANCE_WIDTH, 0.1)),
    ("tilt", True, "slides along the walls", put(S.BARRIER_FORCE, 50.0)),
    ("tilt", True, "bumps a hip", put(S.BARRIER_BODY_FORCE, 50.0)),
    ("tilt", True, "needs less roll than it was told", put(S.ROLL_ERROR, 0.5)),
    ("tilt on open ground", True, "was upright at first", put(S.ROLL_ERROR, 0.5, slice(0, 90))),
]


@pytest.mark.parametrize(("name", "succeeds", "what", "spoil"), OTHERS)
def test_what_else_counts_and_what_does_not(
    name: str, succeeds: bool, what: str, spoil: Spoil
) -> None:
    track = cell(name)
    spoil(track.values)
    assert SKILLS[name.split()[0]].succeeded(track) == succeeds, what


def test_distance_counts_the_way_and_not_the_trunks_sway() -> None:
    track = perfect("run")
    straight = track.distance_m()
    assert straight == pytest.approx(track.commanded_distance_m(), rel=0.05)
    swaying = perfect("run")
    # A sway with the period of the chords, 0.1 s.
    swaying.values[:, S.POS_Y] = 0.02 * np.sin(2 * np.pi * np.arange(STEPS) / 5)
    assert swaying.distance_m() == pytest.approx(straight, rel=1e-6)


def test_short_tracks_have_a_last_second_too() -> None:
    values = np.arange(3 * N_SIGNALS, dtype=np.float64).reshape(3, N_SIGNALS)
    track = Track(values, command_of("run"), None, HALF_LENGTH_M)
    np.testing.assert_array_equal(track.last(1.0, S.VEL_X), values[:, S.VEL_X])
    assert np.isfinite(track.vel_x_error())


def test_slow_runs_may_be_off_by_thirty_centimetres_a_second() -> None:
    track = perfect("run")
    track.command[C.VEL_X] = 1.0
    for error, fine in ((0.29, True), (0.31, False)):
        track.values[LAST_TWO_SECONDS, S.VEL_X_COMMAND] = 1.0
        track.values[LAST_TWO_SECONDS, S.VEL_X] = 1.0 - error
        assert SKILLS["run"].succeeded(track) == fine


def test_a_rush_has_until_twice_its_ramp_and_half_a_second_to_be_fast() -> None:
    track = perfect("rush")
    speed, accel = track.command[C.VEL_X], track.command[C.ACCEL_LIMIT]
    deadline = round((2 * speed / accel + 0.5) / CONTROL_DT_S)
    # Speed is a mean over 5 steps, so the deadline is not sharper than that.
    for start, fine in ((deadline - 5, True), (deadline + 5, False)):
        track.values[:, S.VEL_X] = 0.0
        track.values[start : start + 5, S.VEL_X] = speed
        assert SKILLS["rush"].succeeded(track) == fine


@given(
    passage=st.sampled_from([BAR, WALLS]),
    beyond=st.floats(-0.5, 0.5),
    across=st.floats(-1.0, 1.0),
)
def test_passing_is_being_out_at_the_end_and_on_the_track_inside(
    passage: Passage, beyond: float, across: float
) -> None:
    track = perfect("crawl", passage)
    ends_at(passage.end_m + HALF_LENGTH_M + beyond)(track.values)
    track.values[:, S.ACROSS] = across
    half_width = 0.8 if passage is BAR else passage.opening_m / 2
    assume(abs(beyond) > 1e-6 and abs(abs(across) - half_width) > 1e-6)
    assert track.passed() == (beyond > 0 and abs(across) < half_width)


def test_signals_tell_what_happened_in_the_step() -> None:
    view = changed_view(
        perfect_view(command_of("run")),
        base_pos=np.array([[1.0, 2.0, 0.4]]),
        velocity_heading=np.array([[0.3, -0.4, 0.0]]),
        base_ang_vel_body=np.array([[0.2, -0.1, 0.2]]),
        gravity=np.array([[0.0, 0.2, -0.98]]),
        desired_gravity=np.array([[0.0, 0.1, -0.99]]),
        height=np.array([ROBOT.nominal_height_m - 0.02]),
        foot_contact=np.array([[True, False, True, True]]),
        joint_torque=np.linspace(-30.0, 20.0, N_JOINTS)[None],
        barrier_force=np.array([7.0]),
        barrier_body_force=np.array([3.0]),
        action=np.linspace(0.0, 1.1, N_JOINTS)[None],
        last_action=np.full((1, N_JOINTS), 0.2),
    )
    found = signals(view, np.array([[3.0, -0.5]]))
    assert found.shape == (1, N_SIGNALS)
    assert found.dtype == np.float32
    expected = {
        S.VEL_X: 0.3,
        S.VEL_X_COMMAND: view.command[0, C.VEL_X],
        S.SPEED: 0.5,
        S.TURN_RATE: 0.3,
        S.HEIGHT_ERROR: -0.02,
        S.TILT_ERROR: np.hypot(0.1, 0.01),
        S.ROLL_ERROR: np.arcsin(0.1),
        S.FEET_DOWN: 3,
        S.POS_X: 1.0,
        S.POS_Y: 2.0,
        S.STANCE_WIDTH: view.stance_width_m[0],
        S.ALONG: 3.0,
        S.ACROSS: -0.5,
        S.BARRIER_FORCE: 7.0,
        S.BARRIER_BODY_FORCE: 3.0,
        S.TORQUE: 30.0,
        # The last joint's target moves by 0.9 x 0.25 rad in 0.02 s.
        S.ACTION_RATE: 0.9 * 0.25 / 0.02,
    }
    for signal, value in expected.items():
        assert found[0, signal] == pytest.approx(value, rel=1e-5), signal.name


@pytest.mark.parametrize("signal", [S.SPEED, S.TURN_RATE, S.FEET_DOWN])
def test_standing_may_shake_as_much_as_its_action_noise_shakes_it(signal: S) -> None:
    track = cell("stand")
    values = track.values.copy()
    values[::2, signal] = {S.SPEED: 0.2, S.TURN_RATE: 0.6, S.FEET_DOWN: 3}[signal]
    shaken = replace(track, values=values)
    assert not SKILLS["stand"].succeeded(shaken), "without noise it has to be still"
    assert SKILLS["stand"].succeeded(replace(shaken, action_noise=0.5))
    values[:, S.TILT_ERROR] = 0.2
    another_pose = replace(shaken, values=values, action_noise=0.5)
    assert not SKILLS["stand"].succeeded(another_pose)
