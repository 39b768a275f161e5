"""Checks on the ground: standing, weights, slopes, every terrain, and the throughput.

Forces are means over half a second: in some simulators they flicker.
"""

import time
from dataclasses import replace

import numpy as np

from gaitforge.collectors.physics.checks import scene
from gaitforge.collectors.physics.checks.robot_check import standing_load
from gaitforge.collectors.scenarios.terrains import TERRAINS, make_tile, tile_heights

ROBOTS = 256
"""Parallel robots whose throughput is measured."""
_SETTLE_STEPS = 75
_MEAN_STEPS = 25
_CONTACT_N = 1.0
_SLOPE_LEVEL = 8


def standing_sag(make: scene.Make) -> str:
    """Standing under the PD law, every joint sags by its load over its stiffness."""
    stance = standing_load(scene.ROBOT)
    targets = stance.joint_pos_rad + stance.torque_nm / scene.ROBOT.kp_nm_per_rad
    start = scene.start_at(z=scene.ROBOT.nominal_height_m + 0.002, joint_pos=stance.joint_pos_rad)
    backend = scene.placed(make, start)
    scene.hold(backend, _SETTLE_STEPS, targets)
    sag = scene.mean_over(backend, _MEAN_STEPS, targets, lambda state: targets - state.joint_pos[0])
    torque = scene.mean_over(backend, _MEAN_STEPS, targets, lambda state: state.joint_torque[0])
    stated = stance.torque_nm / scene.ROBOT.kp_nm_per_rad
    off = scene.require_close("sag against load / stiffness, rad", sag, stated, 0.06)  # feet rub
    law = scene.require_close(
        "torque against the PD law, Nm", torque, sag * scene.ROBOT.kp_nm_per_rad, 1.0
    )
    height = float(backend.state.base_pos[0, 2])
    scene.require_close("height of the trunk, m", height, scene.ROBOT.nominal_height_m, 0.015)
    worst = int(np.argmax(np.abs(stated)))
    return (
        f"{scene.ROBOT.joint_names[worst]} sags {sag[worst]:.3f} rad, stated {stated[worst]:.3f}; "
        f"all within {off:.3f}; torque off by {law:.2f} Nm; {height:.3f} m high"
    )


def weight_on_feet(make: scene.Make) -> str:
    """The feet of a standing robot carry its weight, straight up; nothing else does."""
    backend = scene.placed(make, scene.start_at(joint_pos=scene.FIRM_STANCE))
    scene.hold(backend, _SETTLE_STEPS, scene.FIRM_STANCE)
    force = scene.mean_over(
        backend, _MEAN_STEPS, scene.FIRM_STANCE, lambda state: state.foot_force[0].sum(axis=0)
    )
    scene.require_close("weight on the feet, N", force[2], scene.WEIGHT_N, 0.02 * scene.WEIGHT_N)
    scene.require_close("force along the ground, N", force[:2], 0.0, 5.0)
    scene.require(not backend.state.trunk_force.any(), "the trunk feels the ground")
    scene.require(not backend.state.knee_force.any(), "a knee feels the ground")
    return f"{force[2]:.1f} N of {scene.WEIGHT_N:.1f}"


def belly(make: scene.Make) -> str:
    """A trunk on the ground carries the weight, and feet in the air nothing."""
    backend = scene.placed(make, scene.start_at(z=0.06, joint_pos=scene.LEGS_UP))
    scene.hold(backend, _SETTLE_STEPS, scene.LEGS_UP)
    force = scene.mean_over(backend, _MEAN_STEPS, scene.LEGS_UP, lambda state: state.trunk_force[0])
    scene.require_close("weight on the trunk, N", force[2], scene.WEIGHT_N, 0.05 * scene.WEIGHT_N)
    scene.require(not backend.state.foot_force.any(), "a foot in the air feels a force")
    return f"{force[2]:.1f} N of {scene.WEIGHT_N:.1f}"


def terrain_heights(make: scene.Make) -> str:
    """Feet stand on the ground of every terrain, within the tile and on its seam."""
    names = sorted(TERRAINS)
    places = [(name, on_seam) for name in names for on_seam in (False, True)]
    backend = scene.placed(make, *[scene.start_at()] * len(places))
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
        scene.require(down.sum() >= 2, f"{where}: {down.sum()} feet on the ground")
        feet = state.foot_pos[index, down]
        ground = scene.height_between(tile, feet[:, :2]) + scene.ROBOT.foot_radius_m
        allowed = 0.005 if name == "flat" else 0.02
        off = scene.require_close(f"{where}: feet over the ground, m", feet[:, 2], ground, allowed)
        worst = max(worst, off)
    return f"{len(names)} terrains, feet within {1000 * worst:.0f} mm of the ground"


def slope_friction(make: scene.Make) -> str:
    """Feet slide down a slope steeper than their friction angle and hold on a gentler one."""
    tile = make_tile("slope", _SLOPE_LEVEL, 0)
    frictions = (0.3, 0.8, 1.25)
    heights = tile_heights(tile, np.array([[2.5, 0.0], [2.9, 0.0]]))
    grade = abs(float(heights[1] - heights[0])) / 0.4
    start = scene.start_at(
        x=2.5, z=float(heights[0]) + 0.45, joint_pos=scene.FIRM_STANCE, tile=tile
    )
    draws = [scene.draws_with(friction=friction) for friction in frictions]
    backend = scene.placed(make, *(replace(start, draws=drawn) for drawn in draws))
    scene.hold(backend, 50, scene.FIRM_STANCE)
    landed = backend.state.foot_pos.copy()
    scene.hold(backend, 25, scene.FIRM_STANCE)
    slid = np.linalg.norm(backend.state.foot_pos - landed, axis=2).mean(axis=1)
    distances = ", ".join(f"{f:g}: {way:.3f} m" for f, way in zip(frictions, slid, strict=True))
    scene.require(slid[0] > 0.1, f"friction 0.3 holds on a grade of {grade:.2f} ({distances})")
    scene.require(
        (slid[1:] < 0.04).all(), f"friction of 0.8 or more slides down {grade:.2f} ({distances})"
    )
    return f"grade {grade:.2f}, way in half a second by friction {distances}"


def throughput(make: scene.Make, robots: int = ROBOTS) -> str:
    """Control steps a second of robots that stand on flat ground; no bar."""
    backend = scene.placed(make, *[scene.start_at(joint_pos=scene.FIRM_STANCE)] * robots)
    scene.hold(backend, 3, scene.FIRM_STANCE)
    started = time.perf_counter()
    steps = 20
    scene.hold(backend, steps, scene.FIRM_STANCE)
    rate = robots * steps / (time.perf_counter() - started)
    height = backend.state.base_pos[:, 2]
    scene.require((height > 0.2).all(), f"a robot is at {height.min():.2f} m")
    return f"{rate:,.0f} control steps/s with {robots} robots"
