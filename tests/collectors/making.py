"""Robots, starts, draws, episodes and policies that several tests share."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.rewards import Geometry, StepView
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.collectors.physics.scene import (
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
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import RobotBatch
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard

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
    "robot_of_another_shape",
    "similar_robot",
    "spec",
    "start_at",
]


def similar_robot(factor: float) -> RobotCard:
    """Aliengo with every length times a factor, as far as commands and passages go."""
    offsets = ("hip_offset_m", "thigh_offset_m", "knee_offset_m", "foot_offset_m")
    lengths = ("foot_radius_m", "nominal_height_m", "width_m", *offsets)
    shorter: dict[str, Any] = {name: factor * getattr(ROBOT, name) for name in lengths}
    shorter["trunk_half_size_m"] = tuple(factor * half for half in ROBOT.trunk_half_size_m)
    return replace(ROBOT, name="similar", **shorter)


def robot_of_another_shape(seed: int) -> RobotCard:
    """Aliengo with other offsets, joint zeros, signs and knees for every leg, drawn from a seed."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], N_JOINTS)
    bend = rng.choice([-1.0, 1.0], 4) * rng.uniform(0.6, 1.6, 4)
    thigh = rng.uniform(-0.2, 0.2, 4) - bend / 2  # feet hang below
    zeros = rng.uniform(-1.5, 1.5, (4, 2))  # angles of thigh and calf at joint 0
    links = rng.uniform(0.15, 0.35, (4, 2))

    def along(angles: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        sideways = rng.uniform(-0.03, 0.03, 4)
        return np.stack([-lengths * np.sin(angles), sideways, -lengths * np.cos(angles)], axis=1)

    hip = rng.uniform(-0.1, 0.1, 4)
    default = signs * np.stack([hip, thigh - zeros[:, 0], bend - np.diff(zeros)[:, 0]], 1).ravel()
    side = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]] * 2)
    return replace(
        ROBOT,
        name="strange",
        joint_signs=signs,
        default_joint_pos_rad=default,
        joint_lower_rad=default - 0.3,
        joint_upper_rad=default + 0.3,
        hip_offset_m=ROBOT.hip_offset_m + rng.uniform(-0.05, 0.05, (4, 3)),
        thigh_offset_m=side * [0.03, 0.1, 0.04] + rng.uniform(-0.03, 0.03, (4, 3)),
        knee_offset_m=along(zeros[:, 0], links[:, 0]),
        foot_offset_m=along(zeros[:, 1], links[:, 1]),
    )


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
        robots=RobotBatch(ROBOT),
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
