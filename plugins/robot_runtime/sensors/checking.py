"""What is wrong with a robot's sensors, from a log of a stand that is tilted by hand."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gaitforge.collectors.robots.robot import JOINTS_OF_A_LEG, JOINTS_PER_LEG, RobotCard
from gaitforge.plugins.robot_runtime.sensors.blocks import Blocks, make_blocks
from gaitforge.plugins.robot_runtime.sensors.findings import Finding, Report
from gaitforge.plugins.robot_runtime.sensors.hypotheses import (
    AS_LOGGED,
    DEGREE,
    NO_MAP,
    READINGS,
    GyroMap,
    JointMap,
    Reading,
    single_joint_maps,
)
from gaitforge.plugins.robot_runtime.sensors.logs import SensorLog
from gaitforge.plugins.robot_runtime.sensors.plane import Legs, PlaneFit, tilts
from gaitforge.plugins.robot_runtime.sensors.rates import (
    UNSURE_SLOPE,
    WRONG_SLOPE,
    RateFit,
    gyro_rates,
    joint_rates,
    moments,
)
from gaitforge.plugins.robot_runtime.sensors.search import FAR_RAD, search
from gaitforge.plugins.robot_runtime.sensors.zeros import (
    JointZero,
    joint_zero,
    kind_off,
    level_pose,
)

FOLLOWS = 0.03
"""`PlaneFit.motion` up to which the plane of the feet follows gravity."""
ALIKE = 0.006
"""Difference of motions up to which two mistakes explain a log alike."""
LEAST_RANGE_RAD = 0.1
"""Pitch and roll that a log has to cover."""
UNIT_LENGTH = (0.9, 1.1)
"""Lengths of a quaternion."""


@dataclass(frozen=True)
class _Explanation:
    """A reading of the quaternion and a joint map for which legs follow gravity."""

    reading: Reading
    joints: JointMap
    motion: float
    gyro: RateFit
    dq: RateFit

    @property
    def gyro_is_turned_too(self) -> bool:
        """Whether the gyro's axes are those of the wrong reading."""
        turn = np.array(self.reading.turn) @ np.diag(self.reading.signs[1:])
        best = self.gyro.best
        return (
            isinstance(best, GyroMap)
            and self.reading.kind == "axes"
            and best.scale == 1.0
            and np.array_equal(np.diag(best.signs) @ np.eye(3)[list(best.source)], turn)
        )

    @property
    def cost(self) -> int:
        """Mistakes that it takes, with those of gyro and dq; dq may share q's."""
        # An IMU that is turned turns its gyro: another gyro is a mistake of its own.
        gyro = self.gyro.best.cost + (self.reading.kind == "axes")
        gyro = 0 if self.gyro_is_turned_too else gyro
        dq = 0 if self.dq.best == self.joints else self.dq.best.cost
        return self.reading.cost + self.joints.cost + gyro + dq

    @property
    def text(self) -> str:
        """Its mistakes of attitude and joints, in words."""
        return " and ".join(filter(None, (self.reading.text, self.joints.text)))


def covered(blocks: Blocks) -> tuple[float, float]:
    """Pitch and roll in rad that a log covers, by the reading of its quaternion that shows most."""
    ranges = [tilts(reading.up(blocks.quat), blocks.first) for reading in READINGS[:4]]
    return max(ranges, key=min)


def lacking_motion(pitch: float, roll: float) -> list[str]:
    """What to do for the pitch and roll that are missing."""
    return [
        f"{name}: {covered:.2f} of {LEAST_RANGE_RAD} rad covered; tilt the trunk {way}"
        for name, covered, way in (
            ("pitch", pitch, "nose up and down"),
            ("roll", roll, "from side to side"),
        )
        if covered < LEAST_RANGE_RAD
    ]


def check_log(log: SensorLog, robot: RobotCard) -> Report:
    """Check a log, whose joints should be in the card's order and about its default pose.

    ValueError for a log with too few rows without gaps.
    """
    blocks = make_blocks(log)
    pitch, roll = covered(blocks)
    measured: dict[str, Any] = {
        "rows": len(log.time_s),
        "seconds": float(log.time_s[-1] - log.time_s[0]),
        "rate_hz": log.rate_hz,
        "pitch_range_rad": pitch,
        "roll_range_rad": roll,
    }
    still = list(_still(log, robot))
    lacking = lacking_motion(pitch, roll)
    if still or lacking:
        return Report(tuple(still), () if still else tuple(lacking), (), measured)
    legs = Legs(robot)
    explained, alike, zero = _explain(legs, blocks)
    findings, unjudged = [], []
    fit = legs.fit(blocks.q, AS_LOGGED.up(blocks.quat), blocks.first)
    measured |= asdict(fit)
    if explained is None:
        findings.append(_unexplained(fit))
        explained = _explanation(blocks, AS_LOGGED, NO_MAP, fit.motion)
    else:
        findings += _order_findings(explained, alike, fit, robot)
        findings += _pose_findings(legs, blocks, explained, zero)
    measured |= _rate_numbers(explained)
    findings += _gyro_findings(explained)
    findings += _dq_findings(explained, robot)
    lacking = _unsure(explained, robot)
    if explained.gyro.moments.slope_errors[2] > UNSURE_SLOPE:
        unjudged.append("sign and unit of the gyro's z: the trunk did not yaw enough")
    return Report(tuple(findings), tuple(lacking), tuple(unjudged), measured)


def _still(log: SensorLog, robot: RobotCard) -> Iterator[Finding]:
    """Numbers that cannot come from a sensor: quaternions of other lengths, and constants."""
    length = float(np.median(np.linalg.norm(log.quat, axis=1)))
    if not UNIT_LENGTH[0] < length < UNIT_LENGTH[1]:
        text = f"the quaternion has the length {length:.3g}, not 1: these are no quaternions"
        yield Finding("unit", "quaternion", text, evidence={"length": length})
    for part, values, names in (
        ("q", log.q, robot.joint_names),
        ("dq", log.dq, robot.joint_names),
        ("gyro", log.gyro, ("x", "y", "z")),
        ("quaternion", log.quat, ("w", "x", "y", "z")),
    ):
        constant = values.max(axis=0) == values.min(axis=0)
        if part == "quaternion" and not constant.all():
            continue
        if constant.any():
            joints = tuple(name for name, still in zip(names, constant, strict=True) if still)
            text = f"{part}: {_listed(joints)} never change"
            yield Finding("still", part, text, joints)


def _explain(
    legs: Legs, blocks: Blocks
) -> tuple[_Explanation | None, list[_Explanation], JointZero | None]:
    """The explanation with the fewest mistakes, others that are as good, and a joint's zero."""
    up = AS_LOGGED.up(blocks.quat)
    fit = legs.fit(blocks.q, up, blocks.first)
    if fit.motion < FOLLOWS and fit.stands:
        right = _explanation(blocks, AS_LOGGED, NO_MAP, fit.motion)
        if not right.gyro.best.cost:
            return right, [], joint_zero(legs, blocks.q, up, blocks.first)
        # A gyro's fault, or a reading's that happens to show the same gravity.
        readings = _following(legs, blocks, [(reading, NO_MAP) for reading in READINGS[1:]])
        return _ranked(
            legs, blocks, [right, *(_explanation(blocks, *explanation) for explanation in readings)]
        )
    for candidates in (_single, _double, _searched):
        explanations = [_explanation(blocks, *candidate) for candidate in candidates(legs, blocks)]
        if candidates is _single and not explanations and fit.stands:
            zero = joint_zero(legs, blocks.q, up, blocks.first)
            if zero is not None and zero.motion < FOLLOWS:
                return _explanation(blocks, AS_LOGGED, NO_MAP, fit.motion), [], zero
        if explanations:
            return _ranked(legs, blocks, explanations)
    return None, [], None


def _ranked(
    legs: Legs, blocks: Blocks, explanations: Sequence[_Explanation]
) -> tuple[_Explanation, list[_Explanation], JointZero | None]:
    """The best explanation, others that are as good, and a joint's zero with it."""
    far = {id(explanation): _is_far(explanation, legs, blocks) for explanation in explanations}
    ranked = sorted(
        explanations,
        key=lambda explanation: (far[id(explanation)], explanation.cost, explanation.motion),
    )
    best, *later = ranked
    alike = [
        explanation
        for explanation in later
        if (far[id(explanation)], explanation.cost) == (far[id(best)], best.cost)
        and explanation.motion - best.motion < ALIKE
    ]
    q = best.joints.apply(blocks.q)
    zero = joint_zero(legs, q, best.reading.up(blocks.quat), blocks.first)
    return best, alike[:5], zero


def _is_far(explained: _Explanation, legs: Legs, blocks: Blocks) -> bool:
    """Whether a joint would be so far from the default pose that no stand has it there."""
    q = explained.joints.apply(blocks.q[blocks.first]).mean(axis=0)
    return bool((np.abs(q - legs.robot.default_joint_pos_rad) > FAR_RAD).any())


_Candidate = tuple[Reading, JointMap, float]


def _single(legs: Legs, blocks: Blocks) -> list[_Candidate]:
    """Single mistakes for which legs follow gravity."""
    return _following(
        legs,
        blocks,
        [
            *((AS_LOGGED, joints) for joints in single_joint_maps()[1:]),
            *((reading, NO_MAP) for reading in READINGS[1:]),
        ],
    )


def _double(legs: Legs, blocks: Blocks) -> list[_Candidate]:
    """A mistake of the attitude and one of the joints."""
    pairs = [(reading, joints) for reading in READINGS[1:] for joints in single_joint_maps()[1:]]
    return _following(legs, blocks, pairs)


def _searched(legs: Legs, blocks: Blocks) -> list[_Candidate]:
    """Several mistakes of the joints at once."""
    scale = DEGREE if np.abs(blocks.q).max() > 4 * np.pi else 1.0
    motions = []
    for reading in READINGS[:4]:
        up = reading.up(blocks.quat)
        maps = search(legs, blocks.q, up, blocks.first, FOLLOWS, scale)
        motions += [(reading, joints, motion) for joints, motion in maps[:20]]
    return motions


def _following(
    legs: Legs, blocks: Blocks, candidates: Sequence[tuple[Reading, JointMap]]
) -> list[_Candidate]:
    ups = {reading: reading.up(blocks.quat) for reading in READINGS}
    feet: dict[JointMap, np.ndarray] = {}
    motions = []
    for reading, joints in candidates:
        if joints not in feet:
            feet[joints] = legs.feet(joints.apply(blocks.q))
        motion, height = legs.motion(feet[joints], ups[reading], blocks.first)
        if motion < FOLLOWS and PlaneFit(1, 1, 0, motion, height).stands:
            motions.append((reading, joints, motion))
    return motions


def _explanation(blocks: Blocks, reading: Reading, joints: JointMap, motion: float) -> _Explanation:
    turning = reading.rates(blocks.quat, blocks.first, blocks.seconds)
    sums = moments(blocks.q_rate, blocks.dq)
    return _Explanation(
        reading, joints, motion, gyro_rates(blocks.gyro, turning), joint_rates(sums, joints)
    )


# Findings.
def _names(joints: Sequence[int], robot: RobotCard) -> tuple[str, ...]:
    return tuple(robot.joint_names[joint] for joint in joints)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _unexplained(fit: PlaneFit) -> Finding:
    text = (
        "the feet's plane does not follow gravity, and no mistake of order, sign, unit or axes "
        "explains it: do all four feet stand still on the ground?"
    )
    return Finding("unexplained", "q and quaternion", text, evidence=asdict(fit))


def _order_findings(
    explained: _Explanation, alike: Sequence[_Explanation], fit: PlaneFit, robot: RobotCard
) -> Iterator[Finding]:
    """Mistakes of the attitude and of q, and those of dq and gyro that are the same."""
    evidence = {**asdict(fit), "motion_when_right": explained.motion}
    alternatives = tuple(fault.text for fault in alike)
    reading = explained.reading
    if reading.cost:
        part = "quaternion and gyro" if explained.gyro_is_turned_too else "quaternion"
        yield Finding(reading.kind, part, reading.text, alike=alternatives, evidence=evidence)
        alternatives = ()
    joints = explained.joints
    if joints.cost:
        part = "q and dq" if explained.dq.best == joints else "q"
        text = f"{part}: {joints.text}"
        names = _names(joints.joints, robot)
        yield Finding(joints.kind, part, text, names, alternatives, evidence)


def _pose_findings(
    legs: Legs, blocks: Blocks, explained: _Explanation, zero: JointZero | None
) -> Iterator[Finding]:
    """Zeros of joints: one by the plane of the feet, those of a kind by the default pose."""
    robot = legs.robot
    q = explained.joints.apply(blocks.q)
    if zero is not None:
        names = _names(zero.joints, robot)
        q = q.copy()
        q[:, zero.joints[0]] -= zero.angle_rad
        text = f"q: the zero of {names[0]} is off by {zero.angle_rad:.2f} rad"
        evidence = {"angle_rad": zero.angle_rad, "motion_when_right": zero.motion}
        alternatives = tuple(f"the zero of {name} is off" for name in names[1:])
        yield Finding("zero", "q", text, names[:1], alternatives, evidence)
    off = kind_off(robot, level_pose(legs, q, blocks.first))
    if off is not None:
        kind = JOINTS_OF_A_LEG[off.kind]
        plural = "calves" if kind == "calf" else f"{kind}s"
        text = (
            f"q: {plural} of all legs are {off.angle_rad:+.2f} rad off the default pose: "
            "their zeros, or the robot stands in another pose"
        )
        names = robot.joint_names[off.kind :: JOINTS_PER_LEG]
        yield Finding("pose", "q", text, names, evidence={"angle_rad": off.angle_rad})


def _gyro_findings(explained: _Explanation) -> Iterator[Finding]:
    fit = explained.gyro
    best = fit.best
    evidence = {"gain": fit.gain, **_by_axis(fit)}
    if best.cost and not explained.gyro_is_turned_too:
        axes = tuple("xyz"[a] for a in range(3))
        alternatives = tuple(f"gyro: {fault.text}" for fault in fit.alike)
        yield Finding(best.kind, "gyro", f"gyro: {best.text}", axes, alternatives, evidence)
        return
    if best.cost or explained.reading.cost:
        return
    for axis in range(3):
        slope = float(fit.moments.slopes[axis])
        if _wrong(slope, float(fit.moments.slope_errors[axis])):
            text = f"gyro: {'xyz'[axis]} is {1 / slope:.2f} times the attitude's rate"
            yield Finding("scale", "gyro", text, ("xyz"[axis],), evidence=evidence)


def _by_axis(fit: RateFit) -> dict[str, float]:
    return {f"slope_{'xyz'[axis]}": float(fit.moments.slopes[axis]) for axis in range(3)}


def _wrong(slope: float, error: float) -> bool:
    return abs(slope - 1) > WRONG_SLOPE and abs(slope - 1) > 5 * error and error < UNSURE_SLOPE


def _dq_findings(explained: _Explanation, robot: RobotCard) -> Iterator[Finding]:
    fit = explained.dq
    best = fit.best
    assert isinstance(best, JointMap)
    evidence = {"gain": fit.gain, "slope": fit.moments.slope}
    if best.cost and best != explained.joints:
        text, *alternatives = (f"dq: {of_rates(fault.text)}" for fault in (best, *fit.alike))
        names = _names(best.joints, robot)
        yield Finding(best.kind, "dq", text, names, tuple(alternatives), evidence)
    if best.cost:
        return
    slopes = fit.moments.slopes
    errors = fit.moments.slope_errors
    wrong = [j for j in range(len(slopes)) if _wrong(float(slopes[j]), float(errors[j]))]
    if len(wrong) > len(slopes) / 2:
        text = f"dq: {fit.moments.slope:.2f} times the rate of q"
        yield Finding("scale", "dq", text, _names(wrong, robot), evidence=evidence)
        return
    for joint in wrong:
        name = robot.joint_names[joint]
        text = f"dq: {name} is {slopes[joint]:.2f} times the rate of q"
        yield Finding("scale", "dq", text, (name,), evidence={"slope": float(slopes[joint])})


def of_rates(text: str) -> str:
    """A joint map's words for dq."""
    return text.replace("in degrees, not in rad", "in degrees/s, not in rad/s")


def _unsure(explained: _Explanation, robot: RobotCard) -> list[str]:
    """Rates that the motion is too slow to judge."""
    lacking = []
    errors = explained.dq.moments.slope_errors
    if not explained.dq.best.cost and errors.max() > UNSURE_SLOPE:
        names = _names(np.flatnonzero(errors > UNSURE_SLOPE).tolist(), robot)
        lacking.append(f"dq of {_listed(names)}: tilt faster, or for longer")
    gyro = explained.gyro.moments.slope_errors[:2]
    if not explained.gyro.best.cost and gyro.max() > UNSURE_SLOPE:
        lacking.append("gyro x and y: tilt faster, or for longer")
    return lacking


def _rate_numbers(explained: _Explanation) -> dict[str, Any]:
    joints = explained.dq.moments
    gyro = explained.gyro.moments
    return {
        "dq_slopes": joints.slopes.tolist(),
        "dq_slope_errors": joints.slope_errors.tolist(),
        "gyro_slopes": gyro.slopes.tolist(),
        "gyro_slope_errors": gyro.slope_errors.tolist(),
    }
