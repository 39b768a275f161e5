"""Success of an episode by its skill's own criterion, from a few signals recorded every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from collectors.legged.rewards import StepView, track_linear_velocity
from collectors.robots.commands import C
from collectors.scenarios.passages import TRACK_HALF_WIDTH_M, Passage
from collectors.timing import CONTROL_DT_S, EPISODE_STEPS


class S(IntEnum):
    """Index of every recorded signal."""

    VEL_X = 0
    VEL_X_COMMAND = 1
    SPEED = 2
    TURN_RATE = 3
    HEIGHT_ERROR = 4
    TILT_ERROR = 5
    ROLL_ERROR = 6
    FEET_DOWN = 7
    POS_X = 8
    POS_Y = 9
    TRACKING = 10
    STANCE_WIDTH = 11
    ALONG = 12
    ACROSS = 13
    BARRIER_FORCE = 14
    BARRIER_BODY_FORCE = 15
    TORQUE = 16
    ACTION_RATE = 17


N_SIGNALS = len(S)


def signals(view: StepView, base_pos: np.ndarray, on_track: np.ndarray) -> np.ndarray:
    """(N, N_SIGNALS) float32 of one step.

    Torque is the largest of any joint, in Nm; the action rate is the fastest joint target's, in
    rad/s.

    Args:
        base_pos: (N, 3) in the world; on_track: (N, 2 or more) along and across its track, m.
    """
    error = view.gravity - view.desired_gravity
    action_change = np.abs(view.action - view.last_action).max(axis=1)
    values = {
        S.VEL_X: view.lin_vel_heading[:, 0],
        S.VEL_X_COMMAND: view.command[:, C.VEL_X],
        S.SPEED: np.linalg.norm(view.lin_vel_heading, axis=1),
        S.TURN_RATE: np.linalg.norm(view.ang_vel_body, axis=1),
        S.HEIGHT_ERROR: view.height_error_m,
        S.TILT_ERROR: np.linalg.norm(error, axis=1),
        S.ROLL_ERROR: np.arcsin(np.clip(error[:, 1], -1.0, 1.0)),
        S.FEET_DOWN: view.foot_contact.sum(axis=1),
        S.POS_X: base_pos[:, 0],
        S.POS_Y: base_pos[:, 1],
        S.TRACKING: track_linear_velocity(view),
        S.STANCE_WIDTH: view.stance_width_m,
        S.ALONG: on_track[:, 0],
        S.ACROSS: on_track[:, 1],
        S.BARRIER_FORCE: view.barrier_force_n,
        S.BARRIER_BODY_FORCE: view.barrier_body_force_n,
        S.TORQUE: np.abs(view.joint_torque).max(axis=1),
        S.ACTION_RATE: action_change * view.robot.action_scale_rad / CONTROL_DT_S,
    }
    recorded = np.empty((len(base_pos), N_SIGNALS), dtype=np.float32)
    for signal, value in values.items():
        recorded[:, signal] = value
    return recorded


@dataclass(frozen=True)
class Track:
    """The recorded signals of one episode, (T, N_SIGNALS), its target command (16,) and passage.

    `trunk_half_length_m` tells when the whole trunk is out of the passage.
    """

    values: np.ndarray
    command: np.ndarray
    passage: Passage | None
    trunk_half_length_m: float

    def last(self, seconds: float, signal: S) -> np.ndarray:
        """A signal over the episode's last `seconds`."""
        return self.values[-max(1, round(seconds / CONTROL_DT_S)) :, signal]

    def distance_m(self) -> float:
        """Length of the path, from 5-step chords so that the trunk's sway does not count."""
        chords = np.diff(self.values[::5, S.POS_X : S.POS_Y + 1], axis=0)
        return float(np.linalg.norm(chords, axis=1).sum())

    def commanded_distance_m(self) -> float:
        """Integral of the commanded speed."""
        return float(self.values[:, S.VEL_X_COMMAND].sum() * CONTROL_DT_S)

    def passed(self) -> bool:
        """Whether the whole trunk came out at the far end without leaving the track."""
        if self.passage is None:
            return False
        along, across = self.values[:, S.ALONG], self.values[:, S.ACROSS]
        out = self.passage.end_m + self.trunk_half_length_m
        inside = (along > self.passage.start_m) & (along < self.passage.end_m)
        wide = TRACK_HALF_WIDTH_M if self.passage.kind == "bar" else self.passage.opening_m / 2
        return bool(along[-1] > out and np.all(np.abs(across[inside]) < wide))

    def vel_x_error(self) -> float:
        """Mean |v_x error| over the last 2 s, m/s."""
        return float(np.abs(self.last(2.0, S.VEL_X) - self.last(2.0, S.VEL_X_COMMAND)).mean())


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _stand(track: Track) -> bool:
    """Still, level as commanded, in place and on four feet over the last second.

    Drift counts over that second: an episode may hold a push, after which the robot has to have
    caught itself.
    """
    drift = np.hypot(np.ptp(track.last(1.0, S.POS_X)), np.ptp(track.last(1.0, S.POS_Y)))
    return bool(
        _rms(track.last(1.0, S.SPEED)) < 0.1
        and _rms(track.last(1.0, S.TURN_RATE)) < 0.2
        and abs(track.last(1.0, S.HEIGHT_ERROR).mean()) < 0.03
        and track.last(1.0, S.TILT_ERROR).mean() < 0.1
        and drift < 0.15
        and np.mean(track.last(1.0, S.FEET_DOWN) == 4) > 0.9
    )


def _rush(track: Track) -> bool:
    """Reaches 80 % of the speed within 2 v / a + 0.5 s and covers 70 % of the commanded way."""
    speed, accel = track.command[C.VEL_X], track.command[C.ACCEL_LIMIT]
    deadline = round((2 * speed / accel + 0.5) / CONTROL_DT_S)
    window = np.convolve(track.values[:, S.VEL_X], np.full(5, 0.2), mode="valid")
    # A mean over five steps counts at its last one.
    reached = window[: deadline - 4].max(initial=-np.inf) >= 0.8 * speed
    return bool(reached and track.distance_m() >= 0.7 * track.commanded_distance_m())


def _run(track: Track) -> bool:
    """Mean |v_x error| below max(0.3, 0.2 v_x) and tracking reward above 0.7 over the last 2 s."""
    return bool(
        track.vel_x_error() < max(0.3, 0.2 * track.command[C.VEL_X])
        and track.last(2.0, S.TRACKING).mean() > 0.7
    )


def _walks(track: Track) -> bool:
    return track.distance_m() >= 0.7 * track.commanded_distance_m()


def _crawl(track: Track) -> bool:
    """Passes under the bar, and neither trunk nor hips ever press on it with more than 1 N.

    The highest point stays below a rigid bar by itself.
    """
    return track.passed() and not bool(np.any(track.values[:, S.BARRIER_BODY_FORCE] > 1.0))


def _squeeze(track: Track) -> bool:
    """Passes between the walls and touches them in less than 5 % of the window's steps."""
    touches = track.values[:, S.BARRIER_FORCE] > 1.0
    return track.passed() and float(touches.sum()) < 0.05 * EPISODE_STEPS


def _tilt(track: Track) -> bool:
    """Passes between the walls, or on open ground makes its way with a roll error below 0.15 rad.

    The roll counts over the last 2 s.
    """
    if track.passage is not None:
        return track.passed()
    return bool(np.abs(track.last(2.0, S.ROLL_ERROR)).mean() < 0.15 and _walks(track))


CRITERIA: dict[str, Callable[[Track], bool]] = {
    "stand": _stand,
    "rush": _rush,
    "crawl": _crawl,
    "squeeze": _squeeze,
    "tilt": _tilt,
    "run": _run,
}


def succeeded(skill: str, track: Track, terminated: bool) -> bool:
    """Whether an episode counts as a success; one that ended in a fall never does."""
    return not terminated and CRITERIA[skill](track)
