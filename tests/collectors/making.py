"""Robots, starts, draws, episodes and policies that several tests share."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from collectors.legged.episodes import EpisodeSpec
from collectors.legged.geometry import Geometry
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
from collectors.physics.interface import PhysicsState
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
    "changed_view",
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


def changed_view(view: StepView, **changes: np.ndarray) -> StepView:
    """A copy with other fields, of its own or of its state or geometry."""
    nested: dict[str, Any] = {}
    for part in ("state", "geometry"):
        record = getattr(view, part)
        own = {field.name for field in fields(record)} & set(changes)
        nested[part] = replace(record, **{name: changes.pop(name) for name in own})
    return replace(view, **nested, **changes)


def perfect_view(command: np.ndarray) -> StepView:
    """One robot that does exactly what a command (16,) asks, at no effort."""
    rows = np.zeros((1, N_JOINTS))
    gravity = np.array([[0.0, 0.0, -1.0]])
    state = PhysicsState(**{field.name: np.zeros((1, 3)) for field in fields(PhysicsState)})
    state.base_ang_vel_body = np.array([[0.0, 0.0, command[2]]])
    state.joint_pos, state.joint_vel, state.joint_torque = DEFAULT_POSE[None], rows, rows
    state.foot_vel = np.zeros((1, 4, 3))
    state.barrier_force = state.barrier_body_force = np.zeros(1)
    geometry = Geometry(
        scan=np.zeros((1, 35)),
        height=np.array([ROBOT.nominal_height_m + command[3]]),
        slope=np.zeros((1, 2)),
        gravity=gravity,
        lin_vel_body=np.array([[command[0], command[1], 0.0]]),
        velocity_heading=command[None, :3],
        yaw=np.zeros(1),
        heading=np.array([[1.0, 0.0]]),
    )
    return StepView(
        robot=ROBOT,
        command=command[None],
        state=state,
        geometry=geometry,
        desired_gravity=gravity.copy(),
        foot_contact=np.ones((1, 4), dtype=bool),
        stance_width_m=command[6:7],
        knee_force_n=np.zeros((1, 4)),
        trunk_force_n=np.zeros(1),
        action=rows,
        last_action=rows,
    )
