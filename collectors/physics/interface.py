"""Contract of a physics back end: N robots under a PD law, each on its own terrain tile.

A back end knows nothing of the task.

Every back end is put through the same checks (`collectors.physics.contract.checks`).

SI units; quaternions wxyz, body to world; base angular velocity in the body frame; joints in the
card's order; world frame for everything else. One control step is `decimation` substeps of
`substep_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from collectors.scenarios.passages import Barrier
from collectors.scenarios.terrains import TerrainTile


class BackendUnavailable(ValueError):
    """A back end that cannot be built here; the message says what it lacks, in one line."""


@dataclass(frozen=True)
class Availability:
    """Whether a back end can be built here.

    why_not is empty where it can, and else one line with what is missing and the command that
    installs it; version is the simulator's, as stored with its episodes, or empty.
    """

    name: str
    available: bool
    why_not: str
    version: str


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
    """A simulator of N robots.

    Attributes:
        name, version: of the simulator, as they are stored with every episode.
        num_robots: N.
        state: after the last step, or as `reset` and `push` left it.
        exact: whether a step is, bit for bit, a function of the robot's own start, draws and
            targets, whatever else is simulated beside it and whenever. Episodes of a back end that
            is not exact cannot be simulated again bit for bit, and the checks compare them within
            tolerances of float32.
        fixed_world: whether tiles, barriers, masses, centres of mass and frictions can be changed
            only by building the simulation anew. Such a back end collects calls of `reset`, shows
            each in `state` at once, and builds at the next `step`. A reset that changes nothing
            fixed builds nothing; one that does carries the state of the other robots over into the
            new world. Who runs episodes on it resets all robots together, between two steps.
    """

    name: str
    version: str
    num_robots: int
    state: PhysicsState
    exact: bool
    fixed_world: bool

    def realised(self, draws: np.ndarray) -> np.ndarray:
        """(..., N_DRAWS) draws as this simulator can realise them, the same shape.

        Most realise all as they are; one that knows fewer values of a draw gives the nearest. It
        is a projection: what was realised is realised as it is. These are stored with an episode,
        and are what `reset` is called with.
        """
        ...

    def reset(
        self,
        index: int,
        tile: TerrainTile,
        barriers: Sequence[Barrier],
        draws: np.ndarray,
        start: InitialState,
    ) -> None:
        """Put robot `index` on a tile among barriers, with its draws and in a state.

        The others are untouched. Barriers do not repeat with the tile. `state` shows the start at
        once: base and joints as given, joints at rest, feet where kinematics puts them and without
        velocity, no force and no torque.
        """
        ...

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        """Add world velocities (K, 2) in m/s to some robots' bases; `state` shows it at once."""
        ...

    def step(self, joint_targets: np.ndarray) -> None:
        """Advance one control step towards joint targets (N, 12) in rad, with each robot's lag."""
        ...

    def close(self) -> None:
        """Free threads, memory and processes; closing twice is closing once."""
        ...
