"""`gaitforge robot`: list and check robots; plug-ins bring further actions."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.collectors.robots.robot import RobotCard, list_robots, load_robot
from gaitforge.common.files import write_bytes_durably
from gaitforge.pipeline.cli.parsing.options import JSON, option
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.terminal import fields_of, show, show_one, table

if TYPE_CHECKING:
    from gaitforge.collectors.physics.robot_check import RobotFindings

_PICTURE_PX = (640, 400)
SIZES = ("mass_kg", "leg_length_m", "nominal_height_m")
"""Figures of a robot that its rows show."""


@command("gaitforge robot list --json", JSON)
def _list(arguments: argparse.Namespace) -> None:
    """List the shipped robots."""
    robots = map(load_robot, list_robots())
    show(
        [{**fields_of(robot, "name", *SIZES), "file": str(robot.path)} for robot in robots],
        arguments.json,
    )


PICTURE = option("--picture", "also draw the robot into this PNG", Path, metavar="FILE")
"""The option with the file for `draw_picture`."""


@command(
    "gaitforge robot check my_robot --picture my_robot.png",
    option("robot", "a folder with robot.json and its MJCF, a card, or a shipped robot"),
    PICTURE,
    JSON,
)
def _check(arguments: argparse.Namespace) -> None:
    """Check a robot's card and MJCF, and let it stand for two seconds."""
    from gaitforge.collectors.physics.robot_check import check_robot

    robot = load_robot(arguments.robot)
    findings = check_robot(robot)
    if arguments.json:
        show_one(check_record(findings), as_json=True)
    else:
        show_checked(findings)
    draw_picture(robot, arguments.picture)


def check_record(findings: "RobotFindings") -> dict[str, Any]:
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
        **fields_of(robot, *SIZES),
        "default_pose_height_m": findings.default_height_m,
        "stood_height_m": findings.trial.height_m,
        "stood_tilt_rad": findings.trial.tilt_rad,
        "action_scale_rad": robot.action_scale_rad,
        "joints": joints,
        "warnings": list(findings.warnings),
    }


def show_checked(findings: "RobotFindings") -> None:
    """Print the findings of a check."""
    record = check_record(findings)
    joints = record.pop("joints")
    warnings = record.pop("warnings")
    show_one(record, as_json=False)
    print(f"\n{table(joints)}\n")
    for warning in warnings:
        print(f"warning: {warning}")
    print(f"{findings.robot.name} can be used" + (" all the same" if warnings else ""))


def draw_picture(robot: RobotCard, picture: Path | None) -> None:
    """Draw a robot into a PNG file, if one is asked for."""
    if picture is None:
        return
    from gaitforge.collectors.rendering.rendering import draw_portrait
    from gaitforge.pipeline.report.picture_files import side_by_side

    write_bytes_durably(picture, side_by_side(draw_portrait(robot, *_PICTURE_PX)))


robot_command = actions("robot", "gaitforge robot check my_robot", _list, _check)
