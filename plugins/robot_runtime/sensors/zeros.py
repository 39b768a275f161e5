"""Zeros of joints: one joint's by the plane of the feet, all of a kind by the default pose.

A wrong zero moves one foot through its joint's gradient, `up . d foot / d q`, which changes while
the trunk tilts; on a plane the foot is also out of plane. Both are linear in the error.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_JOINTS, N_LEGS, RobotCard
from gaitforge.plugins.robot_runtime.sensors.blocks import lagged
from gaitforge.plugins.robot_runtime.sensors.plane import MODES, Legs, diagonals

LEAST_ZERO_RAD = 0.14
"""A joint's zero that is reported: calibrations are good to 0.02 rad, and a foot
that slips or rolls looks like 0.1."""
LEAST_POSE_RAD = 0.055
"""Distance of all joints of a kind from the default pose that is reported."""
MOST_SAG = 1.4
"""Sag of soft legs under the weight, over the computed one, that is no fault."""
SHARES = 12
"""Steps of each kind of sag that are tried."""
POSE_RAD = 0.08
"""Deviation of a joint's angle from the default pose, by where its foot stands."""
GROUND_M = 0.005
"""Deviation of ground and links from a plane through the feet."""
LINKS_M = 0.001
"""Deviation of heights by links' lengths, added to the noise."""
DYNAMIC_GAIN = 9.0
TOTAL_GAIN = 20.0
ALIKE_GAIN = 6.0
"""Squares in units of their deviation: what motion alone, and all together, have to explain; the
difference below which two joints explain the data alike."""


@dataclass(frozen=True)
class JointZero:
    """A joint whose zero explains the feet's motion.

    Attributes:
        joints: its place; several where they explain it alike.
        angle_rad: logged less right angle, of the first.
        motion: `PlaneFit.motion` when that is taken away.
    """

    joints: tuple[int, ...]
    angle_rad: float
    motion: float


@dataclass(frozen=True)
class ZeroEstimates:
    """For each joint alone, the error of its zero that explains most.

    Attributes:
        angles_rad: (12,) logged less right angles.
        gains: (12,) squares that it explains of motion, plane and pose together.
        moving: (12,) squares that it explains of the motion alone.
    """

    angles_rad: np.ndarray
    gains: np.ndarray
    moving: np.ndarray


def zero_estimates(
    legs: Legs, q: np.ndarray, up: np.ndarray, first: np.ndarray, pose: np.ndarray
) -> ZeroEstimates:
    """Least squares in closed form, for joints (K, 12), gravity (K, 3) and pairs of blocks.

    pose: (12,) rad by which the joints of a level trunk are off the default pose.
    """
    feet = legs.feet(q)
    modes = (feet @ up[..., None])[..., 0] @ MODES.T
    # Gravity's noise tilts the plane, but does not bend it: each mode has its own.
    white = modes[first].var(axis=0) - lagged(modes, modes, first)
    noise = np.maximum(white, 0.0) + LINKS_M**2
    _, apart = diagonals(feet)
    out = float(apart[first].mean())
    rises = legs.rises(q, up)
    rows = []
    for joint in range(N_JOINTS):
        leg = joint // JOINTS_PER_LEG
        effect = rises[:, joint, None] * MODES[:, leg]
        slope = float((lagged(modes, effect, first) / noise).sum()) * len(first)
        weight = float((np.maximum(lagged(effect, effect, first), 0.0) / noise).sum()) * len(first)
        # Half of what a foot rises parts the middles of the two diagonals.
        tilt = float(MODES[2, leg] * rises[first, joint].mean())
        slopes = slope + tilt * out / GROUND_M**2 + pose[joint] / POSE_RAD**2
        weights = weight + tilt**2 / GROUND_M**2 + 1 / POSE_RAD**2
        moving = slope**2 / max(weight, 1e-9) if slope * slopes > 0 else 0.0
        rows.append((slopes / weights, slopes**2 / weights, moving))
    return ZeroEstimates(*np.array(rows).T)


def joint_zero(legs: Legs, q: np.ndarray, up: np.ndarray, first: np.ndarray) -> JointZero | None:
    """The joint whose zero is off, for right orders and signs; None for none.

    Where all joints of a kind are off the default pose, joints are taken without that.
    """
    level = level_pose(legs, q, first)
    pose = level - legs.robot.default_joint_pos_rad
    q = q.copy()
    if (off := kind_off(legs.robot, level)) is not None:
        q[:, off.kind :: JOINTS_PER_LEG] -= off.angle_rad
        pose[off.kind :: JOINTS_PER_LEG] -= off.angle_rad
    estimates = zero_estimates(legs, q, up, first, pose)
    fits = np.abs(estimates.angles_rad) > LEAST_ZERO_RAD
    fits &= (estimates.moving > DYNAMIC_GAIN) & (estimates.gains > TOTAL_GAIN)
    if not fits.any():
        return None
    ranked = sorted(np.flatnonzero(fits).tolist(), key=lambda joint: -estimates.gains[joint])
    best = ranked[0]
    alike = tuple(j for j in ranked if estimates.gains[best] - estimates.gains[j] < ALIKE_GAIN)
    angle = float(estimates.angles_rad[best])
    for _ in range(2):  # one step is off by a tenth, by the gradient's own change
        right = q.copy()
        right[:, best] -= angle
        corrected = pose.copy()
        corrected[best] -= angle
        angle += float(zero_estimates(legs, right, up, first, corrected).angles_rad[best])
    right = q.copy()
    right[:, best] -= angle
    return JointZero(alike, angle, legs.motion(legs.feet(right), up, first)[0])


# The default pose.
def level_pose(legs: Legs, q: np.ndarray, first: np.ndarray) -> np.ndarray:
    """(12,) rad: the joints while the trunk is level with the plane through the feet.

    A hand's tilting need not be even, so it is no mean: a fit of each joint over the plane's normal
    in the trunk's frame, quadratic, at the upright normal.
    """
    normal, _ = diagonals(legs.feet(q[first]))
    x, y = normal[:, :2].T
    terms = np.stack([np.ones_like(x), x, y, x * x, y * y], axis=1)
    return np.linalg.lstsq(terms, q[first], rcond=None)[0][0]


def sags(robot: RobotCard) -> np.ndarray:
    """(SHARES + 2, 12) rad by which the robot's gains let joints give way under a load.

    First, for loads of 0 to `MOST_SAG` weights, with feet that slide freely: each joint by its own
    torque, a quarter of the load on each foot. The last with feet that stay, for one weight: the
    trunk sinks by the weight over the stiffness along that way.
    """
    kinematics = LegKinematics(robot)
    sliding = np.zeros((SHARES + 1, N_JOINTS))
    up = np.broadcast_to([0.0, 0.0, 1.0], (SHARES + 1, 1, 3))
    loads = np.arange(SHARES + 1)[:, None] * (MOST_SAG / SHARES)
    for _ in range(40):  # the torque follows from the pose, which the torque bends
        pose = robot.default_joint_pos_rad + sliding
        torque = kinematics.rise_gradient(pose, up) * loads * robot.weight_n / N_LEGS
        sliding += 0.5 * (torque / robot.kp_nm_per_rad - sliding)
    feet = kinematics.foot_positions(robot.default_joint_pos_rad[None])
    step = 0.01 * robot.leg_length_m
    lower, higher = (
        kinematics.joint_positions(feet + np.array([0.0, 0.0, rise]))[0] for rise in (step, -step)
    )
    turns = (lower - higher) / (2 * step)
    sunk = robot.weight_n / float(robot.kp_nm_per_rad @ turns**2)
    return np.concatenate([sliding, sunk * turns[None]])


@dataclass(frozen=True)
class KindOff:
    """All joints of a kind stand off the default pose.

    Attributes:
        kind: place in hip, thigh, calf.
        angle_rad: logged less default, by how much the trunk's height does not explain.
    """

    kind: int
    angle_rad: float


def kind_off(robot: RobotCard, q: np.ndarray) -> KindOff | None:
    """The kind of joints that stands farthest off the default pose; None for none.

    q: (12,) rad of a level trunk. What the `sags` explain, together up to `MOST_SAG` weights, is
    taken away, of hips all, half or none of it, since friction holds feet sideways more than along.
    The kind is that with the smallest squares of its angle and of what it leaves. None, too, where
    fewer than three legs are off: then it is a joint's own zero.
    """
    from_default = q - robot.default_joint_pos_rad
    *sliding, staying = sags(robot)
    shares = product(range(SHARES + 1), range(SHARES + 1), range(3))
    one, second, half = np.array([each for each in shares if each[0] + each[1] <= SHARES]).T
    hips = np.stack([half / 2, np.ones(len(half)), np.ones(len(half))], axis=1)
    slid = np.array(sliding)[one] * np.tile(hips, N_LEGS)
    stayed = second[:, None] * (MOST_SAG / SHARES) * staying
    left_rad = (from_default - slid - stayed).reshape(len(one), N_LEGS, -1)
    angles = left_rad.mean(axis=1)
    # The squares about a mean are less by its own; the angle's own are added.
    squares = (left_rad**2).sum(axis=(1, 2))[:, None] - (N_LEGS - 1) * angles**2
    best, kind = np.unravel_index(squares.argmin(), squares.shape)
    rest_rad = left_rad[best, :, kind]
    angle = float(rest_rad.mean())
    along = np.sort(rest_rad * np.sign(angle))
    if abs(angle) < LEAST_POSE_RAD or along[1] < abs(angle) / 2:
        return None
    return KindOff(int(kind), angle)
