"""Ranges of the commands that a robot's policies have met, over all skills."""

from gaitforge.collectors.robots.commands import NEUTRAL, C, Range, command_scale
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.passages import MAX_STEER_SIDE_MS, MAX_STEER_TURN_RADS
from gaitforge.collectors.scenarios.skills import SKILLS

_FROM_ZERO = (C.VEL_X, C.BODY_HEIGHT, C.BODY_PITCH, C.BODY_ROLL)
"""Numbers that `commands.ramped` moves from zero to their target."""


def command_ranges(robot: RobotCard) -> list[Range]:
    """Lowest and highest value of each of the 16 numbers, in the robot's size and SI units.

    Ramps, mirrored commands, steering along a track and passages are included. These are bounds of
    each number alone: not every combination was met.
    """
    scale = command_scale(robot)
    scaled: dict[C, Range] = {}
    for c in C:
        low, high = _over_skills(c)
        scaled[c] = low * scale[c], high * scale[c]
    for skill in SKILLS.values():
        if skill.passage is not None:
            for c, span in (_STEERED | skill.passage.ranges).items():
                scaled[c] = _joined(scaled[c], span)
    return [(float(low), float(high)) for low, high in scaled.values()]


_STEERED: dict[C, Range] = {
    C.VEL_Y: (-MAX_STEER_SIDE_MS, MAX_STEER_SIDE_MS),
    C.YAW_RATE: (-MAX_STEER_TURN_RADS, MAX_STEER_TURN_RADS),
}


def _over_skills(c: C) -> Range:
    joined = NEUTRAL[c]
    for skill in SKILLS.values():
        low, high = skill.ranges.get(c, NEUTRAL[c])
        joined = _joined(joined, (-high, high) if c in skill.mirrored else (low, high))
    return _joined(joined, (0.0, 0.0)) if c in _FROM_ZERO else joined


def _joined(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])
