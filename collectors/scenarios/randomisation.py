"""Domain randomisation: draws around nominal values, stored with each episode."""

from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.robots.robot import RobotCard


@dataclass(frozen=True)
class Draw:
    """A uniformly drawn quantity; `whole` ones are integers, both ends included.

    least: physical bound; a robot can only have values above it.
    """

    name: str
    unit: str
    low: float
    high: float
    nominal: float
    whole: bool = False
    least: float = -np.inf


DRAWS: tuple[Draw, ...] = (
    Draw("friction", "1", 0.3, 1.25, 0.8, least=0.0),
    Draw("base_mass_offset_kg", "kg", -1.0, 3.0, 0.0),
    Draw("com_offset_x_m", "m", -0.05, 0.05, 0.0),
    Draw("com_offset_y_m", "m", -0.05, 0.05, 0.0),
    Draw("com_offset_z_m", "m", -0.05, 0.05, 0.0),
    Draw("kp_factor", "1", 0.9, 1.1, 1.0, least=0.0),
    Draw("kd_factor", "1", 0.9, 1.1, 1.0, least=0.0),
    Draw("motor_strength", "1", 0.9, 1.1, 1.0, least=0.0),
    Draw("action_lag_substeps", "substep", 0, 3, 0, whole=True, least=-1.0),
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


def check_draws(robot: RobotCard, trunk_kg: float, draws: np.ndarray = _LOW) -> None:
    """RobotError unless a robot can have draws (N_DRAWS,), by default the lowest of all.

    Back ends call it at a reset. trunk_kg: the trunk's nominal mass; inertia grows with the mass.
    """
    mass = trunk_kg + draws[DRAW_INDEX["base_mass_offset_kg"]]
    if mass <= 0:
        raise robot.wrong(
            f"base_mass_offset_kg {mass - trunk_kg:g} leaves {mass:.3g} of {trunk_kg:.3g} kg of "
            f"'{robot.trunk_body}'; its mass has to stay positive"
        )
    for draw, value in zip(DRAWS, draws.tolist(), strict=True):
        if not draw.least < value < np.inf:
            drawn = f"{draw.low:g} to {draw.high:g}"
            raise robot.wrong(f"no robot can have {draw.name} {value:g}; drawn are {drawn}")


def drawn_gains(robot: RobotCard, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kp and kd (12,) of a robot with draws (N_DRAWS,), motor strength included."""
    strength = draws[DRAW_INDEX["motor_strength"]]
    kp = robot.kp_nm_per_rad * draws[DRAW_INDEX["kp_factor"]] * strength
    return kp, robot.kd_nms_per_rad * draws[DRAW_INDEX["kd_factor"]] * strength


def standardised(draws: np.ndarray) -> np.ndarray:
    """(..., N_DRAWS) float32 draws scaled to [-1, 1], for privileged observations."""
    return ((draws - _LOW) / (_HIGH - _LOW) * 2.0 - 1.0).astype(np.float32)
