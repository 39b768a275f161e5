"""Fields that a replay of stored episodes can add: by name, or as a function of the state.

They are taken before a control step, like `obs`. Feet and their contacts are those at the last
substep's start (`PhysicsState`), 5 ms before.
"""

from collections.abc import Callable

import numpy as np

from gaitforge.collectors.legged.data import StoredForm, legged_schema
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.observations import N_SCAN, PRIVILEGED_SLICES
from gaitforge.collectors.legged.rollout import Measure, pose_of
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.datasets import Field

StateFunction = Callable[[PhysicsState], np.ndarray]
"""function(state) -> (N, *shape) for N robots."""

_SCAN = slice(*PRIVILEGED_SLICES["height_scan"])
_WORLD = "in the order of the robot's legs, world frame (x, y, z up)"


def measured_by(function: StateFunction) -> Measure:
    """A measure that records a function of the state; float64 becomes float32.

    Raises:
        ValueError: at the first step, the function gave no array with a row for each robot.
    """

    def measure(env: LeggedEnvironment, observation: Observation) -> np.ndarray:
        values = np.asarray(function(env.physics.state))
        if values.ndim == 0 or len(values) != env.num_robots:
            raise ValueError(
                f"the function must return an array of shape (robots, ...), {env.num_robots} rows, "
                f"not {values.shape}"
            )
        return values.astype(np.float32) if values.dtype == np.float64 else values

    return measure


_SCAN_TEXT = (
    "height of the base above the ground at 7 x 5 points of its heading frame "
    "(x -0.4 to 0.8 m, y -0.3 to 0.3 m), minus the nominal height, clipped to 1 m"
)
_FORCES = f"force of the ground on each foot, {_WORLD}"
_FEET = f"position of each foot's centre, {_WORLD}"

_DERIVED: dict[str, tuple[Measure, Field | None]] = {
    "height_scan": (
        lambda env, observation: observation.privileged[:, _SCAN],
        Field("height_scan", (N_SCAN,), unit="m", description=_SCAN_TEXT),
    ),
    "contact_forces": (
        measured_by(lambda state: state.foot_force),
        Field("contact_forces", (4, 3), unit="N", description=_FORCES),
    ),
    "privileged": (lambda env, observation: observation.privileged, None),
    "state": (measured_by(pose_of), None),
    "foot_positions": (
        measured_by(lambda state: state.foot_pos),
        Field("foot_positions", (4, 3), unit="m", description=_FEET),
    ),
}
"""Measure and field by name; None for a field of the legged task's own schema."""
DERIVABLE = tuple(_DERIVED)
"""Names of the known fields."""


def derived_field(name: str, robot: RobotCard) -> tuple[Field, Measure]:
    """A field of `DERIVABLE` for a robot, and the measure that computes it.

    height_scan (35,) m: the nominal height subtracted from the base's height above the ground at
    7 x 5 points around it (`observations.SCAN_POINTS`, heading frame), clipped to 1 m.
    contact_forces (4, 3) N: the ground's force on each foot, world frame.
    privileged (P,) and state (19,): as collection stores them (`StoredForm`).
    foot_positions (4, 3) m: of each foot's centre, world frame.

    Raises:
        ValueError: no such field.
    """
    if name not in _DERIVED:
        raise ValueError(
            f"unknown field '{name}'; allowed: {', '.join(DERIVABLE)}, and module:function"
        )
    measure, field = _DERIVED[name]
    form = StoredForm(state=True, privileged=True)
    return field or legged_schema(robot, form=form).field(name), measure
