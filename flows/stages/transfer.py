"""Data of other projects brought into a store, and policies carried to a robot's program."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gaitforge.collectors.legged.environment import MAX_ACTION, TARGET_MARGIN_RAD
from gaitforge.collectors.legged.observations import FIELD_MEANINGS, FIELD_UNITS, POLICY_SLICES
from gaitforge.collectors.robots.kinematics import COMMAND_NAMES, COMMAND_UNITS
from gaitforge.collectors.robots.robot import (
    N_JOINTS,
    ROBOTS,
    SEVERAL,
    RobotCard,
    body_vector,
    is_robot,
    list_robots,
    load_robot,
    robots_attribute,
)
from gaitforge.collectors.scenarios.schedules import ranges_of_commands
from gaitforge.collectors.timing import CONTROL_DT_S, SUBSTEP_S
from gaitforge.common.errors import DatasetError, amount
from gaitforge.common.files import sha256_file
from gaitforge.datasets import Schema
from gaitforge.datasets.data_checks import DATA_CHECKS, SAMPLE_STEPS, DataCheck
from gaitforge.datasets.dataset import open_store
from gaitforge.datasets.formats import find_format, importer_class
from gaitforge.datasets.formats.protocol import Report
from gaitforge.datasets.formats.transfer.importing import WORKERS, import_source
from gaitforge.flows.progress import Reporter, begun_later
from gaitforge.flows.records.logs import log_event
from gaitforge.flows.records.part_records import records_folder
from gaitforge.flows.records.plans import PLAN, plan_from_tree
from gaitforge.flows.records.records import digest, provenance, read_record, write_record
from gaitforge.flows.tasks.policy_sources import data_of, observed, run_source, trained_robot
from gaitforge.learners.checkpoint import policy_from, read_checkpoint
from gaitforge.learners.export.description import CommandFacts, FieldFacts, RobotFacts
from gaitforge.learners.export.export import ExportResult, PolicyExportOptions, export_policy
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.run_files import KEPT

# Data of other projects brought into a store.
JOINT_FIELDS = ("joint_vel", "sin_joint_pos", "cos_joint_pos", "last_action")
"""Fields of a legged robot's observation with a number for each joint."""

_SAME_DT_S = 1e-6


@dataclass(frozen=True)
class ImportPlan:
    """What to import, and how.

    Attributes:
        format: a name in `gaitforge.datasets.formats.FORMATS`.
        options: of the format's reader; absent ones have its defaults.
        workers: threads that read and write parts.
        drop_nan: leave out episodes with NaN or infinity.
        robot: the legged robot of the episodes, a name or a path; empty for what the source says.
    """

    format: str
    options: Mapping[str, object] = field(default_factory=dict)
    workers: int = WORKERS
    drop_nan: bool = False
    robot: str = ""

    def __post_init__(self) -> None:
        find_format(self.format)
        if self.workers < 1:
            raise ValueError(f"{self.workers} workers: at least 1 is needed")


def run_import(
    plan: ImportPlan, source: Path | str, store: Path | str, reporter: Reporter
) -> Report:
    """Import a source into a store; interrupted, the same call imports the missing parts.

    The report's notes end with what the installed checks of data see in a sample of the store.

    Raises:
        ValueError: an unknown option, packages that are not installed, or a source, store or robot
            that does not fit, in one line that names file and key; nothing was imported.
    """
    options = plan_from_tree(importer_class(plan.format).Options, dict(plan.options))
    arguments = (plan.format, source, store, asdict(options))
    settings: dict[str, Any] = {"workers": plan.workers, "drop_nan": plan.drop_nan}
    if plan.robot:
        settings["described"] = partial(_of_robot, load_robot(plan.robot), str(source))
    checks = list(DATA_CHECKS.usable().values())
    with begun_later(reporter, "import") as begin:
        report = import_source(*arguments, begin, **settings)
    notes = (*report.carried.notes, *_notes(checks, store))
    if plan.robot:
        notes = (*notes, _robot_note(open_store(store).schema))
    carried = replace(report.carried, notes=notes)
    report = replace(report, carried=carried)
    records = records_folder(store)
    record = {"plan": asdict(plan), "report": asdict(report), **provenance()}
    write_record(records / f"import-{digest([plan, report.source])}.json", record)
    log_event(records, "info", "imported", format=plan.format, steps=report.steps)
    return report


def _of_robot(robot: RobotCard, source: str, schema: Schema) -> Schema:
    """A source's schema with its robot, whose card and MJCF it keeps unless the robot ships.

    Raises:
        DatasetError: the source is of another robot, or of another number of joints.
    """
    known = schema.robot in list_robots() or ROBOTS in schema.attributes
    if known and schema.robot != robot.name:
        raise DatasetError(f"{source} is of the robot {schema.robot}, not of {robot.name}")
    slices = {f"obs/{name}": span for name, span in schema.field("obs").slices.items()}
    widths = {name: stop - start for name, (start, stop) in slices.items()}
    joints = {name: widths[name] for name in map("obs/{}".format, JOINT_FIELDS) if name in widths}
    shape = schema.field("action").shape
    for name, width in {"action": shape[-1] if shape else 1, **joints}.items():
        if width != N_JOINTS:
            problem = f"{amount(width, 'number')} a step, and {robot.name} has {N_JOINTS} joints"
            raise DatasetError(f"{source}: {name} has {problem}")
    own = {} if robot.name in list_robots() else {ROBOTS: robots_attribute([robot])}
    return replace(schema, robot=robot.name, attributes={**schema.attributes, **own})


def _robot_note(schema: Schema) -> str:
    """What can be done with policies that learn from a robot's imported data, in words."""
    slices = schema.field("obs").slices
    wanted = ",".join(POLICY_SLICES)
    if slices == POLICY_SLICES and abs(schema.control_dt_s - CONTROL_DT_S) < _SAME_DT_S:
        return f"policies are evaluated, and exported, as those of {schema.robot}"
    if slices == POLICY_SLICES:
        return (
            f"a step is {schema.control_dt_s:g} s, and evaluation controls {schema.robot} every "
            f"{CONTROL_DT_S:g} s: set control_dt_s, if that is wrong"
        )
    return f"policies cannot be evaluated on {schema.robot}: for that obs has to be {wanted}"


def _notes(checks: Sequence[DataCheck], store: Path | str) -> list[str]:
    """What checks see in a sample of a store, and the commands that examine all of it."""
    selection = open_store(store).select()
    notes: list[str] = []
    for check in checks:
        findings = check.of_sample(selection, SAMPLE_STEPS)
        notes += [finding.line for finding in findings]
        if findings:
            notes.append(f"{check.command} {store} examines all of it")
    return notes


# Policies carried to a robot's program.
_NO_CARD = "policy.json has null for control, command, and the observation's units and meanings"
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
    run = run_source(run).folder
    policy, card, sha256 = _read(run, plan.checkpoint)
    progress = card.get("progress") or {}
    if not card.get("finished", True) and plan.checkpoint == "last":
        reporter.say(
            f"{run.name} is unfinished: exporting its last checkpoint, step {progress.get('step')}"
        )
    trained = read_record(run / PLAN) or {}
    robot, lack = _robot_of(plan, run, policy)
    if robot is not None and policy.layout.body_fields:
        policy.drive(body_vector(robot))
    note = f"{lack}: {_NO_CARD}" if robot is None else ""
    facts = (
        None
        if robot is None
        else robot_facts(robot, trained.get("control_dt_s"), _manoeuvres(trained))
    )
    source = {
        "run": run.resolve().name,
        "checkpoint": plan.checkpoint,
        "checkpoint_sha256": sha256,
        "step": progress.get("step"),
        "objective": (card.get("train_config") or {}).get("objective", ""),
        "trained_by_revision": card.get("git_revision", ""),
        "store": trained.get("store", ""),
        "format": trained.get("format"),
        "control_dt_s": trained.get("control_dt_s"),
        "task": trained.get("task"),
        "evaluation": _without_paths(trained.get("evaluation")),
        "dataset_version": trained.get("dataset", ""),
        "schema_version": trained.get("schema_version"),
        "dataset_hash": card.get("dataset_hash", ""),
        "exported_by": provenance(),
    }
    return export_policy(policy, card, facts, dst, plan.options, source, note, robot)


def _manoeuvres(trained: Mapping[str, Any]) -> Sequence[str]:
    """The manoeuvres of the commands that a run's record says its policy is evaluated with."""
    evaluation = trained.get("evaluation")
    grid = evaluation.get("grid") if isinstance(evaluation, dict) else None
    return grid.get("manoeuvres", ()) if isinstance(grid, dict) else ()


def _without_paths(evaluation: Any) -> Any:
    """A run's evaluation as an export tells it: its robot's path is of this machine."""
    if not isinstance(evaluation, dict) or "robot" not in evaluation:
        return evaluation
    return {**evaluation, "robot": ""}


def _robot_of(plan: ExportPlan, run: Path, policy: PolicyNetwork) -> tuple[RobotCard | None, str]:
    """The robot that a policy drives; or None, and why no robot's card describes the policy.

    Raises:
        ValueError: the policy is of several robots, or not of the one that the plan names.
    """
    fits = policy.layout.stored_slices == POLICY_SLICES and policy.act_dim == N_JOINTS
    if not fits and plan.robot:
        raise ValueError(
            f"{run} learned {observed(policy)} -> {policy.act_dim} actions from {data_of(run)}, "
            f"and a legged robot's policy reads {', '.join(POLICY_SLICES)}; export it without "
            "--robot"
        )
    if not fits:
        return None, f"{data_of(run)} holds no data of a legged robot's task"
    trained_for = trained_robot(run)
    if trained_for == SEVERAL and not plan.robot:
        raise ValueError(f"{run} drives several robots; name one: --robot aliengo")
    if not plan.robot and not is_robot(trained_for):
        return None, f"no robot '{trained_for}' is here; --robot names one"
    return load_robot(plan.robot or trained_for), ""


def robot_facts(
    robot: RobotCard, control_dt_s: float | None = None, manoeuvres: Sequence[str] = ()
) -> RobotFacts:
    """The facts about the robot and its control loop in a policy's files.

    control_dt_s: seconds of a step of the data; by default the task's. manoeuvres: of the commands
    that its policy has met, see `schedules`.
    """
    bounds = ranges_of_commands(robot, manoeuvres)
    step_s = control_dt_s or CONTROL_DT_S
    return RobotFacts(
        robot=robot.name,
        joint_names=robot.joint_names,
        **{name: tuple(getattr(robot, name).tolist()) for name in JOINT_ARRAYS},
        action_scale_rad=robot.action_scale_rad,
        action_limit=MAX_ACTION,
        target_margin_rad=TARGET_MARGIN_RAD,
        control_dt_s=step_s,
        decimation=max(1, round(step_s / SUBSTEP_S)),
        observation={
            name: FieldFacts(start, stop, FIELD_UNITS[name], FIELD_MEANINGS[name])
            for name, (start, stop) in POLICY_SLICES.items()
        },
        command=tuple(
            CommandFacts(name, unit, low, high)
            for name, unit, (low, high) in zip(COMMAND_NAMES, COMMAND_UNITS, bounds, strict=True)
        ),
        motor_names=robot.motor_names,
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
