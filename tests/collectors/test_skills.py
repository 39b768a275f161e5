"""Success criteria on hand-made tracks: one that fails for every condition, and ones that pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from collectors.commands import NEUTRAL, SKILLS, C
from collectors.physics import CONTROL_DT_S
from collectors.skills import CRITERIA, N_SIGNALS, S, Track, succeeded

STEPS = 192
LAST_SECOND = slice(-50, None)
LAST_TWO_SECONDS = slice(-100, None)

Spoil = Callable[[np.ndarray], None]


def command_of(skill: str) -> np.ndarray:
    """The middle of a skill's ranges."""
    ranges = NEUTRAL | SKILLS[skill].ranges
    return np.array([sum(ranges[c]) / 2 for c in C])


def perfect(skill: str) -> Track:
    """An episode that follows the ramped command exactly."""
    command = command_of(skill)
    time = np.arange(STEPS) * CONTROL_DT_S
    speed = np.minimum(command[C.VEL_X], command[C.ACCEL_LIMIT] * time)
    values = np.zeros((STEPS, N_SIGNALS))
    values[:, S.VEL_X] = values[:, S.VEL_X_COMMAND] = values[:, S.SPEED] = speed
    values[:, S.POS_X] = np.cumsum(speed) * CONTROL_DT_S
    values[:, S.FEET_DOWN] = 4
    values[:, S.TRACKING] = 1.0
    values[:, S.STANCE_WIDTH] = command[C.STANCE_WIDTH]
    return Track(values, command)


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


def both(first: Spoil, second: Spoil) -> Spoil:
    def spoil(values: np.ndarray) -> None:
        first(values)
        second(values)

    return spoil


@pytest.mark.parametrize("skill", sorted(CRITERIA))
def test_the_perfect_episode_succeeds_unless_it_ended_in_a_fall(skill: str) -> None:
    assert succeeded(skill, perfect(skill), terminated=False)
    assert not succeeded(skill, perfect(skill), terminated=True)


def test_every_skill_has_a_criterion() -> None:
    assert set(CRITERIA) == set(SKILLS)


FAILURES: list[tuple[str, str, Spoil]] = [
    ("stand", "moves", put(S.SPEED, 0.11, LAST_SECOND)),
    ("stand", "turns", put(S.TURN_RATE, 0.21, LAST_SECOND)),
    ("stand", "too high", put(S.HEIGHT_ERROR, 0.031, LAST_SECOND)),
    ("stand", "too low", put(S.HEIGHT_ERROR, -0.031, LAST_SECOND)),
    ("stand", "leans", put(S.TILT_ERROR, 0.11, LAST_SECOND)),
    ("stand", "drifts forward", drift(S.POS_X, 0.16)),
    ("stand", "drifts sideways", drift(S.POS_Y, -0.16)),
    ("stand", "drifts diagonally", both(drift(S.POS_X, 0.12), drift(S.POS_Y, 0.12))),
    ("stand", "lifts a foot", put(S.FEET_DOWN, 3, slice(-5, None))),
    ("rush", "never fast enough", scale(0.75, S.VEL_X)),
    ("rush", "fast too late", put(S.VEL_X, 0.0, slice(0, 100))),
    ("rush", "too short a way", scale(0.65, S.POS_X)),
    ("run", "too slow", scale(0.75, S.VEL_X)),
    ("run", "too fast", scale(1.25, S.VEL_X)),
    ("run", "tracks badly", put(S.TRACKING, 0.69, LAST_TWO_SECONDS)),
    ("crawl", "too high", put(S.HEIGHT_ERROR, 0.041, LAST_TWO_SECONDS)),
    ("crawl", "too low", put(S.HEIGHT_ERROR, -0.041, LAST_TWO_SECONDS)),
    ("crawl", "too short a way", scale(0.65, S.POS_X)),
    ("squeeze", "too wide", add(S.STANCE_WIDTH, 0.061, LAST_TWO_SECONDS)),
    ("squeeze", "too short a way", scale(0.65, S.POS_X)),
    ("tilt", "rolls too little", put(S.ROLL_ERROR, -0.16, LAST_TWO_SECONDS)),
    ("tilt", "rolls too far", put(S.ROLL_ERROR, 0.16, LAST_TWO_SECONDS)),
    ("tilt", "too short a way", scale(0.65, S.POS_X)),
]


@pytest.mark.parametrize(
    ("skill", "spoil"),
    [pytest.param(skill, spoil, id=f"{skill}: {what}") for skill, what, spoil in FAILURES],
)
def test_one_broken_condition_fails(skill: str, spoil: Spoil) -> None:
    track = perfect(skill)
    spoil(track.values)
    assert not succeeded(skill, track, terminated=False)


FORGIVEN: list[tuple[str, str, Spoil]] = [
    ("stand", "stumbled under a push before the last second", put(S.SPEED, 1.0, slice(0, 140))),
    ("stand", "was pushed away before the last second", add(S.POS_X, 3.0, slice(0, 140))),
    ("stand", "is 2.9 cm too high", put(S.HEIGHT_ERROR, 0.029)),
    ("stand", "drifts 14 cm", drift(S.POS_X, 0.14)),
    ("stand", "lifts a foot for 4 of 50 steps", put(S.FEET_DOWN, 3, slice(-4, None))),
    ("rush", "sways off its way", put(S.POS_Y, 0.0)),
    ("rush", "slows down once it was fast", put(S.VEL_X, 0.0, slice(120, None))),
    ("run", "was slow before the last two seconds", put(S.VEL_X, 0.0, slice(0, 90))),
    ("run", "is 15 % too slow", scale(0.85, S.VEL_X)),
    ("crawl", "is 3.9 cm too high", put(S.HEIGHT_ERROR, 0.039)),
    ("crawl", "walks 75 % of the way", scale(0.75, S.POS_X)),
    ("squeeze", "is 5.9 cm too wide", add(S.STANCE_WIDTH, 0.059)),
    ("tilt", "rolls 0.14 rad too far", put(S.ROLL_ERROR, 0.14)),
]


@pytest.mark.parametrize(
    ("skill", "spoil"),
    [pytest.param(skill, spoil, id=f"{skill}: {what}") for skill, what, spoil in FORGIVEN],
)
def test_what_is_within_the_bounds_succeeds(skill: str, spoil: Spoil) -> None:
    track = perfect(skill)
    spoil(track.values)
    assert succeeded(skill, track, terminated=False)


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
    track = Track(values, command_of("run"))
    np.testing.assert_array_equal(track.last(1.0, S.VEL_X), values[:, S.VEL_X])
    assert np.isfinite(track.vel_x_error())
