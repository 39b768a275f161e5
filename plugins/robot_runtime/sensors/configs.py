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

from gaitforge.common.errors import failures, listed, missing_package
from gaitforge.plugins.robot_runtime.sensors.findings import Finding, Report

DEPLOY_TERMS = (
    "base_ang_vel",
    "projected_gravity",
    "velocity_commands",
    "joint_pos_rel",
    "joint_vel_rel",
    "last_action",
)
"""Terms of unitree_rl_lab that the exported model reads, in its order."""
RL_SAR_TERMS = ("ang_vel", "gravity_vec", "commands", "dof_pos", "dof_vel", "actions")
"""Terms of rl_sar that the exported model reads, in its order."""
_SCALES = ("lin_vel_scale", "ang_vel_scale", "dof_pos_scale", "dof_vel_scale", "commands_scale")
_TOLERANCE = 1e-3
"""Largest difference of numbers that is none: some writers keep three decimals."""
_FRAME = 45
"""Numbers of an observation of one time: 3 x 3 and 3 x 12."""
_QUATERNION = "order of the quaternion: no field of the file has it; check it with --log"


@dataclass(frozen=True)
class PolicyFacts:
    """What a policy's description says of its robot and control loop, joints in its order.

    Attributes:
        limits: (12, 2) rad, lowest and highest joint target that the policy's program sends.
        motors: motor of each joint; None where the robot's card does not name the motors.
    """

    joint_names: tuple[str, ...]
    default: np.ndarray
    kp: np.ndarray
    kd: np.ndarray
    torque: np.ndarray
    limits: np.ndarray
    scale: float
    control_dt_s: float
    decimation: int
    motors: tuple[int, ...] | None

    @classmethod
    def of(cls, control: Mapping[str, Any]) -> "PolicyFacts":
        """From `control` of policy.json."""
        names = tuple(control["joint_names"])
        order = tuple(control.get("motor_names") or ())
        default = np.array(control["default_joint_pos_rad"])
        reach = control["action_scale_rad"] * control["action_limit"]
        margin = control["target_margin_rad"]
        lower = np.maximum(np.array(control["joint_lower_rad"]) - margin, default - reach)
        upper = np.minimum(np.array(control["joint_upper_rad"]) + margin, default + reach)
        return cls(
            names,
            default,
            np.array(control["kp_nm_per_rad"]),
            np.array(control["kd_nms_per_rad"]),
            np.array(control["torque_limit_nm"]),
            np.stack([lower, upper], axis=1),
            float(control["action_scale_rad"]),
            float(control["control_dt_s"]),
            int(control["decimation"]),
            tuple(order.index(name) for name in names) if order else None,
        )

    def by_motor(self, values: np.ndarray) -> np.ndarray:
        """Values by joint in the motors' order."""
        assert self.motors is not None
        return values[np.argsort(self.motors)]


def check_config(path: Path, control: Mapping[str, Any]) -> Report:
    """Compare a deploy.yaml, or rl_sar's base.yaml or config.yaml, with `control` of policy.json.

    ValueError for a file that is none of these.
    """
    tree = _read(path)
    policy = PolicyFacts.of(control)
    unjudged = [_QUATERNION]
    if policy.motors is None:
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
    try:
        import yaml
    except ImportError:
        raise ValueError(missing_package("--config", "PyYAML", "robots")) from None
    with failures(f"{path}: it cannot be read", OSError, UnicodeDecodeError, error=ValueError):
        text = path.read_text(encoding="utf-8")
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: it cannot be read as YAML: {error}") from None
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
    right: np.ndarray,
    policy: PolicyFacts,
    kind: str,
    of_motors: bool = False,
) -> Iterator[Finding]:
    """Compare an array over joints; a known mistake is named.

    right: in the policy's order. of_motors: whether the file's is in the motors' order.
    """
    values = _numbers(value, len(right))
    if values is None:
        yield _missing(field, value, len(right))
        return
    if of_motors and policy.motors is None:
        return
    expected = policy.by_motor(right) if of_motors else right
    names = np.array(policy.joint_names)
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
    values: np.ndarray, right: np.ndarray, policy: PolicyFacts, of_motors: bool
) -> tuple[str, str] | None:
    """Kind and words of a mistake that explains all of an array."""
    if policy.motors is not None:
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


def _motor_map(field: str, value: Any, policy: PolicyFacts) -> Iterator[Finding]:
    """The motor of each of the policy's joints."""
    if policy.motors is None:
        return
    motors = _numbers(value, len(policy.motors))
    if motors is None or sorted(motors.tolist()) != sorted(policy.motors):
        text = f"{field} is {value!r}, not each of the {len(policy.motors)} motors once"
        yield Finding("order", field, text, evidence={"file": value})
        return
    wrong = [k for k, motor in enumerate(policy.motors) if motors[k] != motor]
    if not wrong:
        return
    joints = tuple(policy.joint_names[k] for k in wrong)
    pairs = [f"{policy.joint_names[k]} motor {motors[k]:g}, not {policy.motors[k]}" for k in wrong]
    text = f"{field}: {listed(pairs, 12)}"
    if np.array_equal(np.argsort(motors), policy.motors):
        text = f"{field} has the joint of each motor, not the motor of each joint: {listed(pairs)}"
    evidence = {"file": motors.astype(int).tolist(), "policy": list(policy.motors)}
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
def _deploy(tree: dict[str, Any], policy: PolicyFacts) -> Iterator[Finding]:
    """unitree_rl_lab's deploy.yaml."""
    actions = _inner(tree, "actions", "JointPositionAction")
    count = len(policy.joint_names)
    yield from _motor_map("joint_ids_map", tree["joint_ids_map"], policy)
    yield from _one("step_dt", tree.get("step_dt"), policy.control_dt_s, "time")
    for field, gains in (("stiffness", policy.kp), ("damping", policy.kd)):
        yield from _by_joint(field, tree.get(field), gains, policy, "gain", of_motors=True)
    default = policy.default
    scale = np.full(count, policy.scale)
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


def _limits(field: str, clip: Any, policy: PolicyFacts) -> Iterator[Finding]:
    """Limits of joint targets in rad, (12, 2)."""
    if clip is None:
        text = f"{field} is null: nothing limits the joints' targets"
        yield Finding("limit", field, text, policy.joint_names)
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


def _rl_sar(section: dict[str, Any], policy: PolicyFacts, base: bool) -> Iterator[Finding]:
    """rl_sar's base.yaml, or a policy's config.yaml."""
    count = len(policy.joint_names)
    yield from _one("num_of_dofs", section["num_of_dofs"], count, "missing")
    yield from _motor_map("joint_mapping", section.get("joint_mapping"), policy)
    yield from _by_joint(
        "default_dof_pos", section["default_dof_pos"], policy.default, policy, "pose"
    )
    torque = section.get("torque_limits")
    yield from _by_joint("torque_limits", torque, policy.torque, policy, "limit")
    if section.get("wheel_indices"):
        text = f"wheel_indices is {section['wheel_indices']!r}: joints there are driven by velocity"
        yield Finding("limit", "wheel_indices", text, evidence={"file": section["wheel_indices"]})
    if base:
        yield from _rl_sar_base(section, policy)
        return
    yield from _by_joint("rl_kp", section.get("rl_kp"), policy.kp, policy, "gain")
    yield from _by_joint("rl_kd", section.get("rl_kd"), policy.kd, policy, "gain")
    scale = np.full(count, policy.scale)
    yield from _by_joint("action_scale", section.get("action_scale"), scale, policy, "scale")
    actions = (policy.limits - policy.default[:, None]) / policy.scale
    for side, name in ((0, "clip_actions_lower"), (1, "clip_actions_upper")):
        yield from _by_joint(name, section.get(name), actions[:, side], policy, "limit")
    terms = section.get("observations")
    yield from _terms("observations", terms if isinstance(terms, list) else [], RL_SAR_TERMS)
    yield from _one("num_observations", section.get("num_observations"), _FRAME, "term")
    for name in _SCALES:
        yield from _scale(name, section.get(name), 3 if name == "commands_scale" else 1)
    if (
        section.get("observations_history")
        and (priority := section.get("observations_history_priority")) != "time"
    ):
        text = f"observations_history_priority is {priority!r}, not 'time'"
        yield Finding("order", "observations", text, evidence={"file": priority, "policy": "time"})


def _rl_sar_base(section: dict[str, Any], policy: PolicyFacts) -> Iterator[Finding]:
    """What base.yaml alone has: times, and names in the motors' order."""
    yield from _one("dt", section.get("dt"), policy.control_dt_s / policy.decimation, "time")
    yield from _one("decimation", section.get("decimation"), policy.decimation, "time")
    if policy.motors is None:
        return
    right = policy.by_motor(np.array(policy.joint_names)).tolist()
    names = section["joint_names"]
    if names == right:
        return
    evidence = {"file": names, "policy": right}
    if names == list(policy.joint_names):
        text = "joint_names are in the policy's order, not in the motors'"
    else:
        there = listed(names if isinstance(names, list) else [])
        text = f"joint_names are {there}, not {listed(right)}"
    yield Finding("order", "joint_names", text, tuple(right), evidence=evidence)
