"""A robot's runtime's configuration against an exported policy: deploy.yaml and rl_sar's files.

Fields and their orders: github.com/unitreerobotics/unitree_rl_lab (deploy/include/isaaclab) and
github.com/fan-ziqi/rl_sar (src/rl_sar/library/core/rl_sdk). In both, arrays over joints are in the
policy's order and a map gives the motor of each; deploy.yaml's gains and base.yaml's names of
joints are in the motors' order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.common.errors import failures, listed
from gaitforge.learners.export.description import RobotFacts
from gaitforge.plugins.robot_runtime.runtimes import rl_sar, unitree_rl_lab
from gaitforge.plugins.robot_runtime.runtimes.configuration import (
    MotorOrder,
    read_yaml,
    target_limits,
)
from gaitforge.plugins.robot_runtime.runtimes.stateless import FRAME_SIZE
from gaitforge.plugins.robot_runtime.sensors.findings import Finding, Report

DEPLOY_TERMS = tuple(unitree_rl_lab.TERMS.values())
RL_SAR_TERMS = tuple(rl_sar.TERMS.values())
_SCALES = ("lin_vel_scale", "ang_vel_scale", "dof_pos_scale", "dof_vel_scale", "commands_scale")
_TOLERANCE = 1e-3
"""Largest difference of numbers that is none: some writers keep three decimals."""
_MOST_BYTES = 1_000_000
_QUATERNION = "order of the quaternion: no field of the file has it; check it with --log"


@dataclass(frozen=True)
class _Policy:
    """A policy's robot, joints in its order; `order` is None where the motors are not named."""

    facts: RobotFacts
    order: MotorOrder | None
    limits: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Of the joints."""
        return self.facts.joint_names

    def by_motor(self, values: np.ndarray) -> np.ndarray:
        """Values by joint in the motors' order."""
        assert self.order is not None
        return values[list(self.order.joint_of_motor)]


def check_config(path: Path, facts: RobotFacts) -> Report:
    """Compare a deploy.yaml, or rl_sar's base.yaml or config.yaml, with an exported policy's robot.

    ValueError for a file that is none of these.
    """
    tree = _read(path)
    order = MotorOrder.of(facts, "the check") if facts.motor_names else None
    policy = _Policy(facts, order, target_limits(facts))
    unjudged = [_QUATERNION]
    if policy.order is None:
        unjudged.insert(0, "order of motors: the robot's card has no motor_names")
    if "joint_ids_map" in tree:
        findings = list(_deploy(tree, policy))
        what = "deploy.yaml of unitree_rl_lab"
    else:
        section = _rl_sar_section(tree, path)
        base = "joint_names" in section
        findings = list(_rl_sar(section, policy, base))
        what = f"{'base' if base else 'config'}.yaml of rl_sar"
    return Report(tuple(findings), (), tuple(unjudged), {"config": str(path), "form": what})


def _read(path: Path) -> dict[str, Any]:
    with failures(f"{path}: it cannot be read", OSError, error=ValueError), path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path}: more than {_MOST_BYTES:,} bytes; {_FORMS}")
    tree = read_yaml(content, str(path))
    if not isinstance(tree, dict):
        raise ValueError(f"{path}: it holds no fields; {_FORMS}")
    return tree


_FORMS = "give deploy.yaml of unitree_rl_lab, or base.yaml or config.yaml of rl_sar"


def _rl_sar_section(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    sections = [value for value in tree.values() if isinstance(value, dict)]
    if len(sections) != 1 or not {"num_of_dofs", "default_dof_pos"} <= sections[0].keys():
        raise ValueError(f"{path}: it is no known configuration; {_FORMS}")
    return sections[0]


# Values.
def _numbers(value: Any, count: int) -> np.ndarray | None:
    """(count,) numbers of a list, or of one number for all; None for anything else."""
    try:
        numbers = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if numbers.ndim == 0:
        numbers = np.full(count, float(numbers))
    return numbers if numbers.shape == (count,) and np.isfinite(numbers).all() else None


def _same(one: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.abs(one - expected) <= _TOLERANCE * np.maximum(1.0, np.abs(expected))


def _missing(field: str, value: Any, count: int) -> Finding:
    text = f"{field} is {value!r}, not {count} numbers"
    return Finding("missing", field, text, evidence={"file": value})


def _by_joint(
    field: str,
    value: Any,
    right: Sequence[float] | np.ndarray,
    policy: _Policy,
    kind: str,
    of_motors: bool = False,
) -> Iterator[Finding]:
    """Compare an array over joints; a known mistake is named.

    right: in the policy's order. of_motors: whether the file's is in the motors' order.
    """
    right = np.array(right)
    values = _numbers(value, len(right))
    if values is None:
        yield _missing(field, value, len(right))
        return
    if of_motors and policy.order is None:
        return
    expected = policy.by_motor(right) if of_motors else right
    names = np.array(policy.names)
    names = policy.by_motor(names) if of_motors else names
    wrong = ~_same(values, expected)
    if not wrong.any():
        return
    evidence = {"file": values.tolist(), "policy": expected.tolist()}
    joints = tuple(names[wrong].tolist())
    known = _known(values, right, policy, of_motors)
    if known:
        yield Finding(known[0], field, f"{field} {known[1]}", joints, evidence=evidence)
        return
    pairs = [
        f"{name} {value:g}, not {target:g}"
        for name, value, target in zip(joints, values[wrong], expected[wrong], strict=True)
    ]
    yield Finding(kind, field, f"{field}: {listed(pairs, 12)}", joints, evidence=evidence)


def _known(
    values: np.ndarray, right: np.ndarray, policy: _Policy, of_motors: bool
) -> tuple[str, str] | None:
    """Kind and words of a mistake that explains all of an array."""
    if policy.order is not None:
        expected = right if of_motors else policy.by_motor(right)
        if _same(values, expected).all():
            words = "is in the motors' order, not in the policy's"
            return "order", "is in the policy's order, not in the motors'" if of_motors else words
    expected = policy.by_motor(right) if of_motors else right
    for factor, words in ((180 / np.pi, "is in degrees, not in rad"), (-1.0, "has wrong signs")):
        if _same(values, expected * factor).all():
            return ("unit" if factor > 0 else "sign"), words
    kinds = values.reshape(3, -1).T.ravel() if len(values) == 12 else values
    if _same(kinds, expected).all():
        return "order", "comes by kind (hips, thighs, calves), not by leg"
    ratios = values[np.abs(expected) > 1e-9] / expected[np.abs(expected) > 1e-9]
    if len(ratios) and np.ptp(ratios) < _TOLERANCE and _same(values, expected * ratios[0]).all():
        return "scale", f"is {ratios[0]:.4g} times the policy's"
    return None


def _motor_map(field: str, value: Any, policy: _Policy) -> Iterator[Finding]:
    """The motor of each of the policy's joints."""
    if policy.order is None:
        return
    right = policy.order.motor_of_joint
    motors = _numbers(value, len(right))
    if motors is None or sorted(motors.tolist()) != sorted(right):
        text = f"{field} is {value!r}, not each of the {len(right)} motors once"
        yield Finding("order", field, text, evidence={"file": value})
        return
    wrong = [k for k, motor in enumerate(right) if motors[k] != motor]
    if not wrong:
        return
    joints = tuple(policy.names[k] for k in wrong)
    pairs = [f"{policy.names[k]} motor {motors[k]:g}, not {right[k]}" for k in wrong]
    text = f"{field}: {listed(pairs, 12)}"
    if np.array_equal(np.argsort(motors), right):
        text = f"{field} has the joint of each motor, not the motor of each joint: {listed(pairs)}"
    evidence = {"file": motors.astype(int).tolist(), "policy": list(right)}
    yield Finding("order", field, text, joints, evidence=evidence)


def _one(field: str, value: Any, right: float, kind: str) -> Iterator[Finding]:
    number = _numbers(value, 1)
    if number is None:
        yield _missing(field, value, 1)
    elif not _same(number, np.array([right]))[0]:
        evidence = {"file": float(number[0]), "policy": right}
        yield Finding(kind, field, f"{field}: {number[0]:g}, not {right:g}", evidence=evidence)


def _terms(field: str, names: Sequence[Any], right: Sequence[str]) -> Iterator[Finding]:
    """The terms of the observation."""
    if list(names) == list(right):
        return
    evidence = {"file": list(names), "policy": list(right)}
    missing = [name for name in right if name not in names]
    unknown = [name for name in names if name not in right]
    if missing or unknown:
        text = f"{field}: it lacks {listed(missing)}; the model does not read {listed(unknown)}"
        yield Finding("term", field, text, evidence=evidence)
        return
    text = f"{field} come as {listed(names)}, not as {listed(right)}"
    yield Finding("order", field, text, evidence=evidence)


def _scale(field: str, value: Any, count: int) -> Iterator[Finding]:
    """A term's scale, which is 1: the policy's normaliser is in the model."""
    scale = _numbers(value, count)
    if scale is None:
        yield _missing(field, value, count)
    elif not _same(scale, np.ones(count)).all():
        text = f"{field}: {listed(f'{x:g}' for x in scale)}, not 1: the normaliser is in the model"
        yield Finding("scale", field, text, evidence={"file": scale.tolist(), "policy": 1.0})


# Files.
def _deploy(tree: dict[str, Any], policy: _Policy) -> Iterator[Finding]:
    """unitree_rl_lab's deploy.yaml."""
    actions = _inner(tree, "actions", "JointPositionAction")
    count = len(policy.names)
    yield from _motor_map("joint_ids_map", tree["joint_ids_map"], policy)
    yield from _one("step_dt", tree.get("step_dt"), policy.facts.control_dt_s, "time")
    facts = policy.facts
    for field, gains in (("stiffness", facts.kp_nm_per_rad), ("damping", facts.kd_nms_per_rad)):
        yield from _by_joint(field, tree.get(field), gains, policy, "gain", of_motors=True)
    default = policy.facts.default_joint_pos_rad
    scale = np.full(count, policy.facts.action_scale_rad)
    yield from _by_joint(
        "default_joint_pos", tree.get("default_joint_pos"), default, policy, "pose"
    )
    yield from _by_joint("actions.scale", actions.get("scale"), scale, policy, "scale")
    yield from _by_joint("actions.offset", actions.get("offset"), default, policy, "pose")
    yield from _limits("actions.clip", actions.get("clip"), policy)
    observations = _inner(tree, "observations")
    yield from _terms("observations", list(observations), DEPLOY_TERMS)
    for name, term in observations.items():
        if name in DEPLOY_TERMS:
            numbers = 3 if DEPLOY_TERMS.index(name) < 3 else count
            scale_of = term.get("scale") if isinstance(term, dict) else None
            yield from _scale(f"observations.{name}.scale", scale_of, numbers)
    lengths = {str(_inner(observations, name).get("history_length")) for name in observations}
    if len(lengths) > 1:
        text = f"history_length differs among terms: {listed(sorted(lengths))}"
        yield Finding("term", "observations", text, evidence={"file": sorted(lengths)})


def _inner(tree: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The mapping in a mapping; empty if there is none."""
    value: Any = tree
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, dict) else {}


def _limits(field: str, clip: Any, policy: _Policy) -> Iterator[Finding]:
    """Limits of joint targets in rad, (12, 2)."""
    if clip is None:
        text = f"{field} is null: nothing limits the joints' targets"
        yield Finding("limit", field, text, policy.names)
        return
    try:
        ends = np.array(clip, dtype=np.float64)
    except (TypeError, ValueError):
        ends = np.zeros(0)
    if ends.shape != policy.limits.shape:
        yield _missing(field, clip, policy.limits.size)
        return
    for side, name in ((0, "lowest"), (1, "highest")):
        yield from _by_joint(
            f"{field}, {name}", ends[:, side], policy.limits[:, side], policy, "limit"
        )


def _rl_sar(section: dict[str, Any], policy: _Policy, base: bool) -> Iterator[Finding]:
    """rl_sar's base.yaml, or a policy's config.yaml."""
    count = len(policy.names)
    default = np.array(policy.facts.default_joint_pos_rad)
    yield from _one("num_of_dofs", section["num_of_dofs"], count, "missing")
    yield from _motor_map("joint_mapping", section.get("joint_mapping"), policy)
    yield from _by_joint("default_dof_pos", section["default_dof_pos"], default, policy, "pose")
    torque = section.get("torque_limits")
    yield from _by_joint("torque_limits", torque, policy.facts.torque_limit_nm, policy, "limit")
    if section.get("wheel_indices"):
        text = f"wheel_indices is {section['wheel_indices']!r}: joints there are driven by velocity"
        yield Finding("limit", "wheel_indices", text, evidence={"file": section["wheel_indices"]})
    if base:
        yield from _rl_sar_base(section, policy)
        return
    yield from _by_joint("rl_kp", section.get("rl_kp"), policy.facts.kp_nm_per_rad, policy, "gain")
    yield from _by_joint("rl_kd", section.get("rl_kd"), policy.facts.kd_nms_per_rad, policy, "gain")
    scale = np.full(count, policy.facts.action_scale_rad)
    yield from _by_joint("action_scale", section.get("action_scale"), scale, policy, "scale")
    actions = (policy.limits - default[:, None]) / policy.facts.action_scale_rad
    for side, name in ((0, "clip_actions_lower"), (1, "clip_actions_upper")):
        yield from _by_joint(name, section.get(name), actions[:, side], policy, "limit")
    terms = section.get("observations")
    yield from _terms("observations", terms if isinstance(terms, list) else [], RL_SAR_TERMS)
    yield from _one("num_observations", section.get("num_observations"), FRAME_SIZE, "term")
    for name in _SCALES:
        yield from _scale(name, section.get(name), 3 if name == "commands_scale" else 1)
    if (
        section.get("observations_history")
        and (priority := section.get("observations_history_priority")) != "time"
    ):
        text = f"observations_history_priority is {priority!r}, not 'time'"
        yield Finding("order", "observations", text, evidence={"file": priority, "policy": "time"})


def _rl_sar_base(section: dict[str, Any], policy: _Policy) -> Iterator[Finding]:
    """What base.yaml alone has: times, and names in the motors' order."""
    step_s = policy.facts.control_dt_s / policy.facts.decimation
    yield from _one("dt", section.get("dt"), step_s, "time")
    yield from _one("decimation", section.get("decimation"), policy.facts.decimation, "time")
    if policy.order is None:
        return
    right = policy.by_motor(np.array(policy.names)).tolist()
    names = section["joint_names"]
    if names == right:
        return
    evidence = {"file": names, "policy": right}
    if names == list(policy.names):
        text = "joint_names are in the policy's order, not in the motors'"
    else:
        there = listed(names if isinstance(names, list) else [])
        text = f"joint_names are {there}, not {listed(right)}"
    yield Finding("order", "joint_names", text, tuple(right), evidence=evidence)
