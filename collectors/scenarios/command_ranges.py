"""Which commands a robot's policies have met, over all skills: what one may ask of them."""

from __future__ import annotations

from collectors.robots.commands import (
    MAX_CRAWL_M,
    N_COMMANDS,
    NEUTRAL,
    SKILLS,
    C,
    Range,
    command_scale,
    length_scale,
)
from collectors.robots.robot import RobotCard
from collectors.scenarios.passages import MAX_STEER_SIDE_MS, MAX_STEER_TURN_RADS, PASSAGE_ROLL_RAD

_FROM_ZERO = (C.VEL_X, C.BODY_HEIGHT, C.BODY_PITCH, C.BODY_ROLL)
"""What `commands.ramped` moves from zero to its target."""


def command_ranges(robot: RobotCard) -> list[Range]:
    """Lowest and highest value of each of the 16 numbers, in the robot's size and SI units.

    Ramps from neutral, mirrored commands, steering along a track and what passages ask for are
    included. These are bounds of each number alone: not every combination was met.
    """
    scale = command_scale(robot)
    ranges = [_over_skills(c) for c in C]
    scaled = [(low * scale[c], high * scale[c]) for c, (low, high) in zip(C, ranges, strict=True)]
    met_in_passages = {
        C.VEL_Y: (-MAX_STEER_SIDE_MS, MAX_STEER_SIDE_MS),
        C.YAW_RATE: (-MAX_STEER_TURN_RADS, MAX_STEER_TURN_RADS),
        C.BODY_HEIGHT: (-MAX_CRAWL_M * length_scale(robot), 0.0),
        C.BODY_ROLL: (-PASSAGE_ROLL_RAD[1], PASSAGE_ROLL_RAD[1]),
    }
    for c, more in met_in_passages.items():
        scaled[c] = _joined(scaled[c], more)
    assert len(scaled) == N_COMMANDS
    return [(float(low), float(high)) for low, high in scaled]


def _over_skills(c: C) -> Range:
    joined = NEUTRAL[c]
    for skill in SKILLS.values():
        low, high = skill.ranges.get(c, NEUTRAL[c])
        joined = _joined(joined, (-high, high) if c in skill.mirrored else (low, high))
    return _joined(joined, (0.0, 0.0)) if c in _FROM_ZERO else joined


def _joined(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])
