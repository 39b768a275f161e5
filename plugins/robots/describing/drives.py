"""A robot's joints and motors: limits, torques, armature, damping and gains."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import mujoco
import numpy as np

from gaitforge.collectors.physics.mujoco.model import joint_inertia, stiffness
from gaitforge.collectors.physics.mujoco.urdf import FRICTION_SPEED_RADS
from gaitforge.collectors.physics.robot_check import standing_load
from gaitforge.collectors.robots.robot import N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.timing import SUBSTEP_S
from gaitforge.plugins.robots.describing.anatomy import Anatomy
from gaitforge.plugins.robots.describing.notes import (
    Notes,
    joint_values,
    joints_of,
    shown,
)

MAX_SAG_RAD = 0.15
MAX_STIFFNESS = 0.6
_SAG_RAD = 0.14
"""Sag of Go1's joints under its own weight."""
_DAMPING_RATIO = 0.5
_LEAST_DAMPING_RATIO = 0.1
"""Damping ratios of the joint with the most inertia; 0.5 is Aliengo's."""
_AIM_STIFFNESS = 0.5
_ARMATURE_SHARES = (0.0015, 0.0025, 0.0037)
"""Armature over mass x leg length squared, of hip, thigh and calf; near Aliengo's and Go1's."""
_VERY_STIFF = 1e6
_ASKED = 1e5
"""Stands for a value that the user still has to give."""
_MOST_TORQUE = 20.0
_FAST_RADS = 10.0
"""A trotting knee's speed."""


@dataclass(frozen=True)
class Drives:
    """The joints' drives, arrays (12,) in SI units; NaN where the file says nothing.

    `kp` and `kd` are the gains of the file's position actuators.
    """

    lower: np.ndarray
    upper: np.ndarray
    torque: np.ndarray
    damping: np.ndarray
    armature: np.ndarray
    kp: np.ndarray
    kd: np.ndarray


def find_drives(anatomy: Anatomy, notes: Notes) -> Drives:
    """Read the joints and their actuators; ask for limits and torques that are missing."""
    model = anatomy.model
    names = anatomy.joint_names
    joints = list(anatomy.joints)
    springs = [n for n, j in zip(names, joints, strict=True) if model.jnt_stiffness[j]]
    if springs:
        raise notes.wrong(f"{', '.join(springs)} have springs (stiffness), which cards lack")
    lower, upper = _limits(anatomy, notes)
    torque = _torques(anatomy, notes)
    kp, kd = _servos(anatomy)
    damping = model.dof_damping[model.jnt_dofadr[joints]]
    friction = model.dof_frictionloss[model.jnt_dofadr[joints]]
    source = "the file's"
    if ((kd == 0) & (damping > 0)).any():
        kd, damping = np.where(kd == 0, damping, kd), np.where(kd == 0, 0.0, damping)
        source = "the file's is kd, as its position actuators have no kv"
    if friction.any():
        damping = damping + friction / FRICTION_SPEED_RADS
        source += f", plus its dry friction as it is at {FRICTION_SPEED_RADS:g} rad/s"
    damping, source = _answered("--damping", notes.answers.damping, names, damping, source)
    notes.decide("damping, Nms/rad", shown(damping), source)
    armature = model.dof_armature[model.jnt_dofadr[joints]]
    armature, _ = _answered("--armature", notes.answers.armature, names, armature)
    return Drives(lower, upper, torque, damping, armature, kp, kd)


def _limits(anatomy: Anatomy, notes: Notes) -> tuple[np.ndarray, np.ndarray]:
    """(12,) lowest and highest angles; -+_ASKED where the user has to give them."""
    model = anatomy.model
    joints = list(anatomy.joints)
    ends = []
    ranged = np.array(model.jnt_limited[joints], dtype=bool)
    for side, (end, far) in enumerate((("lower", -_ASKED), ("upper", _ASKED))):
        bounds = {joint: limits[side] for joint, limits in notes.answers.limits.items()}
        default = np.where(ranged, model.jnt_range[joints][:, side], far)
        values, source = _answered("--limit", bounds, anatomy.joint_names, default, "joint ranges")
        ends.append(values.round(5))
        notes.decide(f"{end} limits, rad", shown(ends[side]), source)
    for name, low, high in zip(anatomy.joint_names, *ends, strict=True):
        if low >= high:
            raise notes.wrong(f"--limit {name}={low:g}:{high:g}: the first has to be the lower")
    _ask(notes, "--limit", "LOW:HIGH", ends[1] == _ASKED, anatomy.joint_names)
    return ends[0], ends[1]


def _ask(notes: Notes, option: str, form: str, which: np.ndarray, names: tuple[str, ...]) -> None:
    if which.any():
        notes.ask(f"{option} {','.join(f'{joint}={form}' for joint in joints_of(which, names))}")


def _answered(
    option: str,
    answers: Mapping[str, float],
    names: tuple[str, ...],
    default: np.ndarray | float,
    source: str = "the file's",
) -> tuple[np.ndarray, str]:
    """The user's values (12,) for an option, or `default` without an answer; and their source."""
    answer = joint_values(option, answers, names)
    answered = np.isfinite(answer)
    values = np.where(answered, answer, default)
    if answered.all():
        return values, option
    return values, f"{source}, and {option}" if answered.any() else source


def _torques(anatomy: Anatomy, notes: Notes) -> np.ndarray:
    """(12,) smallest torque limit of actuators and joint; _ASKED where the user has to give it."""
    model = anatomy.model
    torque_nm = np.full(N_JOINTS, _ASKED)
    sources = set[str]()
    for i, joint in enumerate(anatomy.joints):
        limits = []
        for a in _actuators(model, joint):
            gear = abs(float(model.actuator_gear[a, 0]))
            if model.actuator_forcelimited[a]:
                force = float(np.abs(model.actuator_forcerange[a]).min())
                limits.append((force * gear, "actuators' forcerange"))
            motor = not model.actuator_biasprm[a, 1]
            if model.actuator_ctrllimited[a] and motor:
                control = float(np.abs(model.actuator_ctrlrange[a]).min())
                gain = abs(float(model.actuator_gainprm[a, 0]))
                limits.append((control * gain * gear, "motors' ctrlrange and gear"))
        if model.jnt_actfrclimited[joint]:
            limits.append((float(np.abs(model.jnt_actfrcrange[joint]).min()), "actuatorfrcrange"))
        if limits := [limit for limit in limits if limit[0] > 0]:  # 0 to 25 is no limit both ways
            torque_nm[i], source = min(limits)
            sources.add(source)
    names = anatomy.joint_names
    source = "; ".join(sorted(sources))
    torque_nm, source = _answered("--torque", notes.answers.torque_nm, names, torque_nm, source)
    _ask(notes, "--torque", "NM", torque_nm == _ASKED, names)
    notes.decide("torque limits, Nm", shown(torque_nm), source)
    return torque_nm


def _actuators(model: mujoco.MjModel, joint: int) -> list[int]:
    return [a for a in range(model.nu) if model.actuator_trnid[a, 0] == joint]


def _servos(anatomy: Anatomy) -> tuple[np.ndarray, np.ndarray]:
    """(12,) kp and kv of position actuators at the joints."""
    gains = np.full((2, N_JOINTS), np.nan)
    model = anatomy.model
    for i, joint in enumerate(anatomy.joints):
        for a in _actuators(model, joint):
            bias = -model.actuator_biasprm[a, 1:3] * float(model.actuator_gear[a, 0]) ** 2
            if bias[0] > 0:
                gains[:, i] = bias
    return gains[0], gains[1]


def with_armature(drives: Drives, robot: RobotCard, notes: Notes) -> Drives:
    """Drives with armature, by mass and leg length, for joints whose file has none."""
    none = drives.armature == 0
    size = robot.mass_kg * robot.leg_length_m**2
    derived = np.tile(_ARMATURE_SHARES, N_LEGS) * size
    armature = np.where(none, [float(f"{value:.2g}") for value in derived], drives.armature)
    source = "--armature" if notes.answers.armature else "the file's"
    if none.any():
        which = ", ".join(joints_of(none, robot.joint_names))
        source = f"Aliengo's for this mass and leg length, where the file has none: {which}"
    notes.decide("armature, kg m2", shown(armature), source)
    return replace(drives, armature=armature)


def choose_gains(
    robot: RobotCard, model: mujoco.MjModel, drives: Drives, notes: Notes
) -> RobotCard:
    """The robot with the file's gains if they hold its weight and are stable, else computed gains.

    RobotError for limits or torques that do not allow standing, or too little inertia.
    """
    stiff = replace(robot, kp_nm_per_rad=np.full(N_JOINTS, _VERY_STIFF))
    torque = np.abs(standing_load(stiff).torque_nm)
    names = robot.joint_names
    kp, source = _answered("--kp", notes.answers.kp, names, drives.kp)
    if why := _why_not_kp(robot, model, kp, torque):
        gain = _rounded_up(float(torque.max()) / _SAG_RAD)
        source = f"{_SAG_RAD:g} rad of sag under the weight; {why}"
        kp, source = _answered("--kp", notes.answers.kp, names, gain, source)
    notes.decide("kp, Nm/rad", shown(kp), source)
    kd, source = _answered("--kd", notes.answers.kd, names, drives.kd)
    if why := why or _why_not_kd(robot, model, kp, kd):
        gain, ratio = _choose_kd(robot, model, kp)
        source = f"damping ratio {ratio:.2f} of the heaviest joint; {why}"
        kd, source = _answered("--kd", notes.answers.kd, names, gain, source)
    notes.decide("kd, Nms/rad", shown(kd), source)
    _caution(robot, drives, float(torque.max()), notes)
    return replace(robot, kp_nm_per_rad=kp, kd_nms_per_rad=kd)


def _why_not_kp(robot: RobotCard, model: mujoco.MjModel, kp: np.ndarray, torque: np.ndarray) -> str:
    """Why kp (12,) is unfit for the torque (12,) of standing; empty if it is fit."""
    if not np.isfinite(kp).all():
        return "the file has no position actuators"
    sag = float((torque / kp).max())
    if sag > MAX_SAG_RAD:
        return f"the file's kp sags by {sag:.2f} rad"
    if stiffness(robot, model, kp, np.zeros(N_JOINTS))[0] > _AIM_STIFFNESS:
        return f"the file's kp of {shown(kp)} is too stiff for the physics step"
    return ""


def _why_not_kd(robot: RobotCard, model: mujoco.MjModel, kp: np.ndarray, kd: np.ndarray) -> str:
    """Why kd (12,) is unfit; empty if it is fit."""
    if not np.isfinite(kd).all():
        return "the file has none"
    critical, passive = _critical_damping(robot, model, kp)
    if (float(kd.min()) + passive) / critical < _LEAST_DAMPING_RATIO:
        return f"the file's is {(float(kd.min()) + passive) / critical:.2f} of critical damping"
    share = stiffness(robot, model, kp, kd)[0]
    if share < MAX_STIFFNESS:
        return ""
    return f"the file's reaches {share:.1f} of what the physics step bears, not {MAX_STIFFNESS:g}"


def _critical_damping(
    robot: RobotCard, model: mujoco.MjModel, kp: np.ndarray
) -> tuple[float, float]:
    """Critical damping of the joint with the most inertia, and its passive damping, Nms/rad."""
    inertia = joint_inertia(robot, model).diagonal()
    heaviest = int(np.argmax(inertia))
    passive = float(model.dof_damping[model.joint(robot.joint_names[heaviest]).dofadr[0]])
    return 2 * float(np.sqrt(kp[heaviest] * inertia[heaviest])), passive


def _choose_kd(robot: RobotCard, model: mujoco.MjModel, kp: np.ndarray) -> tuple[float, float]:
    """A kd of half of critical damping, or the largest stable one; and its damping ratio."""
    critical, passive = _critical_damping(robot, model, kp)
    kd = max(_DAMPING_RATIO * critical - passive, 0.01 * float(kp.max()))
    while stiffness(robot, model, kp, np.full(N_JOINTS, kd))[0] > _AIM_STIFFNESS:
        kd *= 0.9
        if (kd + passive) / critical < _LEAST_DAMPING_RATIO:
            raise robot.wrong(
                f"no gains are stable at the physics step of {1000 * SUBSTEP_S:g} ms: joints have "
                f"too little inertia; give --armature hip=KGM2,thigh=KGM2,calf=KGM2"
            )
    return float(f"{kd:.2g}"), (kd + passive) / critical


def _caution(robot: RobotCard, drives: Drives, standing_nm: float, notes: Notes) -> None:
    """Note implausible values of the file."""
    turning = drives.upper - drives.lower > 2 * np.pi
    if turning.any():
        text = f"{', '.join(joints_of(turning, robot.joint_names))} can turn all round"
        notes.decide("caution", text, "--limit sets other ranges")
    times = drives.torque.max() / standing_nm
    if times > _MOST_TORQUE:
        text = f"torque limits of {times:.0f} times what standing takes"
        notes.decide("caution", text, "--torque sets others")
    brake = drives.damping * _FAST_RADS
    if (brake > drives.torque / 2).any():
        text = f"damping brakes by {brake.max():.0f} Nm at {_FAST_RADS:g} rad/s"
        notes.decide("caution", text, "--damping sets another")


def _rounded_up(value: float) -> float:
    """A positive value rounded up to two digits."""
    unit = 10.0 ** (np.floor(np.log10(value)) - 1)
    return float(f"{np.ceil(value / unit) * unit:.2g}")
