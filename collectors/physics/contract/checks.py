"""The contract of physics back ends, as checks on the shipped Aliengo.

A check takes `make(robots, threads)`, returns what it measured in a few words, and raises
CheckFailed where the contract is broken.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from collectors.physics import make_backend
from collectors.physics.contract import barriers, contact, draws, independence, motion, speed
from collectors.physics.contract.scene import ROBOT, Make
from collectors.physics.interface import PhysicsBackend

Check = Callable[[Make], str]

CHECKS: dict[str, Check] = {
    "start": motion.start,
    "free-fall": motion.free_fall,
    "base-velocity": motion.base_velocity,
    "frames": motion.frames,
    "joint-order": motion.joint_order,
    "torque-limits": motion.torque_limits,
    "push": motion.push,
    "seam": motion.seam,
    "standing-sag": contact.standing_sag,
    "weight-on-feet": contact.weight_on_feet,
    "belly": contact.belly,
    "terrain-heights": contact.terrain_heights,
    "slope-friction": contact.slope_friction,
    "realised-draws": draws.realised_draws,
    "motor-gains": draws.motor_gains,
    "stiff-legs": draws.stiff_legs,
    "action-lag": draws.action_lag,
    "joint-offset": draws.joint_offset,
    "added-mass": draws.added_mass,
    "centre-of-mass": draws.centre_of_mass,
    "raised-mass": draws.raised_mass,
    "draws-replaced": draws.draws_replaced,
    "walls": barriers.walls,
    "bar": barriers.bar,
    "turned-barrier": barriers.turned_barrier,
    "body-force": barriers.body_force,
    "no-ground": barriers.no_ground,
    "wall-beside": barriers.wall_beside,
    "out-of-reach": barriers.out_of_reach,
    "own-barriers": barriers.own_barriers,
    "too-many-barriers": barriers.too_many_barriers,
    "determinism": independence.determinism,
    "neighbours": independence.neighbours,
    "partial-reset": independence.partial_reset,
    "restart": independence.restart,
    "throughput": speed.throughput,
}


@dataclass(frozen=True)
class CheckResult:
    """Result of a check: `what` it checks, and what it `found` or why it failed."""

    name: str
    what: str
    passed: bool
    found: str
    seconds: float


def describe(name: str) -> str:
    """What a check checks, in a sentence."""
    return (inspect.getdoc(CHECKS[name]) or "").split("\n")[0].rstrip(".")


def run_check(check: Check, make: Make) -> str:
    """Run one check and close the back ends that it made; raises CheckFailed."""
    made: list[PhysicsBackend] = []

    def remember(robots: int, threads: int) -> PhysicsBackend:
        made.append(make(robots, threads))
        return made[-1]

    try:
        return check(remember)
    finally:
        for backend in made:
            backend.close()


def run_checks(backend: str, robots: int = speed.ROBOTS) -> Iterator[CheckResult]:
    """Run every check on a back end and yield the results; a simulator's error is a failed check.

    Args:
        robots: for the measurement of throughput.

    Raises:
        ValueError: an unknown back end, or one that cannot be built here.
    """
    make = partial(make_backend, backend, ROBOT)
    make(1, 1).close()
    timed: Check = partial(speed.throughput, robots=robots)
    for name, check in (CHECKS | {"throughput": timed}).items():
        started = time.perf_counter()
        try:
            found, passed = run_check(check, make), True
        except (ValueError, RuntimeError, OSError) as error:
            found, passed = " ".join(str(error).split()) or type(error).__name__, False
        yield CheckResult(name, describe(name), passed, found, time.perf_counter() - started)
