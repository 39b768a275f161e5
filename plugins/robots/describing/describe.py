"""Describe a robot: write a folder with card and clean MJCF from any MJCF or URDF.

The default pose is the file's, or a crouch by inverse kinematics.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gaitforge.collectors.physics.mujoco.model import build_model
from gaitforge.collectors.physics.robot_check import RobotFindings, check_robot
from gaitforge.collectors.robots.kinematics import LegKinematics, standing_height_m
from gaitforge.collectors.robots.robot import (
    CARD_FILE,
    JOINTS_PER_LEG,
    KNEES,
    N_JOINTS,
    N_LEGS,
    RobotCard,
    RobotError,
    list_robots,
    load_robot,
)
from gaitforge.collectors.rotations import wrapped
from gaitforge.common.files import new_folder
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.plugins.robots.describing.anatomy import Anatomy, find_anatomy
from gaitforge.plugins.robots.describing.body import (
    Shape,
    collision_shapes,
    farthest,
    foot_shapes,
    part_mass,
    round_foot,
    trunk_half_size,
    width,
    with_feet_and_knees,
    write_body,
)
from gaitforge.plugins.robots.describing.drives import (
    Drives,
    choose_gains,
    find_drives,
    with_armature,
)
from gaitforge.plugins.robots.describing.notes import Answers, Decision, Notes, joint_values, shown
from gaitforge.plugins.robots.describing.reading import Mjcf, read_mjcf
from gaitforge.plugins.robots.writing import write_card

ACTION_SCALE_RAD = 0.25
"""Action scale of the shipped robots."""


@dataclass(frozen=True)
class Described:
    """A robot that was written, the decisions made for it, and the findings of its check."""

    robot: RobotCard
    decisions: tuple[Decision, ...]
    findings: RobotFindings


def init_robot(mjcf: Path, out: Path, answers: Answers) -> Described:
    """Write a robot's folder from an MJCF or URDF, if `check_robot` finds it usable.

    RobotError for another kind of file or no quadruped, for options that the user still has to
    give, for a robot that cannot be used, and for a folder that is not empty.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RobotError(f"{out} is there already and not an empty folder; choose another --out")
    check_outside_stores(out).parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out) as folder:
        robot, decisions = describe(mjcf, folder, answers)
        findings = check_robot(robot)
    robot = load_robot(str(out))
    return Described(robot, decisions, replace(findings, robot=robot))


def describe(mjcf: Path, folder: Path, answers: Answers) -> tuple[RobotCard, tuple[Decision, ...]]:
    """Write card and MJCF into a folder, unchecked, and load the card."""
    notes = Notes(mjcf.name, answers)
    source = read_mjcf(mjcf, notes)
    anatomy = find_anatomy(source, notes)
    name = _name(source, notes)
    drives = find_drives(anatomy, notes)
    shapes = collision_shapes(anatomy, notes)
    robot = _start(anatomy, drives, name, folder)
    robot, shapes = _on_feet(robot, anatomy, source, shapes, notes)
    notes.raise_questions()
    drives = with_armature(drives, robot, notes)
    robot = _with_sizes(robot, shapes, notes)
    write_body(robot.mjcf_path, robot, anatomy, shapes, drives)
    robot = choose_gains(robot, build_model(robot), drives, notes)
    robot = replace(robot, source=_source_text(mjcf, notes.decisions))
    write_body(robot.mjcf_path, robot, anatomy, shapes, drives)
    write_card(robot)
    return load_robot(str(folder)), tuple(notes.decisions)


def _name(source: Mjcf, notes: Notes) -> str:
    model_name = re.sub(r"[^\w.-]+", "_", source.name).strip("_").lower()
    name = notes.answers.name or model_name
    if not re.fullmatch(r"[\w.-]+", name) or name.strip(".") == "":
        raise RobotError(f"--name {name}: it has to consist of letters, digits, '_', '-' and '.'")
    if name in list_robots():
        notes.ask(f"--name NAME (not the shipped {name})")
    notes.decide("name", name, "--name" if notes.answers.name else "the file's model")
    return name


def _start(anatomy: Anatomy, drives: Drives, name: str, folder: Path) -> RobotCard:
    """A draft card with placeholders for what depends on feet and pose."""
    places = anatomy.anchors.reshape(N_LEGS, JOINTS_PER_LEG, 3)
    masses = [part_mass(anatomy, part)[0] for part in sorted(set(anatomy.parts.values()))]
    mass = float(round(sum(masses), 4))
    none = np.ones(N_JOINTS)
    return RobotCard(
        name=name,
        path=folder / CARD_FILE,
        mjcf_path=folder / f"{name}.xml",
        source="",
        trunk_body=anatomy.trunk_name,
        foot_geoms=(),
        knee_geoms=(),
        joint_names=anatomy.joint_names,
        joint_signs=anatomy.signs,
        default_joint_pos_rad=0 * none,
        joint_lower_rad=drives.lower,
        joint_upper_rad=drives.upper,
        kp_nm_per_rad=none,
        kd_nms_per_rad=none,
        torque_limit_nm=drives.torque,
        action_scale_rad=ACTION_SCALE_RAD,
        mass_kg=mass,
        foot_radius_m=0.0,
        hip_offset_m=places[:, 0],
        thigh_offset_m=(places[:, 1] - places[:, 0]).round(6) + 0.0,
        knee_offset_m=(places[:, 2] - places[:, 1]).round(6) + 0.0,
        foot_offset_m=np.zeros((N_LEGS, 3)),
        nominal_height_m=1.0,
        trunk_half_size_m=(1.0, 1.0, 1.0),
        width_m=1.0,
    )


def _on_feet(
    robot: RobotCard,
    anatomy: Anatomy,
    source: Mjcf,
    shapes: Sequence[Shape],
    notes: Notes,
) -> tuple[RobotCard, list[Shape]]:
    """The draft with round feet, knees and a default pose; foot spheres follow from the pose."""
    poses = [(name, anatomy.positions(qpos)) for name, qpos in source.poses]
    places = anatomy.anchors[2::JOINTS_PER_LEG]
    old = foot_shapes(anatomy, shapes, notes)
    tips = [farthest(foot, knee)[0] for foot, knee in zip(old, places, strict=True)]
    robot = replace(robot, foot_offset_m=np.array(tips) - places)
    _, pose = choose_pose(robot, poses, Notes(notes.file, notes.answers))
    feet = [round_foot(*pair) for pair in zip(old, calf_ups(robot, pose), strict=True)]
    offsets = (np.array([foot.pos for foot in feet]) - places).round(6) + 0.0
    radius = float(np.mean([foot.size[0] for foot in feet]).round(6))
    robot = replace(robot, foot_offset_m=offsets, foot_radius_m=radius)
    origin, pose = choose_pose(robot, poses, notes)
    robot = replace(robot, default_joint_pos_rad=pose.round(4) + 0.0)
    shapes, feet, knees, added = with_feet_and_knees(anatomy, shapes, old, feet)
    robot = replace(
        robot,
        foot_geoms=tuple(foot.name for foot in feet),
        knee_geoms=tuple(knee.name for knee in knees),
    )
    _note_feet(robot, old, added, notes)
    notes.decide("default pose, rad", shown(robot.default_joint_pos_rad), origin)
    return robot, shapes


def _note_feet(robot: RobotCard, old: Sequence[Shape], added: int, notes: Notes) -> None:
    kinds = {foot.kind.name.removeprefix("mjGEOM_").lower() for foot in old} - {"sphere"}
    text = f"; each {' or '.join(sorted(kinds))} now a sphere that touches the ground where it did"
    source = f"the shapes that reach farthest from the knees{text if kinds else ''}"
    notes.decide("feet", ", ".join(robot.foot_geoms), source)
    source = f"{added} spheres added at the knee joints" if added else "the file's spheres there"
    notes.decide("knees", ", ".join(robot.knee_geoms), source)


def _with_sizes(robot: RobotCard, shapes: Sequence[Shape], notes: Notes) -> RobotCard:
    half = trunk_half_size(shapes)
    height = round(standing_height_m(robot), 3)
    notes.decide("foot radius, m", f"{robot.foot_radius_m:g}", "feet")
    notes.decide("nominal height, m", f"{height:g}", "the default pose")
    box = "--trunk-box" if notes.answers.trunk_half_size_m else "as far as the trunk's shapes reach"
    notes.decide("trunk box, half sizes, m", " ".join(f"{size:g}" for size in half), box)
    notes.decide("width, m", f"{width(shapes):g}", "outline of the legs' shapes, hips at 0")
    notes.decide("mass, kg", f"{robot.mass_kg:g}", "all bodies")
    notes.decide("action scale, rad", f"{ACTION_SCALE_RAD:g}", "the shipped robots'")
    x, y, z = half.tolist()
    return replace(
        robot, nominal_height_m=height, trunk_half_size_m=(x, y, z), width_m=width(shapes)
    )


def _source_text(mjcf: Path, decisions: Sequence[Decision]) -> str:
    """The card's `source`: the file, and sources of values that were not read from it."""
    topics = ("damping", "armature", "default pose", "kp", "kd", "trunk box")
    sources = {d.what.split(",")[0]: d.source for d in decisions if d.what.startswith(topics)}
    listed = [f"{topic}: {source}" for topic, source in sources.items() if source != "the file's"]
    return "; ".join([f"{mjcf.name}, by gaitforge robot init", *listed])


CROUCH = 0.76
"""Standing height over leg length; near that of the shipped robots."""
_LOWEST = 0.5
_HIGHEST = 0.95
_LEVEL = 0.03
"""How far feet may be from level, as a share of the leg's length."""
_BENT_RAD = 0.3
_PROVISIONAL_BEND_RAD = 1.2
_SLACK_RAD = 1e-3

Pose = tuple[str, np.ndarray]


def choose_pose(robot: RobotCard, poses: Sequence[Pose], notes: Notes) -> Pose:
    """Name and joint angles (12,) of a default pose; a guess if `notes` holds questions on it.

    Args:
        robot: a card that lacks only its default pose and gains.
        poses: the file's, of which the first is taken in which the robot stands.
    """
    answer = joint_values("--pose", notes.answers.pose_rad, robot.joint_names)
    if np.isfinite(answer).all():
        knees = notes.answers.knees
        signs = replace(robot, default_joint_pos_rad=answer).knee_signs
        if knees is not None and signs.tolist() != list(KNEES[knees]):
            raise notes.wrong(f"--pose bends the knees in another way than --knees {knees}")
        return "--pose", answer
    if np.isfinite(answer).any():
        raise notes.wrong("--pose has to name all joints: hip=RAD,thigh=RAD,calf=RAD")
    if notes.answers.knees is None:
        for name, angles in poses:
            if _stands(robot, angles):
                return name, np.clip(angles, robot.joint_lower_rad, robot.joint_upper_rad)
    crouches = [crouch(robot, np.full(N_LEGS, sign)) for sign in (-1, 1)]
    legs = [_within(robot, pose).reshape(N_LEGS, -1).all(axis=1) for pose in crouches]
    if notes.answers.knees is not None:
        forward = np.array(KNEES[notes.answers.knees]) > 0
        source = f"--knees {notes.answers.knees}"
    else:
        forward = legs[1]
        source = "knees as the joints' ranges allow"
        if (legs[0] & legs[1]).any():
            notes.ask(f"--knees {'|'.join(KNEES)} (where the knees point)")
    if not np.where(forward, legs[1], legs[0]).all():
        notes.ask("--pose hip=RAD,thigh=RAD,calf=RAD (no crouch is within the joints' ranges)")
    pose = np.where(np.repeat(forward, JOINTS_PER_LEG), crouches[1], crouches[0])
    why = "the file has no pose that is level on bent legs"
    return f"a crouch at {CROUCH:g} of the leg's length, {source}; {why}", pose


def crouch(robot: RobotCard, bends: np.ndarray) -> np.ndarray:
    """(12,) rad: level feet below the thighs, knees bent with the signs of `bends` (4,)."""
    thigh, calf = robot.link_angles_rad.T
    start = np.zeros(N_JOINTS)
    turn = _PROVISIONAL_BEND_RAD * bends - (calf - thigh)
    start[2::JOINTS_PER_LEG] = robot.joint_signs[2::JOINTS_PER_LEG] * turn
    below = np.full((N_LEGS, 1), (1 - CROUCH) * robot.leg_length_m - robot.reach_m)
    feet = np.concatenate([robot.feet_below_m, below], axis=1)
    bent = LegKinematics(replace(robot, default_joint_pos_rad=start))
    pose = bent.joint_positions(feet[None])[0]
    middle = (robot.joint_lower_rad + robot.joint_upper_rad) / 2
    return pose + 2 * np.pi * np.round((middle - pose) / (2 * np.pi))


def calf_ups(robot: RobotCard, pose: np.ndarray) -> np.ndarray:
    """(4, 3): the vertical in each calf's frame, which is the trunk's with all joints at 0."""
    hip, thigh, calf = (robot.joint_signs * pose).reshape(N_LEGS, JOINTS_PER_LEG).T
    forward = -np.sin(thigh + calf)
    up = np.cos(thigh + calf)
    # The transpose of Rx(hip) Ry(thigh + calf), times z.
    return np.stack([forward * np.cos(hip), np.sin(hip), up * np.cos(hip)], axis=1)


def _stands(robot: RobotCard, angles: np.ndarray) -> bool:
    """Whether legs are bent, feet level and below the trunk, and joints within their limits."""
    posed = replace(robot, default_joint_pos_rad=angles)
    feet = LegKinematics(posed).foot_positions(angles[None])[0]
    height = -feet[:, 2]
    reach = posed.reach_m
    return bool(
        _within(robot, angles).all()
        and np.ptp(height) < _LEVEL * robot.leg_length_m
        and (np.abs(wrapped(posed.knee_bend_rad)) > _BENT_RAD).all()
        and _LOWEST * reach < height.mean() < _HIGHEST * reach
    )


def _within(robot: RobotCard, angles: np.ndarray) -> np.ndarray:
    """(12,) whether joints are within their limits."""
    low = robot.joint_lower_rad - _SLACK_RAD
    high = robot.joint_upper_rad + _SLACK_RAD
    return (angles >= low) & (angles <= high)
