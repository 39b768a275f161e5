"""`gaitforge export check`: sensors and configurations, before a motor moves."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gaitforge.collectors.robots.robot import RobotCard, load_robot
from gaitforge.common.errors import failures
from gaitforge.pipeline.cli.parsing.options import JSON, needs, option
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.terminal import show_one

if TYPE_CHECKING:
    from gaitforge.learners.export.description import RobotFacts
    from gaitforge.plugins.robot_runtime.sensors.findings import Report

FROM_STDIN = "-"


@command(
    "gaitforge export check exports/fcnet --log tilted.csv",
    option("export", "an exported policy's folder", Path, metavar="OUT"),
    option(
        "--log",
        "q, dq, quaternion and gyro of the standing robot while it is tilted by hand: a CSV or "
        ".npz file, or - for rows on standard input",
        metavar="FILE",
    ),
    option(
        "--config",
        "a runtime's configuration to compare: unitree_rl_lab's deploy.yaml, or rl_sar's base.yaml "
        "or config.yaml",
        Path,
        metavar="FILE",
    ),
    option("--robot", "a name or path, if the policy's robot is not a shipped one"),
    JSON,
    needs("sim"),
)
def export_check(arguments: argparse.Namespace) -> Callable[[], int]:
    """Check sensors of a robot, or a configuration, before a motor moves; exit 1 on a fault."""
    log = arguments.log
    config = arguments.config
    if log is None and config is None:
        raise ValueError("nothing to check: give --log, --config or both")
    robot = arguments.robot if log is not None else None
    return partial(_check, arguments.export, log, config, robot, arguments.json)


def _check(
    export: Path, log: str | None, config: Path | None, robot: str | None, as_json: bool
) -> int:
    """Check a log, a configuration or both, and print what is found; the exit code."""
    from gaitforge.learners.export.onnx_policy import read_description
    from gaitforge.plugins.robot_runtime.runtimes.configuration import described_robot

    with failures(str(export), ValueError, error=ValueError):
        facts = described_robot(read_description(export).get("control"))
    reports: dict[str, Report] = {}
    if config is not None:
        from gaitforge.plugins.robot_runtime.runtimes.configs import check_config

        reports["config"] = check_config(config, facts)
    if log is not None:
        reports["log"] = _checked_log(log, _robot(facts, robot))
    ok = all(report.ok for report in reports.values())
    if as_json:
        shown = {name: report.to_json() for name, report in reports.items()}
        show_one({"ok": ok, **shown}, as_json=True)
    else:
        for name, report in reports.items():
            print("\n".join(_lines(name, report)))
    return 0 if ok else 1


def _robot(facts: "RobotFacts", robot: str | None) -> RobotCard:
    """The robot with the policy's default pose; ValueError if it has other joints."""
    card = load_robot(robot or facts.robot)
    if facts.joint_names != card.joint_names:
        raise ValueError(
            f"the policy's joints are not those of {card.name}: {', '.join(card.joint_names)}"
        )
    return replace(card, default_joint_pos_rad=np.array(facts.default_joint_pos_rad))


def _checked_log(log: str, robot: RobotCard) -> "Report":
    from gaitforge.plugins.robot_runtime.sensors.checking import check_log
    from gaitforge.plugins.robot_runtime.sensors.logs import read_live, read_log

    if log == FROM_STDIN:
        return check_log(read_live(sys.stdin, robot.joint_names, _progress), robot)
    return check_log(read_log(Path(log), robot.joint_names), robot)


def _progress(rows: Sequence[np.ndarray]) -> str:
    """A line on the motion so far, and what lacks."""
    from gaitforge.plugins.robot_runtime.sensors.blocks import make_blocks
    from gaitforge.plugins.robot_runtime.sensors.checking import LEAST_RANGE_RAD, covered
    from gaitforge.plugins.robot_runtime.sensors.logs import log_of_rows

    try:
        pitch, roll = covered(make_blocks(log_of_rows(rows, "")))
    except ValueError:
        return "stand still on four feet, then tilt the trunk by hand"
    texts = [
        f"{name} {tilt:.2f} of {LEAST_RANGE_RAD} rad"
        for name, tilt in (("pitch", pitch), ("roll", roll))
    ]
    enough = min(pitch, roll) >= LEAST_RANGE_RAD
    seconds = rows[-1][0] - rows[0][0]
    return f"{seconds:.0f} s: {', '.join(texts)}{': enough, end with Ctrl-C' if enough else ''}"


_KEYS = (
    ("slope_pitch", "slope of the feet's plane against gravity, pitch", ""),
    ("slope_roll", "slope of the feet's plane against gravity, roll", ""),
    ("out_of_plane_m", "feet out of plane", "m"),
)


def _lines(name: str, report: "Report") -> list[str]:
    """What people read of a report."""
    lines = [f"fault: {finding.text}" for finding in report.findings]
    for finding, place in zip(report.findings, range(len(lines)), strict=True):
        if finding.alike:
            lines[place] += f" (as well explained by: {'; '.join(finding.alike)})"
    lines += [f"too little motion: {text}" for text in report.lacking]
    lines += [f"not judged: {text}" for text in report.unjudged]
    lines += [
        f"{words}: {report.measured[key]:.3f} {unit}".rstrip()
        for key, words, unit in _KEYS
        if key in report.measured
    ]
    return [*lines, f"{name}: {'ok' if report.ok else 'not ok'}"]
