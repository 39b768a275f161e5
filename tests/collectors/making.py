"""Robots, starts, draws, episodes and policies that several tests share."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collectors.legged.episodes import EpisodeSpec
from collectors.legged.rewards import StepView
from collectors.physics.contract.scene import (
    DEFAULT_POSE,
    FIRM_STANCE,
    FLAT,
    LEGS_UP,
    ROBOT,
    STANDING_HEIGHT_M,
    draws_with,
    height_between,
    hold,
    in_the_air,
    start_at,
)
from collectors.policies import Observation
from collectors.robots.robot import N_JOINTS, RobotCard

__all__ = [
    "DEFAULT_POSE",
    "FIRM_STANCE",
    "FLAT",
    "LEGS_UP",
    "ROBOT",
    "SMALL_ROBOT",
    "STANDING_HEIGHT_M",
    "Constant",
    "draws_with",
    "height_between",
    "hold",
    "in_the_air",
    "perfect_view",
    "similar_robot",
    "spec",
    "start_at",
]


def similar_robot(factor: float) -> RobotCard:
    """Aliengo with every length times a factor, as far as commands and passages go."""
    lengths = {
        "foot_radius_m",
        "thigh_offset_m",
        "thigh_length_m",
        "calf_length_m",
        "nominal_height_m",
        "width_m",
    }
    shorter: dict[str, Any] = {name: factor * getattr(ROBOT, name) for name in lengths}
    for name in ("hip_offset_m", "trunk_half_size_m"):
        shorter[name] = tuple(factor * length for length in getattr(ROBOT, name))
    return replace(ROBOT, name="similar", **shorter)


SMALL_ROBOT = similar_robot(0.8)
"""With legs of 0.4 m, like A1's."""


def spec(index: int = 0, seed: int = 0, **changes: Any) -> EpisodeSpec:
    """An episode, by default running on flat ground."""
    return replace(EpisodeSpec(index, "flat", 0, "run", seed), **changes)


@dataclass
class Constant:
    """A policy that always answers the same action."""

    value: float = 0.0
    name: str = "constant"

    def reset(self, ids: np.ndarray) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> np.ndarray:
        """(N, 12) float32."""
        return np.full((len(observation.policy), N_JOINTS), self.value, dtype=np.float32)


def perfect_view(command: np.ndarray) -> StepView:
    """One robot that does exactly what a command (16,) asks, at no effort."""
    rows = np.zeros((1, N_JOINTS))
    gravity = np.array([[0.0, 0.0, -1.0]])
    return StepView(
        robot=ROBOT,
        command=command[None],
        lin_vel_body=np.array([[command[0], command[1], 0.0]]),
        lin_vel_heading=command[None, :2],
        yaw_rate=command[2:3],
        ang_vel_body=np.array([[0.0, 0.0, command[2]]]),
        gravity=gravity,
        desired_gravity=gravity.copy(),
        height_m=np.array([ROBOT.nominal_height_m + command[3]]),
        joint_pos=DEFAULT_POSE[None],
        joint_vel=rows,
        joint_torque=rows,
        foot_vel=np.zeros((1, 4, 3)),
        foot_contact=np.ones((1, 4), dtype=bool),
        stance_width_m=command[6:7],
        knee_force_n=np.zeros((1, 4)),
        trunk_force_n=np.zeros(1),
        barrier_force_n=np.zeros(1),
        barrier_body_force_n=np.zeros(1),
        action=rows,
        last_action=rows,
    )
