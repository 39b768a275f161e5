"""Robots, starts, draws, episodes and policies that several tests share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collectors.commands import NEUTRAL, SKILLS, C
from collectors.episodes import EpisodeSpec
from collectors.gait import GaitReference
from collectors.kinematics import LegKinematics
from collectors.physics import InitialState, PhysicsBackend
from collectors.policies import Observation
from collectors.randomisation import DRAW_INDEX, nominal_draws
from collectors.rewards import StepView
from collectors.robots import N_JOINTS, RobotCard, load_robot
from collectors.rotations import from_yaw
from collectors.terrains import TerrainTile, make_tile

ROBOT = load_robot()
DEFAULT_POSE = ROBOT.default_joint_pos_rad
STANDING_HEIGHT_M = float(
    ROBOT.foot_radius_m - LegKinematics(ROBOT).foot_positions(DEFAULT_POSE[None])[0, :, 2].min()
)
LEGS_UP = np.tile([0.0, 3.0, -2.0], 4)
"""(12,) a pose with all feet above the trunk, in which a robot lies on its belly."""
FLAT = make_tile("flat", 0, 0)


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


def _firm_stance() -> np.ndarray:
    command = np.array([low for low, _ in (NEUTRAL | SKILLS["stand"].ranges).values()])
    command[[C.BODY_PITCH, C.BODY_ROLL]] = 0.0
    command[C.BODY_HEIGHT] = -0.1
    command[C.STANCE_WIDTH] = 0.34
    return GaitReference(ROBOT).joint_targets(command[None], np.zeros(1))[0]


FIRM_STANCE = _firm_stance()
"""(12,) targets of a low, wide stance that carries the weight; in the default pose the knees slowly
give way."""


def draws_with(**changes: float) -> np.ndarray:
    """The nominal robot with some draws changed."""
    draws = nominal_draws()
    for name, value in changes.items():
        draws[DRAW_INDEX[name]] = value
    return draws


def start_at(
    x: float = 0.0,
    y: float = 0.0,
    z: float = STANDING_HEIGHT_M + 0.01,
    yaw: float = 0.0,
    quat: np.ndarray | None = None,
    lin_vel: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ang_vel: tuple[float, float, float] = (0.0, 0.0, 0.0),
    joint_pos: np.ndarray = DEFAULT_POSE,
) -> InitialState:
    """A start, by default standing still over the origin; `ang_vel` is in the body frame."""
    return InitialState(
        base_pos=np.array([x, y, z]),
        base_quat=from_yaw(np.array(yaw)) if quat is None else quat,
        base_vel=np.array([*lin_vel, *ang_vel]),
        joint_pos=joint_pos,
    )


def in_the_air(**changes: Any) -> InitialState:
    """A start so high that no test lasts until the ground."""
    return start_at(**{"z": 50.0, **changes})


def hold(backend: PhysicsBackend, steps: int, targets: np.ndarray = DEFAULT_POSE) -> None:
    """Step towards the same joint targets, (12,) for all robots or (N, 12)."""
    rows = np.broadcast_to(targets, (backend.num_robots, N_JOINTS))
    for _ in range(steps):
        backend.step(rows)


def height_between(tile: TerrainTile, points: np.ndarray) -> np.ndarray:
    """Heights of a tile at points (K, 2), interpolated between its grid points and periodic."""
    local = points - tile.period_m * np.floor(points / tile.period_m + 0.5)
    cells = (local + tile.extent_m) / tile.resolution_m
    low = np.floor(cells).astype(int)
    (ix, iy), (u, v) = low.T, (cells - low).T
    h = tile.heights
    near = (1 - u) * h[iy, ix] + u * h[iy, ix + 1]
    far = (1 - u) * h[iy + 1, ix] + u * h[iy + 1, ix + 1]
    return (1 - v) * near + v * far


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
