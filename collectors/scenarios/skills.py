"""Skills, the signals from which their success is judged, and ranges of commands.

A skill is one record, with its commands, terrains, passage, share and success criterion.

Passages have the sizes of parkour's obstacles relative to the robot: a bar at 1.15 to 0.665 of its
standing height (Aliengo: 0.50 to 0.29 m), walls 0.19 to 0.03 m wider than the robot to squeeze
through, and 0.03 m wider to 0.05 m narrower to tilt through.

Signals are recorded at every step of an episode.

The ranges are those of the commands that a robot's policies have met, over all skills.
"""

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from math import acos

import numpy as np

from gaitforge.collectors.robots.kinematics import NEUTRAL, C, Range, command_scale, length_scale
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.terrains import (
    ALL_TERRAINS,
    MAX_STEER_SIDE_MS,
    MAX_STEER_TURN_RADS,
    TRACK_HALF_WIDTH_M,
    Passage,
    PassageRule,
    check_level,
    check_terrain,
)
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from gaitforge.common.errors import names_allowed


# Signals.
class S(IntEnum):
    """Index of each recorded signal."""

    VEL_X, VEL_X_COMMAND, SPEED, TURN_RATE, HEIGHT_ERROR, TILT_ERROR, ROLL_ERROR = range(7)
    FEET_DOWN, POS_X, POS_Y, TRACKING, STANCE_WIDTH, ALONG, ACROSS = range(7, 14)
    BARRIER_FORCE, BARRIER_BODY_FORCE, TORQUE, ACTION_RATE, POWER = range(14, 19)
    VEL_Y, YAW_RATE = range(19, 21)


N_SIGNALS = len(S)


@dataclass(frozen=True)
class Track:
    """The signals (T, N_SIGNALS) of an episode, its target command (16,) and its passage.

    `action_noise` is the standard deviation of the noise on its executed actions, action units.
    """

    values: np.ndarray
    command: np.ndarray
    passage: Passage | None
    trunk_half_length_m: float
    action_noise: float = 0.0

    def last(self, seconds: float, signal: S) -> np.ndarray:
        """A signal over the episode's last `seconds`."""
        return self.values[-max(1, round(seconds / CONTROL_DT_S)) :, signal]

    def rms(self, seconds: float, signal: S) -> float:
        """Root mean square of a signal over the last `seconds`."""
        return float(np.sqrt(np.mean(np.square(self.last(seconds, signal)))))

    def distance_m(self) -> float:
        """Length of the path, from 5-step chords: the trunk's sway does not count."""
        chords = np.diff(self.values[::5, S.POS_X : S.POS_Y + 1], axis=0)
        return float(np.linalg.norm(chords, axis=1).sum())

    def commanded_distance_m(self) -> float:
        """Integral of the commanded speed."""
        return float(self.values[:, S.VEL_X_COMMAND].sum() * CONTROL_DT_S)

    def walked(self) -> bool:
        """Whether the path is at least 70 % of the commanded distance."""
        return self.distance_m() >= 0.7 * self.commanded_distance_m()

    def passed(self) -> bool:
        """Whether the whole trunk left the passage at its far end, without leaving the track."""
        if self.passage is None:
            return False
        along = self.values[:, S.ALONG]
        across = self.values[:, S.ACROSS]
        out = self.passage.end_m + self.trunk_half_length_m
        inside = (along > self.passage.start_m) & (along < self.passage.end_m)
        wide = TRACK_HALF_WIDTH_M if self.passage.kind == "bar" else self.passage.opening_m / 2
        return bool(along[-1] > out and np.all(np.abs(across[inside]) < wide))

    def vel_x_error(self) -> float:
        """Mean |v_x error| over the last 2 s, m/s."""
        return float(np.abs(self.last(2.0, S.VEL_X) - self.last(2.0, S.VEL_X_COMMAND)).mean())


# Skills.
MAX_CRAWL_M = 0.18
_SIGNS = (-1.0, 1.0)
_BAR_MARGIN_M = (0.03, 0.06)
_WALL_MARGIN_M = 0.025
_FOOT_MARGIN_M = 0.02
_PASSAGE_ROLL_RAD = (0.3, 1.1)
"""The narrowest walls need 1.1 rad; Aliengo's hips end at 1.22."""


@dataclass(frozen=True)
class Skill:
    """Everything about one skill; adding a skill is adding a record, and an expert that has it.

    Attributes:
        succeeded: whether an episode that did not end in a fall counts as a success.
        describe: a command (16,) in words, for pictures.
        ranges: ranges of the commands that differ from the neutral trot's, drawn uniformly, in
            Aliengo's size.
        mirrored: commands whose sign is random.
        terrains: terrains where it is commanded, None for all; a terrain's record may add itself.
        share: share of the episodes that train an expert, before cells that fail get more; 0 leaves
            the skill out of training.
        passage: the passage on its track.
        manoeuvres: names of the `schedules.MANOEUVRES` that it is combined with on open ground;
            empty for all.
    """

    name: str
    succeeded: Callable[[Track], bool]
    describe: Callable[[np.ndarray], str]
    ranges: dict[C, Range]
    mirrored: tuple[C, ...] = ()
    terrains: tuple[str, ...] | None = None
    share: float = 0.0
    passage: PassageRule | None = None
    manoeuvres: tuple[str, ...] = ("straight",)

    def commanded_on(self, terrain: str) -> bool:
        """Whether the skill is commanded on a terrain."""
        everywhere = self.terrains is None or terrain in self.terrains
        return everywhere or self.name in ALL_TERRAINS[terrain].skills

    def manoeuvres_on(self, terrain: str) -> tuple[str, ...]:
        """The manoeuvres that it is combined with on a terrain; empty for all."""
        is_open = self.passage is None or terrain not in self.passage.terrains
        return self.manoeuvres if is_open else ("straight",)

    def draw_command(
        self, rng: np.random.Generator, robot: RobotCard, speed_scale: float = 1.0
    ) -> np.ndarray:
        """Draw a target command (16,) float64, uniformly, in the robot's own size.

        speed_scale: shrinks the speed towards the low end of its range (training curriculum).
        """
        return self.draw_unscaled(rng, speed_scale) * command_scale(robot)

    def draw_unscaled(self, rng: np.random.Generator, speed_scale: float = 1.0) -> np.ndarray:
        """As `draw_command`, in Aliengo's size."""
        low, span = self._spans
        # The numbers of `rng.uniform`, in one call.
        command = low + span * rng.random(len(low))
        for c in self.mirrored:
            command[c] *= _SIGNS[rng.integers(2)]
        slowest = low[C.VEL_X]
        command[C.VEL_X] = slowest + speed_scale * (command[C.VEL_X] - slowest)
        return command

    @cached_property
    def _spans(self) -> tuple[np.ndarray, np.ndarray]:
        """(16,) each: low ends of the commands' ranges, and widths."""
        ranges = NEUTRAL | self.ranges
        low, high = np.array([ranges[c] for c in C]).T
        return low, high - low

    def draw_passage(
        self,
        terrain: str,
        level: int,
        command: np.ndarray,
        rng: np.random.Generator,
        robot: RobotCard,
        steps: int = EPISODE_STEPS,
    ) -> tuple[Passage | None, np.ndarray]:
        """An episode's passage, None on open ground, and the command (16,) that gets through it.

        steps: control steps in which the robot walks.
        """
        if self.passage is None or terrain not in self.passage.terrains:
            return None, command
        return self.passage.draw(level, command, rng, robot, steps)


def _between(easy: float, hard: float, hardness: float) -> float:
    return easy + hardness * (hard - easy)


def _speed(command: np.ndarray) -> str:
    return f"{command[C.VEL_X]:.1f} m/s"


def _height(command: np.ndarray) -> str:
    return f"height {round(100 * command[C.BODY_HEIGHT]):+d} cm"


def _degrees(command: np.ndarray, c: C) -> str:
    return f"{round(np.degrees(command[c])):+d}°"


def _stand(track: Track) -> bool:
    """Stands still, in place, at the commanded attitude and on four feet over the last second.

    Drift counts over that second only: an earlier push may have moved the robot. Action noise
    shakes a robot that stands well, in proportion to its standard deviation. Limits on shaken
    quantities grow with it, so that 95 % of the expert's episodes keep them.
    """
    noise = track.action_noise
    drift = np.hypot(np.ptp(track.last(1.0, S.POS_X)), np.ptp(track.last(1.0, S.POS_Y)))
    return bool(
        track.rms(1.0, S.SPEED) < 0.1 + 0.35 * noise
        and track.rms(1.0, S.TURN_RATE) < 0.2 + 1.4 * noise
        and abs(track.last(1.0, S.HEIGHT_ERROR).mean()) < 0.03
        and track.last(1.0, S.TILT_ERROR).mean() < 0.1
        and drift < 0.15
        and np.mean(track.last(1.0, S.FEET_DOWN) == 4) > 0.9 - noise
    )


STAND = Skill(
    "stand",
    _stand,
    lambda command: (
        f"{_height(command)}, pitch {_degrees(command, C.BODY_PITCH)}, "
        f"roll {_degrees(command, C.BODY_ROLL)}"
    ),
    ranges={
        C.BODY_HEIGHT: (-0.10, 0.05),
        C.BODY_PITCH: (-0.3, 0.3),
        C.BODY_ROLL: (-0.3, 0.3),
        C.SWING_HEIGHT: (0.0, 0.0),
        C.GAIT_FREQUENCY: (0.0, 0.0),
        C.GAIT_PHASE: (0.0, 0.0),
        C.GAIT_DUTY: (1.0, 1.0),
        C.LOCOMOTE: (0.0, 0.0),
    },
    share=0.12,
    manoeuvres=(),
)


def _rush(track: Track) -> bool:
    """Reaches 80 % of the speed within 2 v / a + 0.5 s and walks 70 % of the distance."""
    speed = track.command[C.VEL_X]
    accel = track.command[C.ACCEL_LIMIT]
    deadline = round((2 * speed / accel + 0.5) / CONTROL_DT_S)
    window = np.convolve(track.values[:, S.VEL_X], np.full(5, 0.2), mode="valid")
    # A mean over five steps counts for the last of them.
    reached = window[: deadline - 4].max(initial=-np.inf) >= 0.8 * speed
    return bool(reached and track.walked())


RUSH = Skill(
    "rush",
    _rush,
    lambda command: f"{_speed(command)}, {command[C.ACCEL_LIMIT]:.1f} m/s²",
    ranges={
        C.VEL_X: (1.0, 2.5),
        C.YAW_RATE: (-0.3, 0.3),
        C.SWING_HEIGHT: (0.08, 0.15),
        C.GAIT_FREQUENCY: (3.0, 4.0),
        C.ACCEL_LIMIT: (3.0, 6.0),
    },
    share=0.24,
    manoeuvres=("straight", "turn"),
)


def _crawl(track: Track) -> bool:
    """Passes under the bar; trunk and hips never press on it with more than 1 N."""
    return track.passed() and not bool(np.any(track.values[:, S.BARRIER_BODY_FORCE] > 1.0))


def _bar_height(robot: RobotCard, hardness: float) -> float:
    top = robot.nominal_height_m + robot.trunk_half_size_m[2]
    return top * _between(1.15, 0.665, hardness)


def _duck(
    command: np.ndarray, opening_m: float, robot: RobotCard, rng: np.random.Generator
) -> None:
    scale = length_scale(robot)
    clearance = scale * rng.uniform(*_BAR_MARGIN_M)
    under = opening_m - robot.trunk_half_size_m[2] - clearance - robot.nominal_height_m
    command[C.BODY_HEIGHT] = max(-MAX_CRAWL_M * scale, min(command[C.BODY_HEIGHT], under))


CRAWL = Skill(
    "crawl",
    _crawl,
    lambda command: f"{_speed(command)}, {_height(command)}",
    ranges={
        C.VEL_X: (0.4, 0.8),
        C.BODY_HEIGHT: (-MAX_CRAWL_M, -0.08),
        C.SWING_HEIGHT: (0.04, 0.08),
        C.GAIT_FREQUENCY: (2.0, 3.0),
        C.GAIT_DUTY: (0.6, 0.75),
    },
    terrains=("flat", "rough"),
    share=0.1,
    passage=PassageRule("bar", ("flat", "rough"), _bar_height, _duck),
)


def _squeeze(track: Track) -> bool:
    """Passes between the walls and touches them in less than 5 % of the window's steps."""
    touches = track.values[:, S.BARRIER_FORCE] > 1.0
    return track.passed() and float(touches.sum()) < 0.05 * EPISODE_STEPS


def _squeeze_gap(robot: RobotCard, hardness: float) -> float:
    return robot.width_m + length_scale(robot) * _between(0.19, 0.03, hardness)


SQUEEZE = Skill(
    "squeeze",
    _squeeze,
    lambda command: f"{_speed(command)}, feet {command[C.STANCE_WIDTH]:.2f} m apart",
    ranges={C.VEL_X: (0.4, 0.6), C.STANCE_WIDTH: (0.12, 0.22), C.GAIT_FREQUENCY: (2.5, 3.5)},
    terrains=("flat", "rough"),
    share=0.12,
    passage=PassageRule("walls", ("flat", "rough"), _squeeze_gap),
)


def _tilt(track: Track) -> bool:
    """Passes between the walls; on open ground, walks with a roll error below 0.15 rad (2 s)."""
    if track.passage is not None:
        return track.passed()
    return bool(np.abs(track.last(2.0, S.ROLL_ERROR)).mean() < 0.15 and track.walked())


def _tilt_gap(robot: RobotCard, hardness: float) -> float:
    return robot.width_m + length_scale(robot) * _between(0.03, -0.05, hardness)


def _roll_through(
    command: np.ndarray, opening_m: float, robot: RobotCard, rng: np.random.Generator
) -> None:
    scale = length_scale(robot)
    roll = _roll_for_gap(robot, opening_m - 2 * scale * _WALL_MARGIN_M)
    roll = np.clip(roll, *_PASSAGE_ROLL_RAD)
    command[C.BODY_ROLL] = np.copysign(roll, command[C.BODY_ROLL])
    widest = opening_m - 2 * (robot.foot_radius_m + scale * _FOOT_MARGIN_M)
    command[C.STANCE_WIDTH] = min(command[C.STANCE_WIDTH], widest)


def _roll_for_gap(robot: RobotCard, gap_m: float) -> float:
    """Roll in rad at which the hips fit a gap with the legs hanging vertically.

    The hip joints, hip_y off the middle, then stand closer together:
    width(roll) = width - 2 hip_y (1 - cos roll).
    """
    hip_y = robot.hip_offset_m[0, 1]
    cosine = 1.0 - (robot.width_m - gap_m) / (2.0 * hip_y)
    return acos(min(max(cosine, -1.0), 1.0))


TILT = Skill(
    "tilt",
    _tilt,
    lambda command: f"{_speed(command)}, roll {_degrees(command, C.BODY_ROLL)}",
    ranges={C.VEL_X: (0.4, 0.6), C.BODY_ROLL: (0.3, 0.5), C.GAIT_FREQUENCY: (2.5, 3.5)},
    mirrored=(C.BODY_ROLL,),
    terrains=("flat", "rough", "slope"),
    share=0.14,
    passage=PassageRule(
        "walls",
        ("flat", "rough"),
        _tilt_gap,
        _roll_through,
        ranges={C.BODY_ROLL: (-_PASSAGE_ROLL_RAD[1], _PASSAGE_ROLL_RAD[1])},
    ),
)


def _run(track: Track) -> bool:
    """Mean |v_x error| below max(0.3, 0.2 v_x) and tracking reward above 0.7 over the last 2 s."""
    return bool(
        track.vel_x_error() < max(0.3, 0.2 * track.command[C.VEL_X])
        and track.last(2.0, S.TRACKING).mean() > 0.7
    )


RUN = Skill(
    "run",
    _run,
    lambda command: f"{_speed(command)}, turning at {command[C.YAW_RATE]:+.2f} rad/s",
    ranges={
        C.VEL_X: (1.5, 3.0),
        C.YAW_RATE: (-0.3, 0.3),
        C.SWING_HEIGHT: (0.06, 0.12),
        C.GAIT_FREQUENCY: (3.0, 4.0),
        C.GAIT_DUTY: (0.40, 0.50),
        C.ACCEL_LIMIT: (0.5, 2.0),
    },
    terrains=("flat", "rough", "slope"),
    share=0.28,
    manoeuvres=("straight", "turn"),
)

WALK = Skill(
    "walk",
    lambda track: track.vel_x_error() < 0.15,
    _speed,
    ranges={C.VEL_X: (0.5, 0.5)},
)
"""BoT's A1-Walk: 0.5 m/s straight ahead (Sferrazza et al. 2024, Section 5.2 and Appendices A and D;
the speed is the published code's, a1_walk/legged_gym/legged_gym/envs/a1/a1_field_config.py)."""

SKILLS: dict[str, Skill] = {skill.name: skill for skill in (STAND, RUSH, CRAWL, SQUEEZE, TILT, RUN)}
"""The paper's six, which collections and evaluations have if none are named."""
ALL_SKILLS = ChainMap(SKILLS, {WALK.name: WALK})


def check_skill(skill: str) -> str:
    """Return the name; raises ValueError for an unknown one."""
    if skill not in ALL_SKILLS:
        raise ValueError(f"unknown skill '{skill}'; {names_allowed(skill, [*SKILLS, WALK.name])}")
    return skill


def matching_cells(
    terrains: tuple[str, ...], skills: tuple[str, ...], levels: tuple[int, ...]
) -> list[tuple[str, str]]:
    """The pairs of terrain and skill that go together, for a grid of cells.

    ValueError for an unknown name or level, no level, or no pair.
    """
    for skill in skills:
        check_skill(skill)
    for terrain in terrains:
        check_terrain(terrain)
    for level in levels:
        check_level(level)
    if not levels:
        raise ValueError("at least one level is needed")
    cells = [(t, s) for t in terrains for s in skills if ALL_SKILLS[s].commanded_on(t)]
    if not cells:
        raise ValueError(
            f"none of the skills {', '.join(skills)} is commanded on {', '.join(terrains)}"
        )
    return cells


# Ranges of commands.
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
