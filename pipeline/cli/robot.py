"""`gaitforge robot`: list and check robots."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from collectors.robots.robot import list_robots, load_robot
from pipeline.cli.arguments import actions, command, option
from pipeline.tables import show, show_one

if TYPE_CHECKING:
    from collectors.physics.contract.robot_check import RobotFindings


@command("gaitforge robot list --json", "--json")
def _list(arguments: argparse.Namespace) -> None:
    """List the shipped robots."""
    rows = []
    for name in list_robots():
        robot = load_robot(name)
        rows.append(
            {
                "name": name,
                "mass_kg": robot.mass_kg,
                "leg_length_m": robot.leg_length_m,
                "nominal_height_m": robot.nominal_height_m,
                "file": str(robot.path),
            }
        )
    show(rows, arguments.json)


@command(
    "gaitforge robot check my_robot",
    option("robot", "a folder with robot.json and its MJCF, a card, or a shipped robot"),
    "--json",
)
def _check(arguments: argparse.Namespace) -> None:
    """Check a robot's card and MJCF, and let it stand for two seconds."""
    from collectors.physics.contract.robot_check import check_robot

    findings = check_robot(load_robot(arguments.robot))
    record, joints = _robot_record(findings), _joint_records(findings)
    if arguments.json:
        show_one({**record, "joints": joints, "warnings": list(findings.warnings)}, as_json=True)
        return
    show_one(record, as_json=False)
    print()
    show(joints, as_json=False)
    print()
    for warning in findings.warnings:
        print(f"warning: {warning}")
    print(f"{findings.robot.name} can be used" + (" all the same" if findings.warnings else ""))


def _robot_record(findings: RobotFindings) -> dict[str, object]:
    """What was found about the whole robot."""
    robot, trial = findings.robot, findings.trial
    return {
        "name": robot.name,
        "card": str(robot.path),
        "mjcf": str(robot.mjcf_path),
        "mass_kg": robot.mass_kg,
        "leg_length_m": robot.leg_length_m,
        "nominal_height_m": robot.nominal_height_m,
        "default_pose_height_m": findings.default_height_m,
        "stood_height_m": trial.height_m,
        "stood_tilt_rad": trial.tilt_rad,
        "action_scale_rad": robot.action_scale_rad,
    }


def _joint_records(findings: RobotFindings) -> list[dict[str, object]]:
    """Limits, gains and the load of standing, a row per joint."""
    robot, stance = findings.robot, findings.stance
    columns = {
        "default_rad": robot.default_joint_pos_rad,
        "lower_rad": robot.joint_lower_rad,
        "upper_rad": robot.joint_upper_rad,
        "kp": robot.kp_nm_per_rad,
        "kd": robot.kd_nms_per_rad,
        "standing_nm": abs(stance.torque_nm),
        "limit_nm": robot.torque_limit_nm,
        "sag_rad": stance.sag_rad,
    }
    return [
        {"joint": joint, **{name: float(values[i]) for name, values in columns.items()}}
        for i, joint in enumerate(robot.joint_names)
    ]


robot_command = actions("gaitforge robot check my_robot", _list, _check)
