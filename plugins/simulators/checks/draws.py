"""Checks of randomisation draws, on robots with different draws in one simulation."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gaitforge.collectors.physics import scene
from gaitforge.collectors.physics.interface import PhysicsBackend, RobotStart
from gaitforge.collectors.robots.robot import LEGS, RobotError
from gaitforge.collectors.scenarios.randomisation import DEFAULT, DRAWS
from gaitforge.collectors.timing import DECIMATION, GRAVITY_MS2
from gaitforge.plugins.simulators.checks import measure

_STEP_RAD = 0.3
_CALF = 2
_TRUNK_SHARE = 13.042 / scene.ROBOT.mass_kg
"""Share of the mass that the centre-of-mass offset moves."""
_COARSEST_SHARE = 1 / 64
"""Allowed error of a realised draw, as a share of its range: Isaac Gym has 64 frictions."""


def realised_draws(make: measure.Make) -> str:
    """Realised draws are near the drawn ones; realising them again changes nothing."""
    backend = make(1, 1)
    rng = np.random.default_rng(0)
    drawn = np.stack([DEFAULT.draw(rng, 0, scene.ROBOT) for _ in range(200)])
    once = backend.realised(drawn)
    measure.require(once.shape == drawn.shape, f"draws of shape {drawn.shape} became {once.shape}")
    again = backend.realised(once)
    measure.require((again == once).all(), "realising twice changes draws")
    single = backend.realised(drawn[0])
    measure.require(
        (single == once[0]).all(), "one robot's draws are realised differently in a batch"
    )
    low, high = DEFAULT.ends(scene.ROBOT)
    off = np.abs(once - drawn).max(axis=0) / np.where(high > low, high - low, 1.0)
    worst = int(np.argmax(off))
    measure.require(
        off[worst] <= _COARSEST_SHARE,
        f"{DRAWS[worst].name} is realised with an error of {off[worst]:.1%} of its range",
    )
    changed = [draw.name for draw, share in zip(DRAWS, off, strict=True) if share > 0]
    return f"{', '.join(changed)} off by {off[worst]:.1%} of the range" if changed else "as drawn"


def motor_gains(make: measure.Make) -> str:
    """Stiffer and stronger motors respond faster, damped ones more slowly."""
    factors = (0.9, 1.0, 1.1)
    names = ("kp_factor", "motor_strength", "kd_factor")
    backend = _hanging(make, **dict.fromkeys(names, factors))
    first = _calf_response(backend, 1).reshape(3, 3)
    second = _calf_response(backend, 1).reshape(3, 3)
    for name, moved in zip(names[:2], first[:2], strict=True):
        measure.require(
            (np.diff(moved) > 0).all() and moved[0] > 0, f"{name} 0.9, 1, 1.1: {_rad(moved)}"
        )
    damped = second[2]
    measure.require(
        (np.diff(damped) < 0).all() and damped[-1] > 0, f"kd_factor 0.9-1.1: {_rad(damped)}"
    )
    off = measure.require_close("nominal robots beside each other", np.ptp(first[:, 1]), 0.0, 1e-4)
    measure.require_close("strength 1.1 against Kp and Kd 1.1", first[1, 2], first[0, 2], 0.02)
    return f"Kp {_rad(first[0])}, strength {_rad(first[1])}, Kd {_rad(damped)}; alike in {off:.0g}"


def stiff_legs(make: measure.Make) -> str:
    """Stiffer legs stand higher."""
    backend = _standing(make, kp_factor=(0.9, 1.1))
    soft, stiff = backend.state.base_pos[:, 2]
    measure.require(0.25 < soft < stiff - 0.001 < 0.31, f"Kp 0.9: {soft:.3f} m, 1.1: {stiff:.3f} m")
    return f"Kp 0.9: {soft:.3f} m, 1.1: {stiff:.3f} m"


def action_lag(make: measure.Make) -> str:
    """Lag delays the response by substeps without weakening it."""
    backend = _hanging(make, action_lag_substeps=range(4))
    response = _calf_response(backend, 1)
    measure.require((np.diff(response) < 0).all(), f"after a step, lag 0 to 3: {_rad(response)}")
    measure.require(response[-1] > 0, "a lag of 3 substeps takes a whole step")
    late = _calf_response(backend, 40)
    off = measure.require_close("where the joint arrives, rad", late, _STEP_RAD, 0.02)
    return f"after a step {_rad(response)}, in the end off by {off:.3f}"


def long_lag(make: measure.Make) -> str:
    """A lag beyond a control step keeps the targets of the steps between, in their order."""
    backend = make(1, 1)
    lag = DECIMATION + 2
    draws = scene.draws_with(action_lag_substeps=lag)
    if (backend.realised(draws) != draws).any():
        return "not realised here"
    backend = _hanging(make, action_lag_substeps=[lag, 0])
    first = []
    moved = []
    for _ in range(3):
        moved.append(_calf_response(backend, 1))
        first.append(abs(moved[-1][0]))
    measure.require_close("movement before the lag has passed, rad", first[0], 0.0, 2e-3)
    measure.require(moved[1][0] < moved[0][1] and moved[2][0] > 0.02, f"late: {_rad(moved[2])}")
    return f"after 1, 2, 3 steps {_rad(np.array(moved)[:, 0])}"


def model_draws(make: measure.Make) -> str:
    """Gravity, a load, and the joints' friction act, where the back end can vary them."""
    if not make(1, 1).model_fields:
        return "not varied here"
    falling = _hanging(make, gravity_ms2=[5.0, 10.0])
    scene.hold(falling, 10)
    dropped = scene.in_the_air().base_pos[2] - falling.state.base_pos[:, 2]
    measure.require_close("twice the gravity, twice the fall", dropped[1] / dropped[0], 2.0, 0.02)
    loaded = _on_feet(_standing(make, payload_kg=[0.0, 3.0])).sum(axis=1)
    expected = measure.WEIGHT_N + np.array([0.0, 3.0]) * GRAVITY_MS2
    measure.require_close("weight on the feet, N", loaded, expected, 0.02 * measure.WEIGHT_N)
    sides = scene.draws_with(payload_kg=3.0, payload_x_m=0.2)
    front = _on_feet(_drawn_rows(make, scene.start_at(joint_pos=scene.FIRM_STANCE), sides))
    in_front = np.array([leg.startswith("F") for leg in LEGS])
    excess = float(front[0, in_front].sum() - front[0, ~in_front].sum())
    measure.require(excess > 10.0, f"a load in front: front feet carry {excess:.0f} N more")
    stiff = _calf_response(_hanging(make, joint_friction_nm=[0.0, 2.0]), 1)
    measure.require(stiff[1] < 0.98 * stiff[0], f"friction 0 and 2 Nm: {_rad(stiff)}")
    return f"fell {dropped[0]:.2f} and {dropped[1]:.2f} m, a load in front {excess:.0f} N"


def joint_offset(make: measure.Make) -> str:
    """A joint offset shifts that joint's rest position and no other."""
    offsets = [-0.02, 0.0, 0.02]
    backend = _hanging(make, joint_offset_7_rad=offsets)
    scene.hold(backend, 40)
    shift = backend.state.joint_pos - scene.DEFAULT_POSE
    off = measure.require_close("offset of joint 7, rad", shift[:, 7], offsets, 2e-3)
    off_elsewhere = measure.require_close(
        "other joints, rad", np.delete(shift, 7, axis=1), 0.0, 2e-3
    )
    return f"off by {1000 * off:.1f} mrad, others by {1000 * off_elsewhere:.1f}"


def added_mass(make: measure.Make) -> str:
    """Added mass weighs on the feet."""
    masses = [-1.0, 0.0, 3.0]
    backend = _standing(make, base_mass_offset_kg=masses)
    weight = _on_feet(backend).sum(axis=1)
    expected = measure.WEIGHT_N + np.array(masses) * GRAVITY_MS2
    off = measure.require_close("weight on the feet, N", weight, expected, 0.02 * measure.WEIGHT_N)
    return f"-1, 0 and 3 kg: {', '.join(f'{value:.0f}' for value in weight)} N, off by {off:.1f}"


def centre_of_mass(make: measure.Make) -> str:
    """Moving the centre of mass loads the feet on that side."""
    sides = {"com_offset_x_m": "FL FR", "com_offset_y_m": "FL RL"}
    force = _on_feet(_standing(make, **dict.fromkeys(sides, (-0.03, 0.03)))).reshape(2, 2, 4)
    gained = []
    for (name, loaded), (away, towards) in zip(sides.items(), force, strict=True):
        feet = [leg in loaded.split() for leg in LEGS]
        gained.append(float(towards[feet].sum() - away[feet].sum()))
        measure.require(
            gained[-1] > 20.0, f"{name} 0.06 further: {loaded} carry {gained[-1]:.0f} N more"
        )
    return f"6 cm forwards load the front by {gained[0]:.0f} N, 6 cm left that by {gained[1]:.0f}"


def raised_mass(make: measure.Make) -> str:
    """A spinning robot turns about its raised or lowered centre of mass."""
    spinning = scene.in_the_air(ang_vel=(3.0, 0.0, 0.0))
    backend = _drawn(make, spinning, com_offset_z_m=(-0.05, 0.05))
    scene.hold(backend, 25)
    # The origin, at rest at first, circles a point r above it: y = r (sin wt - wt).
    low, high = backend.state.base_pos[:, 1]
    expected = 2 * 0.05 * _TRUNK_SHARE * (np.sin(1.5) - 1.5)
    measure.require_close("sideways way, m", high - low, expected, 0.25 * abs(expected))
    return f"{high - low:.4f} m aside, closed form {expected:.4f}"


def draws_replaced(make: measure.Make) -> str:
    """New draws replace the previous ones, mass and friction included."""
    heavy = scene.draws_with(base_mass_offset_kg=3.0, kp_factor=1.1)
    backend = measure.placed(make, scene.in_the_air(draws=heavy), scene.in_the_air())
    scene.hold(backend, 1)
    for index in range(2):
        backend.reset(index, scene.in_the_air())
    response = _calf_response(backend, 3)
    near = measure.tolerance(backend, 0.0, 1e-4)
    off = measure.require_close("response, rad", response[0], response[1], near)
    return f"responses differ by {off:.1g} rad"


def impossible_draws(make: measure.Make) -> str:
    """Draws that no robot can have are refused, by the robot's and the draw's name."""
    backend = make(1, 1)
    impossible = {draw.name: draw.quantity.allowed.low - 1 for draw in DRAWS}
    for name, value in (impossible | {"base_mass_offset_kg": -100.0}).items():
        reply = "nothing"
        try:
            backend.reset(0, scene.in_the_air(draws=scene.draws_with(**{name: value})))
        except RobotError as error:
            reply = str(error)
        named = scene.ROBOT.name in reply and f"{name} {value:g}" in reply
        measure.require(named, f"{name} {value:g} has to be refused; the back end said: {reply}")
    return f"{len(impossible)} of {len(DRAWS)}"


def _drawn_rows(make: measure.Make, start: RobotStart, *rows: np.ndarray) -> PhysicsBackend:
    return measure.placed(make, *(replace(start, draws=row) for row in rows))


def _drawn(make: measure.Make, start: RobotStart, **draws: Sequence[float]) -> PhysicsBackend:
    """A robot at the start for each value of each draw, the others nominal."""
    rows = [scene.draws_with(**{name: value}) for name, values in draws.items() for value in values]
    return _drawn_rows(make, start, *rows)


def _hanging(make: measure.Make, **draws: Sequence[float]) -> PhysicsBackend:
    return _drawn(make, scene.in_the_air(), **draws)


def _standing(make: measure.Make, **draws: Sequence[float]) -> PhysicsBackend:
    backend = _drawn(make, scene.start_at(joint_pos=scene.FIRM_STANCE), **draws)
    scene.hold(backend, 60, scene.FIRM_STANCE)
    return backend


def _on_feet(backend: PhysicsBackend) -> np.ndarray:
    """(N, 4) load of each foot in N, a mean over half a second."""
    return measure.mean_over(backend, 25, scene.FIRM_STANCE, lambda state: state.foot_force[..., 2])


def _calf_response(backend: PhysicsBackend, steps: int) -> np.ndarray:
    """(N,) rad that the front left calf has moved towards a target 0.3 rad away."""
    target = scene.DEFAULT_POSE.copy()
    target[_CALF] += _STEP_RAD
    scene.hold(backend, steps, target)
    return backend.state.joint_pos[:, _CALF] - scene.DEFAULT_POSE[_CALF]


def _rad(values: np.ndarray) -> str:
    return " ".join(f"{value:.3f}" for value in values) + " rad"
