"""Signals recorded at every step of an episode, from which success is judged."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gaitforge.collectors.scenarios.passages import TRACK_HALF_WIDTH_M, Passage
from gaitforge.collectors.timing import CONTROL_DT_S


class S(IntEnum):
    """Index of each recorded signal."""

    VEL_X, VEL_X_COMMAND, SPEED, TURN_RATE, HEIGHT_ERROR, TILT_ERROR, ROLL_ERROR = range(7)
    FEET_DOWN, POS_X, POS_Y, TRACKING, STANCE_WIDTH, ALONG, ACROSS = range(7, 14)
    BARRIER_FORCE, BARRIER_BODY_FORCE, TORQUE, ACTION_RATE, POWER = range(14, 19)


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
