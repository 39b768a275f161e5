"""Robots of a family: bodies drawn around one robot's, as stiff and as strong for their weight.

Torques, gains, damping and armature grow with a body's mass and leg length as those of dynamically
similar animals do (Alexander and Jayes, 1983), before the gains' own factors. The parts of the MJCF
are stretched: their shapes, joints' places, masses and inertias.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import mujoco
import numpy as np

from gaitforge.collectors.physics.mujoco.urdf import matrix as rotation_matrix
from gaitforge.collectors.physics.robot_check import check_robot
from gaitforge.collectors.robots.kinematics import LegKinematics, standing_height_m
from gaitforge.collectors.robots.robot import (
    CARD_FILE,
    CARD_KEYS,
    JOINTS_PER_LEG,
    N_LEGS,
    RobotCard,
    RobotError,
    load_robot,
)
from gaitforge.common.files import new_folder
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.plugins.robots.writing import set_inertial, write_card

MAX_ATTEMPTS = 100

Factors = Mapping[str, float]
"""Factors of one body, by the names of `robot.VARIATION`."""


@dataclass(frozen=True)
class Stretch:
    """A part's symmetric stretch (3, 3) in the trunk's axes, and the factor of its density."""

    matrix: np.ndarray
    density: float = 1.0

    @property
    def mass(self) -> float:
        """Factor of the part's mass."""
        return self.density * float(np.linalg.det(self.matrix))


def draw_factors(robot: RobotCard, seed: int, index: int, attempt: int = 0) -> dict[str, float]:
    """Factors of body `index` of a robot's family, log-uniform in the card's ranges."""
    rng = np.random.default_rng([seed, index, attempt])
    ranges = sorted(robot.variation.items())
    return {name: float(np.exp(rng.uniform(*np.log(ends)))) for name, ends in ranges}


def vary_robots(
    robot: RobotCard, seed: int, count: int, out: Path, progress: Callable[[], None]
) -> list[RobotCard]:
    """Write the first `count` bodies of a robot's family into folders in `out`; skip existing ones.

    RobotError for a folder that holds another robot, or a body of the robot as it was before.
    """
    check_outside_stores(out).mkdir(parents=True, exist_ok=True)
    bodies = []
    for index in range(count):
        name = body_name(robot, seed, index)
        folder = out / name
        if folder.exists():
            body = load_robot(str(folder))
            if body.name != name:
                raise RobotError(f"the folder {folder} holds the robot '{body.name}', not '{name}'")
            _check_up_to_date(robot, seed, index, body)
        else:
            body = vary_robot(robot, seed, index, folder)
        bodies.append(body)
        progress()
    return bodies


def _check_up_to_date(robot: RobotCard, seed: int, index: int, body: RobotCard) -> None:
    """RobotError unless `body`, which was written before, follows from the robot as it is now.

    Its card is written again with its factors, and compared.
    """
    factors = {name: ends[0] for name, ends in body.variation.items()}
    drawn = (draw_factors(robot, seed, index, attempt) for attempt in range(MAX_ATTEMPTS))
    if factors in drawn:
        with tempfile.TemporaryDirectory(prefix="gaitforge-vary-") as folder:
            again = write_varied(robot, factors, body.name, Path(folder))
        if np.allclose(_card_numbers(again), _card_numbers(body), rtol=1e-6, atol=1e-9):
            return
    raise RobotError(
        f"the folder {body.path.parent} holds a body of another '{robot.name}': its card, MJCF or "
        "ranges have changed since; choose another --out"
    )


def _card_numbers(robot: RobotCard) -> np.ndarray:
    """All numbers of a card, one after the other."""
    values = (np.asarray(getattr(robot, key)) for key in CARD_KEYS if key != "mjcf")
    return np.concatenate([value.ravel() for value in values if value.dtype.kind == "f"])


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


def along(direction: np.ndarray, factor: float) -> np.ndarray:
    """(3, 3): a stretch along a direction (3,), nothing across."""
    unit = direction / np.linalg.norm(direction)
    return np.eye(3) + (factor - 1.0) * np.outer(unit, unit)


def stretch_robot(
    spec: mujoco.MjSpec, trunk: str, parts: Mapping[str, Stretch], round_geoms: Mapping[str, float]
) -> float:
    """Stretch the trunk and every part below it in place; returns the factor of the whole mass.

    Args:
        parts: stretches of the trunk (by its name) and of the parts below joints (by the joint's
            name); a part goes down to the next joint that is named.
        round_geoms: factors of shapes that grow evenly, so that feet stay round.
    """
    model = spec.compile()
    data = mujoco.MjData(model)
    root = model.body(trunk)
    start = int(model.jnt_qposadr[int(root.jntadr[0])])
    data.qpos[start : start + 7] = 0, 0, 0, 1, 0, 0, 0
    mujoco.mj_kinematics(model, data)
    mass = 0.0
    for body in spec.bodies:
        b = int(body.id)
        part = _part_of(model, b, root.id, parts)
        if part is None:
            continue
        axes = data.xmat[b].reshape(3, 3)
        matrix = axes.T @ part.matrix @ axes
        parent = int(model.body_parentid[b])
        above = _part_of(model, parent, root.id, parts)
        if above is not None:
            turned = data.xmat[parent].reshape(3, 3)
            body.pos = turned.T @ above.matrix @ turned @ model.body_pos[b]
        _stretch_inertia(body, model, matrix, part)
        mass += float(body.mass)
        for joint in body.joints:
            joint.pos = matrix @ model.jnt_pos[int(joint.id)]
        for geom in body.geoms:
            _stretch_geom(geom, model, matrix, round_geoms.get(geom.name))
    return mass / float(model.body_subtreemass[root.id])


def _part_of(
    model: mujoco.MjModel, body: int, trunk: int, parts: Mapping[str, Stretch]
) -> Stretch | None:
    """The stretch of a body; None outside of the robot."""
    while body > trunk:
        first = int(model.body_jntadr[body])
        for joint in range(first, first + int(model.body_jntnum[body])):
            if model.joint(joint).name in parts:
                return parts[model.joint(joint).name]
        body = int(model.body_parentid[body])
    return parts[model.body(trunk).name] if body == trunk else None


def _stretch_inertia(
    body: mujoco.MjsBody, model: mujoco.MjModel, matrix: np.ndarray, part: Stretch
) -> None:
    """Second moments of mass stretch as the mass does: S = m_factor A S A^T."""
    b = int(body.id)
    turned = rotation_matrix(model.body_iquat[b])
    inertia = turned @ np.diag(model.body_inertia[b]) @ turned.T
    moments = np.trace(inertia) / 2 * np.eye(3) - inertia
    moments = part.mass * matrix @ moments @ matrix.T
    inertia = np.trace(moments) * np.eye(3) - moments
    mass = part.mass * float(model.body_mass[b])
    set_inertial(body, mass, matrix @ model.body_ipos[b], inertia)


def _stretch_geom(
    geom: mujoco.MjsGeom, model: mujoco.MjModel, matrix: np.ndarray, grown: float | None
) -> None:
    """A primitive shape keeps its kind and axes; its sizes follow the stretch of its axes."""
    g = int(geom.id)
    lengths = np.linalg.norm(matrix @ rotation_matrix(model.geom_quat[g]), axis=0)
    if grown is not None:
        lengths[:] = grown
    kinds = mujoco.mjtGeom
    if geom.type == kinds.mjGEOM_SPHERE:
        lengths[:] = np.cbrt(lengths.prod())
    elif geom.type in (kinds.mjGEOM_CAPSULE, kinds.mjGEOM_CYLINDER):
        # Sizes are radius and half length along z.
        lengths[:2] = np.sqrt(lengths[0] * lengths[1]), lengths[2]
    geom.size = model.geom_size[g] * lengths
    geom.pos = matrix @ model.geom_pos[g]
    geom.quat = model.geom_quat[g]
    geom.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    geom.fromto[:] = np.nan
