"""Robot cards: the facts about a legged robot that the task needs beside its MJCF."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ASSETS = Path(__file__).parent / "assets"
N_LEGS = 4
JOINTS_PER_LEG = 3
N_JOINTS = N_LEGS * JOINTS_PER_LEG


@dataclass(frozen=True)
class RobotCard:
    """A quadruped with three joints a leg: hip roll, thigh pitch, calf pitch.

    Legs are in the order FL, FR, RL, RR. Arrays have shape (12,) in `joint_names` order. Lengths in
    m, angles in rad, torques in Nm.
    """

    name: str
    mjcf_path: Path
    source: str
    legs: tuple[str, ...]
    joint_names: tuple[str, ...]
    default_joint_pos_rad: np.ndarray
    joint_lower_rad: np.ndarray
    joint_upper_rad: np.ndarray
    kp_nm_per_rad: float
    kd_nms_per_rad: float
    torque_limit_nm: np.ndarray
    action_scale_rad: float
    mass_kg: float
    foot_radius_m: float
    hip_offset_m: tuple[float, float]
    thigh_offset_m: float
    thigh_length_m: float
    calf_length_m: float
    nominal_height_m: float

    @property
    def leg_signs(self) -> np.ndarray:
        """(4, 2): +1 for front and -1 for rear legs; +1 for left and -1 for right legs."""
        return np.array(
            [[1.0 if leg[0] == "F" else -1.0, 1.0 if leg[1] == "L" else -1.0] for leg in self.legs]
        )

    @property
    def hip_positions_m(self) -> np.ndarray:
        """(4, 3): hip joint origins in the trunk frame."""
        xy = self.leg_signs * np.array(self.hip_offset_m)
        return np.concatenate([xy, np.zeros((N_LEGS, 1))], axis=1)


_PER_JOINT = ("default_joint_pos_rad", "joint_lower_rad", "joint_upper_rad", "torque_limit_nm")
_PER_ROBOT = (
    "kp_nm_per_rad",
    "kd_nms_per_rad",
    "action_scale_rad",
    "mass_kg",
    "foot_radius_m",
    "thigh_offset_m",
    "thigh_length_m",
    "calf_length_m",
    "nominal_height_m",
)


def load_robot(name: str = "aliengo") -> RobotCard:
    """Load a shipped robot card by name.

    Raises:
        ValueError: no such robot, or a card whose numbers contradict each other.
    """
    known = sorted(p.parent.name for p in ASSETS.glob("*/robot.json"))
    if name not in known:
        raise ValueError(f"unknown robot '{name}'; available robots: {', '.join(known)}")
    folder = ASSETS / name
    raw = json.loads((folder / "robot.json").read_text())
    per_joint: dict[str, Any] = {key: np.array(raw[key], dtype=np.float64) for key in _PER_JOINT}
    per_robot: dict[str, Any] = {key: float(raw[key]) for key in _PER_ROBOT}
    card = RobotCard(
        name=raw["name"],
        mjcf_path=folder / raw["mjcf"],
        source=raw["source"],
        legs=tuple(raw["legs"]),
        joint_names=tuple(raw["joint_names"]),
        hip_offset_m=(raw["hip_offset_m"][0], raw["hip_offset_m"][1]),
        **per_joint,
        **per_robot,
    )
    check_robot(card)
    return card


def check_robot(card: RobotCard) -> None:
    """Raise ValueError where the card contradicts itself."""
    if len(card.joint_names) != N_JOINTS or len(card.legs) != N_LEGS:
        raise ValueError(
            f"robot '{card.name}' has {len(card.joint_names)} joints on {len(card.legs)} legs; "
            f"a card needs {N_JOINTS} joints on {N_LEGS} legs"
        )
    for key in _PER_JOINT:
        if getattr(card, key).shape != (N_JOINTS,):
            raise ValueError(f"robot '{card.name}': {key} needs {N_JOINTS} numbers")
    inside = (card.default_joint_pos_rad >= card.joint_lower_rad) & (
        card.default_joint_pos_rad <= card.joint_upper_rad
    )
    if not inside.all():
        joint = card.joint_names[int(np.argmin(inside))]
        raise ValueError(
            f"robot '{card.name}': the default position of {joint} is outside its limits"
        )
