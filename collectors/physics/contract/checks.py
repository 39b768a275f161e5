"""The contract of a physics back end as checks that any of them can be put through.

Each check is a function of `make(robots, threads)` that returns what it measured in a few words and
raises CheckFailed where the contract is broken. The checks run on the shipped Aliengo.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from collectors.physics import make_backend
from collectors.physics.contract import barriers as checks_barriers
from collectors.physics.contract import contact as checks_contact
from collectors.physics.contract import draws as checks_draws
from collectors.physics.contract import independence as checks_independence
from collectors.physics.contract import motion as checks_motion
from collectors.physics.contract import speed as checks_speed
from collectors.physics.contract.scene import ROBOT, Make
from collectors.physics.interface import PhysicsBackend

Check = Callable[[Make], str]

CHECKS: dict[str, Check] = {
    "start": checks_motion.start,
    "free-fall": checks_motion.free_fall,
    "base-velocity": checks_motion.base_velocity,
    "frames": checks_motion.frames,
    "joint-order": checks_motion.joint_order,
    "torque-limits": checks_motion.torque_limits,
    "push": checks_motion.push,
    "seam": checks_motion.seam,
    "standing-sag": checks_contact.standing_sag,
    "weight-on-feet": checks_contact.weight_on_feet,
    "belly": checks_contact.belly,
    "terrain-heights": checks_contact.terrain_heights,
    "slope-friction": checks_contact.slope_friction,
    "realised-draws": checks_draws.realised_draws,
    "motor-gains": checks_draws.motor_gains,
    "stiff-legs": checks_draws.stiff_legs,
    "action-lag": checks_draws.action_lag,
    "joint-offset": checks_draws.joint_offset,
    "added-mass": checks_draws.added_mass,
    "centre-of-mass": checks_draws.centre_of_mass,
    "raised-mass": checks_draws.raised_mass,
    "draws-replaced": checks_draws.draws_replaced,
    "walls": checks_barriers.walls,
    "bar": checks_barriers.bar,
    "turned-barrier": checks_barriers.turned_barrier,
    "body-force": checks_barriers.body_force,
    "no-ground": checks_barriers.no_ground,
    "wall-beside": checks_barriers.wall_beside,
    "out-of-reach": checks_barriers.out_of_reach,
    "own-barriers": checks_barriers.own_barriers,
    "too-many-barriers": checks_barriers.too_many_barriers,
    "determinism": checks_independence.determinism,
    "neighbours": checks_independence.neighbours,
    "partial-reset": checks_independence.partial_reset,
    "restart": checks_independence.restart,
    "throughput": checks_speed.throughput,
}


@dataclass(frozen=True)
class CheckResult:
    """How a check went.

    what is the promise that it checks; found is what was measured, or why it failed.
    """

    name: str
    what: str
    passed: bool
    found: str
    seconds: float


def describe(name: str) -> str:
    """The promise that a check checks, in a sentence."""
    return (inspect.getdoc(CHECKS[name]) or "").split("\n")[0].rstrip(".")


def run_check(check: Check, make: Make) -> str:
    """Put a back end through one check, and close what it made.

    Raises:
        CheckFailed: the contract is broken.
    """
    made: list[PhysicsBackend] = []

    def remember(robots: int, threads: int) -> PhysicsBackend:
        made.append(make(robots, threads))
        return made[-1]

    try:
        return check(remember)
    finally:
        for backend in made:
            backend.close()


def run_checks(backend: str, robots: int = checks_speed.ROBOTS) -> Iterator[CheckResult]:
    """Put a back end through every check, and yield each one's result as it ends.

    A check that the simulator itself breaks off has failed too; the others go on.

    Args:
        backend: its name; robots: how many the throughput is measured with.

    Raises:
        ValueError: an unknown back end, or one that cannot be built here.
    """
    make = partial(make_backend, backend, ROBOT)
    make(1, 1).close()
    timed: Check = partial(checks_speed.throughput, robots=robots)
    for name, check in (CHECKS | {"throughput": timed}).items():
        started = time.perf_counter()
        try:
            found, passed = run_check(check, make), True
        except (ValueError, RuntimeError, OSError) as error:
            found, passed = " ".join(str(error).split()) or type(error).__name__, False
        yield CheckResult(name, describe(name), passed, found, time.perf_counter() - started)
