"""Domain randomisation: draws around nominal values, stored with each episode."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Draw:
    """A uniformly drawn quantity; `whole` ones are integers, both ends included."""

    name: str
    unit: str
    low: float
    high: float
    nominal: float
    whole: bool = False


DRAWS: tuple[Draw, ...] = (
    Draw("friction", "1", 0.3, 1.25, 0.8),
    Draw("base_mass_offset_kg", "kg", -1.0, 3.0, 0.0),
    Draw("com_offset_x_m", "m", -0.05, 0.05, 0.0),
    Draw("com_offset_y_m", "m", -0.05, 0.05, 0.0),
    Draw("com_offset_z_m", "m", -0.05, 0.05, 0.0),
    Draw("kp_factor", "1", 0.9, 1.1, 1.0),
    Draw("kd_factor", "1", 0.9, 1.1, 1.0),
    Draw("motor_strength", "1", 0.9, 1.1, 1.0),
    Draw("action_lag_substeps", "substep", 0, 3, 0, whole=True),
    *(Draw(f"joint_offset_{i}_rad", "rad", -0.02, 0.02, 0.0) for i in range(12)),
)
"""Ranges: HIMLoco's public Aliengo setup (mass, centre of mass, gains, strength, lag),
walk-these-ways (joint offset); friction from 0.3 (HIMLoco: 0.2) to 1.25."""

DRAW_NAMES = tuple(d.name for d in DRAWS)
DRAW_INDEX = {name: i for i, name in enumerate(DRAW_NAMES)}
N_DRAWS = len(DRAWS)
COM_OFFSET = slice(DRAW_INDEX["com_offset_x_m"], DRAW_INDEX["com_offset_z_m"] + 1)
JOINT_OFFSET = slice(DRAW_INDEX["joint_offset_0_rad"], DRAW_INDEX["joint_offset_11_rad"] + 1)

_LOW = np.array([d.low for d in DRAWS])
_HIGH = np.array([d.high for d in DRAWS])
_NOMINAL = np.array([d.nominal for d in DRAWS])
_WHOLE = np.array([d.whole for d in DRAWS])


def nominal_draws() -> np.ndarray:
    """(N_DRAWS,) the robot without randomisation."""
    return _NOMINAL.copy()


def draw_randomisation(rng: np.random.Generator) -> np.ndarray:
    """(N_DRAWS,) one robot's draws, in the order of `DRAWS`."""
    unit = rng.random(N_DRAWS)
    values = _LOW + unit * (_HIGH - _LOW)
    whole = np.floor(_LOW + unit * (_HIGH - _LOW + 1.0))
    return np.where(_WHOLE, whole, values)


def standardised(draws: np.ndarray) -> np.ndarray:
    """(..., N_DRAWS) float32 draws scaled to [-1, 1], for privileged observations."""
    return ((draws - _LOW) / (_HIGH - _LOW) * 2.0 - 1.0).astype(np.float32)
