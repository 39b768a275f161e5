"""`gaitforge robot`: list, check, describe and vary robots."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.collectors.robots.robot import KNEES, RobotCard, list_robots, load_robot
from gaitforge.common.files import write_bytes_durably
from gaitforge.pipeline.cli.parsing.options import (
    JSON,
    SEED,
    Option,
    flag,
    group,
    option,
    option_values,
)
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.values import (
    by_joint,
    half_sizes,
    names,
    positive,
    ranges_by_joint,
)
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import fields_of, show, show_one, table

if TYPE_CHECKING:
    from gaitforge.collectors.physics.checks.robot_check import RobotFindings

_PICTURE_PX = (640, 400)
_SIZES = ("mass_kg", "leg_length_m", "nominal_height_m")


@command("gaitforge robot list --json", JSON)
def _list(arguments: argparse.Namespace) -> None:
    """List the shipped robots."""
    robots = map(load_robot, list_robots())
    show(
        [{**fields_of(robot, "name", *_SIZES), "file": str(robot.path)} for robot in robots],
        arguments.json,
    )


_PICTURE = option("--picture", "also draw the robot into this PNG", Path, metavar="FILE")


@command(
    "gaitforge robot check my_robot --picture my_robot.png",
    option("robot", "a folder with robot.json and its MJCF, a card, or a shipped robot"),
    _PICTURE,
    JSON,
)
def _check(arguments: argparse.Namespace) -> None:
    """Check a robot's card and MJCF, and let it stand for two seconds."""
    from gaitforge.collectors.physics.checks.robot_check import check_robot

    robot = load_robot(arguments.robot)
    findings = check_robot(robot)
    if arguments.json:
        show_one(_checked(findings), as_json=True)
    else:
        _show_checked(findings)
    _draw(robot, arguments.picture)


def _joint_option(name: str, text: str) -> Option:
    """Values of joints; may be repeated."""
    help_text = f"{text} of joints: by a joint's name, or hip, thigh, calf of all legs"
    form = "JOINT=X,..."
    return option(name, help_text, by_joint, [], action="extend", metavar=form)


_BY_JOINT = {
    "limits": "limit",
    "torque_nm": "torque",
    "pose_rad": "pose",
    **{name: name for name in ("kp", "kd", "armature", "damping")},
}
"""Field of `Answers` -> the option with its values by joint."""


@command(
    "gaitforge robot init mujoco_menagerie/unitree_a1/a1.xml --out robots/a1",
    option("mjcf", "an MJCF or URDF of a quadruped, as in mujoco_menagerie", Path, metavar="FILE"),
    option("--out", "folder to write: card and MJCF", Path, required=True),
    _PICTURE,
    JSON,
    group(
        "what the file does not say, or others than it says",
        option("--name", "the robot's name (default: the MJCF's model)"),
        option("--weld", "joints to fix, as an arm's, comma-separated", names, ()),
        option(
            "--limit",
            "ranges of joints, rad: by a joint's name, or hip, thigh, calf of all legs",
            ranges_by_joint,
            [],
            action="extend",
            metavar="JOINT=LOW:HIGH,...",
        ),
        _joint_option("--torque", "torque limits, Nm,"),
        _joint_option("--pose", "default angles, rad,"),
        option("--knees", "where knees point", choices=KNEES, metavar="|".join(KNEES)),
        _joint_option("--kp", "stiffness, Nm/rad,"),
        _joint_option("--kd", "damping gains, Nms/rad,"),
        _joint_option("--armature", "rotor inertias, kg m2,"),
        _joint_option("--damping", "passive damping, Nms/rad,"),
        option(
            "--trunk-box", "half sizes in m of a box for the trunk", half_sizes, metavar="X,Y,Z"
        ),
        flag("--leave-out-meshes", "go on without colliding meshes whose files are missing"),
    ),
)
def _init(arguments: argparse.Namespace) -> None:
    """Write a robot's folder, card and MJCF, from an MJCF or URDF of any making."""
    from gaitforge.collectors.modelling.describing.describe import init_robot
    from gaitforge.collectors.modelling.describing.notes import Answers

    names = ("name", "weld", "knees", "leave_out_meshes")
    values = option_values(arguments, *names, trunk_half_size_m="trunk_box")
    values |= {field: dict(getattr(arguments, name)) for field, name in _BY_JOINT.items()}
    answers = Answers(**values)
    described = init_robot(arguments.mjcf, arguments.out, answers)
    if arguments.json:
        decisions = [asdict(decision) for decision in described.decisions]
        checked = _checked(described.findings)
        show_one({"decisions": decisions, "check": checked}, as_json=True)
    else:
        for decision in described.decisions:
            print(f"{decision.what}: {decision.value} ({decision.source})")
        print()
        _show_checked(described.findings)
    _draw(described.robot, arguments.picture)


def _checked(findings: "RobotFindings") -> dict[str, Any]:
    """The findings of a check, as a record."""
    robot = findings.robot
    columns = {
        "default_rad": robot.default_joint_pos_rad,
        "lower_rad": robot.joint_lower_rad,
        "upper_rad": robot.joint_upper_rad,
        "kp": robot.kp_nm_per_rad,
        "kd": robot.kd_nms_per_rad,
        "standing_nm": abs(findings.stance.torque_nm),
        "limit_nm": robot.torque_limit_nm,
        "sag_rad": findings.stance.sag_rad,
    }
    joints = [
        {"joint": joint, **{name: float(values[i]) for name, values in columns.items()}}
        for i, joint in enumerate(robot.joint_names)
    ]
    return {
        "name": robot.name,
        "card": str(robot.path),
        "mjcf": str(robot.mjcf_path),
        **fields_of(robot, *_SIZES),
        "default_pose_height_m": findings.default_height_m,
        "stood_height_m": findings.trial.height_m,
        "stood_tilt_rad": findings.trial.tilt_rad,
        "action_scale_rad": robot.action_scale_rad,
        "joints": joints,
        "warnings": list(findings.warnings),
    }


def _show_checked(findings: "RobotFindings") -> None:
    record = _checked(findings)
    joints = record.pop("joints")
    warnings = record.pop("warnings")
    show_one(record, as_json=False)
    print(f"\n{table(joints)}\n")
    for warning in warnings:
        print(f"warning: {warning}")
    print(f"{findings.robot.name} can be used" + (" all the same" if warnings else ""))


def _draw(robot: RobotCard, picture: Path | None) -> None:
    if picture is None:
        return
    from gaitforge.collectors.rendering.portrait import draw_portrait
    from gaitforge.pipeline.report.picture_files import side_by_side

    write_bytes_durably(picture, side_by_side(draw_portrait(robot, *_PICTURE_PX)))


@command(
    "gaitforge robot vary aliengo --count 100 --out robots/family",
    option("robot", "a shipped robot, or a folder or card as for check"),
    option("--count", "bodies of the family", positive, 100),
    option("--out", "folder of the bodies' folders", Path, required=True),
    SEED,
    JSON,
)
def _vary(arguments: argparse.Namespace) -> None:
    """Write bodies drawn around a robot: other sizes, masses, links and gains."""
    from gaitforge.collectors.modelling.varying import vary_robots

    robot = load_robot(arguments.robot)
    seed = arguments.seed or 0
    count = arguments.count
    out = arguments.out
    with TerminalReporter().step(f"vary {robot.name}", count, "robot") as advance:
        bodies = vary_robots(robot, seed, count, out, lambda: advance(1, ""))
    show(
        [{**fields_of(body, "name", *_SIZES), "folder": str(body.path.parent)} for body in bodies],
        arguments.json,
    )


robot_command = actions("robot", "gaitforge robot check my_robot", _list, _check, _init, _vary)
