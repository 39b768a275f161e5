"""Checks of contacts: standing, weights, slopes, terrains, and barriers that stop robots."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gaitforge.collectors.physics import scene
from gaitforge.collectors.physics.interface import PhysicsBackend, RobotStart
from gaitforge.collectors.physics.robot_check import standing_load
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.terrains import (
    MAX_BARRIERS,
    TERRAINS,
    Barrier,
    Passage,
    make_tile,
    place_barriers,
    tile_heights,
)
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.plugins.simulators.checks import measure

ROBOTS = 256
"""Parallel robots whose throughput is measured."""
_SETTLE_STEPS = 75
_MEAN_STEPS = 25
_CONTACT_N = 1.0
_SLOPE_LEVEL = 8


def standing_sag(make: measure.Make) -> str:
    """Standing under the PD law, every joint sags by its load over its stiffness."""
    stance = standing_load(scene.ROBOT)
    targets = stance.joint_pos_rad + stance.torque_nm / scene.ROBOT.kp_nm_per_rad
    start = scene.start_at(z=scene.ROBOT.nominal_height_m + 0.002, joint_pos=stance.joint_pos_rad)
    backend = measure.placed(make, start)
    scene.hold(backend, _SETTLE_STEPS, targets)
    sag = measure.mean_over(
        backend, _MEAN_STEPS, targets, lambda state: targets - state.joint_pos[0]
    )
    torque = measure.mean_over(backend, _MEAN_STEPS, targets, lambda state: state.joint_torque[0])
    stated = stance.torque_nm / scene.ROBOT.kp_nm_per_rad
    off = measure.require_close("sag against load / stiffness, rad", sag, stated, 0.06)  # feet rub
    law = measure.require_close(
        "torque against the PD law, Nm", torque, sag * scene.ROBOT.kp_nm_per_rad, 1.0
    )
    height = float(backend.state.base_pos[0, 2])
    measure.require_close("height of the trunk, m", height, scene.ROBOT.nominal_height_m, 0.015)
    worst = int(np.argmax(np.abs(stated)))
    return (
        f"{scene.ROBOT.joint_names[worst]} sags {sag[worst]:.3f} rad, stated {stated[worst]:.3f}; "
        f"all within {off:.3f}; torque off by {law:.2f} Nm; {height:.3f} m high"
    )


def weight_on_feet(make: measure.Make) -> str:
    """The feet of a standing robot carry its weight, straight up; nothing else does."""
    backend = measure.placed(make, scene.start_at(joint_pos=scene.FIRM_STANCE))
    scene.hold(backend, _SETTLE_STEPS, scene.FIRM_STANCE)
    force = measure.mean_over(
        backend, _MEAN_STEPS, scene.FIRM_STANCE, lambda state: state.foot_force[0].sum(axis=0)
    )
    measure.require_close(
        "weight on the feet, N", force[2], measure.WEIGHT_N, 0.02 * measure.WEIGHT_N
    )
    measure.require_close("force along the ground, N", force[:2], 0.0, 5.0)
    measure.require(not backend.state.trunk_force.any(), "the trunk feels the ground")
    measure.require(not backend.state.knee_force.any(), "a knee feels the ground")
    return f"{force[2]:.1f} N of {measure.WEIGHT_N:.1f}"


def belly(make: measure.Make) -> str:
    """A trunk on the ground carries the weight, and feet in the air nothing."""
    backend = measure.placed(make, scene.start_at(z=0.06, joint_pos=scene.LEGS_UP))
    scene.hold(backend, _SETTLE_STEPS, scene.LEGS_UP)
    force = measure.mean_over(
        backend, _MEAN_STEPS, scene.LEGS_UP, lambda state: state.trunk_force[0]
    )
    measure.require_close(
        "weight on the trunk, N", force[2], measure.WEIGHT_N, 0.05 * measure.WEIGHT_N
    )
    measure.require(not backend.state.foot_force.any(), "a foot in the air feels a force")
    return f"{force[2]:.1f} N of {measure.WEIGHT_N:.1f}"


def terrain_heights(make: measure.Make) -> str:
    """Feet stand on the ground of every terrain, within the tile and on its seam."""
    names = sorted(TERRAINS)
    places = [(name, on_seam) for name in names for on_seam in (False, True)]
    backend = measure.placed(make, *[scene.start_at()] * len(places))
    scene.hold(backend, 5)  # the second reset counts
    tiles = [make_tile(name, 4, 2) for name, _ in places]
    for index, (tile, (_, on_seam)) in enumerate(zip(tiles, places, strict=True)):
        x, y = (tile.period_m / 2, 0.3) if on_seam else (1.2, 0.4)
        under = np.stack(np.meshgrid(x + np.arange(-0.4, 0.5, 0.1), y + np.arange(-0.3, 0.4, 0.1)))
        ground = scene.height_between(tile, under.reshape(2, -1).T).max()
        height = float(ground) + scene.STANDING_HEIGHT_M + 0.01
        backend.reset(index, scene.start_at(x, y, height, tile=tile))
    scene.hold(backend, 40, scene.FIRM_STANCE)
    state = backend.state
    worst = 0.0
    for index, (tile, (name, on_seam)) in enumerate(zip(tiles, places, strict=True)):
        where = f"{name}, {'on the seam' if on_seam else 'within the tile'}"
        down = np.linalg.norm(state.foot_force[index], axis=1) > _CONTACT_N
        measure.require(down.sum() >= 2, f"{where}: {down.sum()} feet on the ground")
        feet = state.foot_pos[index, down]
        ground = scene.height_between(tile, feet[:, :2]) + scene.ROBOT.foot_radius_m
        allowed = 0.005 if name == "flat" else 0.02
        off = measure.require_close(
            f"{where}: feet over the ground, m", feet[:, 2], ground, allowed
        )
        worst = max(worst, off)
    return f"{len(names)} terrains, feet within {1000 * worst:.0f} mm of the ground"


def slope_friction(make: measure.Make) -> str:
    """Feet slide down a slope steeper than their friction angle and hold on a gentler one."""
    tile = make_tile("slope", _SLOPE_LEVEL, 0)
    frictions = (0.3, 0.8, 1.25)
    heights = tile_heights(tile, np.array([[2.5, 0.0], [2.9, 0.0]]))
    grade = abs(float(heights[1] - heights[0])) / 0.4
    start = scene.start_at(
        x=2.5, z=float(heights[0]) + 0.45, joint_pos=scene.FIRM_STANCE, tile=tile
    )
    draws = [scene.draws_with(friction=friction) for friction in frictions]
    backend = measure.placed(make, *(replace(start, draws=drawn) for drawn in draws))
    scene.hold(backend, 50, scene.FIRM_STANCE)
    landed = backend.state.foot_pos.copy()
    scene.hold(backend, 25, scene.FIRM_STANCE)
    slid = np.linalg.norm(backend.state.foot_pos - landed, axis=2).mean(axis=1)
    distances = ", ".join(f"{f:g}: {way:.3f} m" for f, way in zip(frictions, slid, strict=True))
    measure.require(slid[0] > 0.1, f"friction 0.3 holds on a grade of {grade:.2f} ({distances})")
    measure.require(
        (slid[1:] < 0.04).all(), f"friction of 0.8 or more slides down {grade:.2f} ({distances})"
    )
    return f"grade {grade:.2f}, way in half a second by friction {distances}"


def throughput(make: measure.Make, robots: int = ROBOTS) -> str:
    """Control steps a second of robots that stand on flat ground; no bar."""
    backend = measure.placed(make, *[scene.start_at(joint_pos=scene.FIRM_STANCE)] * robots)
    scene.hold(backend, 3, scene.FIRM_STANCE)
    started = time.perf_counter()
    steps = 20
    scene.hold(backend, steps, scene.FIRM_STANCE)
    rate = robots * steps / (time.perf_counter() - started)
    height = backend.state.base_pos[:, 2]
    measure.require((height > 0.2).all(), f"a robot is at {height.min():.2f} m")
    return f"{rate:,.0f} control steps/s with {robots} robots"


_HEIGHT_M = 50.0
_SPEED_MS = 2.0
_FLIGHT_STEPS = 30
"""0.6 s: a robot flies 1.2 m ahead and falls 1.8 m."""
_NOSE_M = scene.ROBOT.trunk_half_size_m[0]
_HARD_N = 100.0
_FELT_N = 1.0


def walls(make: measure.Make) -> str:
    """Walls stop a wider robot and let a narrower one pass; each robot has its own."""
    narrow = _walls(scene.ROBOT.width_m - 0.06)
    wide = _walls(scene.ROBOT.width_m + 0.05)
    backend, force, detail = _require_stop(make, narrow, wide, 0.65)
    measure.require(force > _HARD_N, f"it feels {force:.0f} N")
    way = _SPEED_MS * _FLIGHT_STEPS * CONTROL_DT_S
    free = backend.state.base_pos[0, 0]
    measure.require_close(
        "way on open ground, m", free, way, measure.tolerance(backend, 1e-9, 1e-3)
    )
    return f"{force:.0f} N, {detail}"


def bar(make: measure.Make) -> str:
    """A bar stops a taller robot and lets a lower one pass."""
    # The robot is a few centimetres lower by the time it arrives.
    return _require_stop(make, _bar(-0.1), _bar(scene.ROBOT.trunk_half_size_m[2]), 0.62)[2]


def turned_barrier(make: measure.Make) -> str:
    """A barrier turns with its yaw."""
    half = (0.5, 0.05, 1.5)
    beside = _box(0.9, 0.5, 0.0, half)
    across = _box(0.9, 0.5, 0.0, half, yaw=np.pi / 2)
    backend = _fly(make, [beside], [across])
    force, _ = _hardest(backend)
    passed, stopped = backend.state.base_pos[:, 0]
    detail = f"beside the path {passed:.2f} m, {force[0]:.0f} N"
    detail += f"; across it {stopped:.2f} m, {force[1]:.0f} N"
    measure.require(stopped < 0.8 < passed and force[0] == 0.0 and force[1] > _HARD_N, detail)
    return detail


def body_force(make: measure.Make) -> str:
    """The body force counts trunk and hips only."""
    hit = {
        "foot": (_box(0.55, 0.138, -0.4, (0.2, 0.02, 0.05)), False),
        "thigh or calf": (_box(0.55, 0.138, -0.2, (0.2, 0.02, 0.05)), False),
        "trunk": (_box(0.7, 0.0, 0.0, (0.2, 0.02, 0.2)), True),
        "hip": (_box(0.6, 0.14, 0.02, (0.2, 0.01, 0.03)), True),
    }
    backend = _fly(make, *([barrier] for barrier, _ in hit.values()))
    first = np.full((len(hit), 2), np.nan)
    for _ in range(_FLIGHT_STEPS):
        scene.hold(backend, 1)
        new = np.isnan(first[:, 0]) & (backend.state.barrier_force > _FELT_N)
        first[new, 0] = backend.state.barrier_force[new]
        first[new, 1] = backend.state.barrier_body_force[new]
    for (part, (_, is_body)), (force, on_body) in zip(hit.items(), first, strict=True):
        measure.require(force > _FELT_N, f"a {part} that hits a barrier feels nothing")
        off = f"{part}: {on_body:.0f} N on the body of {force:.0f} N in all"
        measure.require((on_body > _FELT_N) == is_body, off)
    return ", ".join(f"{part} {force:.0f} N" for part, force in zip(hit, first[:, 0], strict=True))


def no_ground(make: measure.Make) -> str:
    """Barriers do not count as ground for feet, knees and trunk."""
    shin = _box(0.55, 0.138, -0.4, (0.2, 0.02, 0.05))
    backend = _fly(make, _walls(0.2), _bar(-0.1), [shin])
    hit = 0.0
    for _ in range(_FLIGHT_STEPS):
        scene.hold(backend, 1)
        state = backend.state
        hit = max(hit, float(state.barrier_force.max()))
        parts = (state.trunk_force, state.foot_force, state.knee_force)
        measure.require(not any(part.any() for part in parts), "a barrier counts as ground")
    return f"up to {hit:.0f} N on barriers, 0 N of ground"


def wall_beside(make: measure.Make) -> str:
    """A robot that stands beside a wall feels wall and ground separately."""
    # Overlaps the left hips of the low stance by 5 mm.
    wall = Barrier((0.0, 0.155 + 0.05 - 0.005, 0.4), (0.5, 0.05, 0.16), 0.0)
    backend = measure.placed(make, scene.start_at(joint_pos=scene.FIRM_STANCE, barriers=[wall]))
    pressed = 0.0
    for _ in range(50):
        scene.hold(backend, 1, scene.FIRM_STANCE)
        pressed = max(pressed, float(backend.state.barrier_force[0]))
        measure.require(
            not backend.state.trunk_force.any(), "the wall counts as ground under the trunk"
        )
    measure.require(pressed > 5.0, f"a wall that overlaps the hips presses with {pressed:.1f} N")
    weight = measure.mean_over(
        backend, 10, scene.FIRM_STANCE, lambda state: state.foot_force[0, :, 2].sum()
    )
    measure.require_close("weight on the feet, N", weight, measure.WEIGHT_N, 0.1 * measure.WEIGHT_N)
    return f"wall {pressed:.0f} N, ground {weight[0]:.0f} N"


def out_of_reach(make: measure.Make) -> str:
    """A robot under a high bar moves as on open ground, and open ground has no barriers."""
    under = Barrier((0.0, 0.0, scene.STANDING_HEIGHT_M + 0.1 + 0.3), (0.5, 0.8, 0.3), 0.0)
    tiles = [make_tile(terrain, 5, 1) for terrain in ("rough", "stairs")]
    high = [scene.start_at(z=scene.STANDING_HEIGHT_M + 0.1, tile=tile) for tile in tiles]
    backend = measure.placed(make, scene.start_at(), scene.start_at(barriers=[under]), *high)
    off = 0.0
    for step in range(40):
        scene.hold(backend, 1, scene.FIRM_STANCE + 0.1 * np.sin(0.4 * step + np.arange(N_JOINTS)))
        state = backend.state
        felt = state.barrier_force.any() or state.barrier_body_force.any()
        measure.require(not felt, "a barrier is felt where none is in reach")
        off = max(off, _require_alike(backend, 0, 1, 0.01))
    return f"under the bar off by {off:.1g}"


def own_barriers(make: measure.Make) -> str:
    """A reset replaces the barriers of its robot only; equal barriers act alike."""
    placed = place_barriers(
        Passage("walls", 0.5, 0.6, 0.3), scene.FLAT, np.array([0.01, 0.02]), 0.1
    )
    raised = [
        Barrier((b.centre_m[0], b.centre_m[1], _HEIGHT_M), (*b.half_size_m[:2], 1.9), b.yaw_rad)
        for b in placed
    ]
    used = _fly(make, _walls(0.2), _walls(0.2), _walls(0.2), (), raised, raised)
    _hardest(used)
    now = ((), _walls(0.2), _bar(0.2), (), raised, raised)
    for index, barriers in enumerate(now):
        used.reset(index, _flying(barriers))
    measure.require(not used.state.barrier_force.any(), "a start has a contact already")
    force, _ = _hardest(used)
    felt = (force > 0).tolist()
    measure.require(felt == [False, True, False, False, True, True], f"barriers felt: {felt}")
    fresh = _fly(make, *now)
    again, _ = _hardest(fresh)
    measure.require(((again > 0) == (force > 0)).all(), "a new simulation feels other barriers")
    off = max(
        _require_alike(used, 0, 3),
        _require_alike(used, 2, 3),
        _require_alike(used, 4, 5, 0.02),
        *(_require_alike(used, index, index, 0.02, fresh) for index in range(len(now))),
    )
    return f"after a reset {force[1]:.0f} N and none; against new ones off by {off:.1g}"


def too_many_barriers(make: measure.Make) -> str:
    """More barriers than a robot may have are refused."""
    barriers = [*_walls(0.3), *_bar(0.3)]
    try:
        _fly(make, barriers)
    except ValueError as error:
        measure.require(f"{len(barriers)} barriers" in str(error), f"the message is: {error}")
        return str(error)
    raise measure.CheckFailed(f"{len(barriers)} barriers were accepted; {MAX_BARRIERS} are allowed")


def _require_stop(
    make: measure.Make, stopping: Sequence[Barrier], passing: Sequence[Barrier], nose_m: float
) -> tuple[PhysicsBackend, float, str]:
    """Fly robots at nothing, at barriers that stop one, and at others that let it pass.

    Returns the back end, the force in N that stopped the robot, and the measurements in words.
    """
    backend = _fly(make, (), stopping, passing)
    force, on_body = _hardest(backend)
    nose = backend.state.base_pos[1, 0] + _NOSE_M
    measure.require(nose < nose_m, f"the nose of the robot to stop is {nose:.2f} m ahead")
    measure.require(on_body[1] > _HARD_N, f"its body feels {on_body[1]:.0f} N")
    measure.require(
        not force[[0, 2]].any() and not on_body[[0, 2]].any(), "a passing robot feels a force"
    )
    off = _require_alike(backend, 0, 2)
    detail = f"{on_body[1]:.0f} N on the body; a passing robot is off by {off:.1g}"
    return backend, float(force[1]), detail


def _fly(make: measure.Make, *barriers: Sequence[Barrier]) -> PhysicsBackend:
    """A robot in the air for each list of barriers, moving forward."""
    return measure.placed(make, *map(_flying, barriers))


def _flying(barriers: Sequence[Barrier]) -> RobotStart:
    return scene.in_the_air(z=_HEIGHT_M, lin_vel=(_SPEED_MS, 0.0, 0.0), barriers=barriers)


def _box(x: float, y: float, z: float, half: tuple[float, float, float], yaw: float = 0) -> Barrier:
    """A barrier whose centre is `z` above the trunk at the start."""
    return Barrier((x, y, _HEIGHT_M + z), half, yaw)


def _walls(gap_m: float) -> list[Barrier]:
    """A pair too deep for a robot to fall past."""
    sides = (gap_m / 2 + 0.05, -gap_m / 2 - 0.05)
    return [_box(0.9, y, -0.8, (0.3, 0.05, 1.5)) for y in sides]


def _bar(low_m: float) -> list[Barrier]:
    """A bar whose lower edge is `low_m` above the trunk's middle at the start."""
    return [_box(0.9, 0.0, low_m + 0.3, (0.3, 0.8, 0.3))]


def _hardest(backend: PhysicsBackend) -> tuple[np.ndarray, np.ndarray]:
    """(N,) the largest force in flight in N, on any part and on the body."""
    force = np.zeros(backend.num_robots)
    on_body = np.zeros(backend.num_robots)
    for _ in range(_FLIGHT_STEPS):
        scene.hold(backend, 1, scene.DEFAULT_POSE)
        force = np.maximum(force, backend.state.barrier_force)
        on_body = np.maximum(on_body, backend.state.barrier_body_force)
    return force, on_body


def _require_alike(
    backend: PhysicsBackend,
    first: int,
    second: int,
    float32_m: float = 1e-3,
    second_backend: PhysicsBackend | None = None,
) -> float:
    """The difference of two robots' states; of positions only if the back end is not exact."""
    names = measure.STATE_NAMES if backend.exact else ("base_pos", "joint_pos")
    allowed = measure.tolerance(backend, 0.0, float32_m)
    off = 0.0
    for name in names:
        actual = getattr(backend.state, name)[first]
        expected = getattr((second_backend or backend).state, name)[second]
        off = max(off, measure.require_close(f"{name} of robots alike", actual, expected, allowed))
    return off
