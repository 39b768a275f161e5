"""What configuration files of robots' runtimes have in common: joint orders, limits, YAML."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gaitforge.common.errors import missing_package
from gaitforge.flows.stages.transfer import JOINT_ARRAYS
from gaitforge.learners.export.description import RobotFacts


@dataclass(frozen=True)
class MotorOrder:
    """Two orders of a robot's joints: the policy's, and that of the robot's motors.

    Attributes:
        motor_of_joint: the motor's number of each of the policy's joints.
        joint_of_motor: the number of the policy's joint of each motor.
    """

    motor_of_joint: tuple[int, ...]
    joint_of_motor: tuple[int, ...]

    @classmethod
    def of(cls, facts: RobotFacts, runtime: str) -> "MotorOrder":
        """A robot's orders; ValueError if its card does not name the motors."""
        motors = facts.motor_names
        if not motors:
            raise ValueError(
                f"{runtime} counts joints as the robot's motors do, and the card of {facts.robot} "
                'has no "motor_names": name the joints there in the order of the motors'
            )
        joints = facts.joint_names
        return cls(
            tuple(motors.index(name) for name in joints),
            tuple(joints.index(name) for name in motors),
        )

    def by_motor(self, values: Sequence[Any]) -> list[Any]:
        """A value for each joint, in the order of the motors."""
        return [values[joint] for joint in self.joint_of_motor]


def described_robot(control: Any) -> RobotFacts:
    """The robot of an exported policy, from `control` of policy.json; its fields are left out.

    Raises:
        ValueError: none is there, or damaged entries.
    """
    if control is None:
        raise ValueError("the policy is of no known robot")
    damaged = ValueError("the robot in policy.json is damaged; export the policy again")
    try:
        entries: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in control.items()
        }
        facts = RobotFacts(**entries, observation={}, command=())
        by_joint = np.array([entries[name] for name in JOINT_ARRAYS], np.float64)
        single = np.array([entries[name] for name in _SINGLE], np.float64)
        sound = by_joint.shape == (len(JOINT_ARRAYS), len(facts.joint_names))
        sound &= bool(np.isfinite(by_joint).all() and single.ndim == 1 and (single >= 0).all())
        sound &= set(facts.motor_names) in (set(), set(facts.joint_names))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damaged from None
    if not sound:
        raise damaged
    return facts


_SINGLE = ("action_scale_rad", "action_limit", "target_margin_rad", "control_dt_s", "decimation")


def target_limits(facts: RobotFacts) -> np.ndarray:
    """(A, 2) the lowest and highest joint target in rad, as the product sends it.

    The limits of the clipped action, within the joint's limits widened by the margin.
    """
    default = np.array(facts.default_joint_pos_rad)
    reach = facts.action_scale_rad * facts.action_limit
    lower = np.array(facts.joint_lower_rad) - facts.target_margin_rad
    upper = np.array(facts.joint_upper_rad) + facts.target_margin_rad
    return np.stack([np.maximum(lower, default - reach), np.minimum(upper, default + reach)], 1)


_DIGITS = 9
"""Significant digits of a number: float32, which the runtimes read, has 9 at most."""


_PLAIN = re.compile(
    r"(?!(?:null|true|false|yes|no|on|off|y|n)$)[a-z_]\w*(/\w+)?", re.ASCII | re.IGNORECASE
)
"""Keys that need no quotes; YAML 1.1 reads the words here as other values."""


def yaml_text(tree: Mapping[str, Any], comments: Sequence[str] = ()) -> bytes:
    """A tree as YAML, lists on one line, after comments of a line each.

    Values are mappings, lists, numbers, None, or texts of characters below U+10000.
    """
    lines = [f"# {comment}" for comment in comments]
    lines += _lines(tree, "")
    return ("\n".join(lines) + "\n").encode()


def _lines(tree: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for name, value in tree.items():
        key = name if _PLAIN.fullmatch(name) else json.dumps(name)
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{key}:")
            lines += _lines(value, indent + "  ")
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        return _number(float(f"{value:.{_DIGITS}g}"))
    return json.dumps(value)


def _number(value: float) -> str:
    """A number with a point, without which YAML reads 1e-05 as a text and 1 as a whole number."""
    digits, _, exponent = repr(value).partition("e")
    point = "" if "." in digits else ".0"
    return f"{digits}{point}{'e' if exponent else ''}{exponent}"


def read_yaml(content: bytes, name: str) -> Any:
    """A YAML file's tree; ValueError for a file that cannot be read, or without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise ValueError(missing_package(f"reading {name}", "PyYAML", "robots")) from None
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise ValueError(f"{name}: it cannot be read as YAML: {words}") from None
