"""A robot written as URDF is the robot of its MuJoCo model: mass, kinematics, dynamics, shapes."""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import pytest

from gaitforge.collectors.physics.mujoco.model import build_model
from gaitforge.collectors.physics.mujoco.urdf import FRICTION_SPEED_RADS, RobotUrdf, robot_urdf
from gaitforge.collectors.robots.robot import RobotCard, RobotError, load_robot
from tests.collectors.robots.robot_folders import collection_style_folder, robot_folder, write_robot

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false


def moved_frames(folder: Path) -> Path:
    """The same Go1, with a calf's frame 3 cm beside its joint, turned, and angles from there."""
    tree = ET.fromstring(load_robot("go1").mjcf_path.read_text())
    calf = tree.find(".//body[@name='FL_calf']")
    assert calf is not None
    calf.set("pos", "0 0.03 -0.213")
    calf.set("quat", f"{np.cos(0.2)} 0 {np.sin(0.2)} 0")
    for element in calf:
        if element.tag == "joint":
            element.set("pos", "0 -0.03 0")
            element.set("ref", "0.4")
        elif element.get("fromto"):
            element.set("fromto", "0 -0.03 0 0 -0.03 -0.213")
        else:
            x, y, z = (float(number) for number in element.get("pos", "0 0 -0.213").split())
            element.set("pos", f"{x} {y - 0.03} {z}")
    return write_robot(folder, ET.tostring(tree, encoding="unicode"))


def welded_shank(folder: Path) -> Path:
    """Go1 with its front left calf in two bodies that are welded, the lower turned."""
    edits = [
        (
            '<geom name="FL_foot" class="foot"/>',
            '<body name="FL_boot" pos="0 0 -0.1" euler="0.3 0.2 0.1">'
            '<inertial pos="0 0.01 0.02" mass="0.05" diaginertia="2e-5 3e-5 4e-5"/></body>'
            '<geom name="FL_foot" class="foot"/>',
        )
    ]
    return robot_folder(folder, mjcf=edits)


ROBOTS: dict[str, Callable[[Path], RobotCard]] = {
    "aliengo": lambda _: load_robot("aliengo"),
    "go1": lambda _: load_robot("go1"),
    "collection": lambda folder: load_robot(str(collection_style_folder(folder))),
    "moved frames": lambda folder: load_robot(str(moved_frames(folder))),
    "welded": lambda folder: load_robot(str(welded_shank(folder))),
}


@pytest.fixture(params=list(ROBOTS))
def robot(request: pytest.FixtureRequest, tmp_path: Path) -> RobotCard:
    return ROBOTS[request.param](tmp_path / "robot")


def written(robot: RobotCard) -> tuple[mujoco.MjModel, RobotUrdf]:
    model = build_model(robot)
    return model, robot_urdf(robot, model)


def read_back(urdf: RobotUrdf) -> mujoco.MjModel:
    """The URDF as MuJoCo reads it, with a free trunk."""
    spec = mujoco.MjSpec.from_string(urdf.text)
    spec.compiler.fusestatic = False
    spec.body(urdf.trunk).add_freejoint()
    return spec.compile()


def posed(
    robot: RobotCard, model: mujoco.MjModel, joint_pos: np.ndarray
) -> tuple[mujoco.MjData, list[int]]:
    """Data with the trunk at the origin, and the degrees of freedom, joints in the card's order."""
    data = mujoco.MjData(model)
    free = int(np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)[0])
    first = int(model.jnt_qposadr[free])
    data.qpos[first : first + 7] = 0, 0, 0, 1, 0, 0, 0
    for name, angle in zip(robot.joint_names, joint_pos, strict=True):
        data.joint(name).qpos[0] = angle
    dofs = [int(model.joint(name).dofadr[0]) for name in robot.joint_names]
    return data, [*range(int(model.jnt_dofadr[free]), int(model.jnt_dofadr[free]) + 6), *dofs]


def poses(robot: RobotCard) -> np.ndarray:
    """(3, 12) joint positions anywhere within the limits."""
    rng = np.random.default_rng(3)
    return rng.uniform(robot.joint_lower_rad, robot.joint_upper_rad, (3, 12))


def inertia_and_gravity(
    robot: RobotCard, model: mujoco.MjModel, pose: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Joint-space inertia (18, 18) without the motors' armature, and the weight's forces (18,)."""
    data, dofs = posed(robot, model, pose)
    mujoco.mj_forward(model, data)
    inertia = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, inertia)
    inertia -= np.diag(model.dof_armature)
    return inertia[np.ix_(dofs, dofs)], data.qfrc_bias[dofs]


def test_masses_and_places_are_the_models_in_every_pose(robot: RobotCard) -> None:
    model, urdf = written(robot)
    back = read_back(urdf)
    assert back.body_mass.sum() == pytest.approx(robot.mass_kg, rel=0.02)
    for pose in poses(robot):
        inertia, weight = inertia_and_gravity(robot, model, pose)
        found_inertia, found_weight = inertia_and_gravity(robot, back, pose)
        np.testing.assert_allclose(found_inertia, inertia, atol=1e-7)
        np.testing.assert_allclose(found_weight, weight, atol=1e-6)
        data, found = posed(robot, model, pose)[0], posed(robot, back, pose)[0]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_kinematics(back, found)
        for links, geoms in ((urdf.feet, robot.foot_geoms), (urdf.knees, robot.knee_geoms)):
            for link, geom in zip(links, geoms, strict=True):
                np.testing.assert_allclose(found.body(link).xpos, data.geom(geom).xpos, atol=1e-7)


def test_joints_keep_their_limits_and_hips_their_legs(robot: RobotCard) -> None:
    model, urdf = written(robot)
    back = read_back(urdf)
    for i, name in enumerate(robot.joint_names):
        np.testing.assert_allclose(
            back.joint(name).range, model.joint(name).range, atol=1e-9, err_msg=name
        )
        assert back.qpos0[back.joint(name).qposadr[0]] == 0.0
        if i % 3 == 0:
            assert back.body(int(back.joint(name).bodyid[0])).name == urdf.hips[i // 3]
    limits = {e.get("name"): e.find("limit") for e in ET.fromstring(urdf.text).iter("joint")}
    for name, torque in zip(robot.joint_names, robot.torque_limit_nm, strict=True):
        limit = limits[name]
        assert limit is not None
        assert float(limit.get("effort", "0")) == torque


def test_every_shape_that_collides_is_there() -> None:
    robot = load_robot("aliengo")
    model, urdf = written(robot)
    back = read_back(urdf)
    assert urdf.beyond_barriers == urdf.knees, "these meet the ground alone"
    kinds = Counter(int(kind) for kind in back.geom_type)
    geom = mujoco.mjtGeom
    # The four calves' capsules became a cylinder and two spheres each.
    assert kinds == {
        int(geom.mjGEOM_BOX): 1 + 4,
        int(geom.mjGEOM_CYLINDER): 4 + 4,
        int(geom.mjGEOM_SPHERE): 4 + 4 + 2 * 4,
    }
    foot = back.body_geomadr[back.body(urdf.feet[0]).id]
    assert back.geom_size[foot, 0] == robot.foot_radius_m
    trunk = back.body_geomadr[back.body(urdf.trunk).id]
    np.testing.assert_allclose(back.geom_size[trunk], model.geom("trunk").size)


def test_dry_friction_becomes_viscous_and_armature_is_the_models(tmp_path: Path) -> None:
    edit = '<joint axis="1 0 0" range="-1.047 1.047" armature="0.0040" frictionloss="0.2"/>'
    old = '<joint axis="1 0 0" range="-1.047 1.047" armature="0.0040"/>'
    robot = load_robot(str(robot_folder(tmp_path / "robot", mjcf=[(old, edit)])))
    _, urdf = written(robot)
    hip = 0.06 + 0.2 / FRICTION_SPEED_RADS
    np.testing.assert_allclose(urdf.damping, np.tile([hip, 0.06, 0.06], 4))
    np.testing.assert_allclose(urdf.armature, np.tile([0.004, 0.004, 0.0091], 4))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            '<geom name="FL_foot" class="foot"/>',
            '<geom name="FL_foot" class="foot"/><geom name="toe" type="ellipsoid" '
            'size=".01 .02 .03" pos="0 0 -.2"/>',
            "mine.xml: the shape toe collides and is no sphere, capsule, cylinder or box",
        ),
        (
            '<joint name="FL_calf_joint" class="calf"/>',
            '<joint name="FL_calf_joint" class="calf" stiffness="3"/>',
            "mine.xml: URDF has no springs, equality constraints and tendons",
        ),
        (
            'diaginertia="0.00148 0.00150 0.00004"',
            'diaginertia="0.00148 0.00148 1e-11"',
            "the inertia of body 'FL_calf' is too small for its mass",
        ),
    ],
)
def test_what_urdf_cannot_hold_is_refused(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    robot = load_robot(str(robot_folder(tmp_path / "robot", mjcf=[(old, new)])))
    with pytest.raises(RobotError, match=complaint):
        written(robot)
