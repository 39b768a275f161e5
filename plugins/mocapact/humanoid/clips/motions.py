"""Synthetic reference clips, for tests and where there is no motion-capture data."""

from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np

from gaitforge.common.errors import names_allowed
from gaitforge.plugins.mocapact.humanoid.clips.posing import UPRIGHT_QUAT, SolePlacement
from gaitforge.plugins.mocapact.humanoid.clips.reference import ReferenceClip
from gaitforge.plugins.mocapact.humanoid.observation import CONTROL_DT_S, JOINT_NAMES
from gaitforge.plugins.mocapact.humanoid.walker import CmuHumanoid, load_humanoid

STANDING_HEIGHT_M = 1.08
"""Height of the root above the floor, with knees slightly bent."""

_SHOULDER_RAD = 1.05
_ARM_BACK_RAD = -0.45
_ELBOW_RAD = 0.3
"""Arms hang at the sides instead of the model's T pose."""

_RAMP_S = 0.3


@dataclass(frozen=True)
class Pose:
    """A motion's targets at one moment.

    Attributes:
        height, sway: of the root, in m: above the floor, and to the left.
        ahead: of the centre of mass, m forwards of the place where the motion starts.
        lift: of the left and the right sole above the floor, m.
        places: of the left and the right sole, m forwards of where the motion starts.
        swing: of the left arm forwards, rad; the right one goes the other way.
    """

    height: float = STANDING_HEIGHT_M
    sway: float = 0.0
    lift: tuple[float, float] = (0.0, 0.0)
    swing: float = 0.0
    ahead: float = 0.0
    places: tuple[float, float] = (0.0, 0.0)


def _step(phase: float, size: float) -> Pose:
    """Steps in place: the weight goes to one foot, then the other one is lifted."""
    turn = np.sin(2 * np.pi * phase)
    lift = 0.07 * size * max(0.0, (abs(turn) - 0.5) / 0.5) ** 2
    lifted = (lift, 0.0) if turn > 0 else (0.0, lift)
    return Pose(sway=-0.07 * size * turn, lift=lifted, swing=-0.3 * size * turn)


_STRIDE_M = 0.4
"""Way of a period of walking, two steps."""

_SWING_HALF = 0.18
"""Half of a foot's time in the air, in periods: 0.36 of a period, usual for a slow walk."""


def _walk(phase: float, size: float) -> Pose:
    """Walking forwards from rest: steps of half a stride, the left foot first.

    The centre of mass gains speed over the first half period, then keeps it. It passes each sole in
    the middle of the other one's swing. Its sway is a third of that of steps in place: at this
    period the point of zero moment of a linear inverted pendulum sways 4 times as much (Kajita et
    al. 2001), and shall stay on the sole.
    """
    stride = _STRIDE_M * size
    ahead = stride * (phase**2 if phase < 0.5 else phase - 0.25)
    places = []
    lifts = []
    for middle in (0.25, 0.75):  # of the swings of the left and the right foot
        swing, since = divmod(phase - middle + 0.5, 1.0)
        share = np.clip((since - 0.5) / (2 * _SWING_HALF) + 0.5, 0.0, 1.0)
        lifts.append(0.05 * size * np.sin(np.pi * share) ** 2)
        moved = share**2 * (3.0 - 2.0 * share)
        before, after = (max(0.0, swing + k + middle - 0.75) for k in (0.0, 1.0))
        places.append(stride * (before + moved * (after - before)))
    turn = np.sin(2 * np.pi * phase)
    return Pose(
        height=STANDING_HEIGHT_M - 0.02 * size,
        sway=-0.025 * size * turn,
        ahead=ahead,
        lift=(lifts[0], lifts[1]),
        places=(places[0], places[1]),
        swing=-0.3 * size * turn,
    )


@dataclass(frozen=True)
class Motion:
    """A periodic motion: pose as a function of the phase (in periods) and of its size (1)."""

    pose: Callable[[float, float], Pose]
    period_s: float


MOTIONS: dict[str, Motion] = {
    "stand": Motion(lambda phase, size: Pose(), 3.0),
    "squat": Motion(
        lambda phase, size: Pose(STANDING_HEIGHT_M - 0.04 * size * (1 - np.cos(2 * np.pi * phase))),
        1.8,
    ),
    "arm_swing": Motion(
        lambda phase, size: Pose(swing=0.6 * size * np.sin(2 * np.pi * phase)), 1.2
    ),
    "step": Motion(_step, 1.5),
    "walk": Motion(_walk, 1.2),
}


def synthetic_clip(motion: str, frames: int = 96, variant: int = 0) -> ReferenceClip:
    """A clip called `<motion>_<variant>`, 0.03 s per frame; a pure function of its arguments.

    Variant 0 is the nominal motion, along the x axis; others differ in period (±15 %), size (±20 %)
    and heading (any).
    """
    if motion not in MOTIONS:
        raise ValueError(f"unknown motion '{motion}'; {names_allowed(motion, MOTIONS)}")
    if frames < 2 or variant < 0:
        raise ValueError(f"need frames >= 2, got {frames}, and variant >= 0, got {variant}")
    humanoid = load_humanoid()
    nominal = MOTIONS[motion]
    rng = np.random.default_rng([list(MOTIONS).index(motion), variant])
    low = (0.85, 0.8, -np.pi)
    high = (1.15, 1.2, np.pi)
    speed, size, heading = rng.uniform(low, high) if variant else (1.0, 1.0, 0.0)
    poser = _Poser(humanoid)
    poses = np.empty((frames, humanoid.model.nq))
    for frame in range(frames):
        time_s = frame * CONTROL_DT_S
        # The motion grows from standing, so that it starts at rest.
        grown = size * min(1.0, time_s / _RAMP_S) ** 2
        pose = nominal.pose(time_s * speed / nominal.period_s, grown)
        poses[frame] = poser.qpos(pose, poses[frame - 1] if frame else None)
    return ReferenceClip.of_poses(f"{motion}_{variant:02d}", _turned(poses, heading))


def _turned(poses: np.ndarray, heading: float) -> np.ndarray:
    """Poses (T, 63) turned about the world's vertical axis by `heading`, in rad."""
    turned = poses.copy()
    cos = np.cos(heading)
    sin = np.sin(heading)
    turned[:, :2] = poses[:, :2] @ np.array([[cos, sin], [-sin, cos]])
    turn = np.array([np.cos(heading / 2), 0.0, 0.0, np.sin(heading / 2)])
    root = np.empty(4)
    for row, pose in zip(turned, poses, strict=True):
        mujoco.mju_mulQuat(root, turn, pose[3:7])
        row[3:7] = root
    return turned


class _Poser:
    """Root pose and joint angles of a motion's `Pose`."""

    def __init__(self, humanoid: CmuHumanoid):
        self._humanoid = humanoid
        self._legs = SolePlacement(humanoid)
        standing = self._upper_body(Pose())
        hips = self._legs.hips(standing)
        self._feet = {side: np.array([hip[0], hip[1], 0.0]) for side, hip in hips.items()}
        for _ in range(3):  # feet below the centre of mass, which moves with the legs
            balanced = self._legs.place(standing, self._feet)
            ahead = self._legs.center_of_mass(balanced)[0]
            for foot in self._feet.values():
                foot[0] = ahead
        self._standing = self._legs.place(standing, self._feet)

    def qpos(self, pose: Pose, before: np.ndarray | None) -> np.ndarray:
        """(63,) the pose, solved from the previous one, `before`."""
        target = self._upper_body(pose, self._standing if before is None else before)
        feet = {side: foot.copy() for side, foot in self._feet.items()}
        for side, lift, place in zip("lr", pose.lift, pose.places, strict=True):
            feet[side][0] += place
            feet[side][2] += lift
        placed = self._legs.place(target, feet)
        # The centre of mass stays above its place, however far the knees go forwards.
        place = self._feet["l"][0] + pose.ahead
        placed[0] += place - self._legs.center_of_mass(placed)[0]
        return self._legs.place(placed, feet)

    def _upper_body(self, pose: Pose, start: np.ndarray | None = None) -> np.ndarray:
        qpos = np.zeros(self._humanoid.model.nq) if start is None else start.copy()
        qpos[:3] = pose.ahead, pose.sway, pose.height
        qpos[3:7] = UPRIGHT_QUAT
        for side, sign in (("l", 1.0), ("r", -1.0)):
            angles = {
                "humerusrz": sign * _SHOULDER_RAD,
                "humerusrx": _ARM_BACK_RAD + sign * pose.swing,
                "radiusrx": _ELBOW_RAD,
            }
            for name, angle in angles.items():
                index = JOINT_NAMES.index(side + name)
                qpos[7 + self._humanoid.joints[index]] = angle
        # Joints whose ranges leave out 0 (knees) start inside them.
        low, high = self._humanoid.joint_range.T
        places = 7 + self._humanoid.joints
        qpos[places] = np.clip(qpos[places], low, high)
        return qpos
