"""Logs of a standing robot that is tilted by hand, by inverse kinematics, and faults in them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gaitforge.collectors.legged.observations import NOISE_SCALE, NOISE_SLICES
from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import JOINTS_OF_A_LEG, LEGS, RobotCard
from gaitforge.plugins.robot_runtime.sensors.findings import Report
from gaitforge.plugins.robot_runtime.sensors.logs import SensorLog

ROBOTS = ("aliengo", "go2", "a1", "anymal_c", "spot")


@dataclass(frozen=True)
class Tilting:
    """How the trunk is moved: amplitudes in rad, on ground that slopes by `slope` rad.

    `heading` in rad is the IMU's; `noise` is a factor of the collection's sensor noise.
    """

    seconds: float = 30.0
    rate_hz: float = 100.0
    pitch: float = 0.2
    roll: float = 0.2
    yaw: float = 0.05
    slope: float = 0.0
    heading: float = 0.7
    noise: float = 1.0


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    w, x, y, z = np.moveaxis(a, -1, 0)
    v, i, j, k = np.moveaxis(b, -1, 0)
    parts = [w * v - x * i - y * j - z * k, w * i + x * v + y * k - z * j]
    parts += [w * j - x * k + y * v + z * i, w * k + x * j - y * i + z * v]
    return np.stack(parts, axis=-1)


def _about(axis: int, angle: np.ndarray) -> np.ndarray:
    quat = np.zeros((*np.shape(angle), 4))
    quat[..., 0] = np.cos(angle / 2)
    quat[..., 1 + axis] = np.sin(angle / 2)
    return quat


def _matrix(quat: np.ndarray) -> np.ndarray:
    w, x, y, z = np.moveaxis(quat, -1, 0)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    rows += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return np.stack(rows, axis=-1).reshape(*w.shape, 3, 3)


def make_log(robot: RobotCard, tilting: Tilting, seed: int) -> SensorLog:
    """Feet stay where a stand near the default pose puts them, on a plane that may slope.

    The trunk pitches, rolls, yaws and sinks as sums of two sines each, of 0.2 to 0.7 Hz.
    """
    rng = np.random.default_rng(seed)
    time = np.arange(int(tilting.seconds * tilting.rate_hz)) / tilting.rate_hz
    kinematics = LegKinematics(robot)
    scale = robot.leg_length_m / 0.5
    feet = kinematics.foot_positions(robot.default_joint_pos_rad[None])[0]
    feet[:, :2] += rng.uniform(-0.015, 0.015, (4, 2)) * scale

    def swing(amplitude: float) -> np.ndarray:
        parts = [
            share * np.sin(2 * np.pi * rng.uniform(0.2, 0.7) * time + rng.uniform(0, 2 * np.pi))
            for share in (0.75, 0.25)
        ]
        return amplitude * (parts[0] + parts[1])

    bias = rng.uniform(-0.05, 0.05, 2)
    pitch = swing(tilting.pitch) + bias[0]
    roll = swing(tilting.roll) + bias[1]
    yaw = swing(tilting.yaw)
    sunk = swing(0.01 * scale) - rng.uniform(0.0, 0.02) * scale
    local = _multiply(_multiply(_about(2, yaw), _about(1, pitch)), _about(0, roll))
    moved = np.stack([swing(0.01), swing(0.01), sunk], axis=1)
    in_trunk = np.einsum("tji,tfj->tfi", _matrix(local), feet[None] - moved[:, None])
    q = kinematics.joint_positions(in_trunk)
    ground = _multiply(
        _about(2, np.array(tilting.heading)),
        _multiply(
            _about(2, np.array(rng.uniform(0, 2 * np.pi))),
            _multiply(_about(1, np.array(tilting.slope)), _about(2, np.array(0.0))),
        ),
    )
    quat = _multiply(np.broadcast_to(ground, local.shape), local)
    dq = np.gradient(q, time, axis=0)
    gyro = 2 * _multiply(quat * [1, -1, -1, -1], np.gradient(quat, time, axis=0))[:, 1:]
    return with_noise(SensorLog(time, q, dq, quat, gyro), rng, tilting.noise)


def with_noise(log: SensorLog, rng: np.random.Generator, share: float = 1.0) -> SensorLog:
    """A log with the collection's sensor noise; gravity's is that of the quaternion."""
    scale = {name: NOISE_SCALE[a:b] * share for name, (a, b) in NOISE_SLICES.items()}
    rows = len(log.time_s)

    def noise(name: str) -> np.ndarray:
        return rng.uniform(-1, 1, (rows, len(scale[name]))) * scale[name]

    half = np.concatenate([np.ones((rows, 1)), noise("projected_gravity") / 2], axis=1)
    quat = _multiply(log.quat, half / np.linalg.norm(half, axis=1, keepdims=True))
    return SensorLog(
        log.time_s,
        log.q + noise("joint_pos"),
        log.dq + noise("joint_vel"),
        quat,
        log.gyro + noise("base_ang_vel_body"),
    )


def random_tilting(rng: np.random.Generator) -> Tilting:
    """50 to 500 Hz, amplitudes of 0.1 to 0.3 rad, slopes up to 15 degrees, any heading."""
    return Tilting(
        rate_hz=float(rng.choice([50, 100, 200, 500])),
        pitch=rng.uniform(0.1, 0.3),
        roll=rng.uniform(0.1, 0.3),
        yaw=rng.uniform(0.02, 0.1),
        slope=rng.uniform(0.0, np.radians(15)),
        heading=rng.uniform(-np.pi, np.pi),
    )


Fault = Callable[[SensorLog], SensorLog]


def reordered(order: list[int]) -> Fault:
    """q and dq come in another order."""
    return lambda log: replace(log, q=log.q[:, order], dq=log.dq[:, order])


def _signed(joints: list[int]) -> Fault:
    signs = np.ones(12)
    signs[joints] = -1
    return lambda log: replace(log, q=log.q * signs, dq=log.dq * signs)


def _offset(joints: list[int], angle: float) -> Fault:
    offsets = np.zeros(12)
    offsets[joints] = angle
    return lambda log: replace(log, q=log.q + offsets)


_LEGS = {"FL": [0, 1, 2], "FR": [3, 4, 5], "RL": [6, 7, 8], "RR": [9, 10, 11]}
FAULTS: dict[str, tuple[Fault, str]] = {
    "left and right swapped": (
        reordered(_LEGS["FR"] + _LEGS["FL"] + _LEGS["RR"] + _LEGS["RL"]),
        "q and dq: left and right legs are swapped",
    ),
    "front and rear swapped": (
        reordered(_LEGS["RL"] + _LEGS["RR"] + _LEGS["FL"] + _LEGS["FR"]),
        "q and dq: front and rear legs are swapped",
    ),
    "FL and FR swapped": (
        reordered(_LEGS["FR"] + _LEGS["FL"] + _LEGS["RL"] + _LEGS["RR"]),
        "q and dq: FL and FR are swapped",
    ),
    "joints by kind": (
        reordered([0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]),
        "q and dq: joints come by kind",
    ),
    "signs of right hips": (
        _signed([3, 9]),
        "q and dq: signs of the hips of the right legs are wrong",
    ),
    "signs of calves": (_signed([2, 5, 8, 11]), "q and dq: signs of the calves of all legs"),
    "degrees": (
        lambda log: replace(log, q=np.degrees(log.q), dq=np.degrees(log.dq)),
        "q and dq: in degrees, not in rad",
    ),
    "quaternion x y z w": (
        lambda log: replace(log, quat=log.quat[:, [1, 2, 3, 0]]),
        "the quaternion is x, y, z, w",
    ),
    "quaternion conjugated": (
        lambda log: replace(log, quat=log.quat * [1, -1, -1, -1]),
        "the quaternion turns from the world's frame",
    ),
    "gyro in degrees/s": (
        lambda log: replace(log, gyro=np.degrees(log.gyro)),
        "gyro: in degrees/s, not in rad/s",
    ),
    "zero of RR calf": (_offset([11], 0.2), "the zero of {RR_calf} is off by 0.2"),
    "zeros of thighs": (_offset([1, 4, 7, 10], 0.1), "thighs of all legs are"),
}
"""The twelve faults of order, sign, unit and pose: name -> what does it, and how it is named."""
FURTHER_FAULTS: dict[str, tuple[Fault, str]] = {
    "dq by kind": (
        lambda log: replace(log, dq=log.dq[:, [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]]),
        "dq: joints come by kind",
    ),
    "dq's signs": (lambda log: replace(log, dq=-log.dq), "dq: signs of all joints of all legs"),
    "dq in degrees/s": (
        lambda log: replace(log, dq=np.degrees(log.dq)),
        "dq: in degrees/s, not in rad/s",
    ),
    "q alone in order of motors": (
        lambda log: replace(log, q=log.q[:, [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]]),
        "q: left and right legs are swapped",
    ),
    "gyro x and y swapped": (
        lambda log: replace(log, gyro=log.gyro[:, [1, 0, 2]]),
        "gyro: x and y are swapped",
    ),
    "gyro's sign of y": (
        lambda log: replace(log, gyro=log.gyro * [1, -1, 1]),
        "gyro: the sign of y is wrong",
    ),
    "zero of FL thigh": (_offset([1], -0.2), "the zero of {FL_thigh} is off by -0.2"),
    "zero of FR hip": (_offset([3], 0.2), "the zero of {FR_hip} is off by 0.2"),
    "IMU turned": (
        lambda log: replace(
            log,
            quat=_multiply(log.quat, _about(2, np.full(len(log.quat), np.pi / 2))),
            gyro=log.gyro[:, [1, 0, 2]] * [1, -1, 1],
        ),
        "the IMU's axes are turned by",
    ),
}


def expected_text(robot: RobotCard, text: str) -> str:
    """A fault's name with the robot's own names of joints, as `{RR_calf}`."""
    places = (f"{leg}_{joint}" for leg in LEGS for joint in JOINTS_OF_A_LEG)
    return text.format(**dict(zip(places, robot.joint_names, strict=True)))


def is_named(report: Report, robot: RobotCard, text: str) -> bool:
    """Whether a report has one finding, of this name; the angle of a zero within 0.07 rad."""
    if len(report.findings) != 1:
        return False
    (finding,) = report.findings
    name, by, angle = expected_text(robot, text).partition(" is off by ")
    if not by:
        return name in finding.text
    return name in finding.text and abs(finding.evidence["angle_rad"] - float(angle)) < 0.07
