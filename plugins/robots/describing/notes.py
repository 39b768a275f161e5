"""The user's answers, decisions, and open questions while a robot is described."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gaitforge.collectors.robots.robot import (
    JOINTS_OF_A_LEG,
    JOINTS_PER_LEG,
    LEGS,
    N_LEGS,
    RobotError,
)


@dataclass(frozen=True)
class Answers:
    """The user's options for a robot; the file's values stand in for missing ones.

    Keys of joint values are joint names, or hip, thigh and calf for every leg.

    Attributes:
        weld: names of joints to fix at their angles in the file's key frame or initial pose.
        limits: lowest and highest angle in rad.
        trunk_half_size_m: a box that replaces the trunk's shapes.
        leave_out_meshes: go on without colliding meshes whose files are missing.
    """

    name: str | None = None
    weld: tuple[str, ...] = ()
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    torque_nm: Mapping[str, float] = field(default_factory=dict)
    pose_rad: Mapping[str, float] = field(default_factory=dict)
    knees: str | None = None
    kp: Mapping[str, float] = field(default_factory=dict)
    kd: Mapping[str, float] = field(default_factory=dict)
    armature: Mapping[str, float] = field(default_factory=dict)
    damping: Mapping[str, float] = field(default_factory=dict)
    trunk_half_size_m: tuple[float, float, float] | None = None
    leave_out_meshes: bool = False


@dataclass(frozen=True)
class Decision:
    """One decided value and its source."""

    what: str
    value: str
    source: str


class Notes:
    """Decisions in order, and the options that the user still has to give."""

    def __init__(self, file: str, answers: Answers):
        self.file = file
        self.answers = answers
        self.decisions: list[Decision] = []
        self._questions: list[str] = []

    def decide(self, what: str, value: str, source: str) -> None:
        """Note a decision."""
        self.decisions.append(Decision(what, value, source))

    def ask(self, option: str) -> None:
        """Note an option that has to be given, with the form of its value."""
        self._questions.append(option)

    def raise_questions(self) -> None:
        """RobotError that lists the options to give, if there are any."""
        if self._questions:
            raise self.wrong(f"it does not say everything; give {' '.join(self._questions)}")

    def wrong(self, message: str) -> RobotError:
        """An error about the file, to raise."""
        return RobotError(f"{self.file}: {message}")


def as_argument(name: str) -> str:
    """A name, quoted for the shell and for comma-separated options."""
    quoted = '"' + name.replace('"', '""') + '"'
    return shlex.quote(quoted if set(name) & {",", '"'} else name)


def joint_values(
    option: str, answers: Mapping[str, float], joint_names: tuple[str, ...]
) -> np.ndarray:
    """(12,) answers by joint, NaN where there is none; a joint's own replaces its kind's."""
    unknown = sorted(set(answers) - {*JOINTS_OF_A_LEG, *joint_names})
    if unknown:
        raise RobotError(
            f"{option} names {', '.join(unknown)}; allowed: {', '.join(JOINTS_OF_A_LEG)}, or a "
            f"joint's own name: {', '.join(joint_names)}"
        )
    kinds = JOINTS_OF_A_LEG * N_LEGS
    values = [
        answers.get(name, answers.get(kind, np.nan))
        for name, kind in zip(joint_names, kinds, strict=True)
    ]
    return np.array(values, dtype=np.float64)


def joints_of(mask: np.ndarray, joint_names: tuple[str, ...]) -> list[str]:
    """Joints where a mask (12,) is true: a kind where it is for all legs, else the joint's name."""
    kinds = [kind for k, kind in enumerate(JOINTS_OF_A_LEG) if mask[k::JOINTS_PER_LEG].all()]
    single_joints = [
        as_argument(name)
        for i, name in enumerate(joint_names)
        if mask[i] and JOINTS_OF_A_LEG[i % JOINTS_PER_LEG] not in kinds
    ]
    return kinds + single_joints


def shown(values: np.ndarray) -> str:
    """Numbers of joints (12,) as text, equal ones written once."""
    legs = values.reshape(N_LEGS, JOINTS_PER_LEG)
    if np.ptp(values) == 0:
        return f"{values[0]:g}"
    if (np.ptp(legs, axis=0) == 0).all():
        return ", ".join(f"{k} {v:g}" for k, v in zip(JOINTS_OF_A_LEG, legs[0], strict=True))
    rows = (" ".join(f"{value:g}" for value in leg) for leg in legs)
    return ", ".join(f"{name} {row}" for name, row in zip(LEGS, rows, strict=True))
