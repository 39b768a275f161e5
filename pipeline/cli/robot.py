"""`gaitforge robot`: list, check and vary robots."""

import argparse
from pathlib import Path

from collectors.robots.robot import list_robots, load_robot
from pipeline.cli.parsing.parser import actions, command, option
from pipeline.cli.parsing.values import positive
from pipeline.progress import TerminalReporter
from pipeline.tables import fields_of, show, show_one, table

_SIZES = ("mass_kg", "leg_length_m", "nominal_height_m")


@command("gaitforge robot list --json", "--json")
def _list(arguments: argparse.Namespace) -> None:
    """List the shipped robots."""
    robots = map(load_robot, list_robots())
    show(
        [{**fields_of(each, "name", *_SIZES), "file": str(each.path)} for each in robots],
        arguments.json,
    )


@command(
    "gaitforge robot check my_robot",
    option("robot", "a folder with robot.json and its MJCF, a card, or a shipped robot"),
    "--json",
)
def _check(arguments: argparse.Namespace) -> None:
    """Check a robot's card and MJCF, and let it stand for two seconds."""
    from collectors.physics.contract.robot_check import check_robot

    robot = load_robot(arguments.robot)
    findings = check_robot(robot)
    record = {
        "name": robot.name,
        "card": str(robot.path),
        "mjcf": str(robot.mjcf_path),
        **fields_of(robot, *_SIZES),
        "default_pose_height_m": findings.default_height_m,
        "stood_height_m": findings.trial.height_m,
        "stood_tilt_rad": findings.trial.tilt_rad,
        "action_scale_rad": robot.action_scale_rad,
    }
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
    if arguments.json:
        show_one({**record, "joints": joints, "warnings": list(findings.warnings)}, as_json=True)
        return
    show_one(record, as_json=False)
    print(f"\n{table(joints)}\n")
    for warning in findings.warnings:
        print(f"warning: {warning}")
    print(f"{robot.name} can be used" + (" all the same" if findings.warnings else ""))


@command(
    "gaitforge robot vary aliengo --count 100 --out robots/family",
    option("robot", "a shipped robot, or a folder or card as for check"),
    option("--count", "bodies of the family", positive, 100),
    option("--out", "folder of the bodies' folders", Path, required=True),
    "--seed --json",
)
def _vary(arguments: argparse.Namespace) -> None:
    """Write bodies drawn around a robot: other sizes, masses, links and gains."""
    from collectors.modelling.varying import vary_robots

    robot, seed = load_robot(arguments.robot), arguments.seed or 0
    count, out = arguments.count, arguments.out
    with TerminalReporter().step(f"vary {robot.name}", count, "body") as advance:
        bodies = vary_robots(robot, seed, count, out, lambda: advance(1, ""))
    show(
        [{**fields_of(each, "name", *_SIZES), "folder": str(each.path.parent)} for each in bodies],
        arguments.json,
    )


robot_command = actions("gaitforge robot check my_robot", _list, _check, _vary)
