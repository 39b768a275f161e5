"""Checks that a robot's motion depends on its own start, draws and targets only.

Exact back ends give the same bits. In float32, rounding differs beside other robots and contacts
amplify it: 2 cm and 0.1 rad are allowed. A robot that got another one's reset is off by decimetres.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from gaitforge.collectors.physics.checks import scene
from gaitforge.collectors.physics.interface import PhysicsBackend
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.passages import Passage, place_barriers
from gaitforge.collectors.scenarios.randomisation import DEFAULT
from gaitforge.collectors.scenarios.terrains import TERRAINS, make_tile

_FLOAT32 = {"base_pos": 0.02, "joint_pos": 0.1}
_EXACT_STEPS = 30
_FLOAT32_STEPS = 15

State = Mapping[str, np.ndarray]


def determinism(make: scene.Make) -> str:
    """The same starts, draws and targets give the same motion twice."""
    first = make(4, 1)
    second = make(4, 1)
    for backend in (first, second):
        _scatter(backend, range(4))
        _wave(backend, _steps(first))
    return _require_same(first, scene.snapshot(first), scene.snapshot(second))


def neighbours(make: scene.Make) -> str:
    """Motion does not depend on threads, neighbours or a robot's index."""
    numbers = list(range(6))
    runs: dict[str, dict[str, np.ndarray]] = {}
    for name, robots, threads in (
        ("one thread", numbers, 1),
        ("two threads", numbers, 2),
        ("reversed", numbers[::-1], 2),
        ("alone", [3], 1),
    ):
        backend = make(len(robots), threads)
        _scatter(backend, robots)
        bumped = _wave(backend, _steps(backend))
        if name == "one thread":
            scene.require(bumped[1::2].any(), "none of the robots between walls touched them")
        runs[name] = scene.snapshot(backend)
    baseline = runs["one thread"]
    differences = [
        _require_same(backend, baseline, runs["two threads"], what="on two threads"),
        _require_same(backend, baseline, _rows(runs["reversed"], numbers[::-1]), what="in reverse"),
        _require_same(backend, _rows(baseline, [3]), runs["alone"], what="alone"),
    ]
    return differences[0] if len(set(differences)) == 1 else "; ".join(differences)


def partial_reset(make: scene.Make) -> str:
    """Resetting one robot leaves the others untouched, now and later."""
    whole = make(4, 1)
    partly = make(4, 1)
    for backend in (whole, partly):
        _scatter(backend, range(4))
        _wave(backend, 10)
    before = scene.snapshot(partly)
    partly.reset(1, scene.in_the_air(tile=make_tile("stairs", 7, 0)))
    untouched = [0, 2, 3]
    at_once = scene.snapshot(partly)
    for name in scene.STATE_NAMES:
        same = np.array_equal(at_once[name][untouched], before[name][untouched])
        scene.require(same, f"the reset of robot 1 changed {name} of the others at once")
    for backend in (whole, partly):
        _wave(backend, 10)
    height = float(partly.state.base_pos[1, 2])
    scene.require(height > 40.0, f"the robot that was reset to 50 m is at {height:.1f} m")
    after = _rows(scene.snapshot(partly), untouched)
    beside = _rows(scene.snapshot(whole), untouched)
    return _require_same(whole, after, beside, what="beside a reset")


def restart(make: scene.Make) -> str:
    """A used robot restarts like a new one."""
    used = make(2, 1)
    new = make(2, 1)
    _scatter(used, (2, 3))
    _wave(used, 15)
    for backend in (used, new):
        _scatter(backend, range(2))
    _require_same(used, scene.snapshot(used), scene.snapshot(new), what="at the start")
    for backend in (used, new):
        _wave(backend, 15)
    return _require_same(used, scene.snapshot(used), scene.snapshot(new), what="after a restart")


def _scatter(backend: PhysicsBackend, numbers: Sequence[int]) -> None:
    """Reset each robot by its number; odd ones stand between walls that they touch."""
    names = sorted(TERRAINS)
    for robot, number in enumerate(numbers):
        rng = np.random.default_rng(number)
        tile = make_tile(names[number % len(names)], 3, number)
        yaw = rng.uniform(-3, 3)
        walls = place_barriers(Passage("walls", 0.0, 0.6, 0.32), tile, np.zeros(2), yaw)
        draws = backend.realised(DEFAULT.draw(rng, 0, scene.ROBOT))
        fields = {"tile": tile, "barriers": walls if number % 2 else (), "draws": draws}
        backend.reset(robot, scene.start_at(z=scene.STANDING_HEIGHT_M + 0.1, yaw=yaw, **fields))


def _wave(backend: PhysicsBackend, steps: int) -> np.ndarray:
    """Step with swaying targets; (N,) whether each robot touched a barrier."""
    touched = np.zeros(backend.num_robots, dtype=bool)
    for step in range(steps):
        scene.hold(backend, 1, scene.DEFAULT_POSE + 0.2 * np.sin(0.5 * step + np.arange(N_JOINTS)))
        touched |= backend.state.barrier_force > 0
    return touched


def _steps(backend: PhysicsBackend) -> int:
    return _EXACT_STEPS if backend.exact else _FLOAT32_STEPS


def _rows(state: State, rows: Sequence[int]) -> dict[str, np.ndarray]:
    return {name: values[list(rows)] for name, values in state.items()}


def _require_same(
    backend: PhysicsBackend, first: State, second: State, what: str = "the second time"
) -> str:
    """Describe how far two runs differ; CheckFailed beyond the tolerance."""
    if backend.exact:
        for name in scene.STATE_NAMES:
            scene.require(
                np.array_equal(first[name], second[name]), f"{what} {name} has other bits"
            )
        return "bit for bit"
    off = {
        name: scene.require_close(f"{what} {name}", first[name], second[name], allowed)
        for name, allowed in _FLOAT32.items()
    }
    return f"{what} off by {1000 * off['base_pos']:.2g} mm, {off['joint_pos']:.2g} rad"
