"""Check a robot: card against MJCF, motors against weight, a simulated stand, a small step."""

from contextlib import closing
from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.physics import make_backend
from gaitforge.collectors.physics.interface import PhysicsBackend, RobotStart
from gaitforge.collectors.physics.mujoco.model import build_model, stiffness
from gaitforge.collectors.robots.kinematics import (
    C,
    GaitReference,
    LegKinematics,
    standing_height_m,
)
from gaitforge.collectors.robots.robot import N_LEGS, RobotCard, RobotError
from gaitforge.collectors.rotations import gravity_in_body
from gaitforge.collectors.scenarios.randomisation import DEFAULT, check_draws
from gaitforge.collectors.scenarios.skills import STAND
from gaitforge.collectors.timing import CONTROL_DT_S, SUBSTEP_S

TRIAL_S = 2.0
_HIGH_M = 100.0
_JUMP_RAD = 0.1
_JUMP_S = 0.2
MAX_SAG_RAD = 1.0
"""Softer gains are refused, and mostly have a wrong unit: the target that carries the weight would
exceed a joint's limits by more than the 0.5 rad that targets may."""
_SOFT_SAG_RAD = 0.4
_HEIGHT_SHARE = 0.1
_FALLEN_HEIGHT_SHARE = 0.15
_FALLEN_TILT_RAD = 0.2
_TREMBLING_RADS = 5.0
_AIR_SPEED_RADS = 1.0
_CLEARANCE_M = 0.01


@dataclass(frozen=True)
class Stance:
    """Standing at the nominal height, feet below the thighs, trunk level; (12,) in card order.

    The pose, the torque that holds a quarter of the weight on each foot, and the sag of the PD law
    under that torque.
    """

    joint_pos_rad: np.ndarray
    torque_nm: np.ndarray
    sag_rad: np.ndarray


@dataclass(frozen=True)
class Trial:
    """Results of a simulated stand, and of a small step of all joint targets in the air.

    Trunk height and tilt at the end of the stand; the largest joint speed of its last second, and
    of the last second in the air.
    """

    height_m: float
    tilt_rad: float
    joint_speed_rads: float
    air_speed_rads: float


@dataclass(frozen=True)
class RobotFindings:
    """Findings about a usable robot; default_height_m: height of the trunk in the default pose."""

    robot: RobotCard
    default_height_m: float
    stance: Stance
    trial: Trial
    warnings: tuple[str, ...]


def check_robot(robot: RobotCard) -> RobotFindings:
    """Check a robot's MJCF against its card, its motors against its weight, and let it stand.

    RobotError if the MJCF contradicts the card, joint limits do not allow the nominal height,
    motors or gains are too weak for the weight, or gains too stiff for the physics step.
    """
    with closing(make_backend("mujoco", robot, 1, 1)) as backend:
        stance = standing_load(robot)
        trial = _try_out(robot, backend)
        trunk_kg = backend.trunk_kg(0)
    _check_stable(robot, trial)
    height = standing_height_m(robot)
    return RobotFindings(
        robot, height, stance, trial, _warnings(robot, height, stance, trial, trunk_kg)
    )


def standing_load(robot: RobotCard) -> Stance:
    """The static load of standing; RobotError where limits or gains do not allow it."""
    kinematics = LegKinematics(robot)
    below = np.full((N_LEGS, 1), robot.foot_radius_m - robot.nominal_height_m)
    feet = np.concatenate([robot.feet_below_m, below], axis=1)
    pose = kinematics.joint_positions(feet[None])
    up = np.array([[[0.0, 0.0, 1.0]]])
    torque = -robot.weight_n / N_LEGS * kinematics.rise_gradient(pose, up)[0]
    stance = Stance(pose[0], torque, np.abs(torque) / robot.kp_nm_per_rad)
    for i, joint in enumerate(robot.joint_names):
        angle = pose[0, i]
        low = robot.joint_lower_rad[i]
        high = robot.joint_upper_rad[i]
        if not low <= angle <= high:
            raise robot.wrong(
                f"nominal_height_m {robot.nominal_height_m:g} takes {joint} to {angle:.2f}, "
                f"outside its limits {low:g} to {high:g}"
            )
        needed = abs(torque[i])
        limit = robot.torque_limit_nm[i]
        if needed > limit:
            raise robot.wrong(
                f"standing at {robot.nominal_height_m:g} m takes {needed:.1f} Nm of {joint}, "
                f"and its torque limit is {limit:g}"
            )
    worst = int(np.argmax(stance.sag_rad))
    if stance.sag_rad[worst] > MAX_SAG_RAD:
        enough = abs(torque[worst]) / _SOFT_SAG_RAD
        raise robot.wrong(
            f"under its own weight {robot.joint_names[worst]} sags by {stance.sag_rad[worst]:.1f} "
            f"rad with kp_nm_per_rad {robot.kp_nm_per_rad[worst]:g}; it takes {enough:.0f} or more"
        )
    return stance


def _try_out(robot: RobotCard, backend: PhysicsBackend) -> Trial:
    """Stand on flat ground; then, in the air, let all joint targets make a small step."""
    command = STAND.draw_command(np.random.default_rng(0), robot)
    command[[C.BODY_HEIGHT, C.BODY_PITCH, C.BODY_ROLL]] = 0.0
    targets = GaitReference(robot).joint_targets(command[None], np.zeros(1))

    def hold(seconds: float, jump_rad: float = 0.0) -> float:
        """The fastest joint's speed in the last second."""
        speeds = []
        for _ in range(round(seconds / CONTROL_DT_S)):
            backend.step(targets + jump_rad)
            speeds.append(float(np.abs(backend.state.joint_vel).max()))
        return max(speeds[-round(1.0 / CONTROL_DT_S) :])

    position = np.array([0.0, 0.0, standing_height_m(robot) + _CLEARANCE_M])
    backend.reset(0, RobotStart(position, robot.default_joint_pos_rad))
    standing = hold(TRIAL_S)
    height = float(backend.state.base_pos[0, 2])
    up = -gravity_in_body(backend.state.base_quat)[0, 2]
    backend.reset(0, RobotStart(np.array([0.0, 0.0, _HIGH_M]), robot.default_joint_pos_rad))
    for jump in (_JUMP_RAD, -_JUMP_RAD):
        hold(_JUMP_S, jump)
    return Trial(
        height_m=height,
        tilt_rad=float(np.arccos(np.clip(up, -1.0, 1.0))),
        joint_speed_rads=standing,
        air_speed_rads=hold(TRIAL_S),
    )


def _check_stable(robot: RobotCard, trial: Trial) -> None:
    """Refuse gains with which legs in the air do not come to rest."""
    if trial.air_speed_rads < _AIR_SPEED_RADS:
        return
    kp = robot.kp_nm_per_rad
    kd = robot.kd_nms_per_rad
    factor, joint = stiffness(robot, build_model(robot), kp, kd)
    raise robot.wrong(
        f"gains are too stiff for the physics step of {1000 * SUBSTEP_S:g} ms, by a factor of "
        f"{factor:.1f} at {joint}: in the air joints go on at {trial.air_speed_rads:.0f} rad/s "
        f"after a step of {_JUMP_RAD:g} rad; lower kd_nms_per_rad (then kp_nm_per_rad), or give "
        "the joints their armature"
    )


def _warnings(
    robot: RobotCard, default_height: float, stance: Stance, trial: Trial, trunk_kg: float
) -> tuple[str, ...]:
    """Likely mistakes in a usable robot."""
    warnings = []
    nominal = robot.nominal_height_m
    names = np.array(robot.joint_names)
    if abs(default_height - nominal) > _HEIGHT_SHARE * robot.leg_length_m:
        warnings.append(
            f"the default pose stands at {default_height:.3f} m, nominal_height_m is {nominal:g}: "
            "every episode starts with a jerk"
        )
    soft = stance.sag_rad > _SOFT_SAG_RAD
    if soft.any():
        warnings.append(
            f"gains are soft: under its own weight {', '.join(names[soft])} sag by up to "
            f"{stance.sag_rad.max():.2f} rad"
        )
    weak = 2 * np.abs(stance.torque_nm) > robot.torque_limit_nm
    if weak.any():
        warnings.append(f"motors are weak: trotting overloads {', '.join(names[weak])}")
    fell = abs(trial.height_m - nominal) > _FALLEN_HEIGHT_SHARE * nominal
    if fell or trial.tilt_rad > _FALLEN_TILT_RAD:
        warnings.append(
            f"it does not stand: after {TRIAL_S:g} s its trunk is {trial.height_m:.3f} m high, "
            f"{np.degrees(trial.tilt_rad):.0f} degrees tilted"
        )
    if trial.joint_speed_rads > _TREMBLING_RADS:
        warnings.append(
            f"it trembles: joints move at {trial.joint_speed_rads:.1f} rad/s in the trial stand; "
            "gains may be too stiff for the simulator's step"
        )
    try:
        check_draws(robot, trunk_kg, DEFAULT.ends(robot)[0])
    except RobotError:
        warnings.append(
            f"the default randomisation takes 1 kg off a trunk of {trunk_kg:.3g} kg: collect with "
            "--set randomisation.base_mass_offset_kg=-5%:15%"
        )
    return tuple(warnings)
