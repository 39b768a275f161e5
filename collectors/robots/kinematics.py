"""Commands, the gait that follows them, and kinematics of legs in closed form."""

from enum import IntEnum
from math import cos, pi, sin, sqrt

import numpy as np

from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.rotations import cosine, sine, wrapped
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from gaitforge.common.kernels import compiled


class C(IntEnum):
    """Index of each number of the command."""

    VEL_X, VEL_Y, YAW_RATE, BODY_HEIGHT, BODY_PITCH, BODY_ROLL = range(6)
    STANCE_WIDTH, STANCE_LENGTH, SWING_HEIGHT, GAIT_FREQUENCY, GAIT_PHASE = range(6, 11)
    GAIT_OFFSET, GAIT_BOUND, GAIT_DUTY, ACCEL_LIMIT, LOCOMOTE = range(11, 16)


N_COMMANDS = len(C)
COMMAND_NAMES = tuple(c.name.lower() for c in C)
COMMAND_UNITS = (
    "m/s", "m/s", "rad/s", "m", "rad", "rad", "m", "m",
    "m", "Hz", "cycle", "cycle", "cycle", "1", "m/s^2", "1",
)  # fmt: skip

Range = tuple[float, float]

HEIGHT_RAMP_MS = 0.4
ATTITUDE_RAMP_RADS = 2.0
"""Ramp rates of the commanded height and attitude; an episode starts upright."""
RAMPED = [C.VEL_X, C.BODY_HEIGHT, C.BODY_PITCH, C.BODY_ROLL]
RAMP_RATES = (HEIGHT_RAMP_MS, ATTITUDE_RAMP_RADS, ATTITUDE_RAMP_RADS)


NEUTRAL: dict[C, Range] = {
    **dict.fromkeys(list(C)[: C.STANCE_WIDTH], (0.0, 0.0)),
    C.STANCE_WIDTH: (0.276, 0.30),
    C.STANCE_LENGTH: (0.47, 0.49),
    C.SWING_HEIGHT: (0.08, 0.12),
    C.GAIT_FREQUENCY: (2.5, 3.0),
    C.GAIT_PHASE: (0.5, 0.5),
    C.GAIT_OFFSET: (0.0, 0.0),
    C.GAIT_BOUND: (0.0, 0.0),
    C.GAIT_DUTY: (0.5, 0.55),
    C.ACCEL_LIMIT: (1.0, 2.0),
    C.LOCOMOTE: (1.0, 1.0),
}
"""A slow trot in place: phase 0.5, offset and bound 0 move diagonal legs together."""


def length_scale(robot: RobotCard) -> float:
    """Leg length over Aliengo's 0.5 m, for which command ranges are written."""
    return robot.leg_length_m / 0.5


def command_scale(robot: RobotCard) -> np.ndarray:
    """(16,) factors from Aliengo's commands to a robot's.

    Equal Froude numbers (Alexander and Jayes, 1983): lengths scale with the leg, speeds with its
    square root, frequencies with the inverse root. Stances follow the robot's own hips.
    """
    scale = length_scale(robot)
    factors = np.ones(N_COMMANDS)
    factors[[C.BODY_HEIGHT, C.SWING_HEIGHT]] = scale
    factors[[C.VEL_X, C.VEL_Y]] = np.sqrt(scale)
    factors[[C.YAW_RATE, C.GAIT_FREQUENCY]] = 1.0 / np.sqrt(scale)
    front_left, _, rear_left, _ = robot.feet_below_m
    factors[C.STANCE_WIDTH] = (front_left[1] + rear_left[1]) / 2 / (0.051 + 0.0868)
    factors[C.STANCE_LENGTH] = (front_left[0] - rear_left[0]) / 2 / 0.2407
    return factors


def ramped(target: np.ndarray, time_s: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """The command (N, 16) in force `time_s` (N,) after the start, as policies read it.

    start: (N or 1, 16) the command from which it moves; zero by default.

    Speed rises at the acceleration limit (walk-these-ways' deployment profile), height and attitude
    at `HEIGHT_RAMP_MS` and `ATTITUDE_RAMP_RADS`.
    """
    reach = np.empty((len(target), len(RAMPED)))
    reach[:, 0] = target[:, C.ACCEL_LIMIT]
    reach[:, 1:] = RAMP_RATES
    reach *= time_s[:, None]
    command = target.copy()
    if start is None:
        command[:, RAMPED] = np.clip(target[:, RAMPED], -reach, reach)
    else:
        before = start[:, RAMPED]
        command[:, RAMPED] = before + np.clip(target[:, RAMPED] - before, -reach, reach)
    return command


def commanded_distance_m(command: np.ndarray, steps: int = EPISODE_STEPS) -> float:
    """Distance in m that a perfect follower of the ramped command (16,) walks in an episode."""
    time = np.arange(steps) * CONTROL_DT_S
    return float(np.minimum(command[C.VEL_X], command[C.ACCEL_LIMIT] * time).sum() * CONTROL_DT_S)


class LegKinematics:
    """Forward and inverse kinematics of all four legs of one robot, or of one for each row.

    Feet (N, 4, 3) are their centres in the trunk frame, m; joints (N, 12) rad. With R robots, N is
    a multiple of R, and row i is robot i % R.
    """

    def __init__(self, *robots: RobotCard):
        def of(key: str) -> np.ndarray:
            return np.stack([getattr(robot, key) for robot in robots])

        self._hip = of("hip_offset_m")
        self._side = (of("thigh_offset_m") + of("knee_offset_m") + of("foot_offset_m"))[..., 1]
        self._shift = of("thigh_offset_m")[..., ::2].copy()
        self._links, self._knee = of("link_lengths_m"), of("knee_signs")
        self._signs = of("joint_signs").reshape(-1, N_LEGS, JOINTS_PER_LEG)
        # Angles of a leg's parts are signs * joints + zeros.
        self._zeros = np.zeros(self._signs.shape)
        thigh = of("link_angles_rad")[..., 0]
        calf = of("link_angles_rad")[..., 1]
        turns = np.round(of("knee_bend_rad") / (2 * np.pi))
        self._zeros[..., 1] = thigh
        self._zeros[..., 2] = calf - thigh - 2 * np.pi * turns

    def foot_positions(self, joint_pos: np.ndarray) -> np.ndarray:
        """(N, 12) joint angles to (N, 4, 3) foot centres in the trunk frame."""
        q = joint_pos.reshape(-1, *self._signs.shape) * self._signs + self._zeros
        hip = q[..., 0]
        thigh = q[..., 1]
        knee = q[..., 1] + q[..., 2]
        upper = self._links[..., 0]
        lower = self._links[..., 1]
        x = -upper * sine(thigh) - lower * sine(knee) + self._shift[..., 0]
        drop = -upper * cosine(thigh) - lower * cosine(knee) + self._shift[..., 1]
        y = self._side * cosine(hip) - drop * sine(hip)
        z = self._side * sine(hip) + drop * cosine(hip)
        feet = np.stack([x, y, z], axis=-1) + self._hip
        return feet.reshape(-1, N_LEGS, 3)

    def joint_positions(self, feet: np.ndarray) -> np.ndarray:
        """(N, 4, 3) foot centres to (N, 12) joint angles, knees bent as in the default pose.

        A target out of reach gives the straight leg that points at it.
        """
        feet = feet.reshape(-1, N_LEGS, 3)
        inputs = _unturned(feet, self._hip, self._side, self._shift, self._links)
        x, y, z, drop, below, cos_calf = inputs.reshape(6, -1, *self._side.shape)
        angles = np.empty((*x.shape, JOINTS_PER_LEG))
        hip = np.arctan2(z, y) - np.arctan2(drop, self._side)
        calf = self._knee * np.arccos(cos_calf)
        thigh = np.arctan2(x, below) - np.arctan2(*_straight(calf, self._links))
        angles[..., 0], angles[..., 1] = wrapped(hip), wrapped(thigh - self._zeros[..., 1])
        angles[..., 2] = calf - self._zeros[..., 2]
        return (self._signs * angles).reshape(-1, N_JOINTS)

    def rise_gradient(self, joint_pos: np.ndarray, up: np.ndarray) -> np.ndarray:
        """(N, 12) m/rad, derivatives of each foot's position along `up` by its leg's joints.

        Args:
            up: (N, 1, 3) unit vectors in the trunk frame.
        """
        joints = joint_pos.reshape(-1, N_LEGS, JOINTS_PER_LEG)
        legs = self._signs, self._zeros, self._side, self._shift, self._links
        return _rise_gradient(joints, up, *legs).reshape(-1, N_JOINTS)


def standing_height_m(robot: RobotCard) -> float:
    """Height of the trunk's origin over flat ground in the default pose."""
    feet = LegKinematics(robot).foot_positions(robot.default_joint_pos_rad[None])
    return float(robot.foot_radius_m - feet[0, :, 2].min())


@compiled
def _unturned(
    feet: np.ndarray, hips: np.ndarray, sides: np.ndarray, shifts: np.ndarray, links: np.ndarray
) -> np.ndarray:
    """(6, N, 4) inputs of inverse kinematics.

    x, y, z from the hip joint, x without the thigh joint's shift; depth in the leg's plane (< 0)
    from the hip joint and from the thigh joint; the cosine of the knee's bend.
    """
    inputs = np.empty((6, *feet.shape[:2]))
    for i in range(feet.shape[0]):
        r = i % len(hips)
        for leg in range(feet.shape[1]):
            side = sides[r, leg]
            upper = links[r, leg, 0]
            lower = links[r, leg, 1]
            x = feet[i, leg, 0] - hips[r, leg, 0]
            y = feet[i, leg, 1] - hips[r, leg, 1]
            x = x - shifts[r, leg, 0]
            z = feet[i, leg, 2] - hips[r, leg, 2]
            drop = -sqrt(max(y * y + z * z - side * side, 1e-6))
            below = drop - shifts[r, leg, 1]
            bend = (x * x + below * below - upper * upper - lower * lower) / (2 * upper * lower)
            inputs[0, i, leg] = x
            inputs[1, i, leg] = y
            inputs[2, i, leg] = z
            inputs[3, i, leg] = drop
            inputs[4, i, leg] = below
            inputs[5, i, leg] = min(max(bend, -1.0), 1.0)
    return inputs


@compiled
def _straight(angles: np.ndarray, links: np.ndarray) -> np.ndarray:
    """(2, K, R, 4): x and z of the foot under a thigh at 0, knees bent by `angles` (K, R, 4)."""
    foot = np.empty((2, *angles.shape))
    for k in range(angles.shape[0]):
        for r in range(angles.shape[1]):
            for leg in range(angles.shape[2]):
                upper, lower = links[r, leg]
                foot[0, k, r, leg] = -lower * sin(angles[k, r, leg])
                foot[1, k, r, leg] = -upper - lower * cos(angles[k, r, leg])
    return foot


@compiled
def _rise_gradient(
    joints: np.ndarray,
    up: np.ndarray,
    signs: np.ndarray,
    zeros: np.ndarray,
    sides: np.ndarray,
    shifts: np.ndarray,
    links: np.ndarray,
) -> np.ndarray:
    gradient = np.empty(joints.shape)
    for i in range(joints.shape[0]):
        ux, uy, uz = up[i, 0]
        r = i % len(signs)
        for leg in range(joints.shape[1]):
            sign, side, (upper, lower) = signs[r, leg], sides[r, leg], links[r, leg]
            hip = sign[0] * joints[i, leg, 0]
            pitch = sign[1] * joints[i, leg, 1] + zeros[r, leg, 1]
            knee = pitch + (sign[2] * joints[i, leg, 2] + zeros[r, leg, 2])
            sin_hip = sin(hip)
            cos_hip = cos(hip)
            sin_knee = sin(knee)
            cos_knee = cos(knee)
            # From the thigh joint, then from the hip joint.
            x = -upper * sin(pitch) - lower * sin_knee
            below = -upper * cos(pitch) - lower * cos_knee
            drop = below + shifts[r, leg, 1]
            y = side * cos_hip - drop * sin_hip
            z = side * sin_hip + drop * cos_hip
            # The leg swings in the plane of x and of its own downward axis, which the hip turns.
            along_drop = uz * cos_hip - uy * sin_hip
            gradient[i, leg, 0] = sign[0] * (uz * y - uy * z)
            gradient[i, leg, 1] = sign[1] * (ux * below - x * along_drop)
            gradient[i, leg, 2] = sign[2] * (-ux * lower * cos_knee + lower * sin_knee * along_drop)
    return gradient


class RobotBatch:
    """Numbers of one robot, or of R robots, with a first axis of 1 or R.

    They broadcast with arrays of N = R rows, or of any N rows if there is one robot.

    Attributes:
        robots: their cards.
        default_joint_pos_rad, joint_lower_rad, joint_upper_rad: (R, 12); action_scale_rad: (R, 1).
        nominal_height_m, standing_height_m (in the default pose), weight_n: (R,).
    """

    def __init__(self, *robots: RobotCard):
        self.robots = robots
        self.default_joint_pos_rad = _of(robots, "default_joint_pos_rad")
        self.joint_lower_rad = _of(robots, "joint_lower_rad")
        self.joint_upper_rad = _of(robots, "joint_upper_rad")
        self.action_scale_rad = _of(robots, "action_scale_rad")[:, None]
        self.nominal_height_m = _of(robots, "nominal_height_m")
        self.weight_n = _of(robots, "weight_n")
        self.standing_height_m = np.array([standing_height_m(robot) for robot in robots])

    def __len__(self) -> int:
        return len(self.robots)

    def of(self, rows: slice) -> "RobotBatch":
        """The robots of some rows."""
        return self if len(self) == 1 else RobotBatch(*self.robots[rows])

    def __getitem__(self, row: int) -> RobotCard:
        """The robot of a row."""
        return self.robots[row % len(self.robots)]


def _of(robots: tuple[RobotCard, ...], key: str) -> np.ndarray:
    return np.stack([np.asarray(getattr(robot, key), dtype=np.float64) for robot in robots])


# numba needs plain integers.
_VEL_X = int(C.VEL_X)
_VEL_Y = int(C.VEL_Y)
_YAW_RATE = int(C.YAW_RATE)
_HEIGHT = int(C.BODY_HEIGHT)
_STANCE_WIDTH = int(C.STANCE_WIDTH)
_STANCE_LENGTH = int(C.STANCE_LENGTH)
_SWING_HEIGHT = int(C.SWING_HEIGHT)
_FREQUENCY = int(C.GAIT_FREQUENCY)
_DUTY = int(C.GAIT_DUTY)
_LOCOMOTE = int(C.LOCOMOTE)


def leg_phases(command: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """(..., N, 4) phases in [0, 1) of FL, FR, RL, RR, of commands (N, 16) and clocks (..., N).

    Offsets (p + o + b, o, b, p) as in walk-these-ways; p, o, b: phase, offset and bound commands.
    """
    p = command[:, C.GAIT_PHASE]
    o = command[:, C.GAIT_OFFSET]
    b = command[:, C.GAIT_BOUND]
    offsets = np.stack([p + o + b, o, b, p], axis=1)
    cycles = clock[..., None] + offsets
    return cycles - np.floor(cycles)


class GaitReference:
    """Joint targets (N, 12) in rad from commands and clocks, for one robot or one for each row."""

    def __init__(self, *robots: RobotCard):
        self._kinematics = LegKinematics(*robots)
        self._signs = robots[0].leg_signs
        self._sizes = np.array([_sizes(robot) for robot in robots])
        self._lower, self._upper, self._torque_limit, self._kp, self._kd = (
            np.stack([getattr(robot, key) for robot in robots])
            for key in (
                "joint_lower_rad",
                "joint_upper_rad",
                "torque_limit_nm",
                "kp_nm_per_rad",
                "kd_nms_per_rad",
            )
        )

    def joint_targets(self, command: np.ndarray, clock: np.ndarray) -> np.ndarray:
        """PD targets of commands (N, 16) at clocks (N,); they carry the weight and lead motion."""
        clocks = np.stack([clock, clock + command[:, C.GAIT_FREQUENCY] * CONTROL_DT_S])
        phase = leg_phases(command, clocks)
        tilt = _tilt(command)
        feet, load = _place_feet(command, phase, tilt, self._signs, self._sizes)
        poses = self._kinematics.joint_positions(feet).reshape(2, len(command), -1)
        pose, next_pose = np.clip(poses, self._lower, self._upper)
        velocity = (next_pose - pose) / CONTROL_DT_S
        rise = self._kinematics.rise_gradient(pose, _upwards(tilt)).reshape(*load.shape, -1)
        torque = (-load[..., None] * rise).reshape(pose.shape)
        torque = np.clip(torque, -self._torque_limit, self._torque_limit)
        lead = (torque + self._kd * velocity) / self._kp
        return pose + lead


def _sizes(robot: RobotCard) -> tuple[float, ...]:
    """Nominal height, foot radius and x of the stance's middle in m, weight in N."""
    front, _, rear, _ = robot.feet_below_m[:, 0]
    return robot.nominal_height_m, robot.foot_radius_m, (front + rear) / 2, robot.weight_n


def _tilt(command: np.ndarray) -> np.ndarray:
    """(N, 4): sin and cos of the commanded pitch, then roll."""
    angles = command[:, C.BODY_PITCH : C.BODY_ROLL + 1]
    tilt = np.empty((len(command), 4))
    np.sin(angles, out=tilt[:, ::2])
    np.cos(angles, out=tilt[:, 1::2])
    return tilt


@compiled
def _to_trunk(tilt: np.ndarray, x: float, y: float, z: float) -> tuple[float, float, float]:
    """A level vector in the trunk's frame: the transpose of Ry(pitch) Rx(roll)."""
    sp, cp, sr, cr = tilt
    x, z = cp * x - sp * z, sp * x + cp * z
    return x, cr * y + sr * z, -sr * y + cr * z


@compiled
def _upwards(tilt: np.ndarray) -> np.ndarray:
    """(N, 1, 3): the vertical in trunk frames."""
    up = np.empty((len(tilt), 1, 3))
    for i in range(len(tilt)):
        up[i, 0] = _to_trunk(tilt[i], 0.0, 0.0, 1.0)
    return up


@compiled
def _place_feet(
    command: np.ndarray, phases: np.ndarray, tilt: np.ndarray, signs: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Centres (2, N, 4, 3) of feet in the trunk frame at two phases (2, N, 4), m; loads (N, 4).

    Loads are the weight in N on each foot at the first phase. Sizes (R, 4): see `_sizes`.
    """
    feet = np.empty((2, len(command), 4, 3))
    load = np.empty((len(command), 4))
    for i in range(len(command)):
        nominal_height_m, foot_radius_m, middle_x, weight_n = sizes[i % len(sizes)]
        row = command[i]
        duty = row[_DUTY]
        moving = row[_LOCOMOTE]
        yaw_rate = row[_YAW_RATE]
        stance_s = duty / max(row[_FREQUENCY], 1e-6)
        height = nominal_height_m + row[_HEIGHT]
        for leg in range(4):
            load[i, leg] = weight_n / (4.0 * duty) if phases[0, i, leg] < duty else 0.0
            rest_x = signs[leg, 0] * row[_STANCE_LENGTH] / 2 + middle_x
            rest_y = signs[leg, 1] * row[_STANCE_WIDTH] / 2
            travel_x = (row[_VEL_X] - yaw_rate * rest_y) * stance_s
            travel_y = (row[_VEL_Y] + yaw_rate * rest_x) * stance_s
            for moment in range(2):
                phase = phases[moment, i, leg]
                # Share of the stance's travel: +1/2 at touch-down, -1/2 at lift-off.
                ahead = 0.5 - phase / duty
                lift = 0.0
                if phase >= duty:
                    swing = min(max((phase - duty) / max(1.0 - duty, 1e-6), 0.0), 1.0)
                    ahead = -0.5 * cos(pi * swing)
                    lift = 0.5 - 0.5 * cos(2 * pi * swing)
                ahead = moving * ahead
                lift = moving * lift
                z = lift * row[_SWING_HEIGHT] + foot_radius_m - height
                x = rest_x + ahead * travel_x
                y = rest_y + ahead * travel_y
                feet[moment, i, leg] = _to_trunk(tilt[i], x, y, z)
    return feet, load
