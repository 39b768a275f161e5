"""Every back end that is here passes the checks of the contract, and broken ones fail them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from gaitforge.collectors.physics import availability, make_backend
from gaitforge.collectors.physics.interface import PhysicsBackend
from gaitforge.collectors.physics.scene import ROBOT
from gaitforge.collectors.simulators import backend_names
from gaitforge.plugins.simulators.checks.contact import throughput
from gaitforge.plugins.simulators.checks.contract import CHECKS, run_check, run_checks
from gaitforge.plugins.simulators.checks.measure import CheckFailed, Make
from gaitforge.plugins.simulators.tests import broken_backends as broken
from gaitforge.plugins.simulators.tests.isaacgym.double import use_the_double

SMALL = CHECKS | {"throughput": partial(throughput, robots=4)}
BROKEN = {
    broken.SwapsJoints: "joint-order",
    broken.TurnsJointRound: "joint-order",
    broken.QuaternionsEndWithW: "frames",
    broken.RatesInWorldFrame: "frames",
    broken.VelocityOfCentreOfMass: "base-velocity",
    broken.PushesInBodyFrame: "push",
    broken.ForcesUpsideDown: "weight-on-feet",
    broken.GroundTooHigh: "terrain-heights",
    broken.BarriersUnturned: "turned-barrier",
    broken.ResetsANeighbour: "partial-reset",
    broken.TakesImpossibleDraws: "impossible-draws",
    broken.Trembles: "determinism",
}
OF_DRAW = {
    "friction": "slope-friction",
    "base_mass_offset_kg": "added-mass",
    "com_offset_x_m": "centre-of-mass",
    "com_offset_y_m": "centre-of-mass",
    "com_offset_z_m": "raised-mass",
    "kp_factor": "motor-gains",
    "kd_factor": "motor-gains",
    "motor_strength": "motor-gains",
    "action_lag_substeps": "action-lag",
    "joint_offset_7_rad": "joint-offset",
}


SLOW = {"mujoco_warp": pytest.mark.long, "isaacgym": pytest.mark.long}
"""Without a GPU, with kernels to compile, and with a worker for every number of robots: minutes."""


FRESH = ("restart", "own-barriers")
"""Checks that compare with a new simulation."""

Pool = dict[tuple[int, int], list[PhysicsBackend]]


class Kept:
    """A back end that returns to a pool when a check closes it."""

    def __init__(self, backend: PhysicsBackend, free: list[PhysicsBackend]):
        self._backend, self._free = backend, free

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        self._free.append(self._backend)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Workers of the double for several checks: starting one takes longer than a check."""
    kept: Pool = {}
    yield kept
    for free in kept.values():
        for backend in free:
            backend.close()


def from_pool(make: Make, pool: Pool) -> Make:
    def take(robots: int, threads: int) -> Any:
        free = pool.setdefault((robots, threads), [])
        return Kept(free.pop() if free else make(robots, threads), free)

    return take


@pytest.fixture(params=[pytest.param(name, marks=SLOW.get(name, ())) for name in backend_names()])
def make(request: pytest.FixtureRequest, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes back ends of each kind that can be built here."""
    name = request.param
    if name == "isaacgym":
        use_the_double(monkeypatch)
    found = availability(name)
    if not found.available:
        pytest.skip(found.why_not)
    make = partial(make_backend, name, ROBOT)
    check = request.node.callspec.params["name"]
    return from_pool(make, pool) if name == "isaacgym" and check not in FRESH else make


@pytest.mark.parametrize("name", SMALL)
def test_a_back_end_keeps_the_contract(make: Make, name: str) -> None:
    assert run_check(SMALL[name], make)


@pytest.mark.parametrize("name", SMALL)
def test_numbers_of_32_bits_keep_within_the_tolerances(name: str) -> None:
    assert run_check(SMALL[name], broken.Float32)


@pytest.mark.parametrize(
    ("kind", "name"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_a_broken_back_end_fails_the_check_of_what_it_breaks(
    kind: type[broken.Wrapped], name: str
) -> None:
    with pytest.raises(CheckFailed):
        run_check(CHECKS[name], kind)


@pytest.mark.parametrize(("draw", "name"), OF_DRAW.items())
def test_a_back_end_that_ignores_a_draw_fails_that_draws_check(draw: str, name: str) -> None:
    with pytest.raises(CheckFailed):
        run_check(CHECKS[name], broken.ignoring(draw))


def test_a_check_that_fails_says_what_was_measured_and_allowed() -> None:
    with pytest.raises(CheckFailed, match=r"^body-frame rate: off by 1, allowed is 0\.06$"):
        run_check(CHECKS["frames"], broken.RatesInWorldFrame)


def test_back_ends_are_closed_after_a_check_also_when_it_fails() -> None:
    made, closed = [], []

    class Counted(broken.ResetsANeighbour):
        def close(self) -> None:
            closed.append(self)
            super().close()

    def make(robots: int, threads: int) -> PhysicsBackend:
        made.append(Counted(robots, threads))
        return made[-1]

    with pytest.raises(CheckFailed):
        run_check(CHECKS["partial-reset"], make)
    assert made[::-1] == closed != []


def test_checking_goes_on_when_the_simulator_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(make: Make) -> str:
        raise OSError("the worker is gone:\nlast words")

    checks = {"start": lost, "throughput": throughput}
    monkeypatch.setattr("gaitforge.plugins.simulators.checks.contract.CHECKS", checks)
    first, speed = run_checks("mujoco", robots=2)
    assert (first.passed, first.found) == (False, "the worker is gone: last words")
    assert speed.passed
    assert "with 2 robots" in speed.found


def test_an_unknown_simulator_is_not_checked() -> None:
    with pytest.raises(ValueError, match="unknown simulator 'ode'; allowed: mujoco"):
        next(run_checks("ode"))
