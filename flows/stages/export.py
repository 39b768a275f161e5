"""A training run's policy as files for a robot's program."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaitforge.collectors.legged.environment import MAX_ACTION, TARGET_MARGIN_RAD
from gaitforge.collectors.legged.observations import FIELD_MEANINGS, FIELD_UNITS, POLICY_SLICES
from gaitforge.collectors.robots.commands import COMMAND_NAMES, COMMAND_UNITS
from gaitforge.collectors.robots.descriptor import body_vector
from gaitforge.collectors.robots.robot import RobotCard, load_robot
from gaitforge.collectors.robots.stored_robots import SEVERAL
from gaitforge.collectors.scenarios.command_ranges import command_ranges
from gaitforge.collectors.timing import CONTROL_DT_S, DECIMATION
from gaitforge.common.files import sha256_file
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import provenance, read_record
from gaitforge.flows.tasks.policy_source import run_source, trained_robot
from gaitforge.learners.checkpoint import policy_from, read_checkpoint
from gaitforge.learners.export.export import ExportResult, PolicyExportOptions, export_policy
from gaitforge.learners.export.export_metadata import CommandFacts, FieldFacts, RobotFacts
from gaitforge.learners.policy.policy_network import PolicyNetwork
from gaitforge.learners.run_files import KEPT

JOINT_ARRAYS = (
    "default_joint_pos_rad",
    "joint_lower_rad",
    "joint_upper_rad",
    "kp_nm_per_rad",
    "kd_nms_per_rad",
    "torque_limit_nm",
)


@dataclass(frozen=True)
class ExportPlan:
    """What to export.

    checkpoint: "last" or "best"; robot: a name or a path, empty for the robot it was trained for.
    """

    checkpoint: str = "last"
    robot: str = ""
    options: PolicyExportOptions = field(default_factory=PolicyExportOptions)


def run_export(plan: ExportPlan, run: Path, dst: Path, reporter: Reporter) -> ExportResult:
    """Export a run's policy into the new folder `dst`; the same export again changes nothing.

    Raises:
        ValueError: no run, no usable checkpoint, another robot's policy, missing packages, or a
            `dst` that holds something else.
    """
    run_source(run)  # raises
    policy, card, sha256 = _read(run, plan.checkpoint)
    progress = card.get("progress") or {}
    if not card.get("finished", True) and plan.checkpoint == "last":
        reporter.say(
            f"{run.name} is unfinished: exporting its last checkpoint, step {progress.get('step')}"
        )
    trained = read_record(run / PLAN) or {}
    trained_for = trained_robot(run)
    if trained_for == SEVERAL and not plan.robot:
        raise ValueError(f"{run} drives several robots; name one: --robot aliengo")
    robot = load_robot(plan.robot or trained_for)
    if policy.layout.body_fields:
        policy.drive(body_vector(robot))
    source = {
        "run": run.resolve().name,
        "checkpoint": plan.checkpoint,
        "checkpoint_sha256": sha256,
        "step": progress.get("step"),
        "objective": (card.get("train_config") or {}).get("objective", ""),
        "trained_by_revision": card.get("git_revision", ""),
        "store": trained.get("store", ""),
        "dataset_version": trained.get("dataset", ""),
        "schema_version": trained.get("schema_version"),
        "dataset_hash": card.get("dataset_hash", ""),
        "exported_by": provenance(),
    }
    return export_policy(policy, card, robot_facts(robot), dst, plan.options, source)


def robot_facts(robot: RobotCard) -> RobotFacts:
    """The facts about the robot and its control loop in a policy's files."""
    bounds = command_ranges(robot)
    return RobotFacts(
        robot=robot.name,
        joint_names=robot.joint_names,
        **{name: tuple(getattr(robot, name).tolist()) for name in JOINT_ARRAYS},
        action_scale_rad=robot.action_scale_rad,
        action_limit=MAX_ACTION,
        target_margin_rad=TARGET_MARGIN_RAD,
        control_dt_s=CONTROL_DT_S,
        decimation=DECIMATION,
        observation={
            name: FieldFacts(start, stop, FIELD_UNITS[name], FIELD_MEANINGS[name])
            for name, (start, stop) in POLICY_SLICES.items()
        },
        command=tuple(
            CommandFacts(name, unit, low, high)
            for name, unit, (low, high) in zip(COMMAND_NAMES, COMMAND_UNITS, bounds, strict=True)
        ),
    )


def _read(run: Path, which: str) -> tuple[PolicyNetwork, Mapping[str, Any], str]:
    """The policy, its card, and the hash of the file that both are in."""
    tensors, card = read_checkpoint(run, which)
    sha256 = sha256_file(run / KEPT[which])
    if read_checkpoint(run, which)[1] != card:
        raise ValueError(f"{run} is being trained and has just saved a checkpoint; export it again")
    try:
        return policy_from(tensors, card), card, sha256
    except ValueError as error:
        raise ValueError(f"{run}: {error}") from error
