"""Contract of a physics back end: N robots under a PD law, each on its own terrain tile.

A back end knows nothing of the task.

SI units; quaternions wxyz, body to world; base angular velocity in the body frame; joints in the
card's order; world frame for everything else. One control step is `decimation` substeps of
`substep_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from collectors.passages import Barrier
from collectors.terrains import TerrainTile


@dataclass
class PhysicsState:
    """What the task may read after a step; float64, first axis the robot.

    base_pos (N, 3) is unwrapped: it runs on when the robot crosses the seam of its periodic tile.
    Foot, trunk and knee forces (N, ..., 3) are those of the ground on the part; `barrier_force`
    (N,) is how hard barriers press on any part of the robot, `barrier_body_force` (N,) on its trunk
    and hips. Foot and contact quantities and torques are of the last substep's start.
    """

    base_pos: np.ndarray
    base_quat: np.ndarray
    base_lin_vel_world: np.ndarray
    base_ang_vel_body: np.ndarray
    joint_pos: np.ndarray
    joint_vel: np.ndarray
    joint_torque: np.ndarray
    foot_pos: np.ndarray
    foot_vel: np.ndarray
    foot_force: np.ndarray
    trunk_force: np.ndarray
    knee_force: np.ndarray
    barrier_force: np.ndarray
    barrier_body_force: np.ndarray


@dataclass(frozen=True)
class InitialState:
    """State of one robot at an episode's start.

    base_pos (3,), base_quat (4,), joint_pos (12,), and base_vel (6,): linear in the world frame,
    then angular in the body frame.
    """

    base_pos: np.ndarray
    base_quat: np.ndarray
    base_vel: np.ndarray
    joint_pos: np.ndarray


class PhysicsBackend(Protocol):
    """A simulator of N robots."""

    name: str
    version: str
    num_robots: int
    state: PhysicsState

    def reset(
        self,
        index: int,
        tile: TerrainTile,
        barriers: Sequence[Barrier],
        draws: np.ndarray,
        start: InitialState,
    ) -> None:
        """Put robot `index` on a tile among barriers, with its draws and in a state.

        The others are untouched. Barriers do not repeat with the tile.
        """
        ...

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        """Add world velocities (K, 2) in m/s to the bases of some robots."""
        ...

    def step(self, joint_targets: np.ndarray) -> None:
        """Advance one control step towards joint targets (N, 12) in rad, with each robot's lag."""
        ...

    def close(self) -> None:
        """Free threads and memory."""
        ...
