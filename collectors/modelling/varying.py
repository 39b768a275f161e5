"""Robots of a family: bodies drawn around one robot's, as stiff and as strong for their weight.

Torques, gains, damping and armature grow with a body's mass and leg length as those of dynamically
similar animals do (Alexander and Jayes, 1983), before the gains' own factors.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np

from gaitforge.collectors.modelling.card_file import write_card
from gaitforge.collectors.modelling.stretching import Stretch, along, stretch_robot
from gaitforge.collectors.physics.checks.robot_check import check_robot
from gaitforge.collectors.robots.kinematics import LegKinematics, standing_height_m
from gaitforge.collectors.robots.robot import (
    CARD_FILE,
    JOINTS_PER_LEG,
    N_LEGS,
    RobotCard,
    RobotError,
    load_robot,
)
from gaitforge.common.files import new_folder
from gaitforge.datasets.layout import check_outside_stores

MAX_ATTEMPTS = 100

Factors = Mapping[str, float]
"""Factors of one body, by the names of `robot.VARIATION`."""


def draw_factors(robot: RobotCard, seed: int, index: int, attempt: int = 0) -> dict[str, float]:
    """Factors of body `index` of a robot's family, log-uniform in the card's ranges."""
    rng = np.random.default_rng([seed, index, attempt])
    ranges = sorted(robot.variation.items())
    return {name: float(np.exp(rng.uniform(*np.log(ends)))) for name, ends in ranges}


def vary_robots(
    robot: RobotCard, seed: int, count: int, out: Path, progress: Callable[[], None]
) -> list[RobotCard]:
    """Write the first `count` bodies of a robot's family into folders in `out`; skip existing ones.

    RobotError for a folder that holds another robot.
    """
    check_outside_stores(out).mkdir(parents=True, exist_ok=True)
    bodies = []
    for index in range(count):
        name = body_name(robot, seed, index)
        folder = out / name
        if not folder.exists():
            vary_robot(robot, seed, index, folder)
        body = load_robot(str(folder))
        if body.name != name:
            raise RobotError(f"the folder {folder} holds the robot '{body.name}', not '{name}'")
        bodies.append(body)
        progress()
    return bodies


def body_name(robot: RobotCard, seed: int, index: int) -> str:
    """Name of body `index` of a robot's family."""
    return f"{robot.name}-{seed}-{index:03d}"


def vary_robot(robot: RobotCard, seed: int, index: int, out: Path) -> RobotCard:
    """Write body `index` of a robot's family as the new folder `out`, and load it.

    A pure function of robot, seed and index. Bodies that `check_robot` refuses or warns of are
    redrawn; RobotError if none of `MAX_ATTEMPTS` is usable.
    """
    complaint = ""
    for attempt in range(MAX_ATTEMPTS):
        factors = draw_factors(robot, seed, index, attempt)
        try:
            with new_folder(out) as folder:
                varied = write_varied(robot, factors, body_name(robot, seed, index), folder)
                if warnings := check_robot(varied).warnings:
                    raise RobotError("; ".join(warnings))
        except RobotError as error:
            complaint = str(error)
        else:
            return load_robot(str(out))
    raise robot.wrong(
        f"none of {MAX_ATTEMPTS} bodies of its family can be used, the last because: {complaint}; "
        "narrow the ranges of `variation` in its card"
    )


def write_varied(robot: RobotCard, factors: Factors, name: str, folder: Path) -> RobotCard:
    """Write card and MJCF of a body with these factors into a folder, and load it."""
    spec = mujoco.MjSpec.from_file(str(robot.mjcf_path))
    parts = _parts(robot, factors)
    size = factors["size"]
    heavier = stretch_robot(spec, robot.trunk_body, parts, dict.fromkeys(robot.foot_geoms, size))
    legs = replace(robot, **_offsets(robot, parts))
    longer = legs.leg_length_m / robot.leg_length_m
    stronger = heavier * longer
    for joint in spec.joints:
        if joint.name in robot.joint_names:
            joint.armature *= stronger * longer
            joint.damping *= stronger * np.sqrt(longer)
    spec.compile()
    (folder / f"{name}.xml").write_text(spec.to_xml(), encoding="utf-8")
    beyond_feet = robot.width_m - 2 * robot.feet_below_m[0, 1]
    trunk = parts[robot.trunk_body].matrix.diagonal()
    varied = replace(
        legs,
        kp_nm_per_rad=robot.kp_nm_per_rad * stronger * factors["kp"],
        kd_nms_per_rad=robot.kd_nms_per_rad * stronger * np.sqrt(longer) * factors["kd"],
        torque_limit_nm=robot.torque_limit_nm * stronger,
        mass_kg=robot.mass_kg * heavier,
        foot_radius_m=robot.foot_radius_m * size,
        trunk_half_size_m=tuple(np.array(robot.trunk_half_size_m) * trunk),
        width_m=float(2 * legs.feet_below_m[0, 1] + size * beyond_feet),
    )
    named = replace(
        _standing_alike(varied, robot),
        name=name,
        path=folder / CARD_FILE,
        mjcf_path=folder / f"{name}.xml",
        source=f"{robot.name} ({robot.source}), with the factors of 'variation' here",
        variation={key: (value, value) for key, value in factors.items()},
    )
    write_card(named)
    return load_robot(str(folder))


def _parts(robot: RobotCard, factors: Factors) -> dict[str, Stretch]:
    """Stretches of the trunk and of the part below each joint."""
    size = factors["size"]
    density = factors["mass"]
    trunk = size * np.diag([factors[f"trunk_{side}"] for side in ("length", "width", "height")])
    parts = {robot.trunk_body: Stretch(trunk, density * factors["trunk_mass"])}
    for leg in range(N_LEGS):
        hip, thigh, calf = robot.joint_names[leg * JOINTS_PER_LEG : (leg + 1) * JOINTS_PER_LEG]
        for joint, link, factor in (
            (hip, np.array([0.0, 1.0, 0.0]), factors["trunk_width"]),
            (thigh, robot.knee_offset_m[leg], factors["thigh_length"]),
            (calf, robot.foot_offset_m[leg], factors["calf_length"]),
        ):
            parts[joint] = Stretch(size * along(link, factor), density)
    return parts


def _offsets(robot: RobotCard, parts: Mapping[str, Stretch]) -> dict[str, np.ndarray]:
    """The card's four offsets (4, 3) after the stretch of the parts that they run through."""
    stretched: dict[str, np.ndarray] = {}
    for part, key in enumerate(_OFFSETS):
        carriers = [
            robot.trunk_body if part == 0 else robot.joint_names[leg * JOINTS_PER_LEG + part - 1]
            for leg in range(N_LEGS)
        ]
        offsets = getattr(robot, key)
        stretched[key] = np.stack(
            [parts[name].matrix @ offsets[leg] for leg, name in enumerate(carriers)]
        )
    return stretched


_OFFSETS = ("hip_offset_m", "thigh_offset_m", "knee_offset_m", "foot_offset_m")


def _standing_alike(varied: RobotCard, robot: RobotCard) -> RobotCard:
    """The body with height and default pose at the same share of the legs' reach as `robot`'s.

    Feet keep their places under the thighs, in leg lengths.
    """
    longer = varied.leg_length_m / robot.leg_length_m
    height = varied.reach_m - (robot.reach_m - robot.nominal_height_m) * longer
    height += varied.foot_radius_m - robot.foot_radius_m * longer
    feet = LegKinematics(robot).foot_positions(robot.default_joint_pos_rad[None])[0]
    below = np.concatenate([robot.feet_below_m, np.zeros((N_LEGS, 1))], axis=1)
    above_nominal = standing_height_m(robot) - robot.nominal_height_m
    feet = (feet - below) * longer
    feet[:, :2] += varied.feet_below_m
    feet[:, 2] = varied.foot_radius_m - height - above_nominal * longer
    pose = LegKinematics(varied).joint_positions(feet[None])[0]
    pose = np.clip(pose, varied.joint_lower_rad, varied.joint_upper_rad)
    return replace(varied, nominal_height_m=height, default_joint_pos_rad=pose)
