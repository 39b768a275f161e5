"""Interface of a physics back end: N robots under a PD law, each on its own terrain tile.

Back ends do not know the task. `gaitforge sim check` tests every one of them. SI units; quaternions
wxyz, body to world; base angular velocity in the body frame; joints in the card's order; world
frame for everything else. A control step is `DECIMATION` substeps of `SUBSTEP_S`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gaitforge.collectors.scenarios.randomisation import nominal_draws
from gaitforge.collectors.scenarios.terrains import Barrier, TerrainTile, make_tile


class BackendUnavailable(ValueError):
    """A back end that cannot be built here; the message says what is missing."""


@dataclass(frozen=True)
class Availability:
    """Whether a back end can be built here, or in one line why not; and the simulator's version."""

    name: str
    available: bool
    why_not: str = ""
    version: str = ""


@dataclass(frozen=True)
class RobotStart:
    """One robot at an episode's start, by default upright, at rest, nominal, on open flat ground.

    base_vel (6,): linear velocity (world), then angular velocity (body); draws (N_DRAWS,): its
    randomisation. Barriers do not repeat with the tile.
    """

    base_pos: np.ndarray
    joint_pos: np.ndarray
    base_quat: np.ndarray = field(default_factory=lambda: np.array([1.0, 0.0, 0.0, 0.0]))
    base_vel: np.ndarray = field(default_factory=lambda: np.zeros(6))
    tile: TerrainTile = field(default_factory=lambda: make_tile("flat", 0, 0))
    barriers: Sequence[Barrier] = ()
    draws: np.ndarray = field(default_factory=nominal_draws)


@dataclass
class PhysicsState:
    """The robots' state after a step, as the task reads it; float64, first axis the robot.

    base_pos (N, 3) is unwrapped: it continues across the seam of the periodic tile. Foot, trunk and
    knee forces (N, ..., 3) are the ground's on the part; barriers press with `barrier_force` (N,)
    on any part, with `barrier_body_force` (N,) on trunk and hips. Feet, contacts and torques are
    those at the last substep's start.
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

    def show_start(self, index: int, start: RobotStart, foot_pos: np.ndarray) -> None:
        """Show robot `index` at a start: no contact, no torque, joints and feet (4, 3) at rest."""
        for values in vars(self).values():
            values[index] = 0.0
        self.base_pos[index] = start.base_pos
        self.base_quat[index] = start.base_quat
        self.base_lin_vel_world[index] = start.base_vel[:3]
        self.base_ang_vel_body[index] = start.base_vel[3:]
        self.joint_pos[index] = start.joint_pos
        self.foot_pos[index] = foot_pos


class PhysicsBackend(Protocol):
    """A simulator of N robots, `num_robots`.

    Attributes:
        name, version: the simulator's, as stored with every episode.
        state: the state after the last step, or as `reset` and `push` left it.
        exact: whether a step is, bit for bit, a function of the robot's own start, draws and
            targets. Episodes of other back ends cannot be replayed bit for bit, and the checks
            compare them within tolerances of float32.
        fixed_world: whether tiles, barriers, masses, centres of mass and frictions change only by
            rebuilding the simulation, at the next `step`; the other robots' states are kept. Reset
            all robots of such a back end together.
        several_robots: whether the rows may be different robots.
        model_fields: whether draws of MuJoCo's model are applied, see `Quantity.place`.
        processor: the device that it computes on: "cuda", which it may do without, or "cpu".
        package: the installed package whose version is `version`; empty if there is none.
    """

    name: str
    version: str
    num_robots: int
    state: PhysicsState
    exact: bool = False
    fixed_world: bool = False
    several_robots: bool = False
    model_fields: bool = False
    processor: str = "cpu"
    package: str = ""

    def trunk_kg(self, index: int) -> float:
        """The nominal mass of a robot's trunk."""
        ...

    def realised(self, draws: np.ndarray) -> np.ndarray:
        """(..., N_DRAWS) the nearest draws that this simulator can realise.

        A projection: realising twice changes nothing. Episodes store these, `reset` gets them.
        """
        return draws

    def reset(self, index: int, start: RobotStart) -> None:
        """Start robot `index`; others are untouched. RobotError as `randomisation.check_draws`.

        `state` shows the start at once: joints at rest, feet where kinematics puts them, no force
        and no torque.
        """
        ...

    def push(self, ids: np.ndarray, velocity_xy: np.ndarray) -> None:
        """Add world velocities (K, 2) m/s to the bases of `ids`; `state` shows it at once."""
        ...

    def set_friction(self, index: int, friction: float) -> None:
        """Change the feet's friction from the next step on; only with `model_fields`."""
        raise ValueError(f"{self.name} cannot change friction during an episode")

    def step(self, joint_targets: np.ndarray) -> None:
        """Advance one control step towards joint targets (N, 12) rad, with each robot's lag."""
        ...

    def close(self) -> None:
        """Free threads, memory and processes; may be called twice."""
        ...
