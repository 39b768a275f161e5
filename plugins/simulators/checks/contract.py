"""The contract of physics back ends, as checks on the shipped Aliengo.

A check takes `make(robots, threads)`, returns what it measured in a few words, and raises
CheckFailed where the contract is broken.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from gaitforge.collectors.physics import make_backend
from gaitforge.collectors.physics.scene import ROBOT
from gaitforge.plugins.simulators.checks import contact, draws, motion
from gaitforge.plugins.simulators.checks.measure import Make

Check = Callable[[Make], str]

_CHECKS: tuple[Check, ...] = (
    motion.start,
    motion.free_fall,
    motion.base_velocity,
    motion.frames,
    motion.joint_order,
    motion.torque_limits,
    motion.push,
    motion.seam,
    contact.standing_sag,
    contact.weight_on_feet,
    contact.belly,
    contact.terrain_heights,
    contact.slope_friction,
    draws.realised_draws,
    draws.motor_gains,
    draws.stiff_legs,
    draws.action_lag,
    draws.long_lag,
    draws.joint_offset,
    draws.added_mass,
    draws.centre_of_mass,
    draws.raised_mass,
    draws.model_draws,
    draws.draws_replaced,
    draws.impossible_draws,
    contact.walls,
    contact.bar,
    contact.turned_barrier,
    contact.body_force,
    contact.no_ground,
    contact.wall_beside,
    contact.out_of_reach,
    contact.own_barriers,
    contact.too_many_barriers,
    motion.determinism,
    motion.neighbours,
    motion.partial_reset,
    motion.restart,
    contact.throughput,
)
CHECKS = {check.__name__.replace("_", "-"): check for check in _CHECKS}
"""Checks by name, "free-fall" for `free_fall`."""


@dataclass(frozen=True)
class CheckResult:
    """Result of a check. what: what it checks; found: what it measured, or why it failed."""

    name: str
    what: str
    passed: bool
    found: str
    seconds: float


def describe(name: str) -> str:
    """Description of a check, in a sentence."""
    return (inspect.getdoc(CHECKS[name]) or "").split("\n")[0].rstrip(".")


def run_check(check: Check, make: Make) -> str:
    """Run one check and close the back ends that it made; raises CheckFailed."""
    with ExitStack() as stack:
        return check(lambda *sizes: stack.enter_context(closing(make(*sizes))))


def run_checks(backend: str, robots: int = contact.ROBOTS) -> Iterator[CheckResult]:
    """Run every check on a back end and yield the results; a simulator's error is a failed check.

    ValueError for an unknown back end, or one that cannot be built here. `robots` is the number
    whose throughput is measured.
    """
    make = partial(make_backend, backend, ROBOT)
    make(1, 1).close()
    timed: Check = partial(contact.throughput, robots=robots)
    for name, check in (CHECKS | {"throughput": timed}).items():
        started = time.perf_counter()
        try:
            outcome = run_check(check, make)
            passed = True
        except (ValueError, RuntimeError, OSError) as error:
            outcome = " ".join(str(error).split()) or type(error).__name__
            passed = False
        yield CheckResult(name, describe(name), passed, outcome, time.perf_counter() - started)
