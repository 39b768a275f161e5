"""Feet by kinematics against gravity: the heights of feet that stay in place do not change.

With the trunk's attitude right and joints right, up . foot is the same number for each foot at all
times but for what all four share, the trunk's own height. No level ground is needed. Heights are
split into three modes of four feet: front less rear, left less right, and one diagonal less the
other, which is out of plane.
"""

from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.plugins.robot_runtime.sensors.blocks import lagged

MODES = np.array([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, 1.0]]) / 2
"""(3, 4) orthonormal: pitch, roll, and out of plane, of FL, FR, RL, RR."""
LEAST_TILT = 0.02
"""Deviation of a tilt, rad, that a mode's motion is taken to have at least."""
NEAR_HEIGHT = (0.4, 1.6)
"""Height of the trunk over its feet, in default heights, for which a robot can be said to stand."""


@dataclass(frozen=True)
class PlaneFit:
    """How the plane through the feet follows gravity.

    Attributes:
        slope_pitch, slope_roll: of the plane's normal against gravity, 1 where all is right.
        out_of_plane_m: distance of the two diagonals' middles along the normal, 0 on a plane.
        motion: changes of feet's heights over those of feet that the trunk would carry along, as
            variances; 0 where all is right, about 1 where legs tell nothing of the attitude.
        height: mean height of the trunk over its feet, in default heights.
    """

    slope_pitch: float
    slope_roll: float
    out_of_plane_m: float
    motion: float
    height: float

    @property
    def stands(self) -> bool:
        """Whether the trunk is above its feet, at a height that a stand can have."""
        low, high = NEAR_HEIGHT
        return low < self.height < high


class Legs:
    """Feet of one robot, and what is expected of their heights."""

    def __init__(self, robot: RobotCard):
        self.robot = robot
        self._kinematics = LegKinematics(robot)
        self.default_feet = self._kinematics.foot_positions(robot.default_joint_pos_rad[None])[0]
        self.default_height_m = -float(self.default_feet[:, 2].mean())

    def feet(self, q: np.ndarray) -> np.ndarray:
        """(K, 4, 3) centres of feet in the trunk's frame, m."""
        return self._kinematics.foot_positions(np.ascontiguousarray(q))

    def rises(self, q: np.ndarray, up: np.ndarray) -> np.ndarray:
        """(K, 12) m/rad: what a joint adds to its foot's height."""
        return self._kinematics.rise_gradient(np.ascontiguousarray(q), up[:, None])

    def mode_weights(self, up: np.ndarray, first: np.ndarray) -> np.ndarray:
        """(3,) 1/m^2: one over the variance that each mode has for feet carried along.

        Out of plane counts as roll does.
        """
        carried = up @ self.default_feet.T @ MODES[:2].T
        spans = self.default_feet[:, :2].T @ MODES[:2].T
        least = (np.abs(np.diag(spans)) * LEAST_TILT) ** 2
        variance = np.maximum(lagged(carried, carried, first), least)
        return 1.0 / variance[[0, 1, 1]]

    def motion(self, feet: np.ndarray, up: np.ndarray, first: np.ndarray) -> tuple[float, float]:
        """`PlaneFit.motion` and `.height` of feet (K, 4, 3) and upward vectors (K, 3)."""
        heights = (feet @ up[..., None])[..., 0]
        modes = heights @ MODES.T
        motion = float(self.mode_weights(up, first) @ lagged(modes, modes, first))
        return motion, -float(heights[first].mean()) / self.default_height_m

    def fit(self, q: np.ndarray, up: np.ndarray, first: np.ndarray) -> PlaneFit:
        """How well joints (K, 12) and upward vectors (K, 3) go together."""
        feet = self.feet(q)
        normal, apart = diagonals(feet)
        pitch, roll = (
            float(lagged(normal[:, a], up[:, a], first) / _variance(up[:, a], first))
            for a in (0, 1)
        )
        motion, height = self.motion(feet, up, first)
        return PlaneFit(pitch, roll, float(apart[first].mean()), motion, height)


def _variance(values: np.ndarray, first: np.ndarray) -> float:
    return max(float(lagged(values, values, first)), LEAST_TILT**2 / 100)


def diagonals(feet: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normals of the planes along both diagonals of feet (K, 4, 3), and how far these are apart.

    Normals (K, 3) are upward unit vectors; the diagonals' middles are (K,) m apart along them. The
    plane midway has the same distance from all four feet: it is their minimax plane.
    """
    normal = np.cross(feet[:, 0] - feet[:, 3], feet[:, 1] - feet[:, 2])
    length = np.sqrt((normal**2).sum(axis=1, keepdims=True))
    normal = normal / np.maximum(length, 1e-9)
    normal = np.where(normal[:, 2:] < 0, -normal, normal)
    middles = (feet[:, 0] + feet[:, 3] - feet[:, 1] - feet[:, 2]) / 2
    return normal, (normal * middles).sum(axis=1)


def tilts(up: np.ndarray, first: np.ndarray) -> tuple[float, float]:
    """Pitch and roll in rad that the trunk covers, from end to end of a swing as wide on average.

    2 sqrt(2) deviations, which of a sine is from peak to peak; without the sensors' noise.
    """
    variances = [max(float(lagged(up[:, a], up[:, a], first)), 0.0) for a in (0, 1)]
    return 2 * float(np.sqrt(2 * variances[0])), 2 * float(np.sqrt(2 * variances[1]))
