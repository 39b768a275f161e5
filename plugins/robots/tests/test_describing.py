"""`robot init`: what becomes of MJCFs as collections have them, and what it asks for or refuses."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.physics.mujoco.model import build_model, stiffness
from gaitforge.collectors.physics.mujoco.urdf import robot_urdf
from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import (
    KNEES,
    N_JOINTS,
    N_LEGS,
    RobotCard,
    RobotError,
    load_robot,
)
from gaitforge.plugins.robots.describing.describe import Described, describe, init_robot
from gaitforge.plugins.robots.describing.notes import Answers
from gaitforge.plugins.robots.tests.menagerie_files import FOOT, menagerie_file, turned_file
from tests.collectors.making import robot_of_another_shape

FEET = ("LF", "RF", "LH", "RH")
UNSEEN = 'contype="0" conaffinity="0"'
WHOLE = (
    ('class="visual" mesh="shell"', 'class="visual" type="sphere" size="0.01"'),
    ('file="paint.png"', 'builtin="flat" width="8" height="8"'),
    ('<mesh file="shell.obj"/>', ""),
)
"""Edits after which no file is missing."""
SERVO = 'kp="90" kv="2"'
QUOTE = {'"': "&quot;"}
BOX = (0.25, 0.1, 0.06)


def init(tmp_path: Path, *edits: tuple[str, str], answers: Answers | None = None) -> Described:
    path = menagerie_file(tmp_path / "collection", *edits)
    return init_robot(path, tmp_path / "robot", answers or Answers())


def refusal(path: Path, **answers: Any) -> str:
    """The one line that an MJCF gets; nothing is written."""
    out = path.parent / "robot"
    with pytest.raises(RobotError) as caught:
        init_robot(path, out, Answers(**answers))
    assert "\n" not in str(caught.value)
    assert not out.exists()
    assert not list(path.parent.glob(".robot*"))
    return str(caught.value)


def decided(described: Described, what: str) -> str:
    """Value and source of a decision."""
    found = {each.what: f"{each.value} ({each.source})" for each in described.decisions}
    return found[what]


def test_a_collections_file_becomes_a_robot(tmp_path: Path) -> None:
    described = init(tmp_path)
    robot = described.robot
    assert described.findings.warnings == ()
    assert sorted(path.name for path in robot.path.parent.iterdir()) == ["beast.xml", "robot.json"]
    assert robot.joint_names[:6] == ("LF_HAA", "LF_HFE", "LF_KFE", "RF_HAA", "RF_HFE", "RF_KFE")
    assert robot.joint_names[6::3] == ("LH_HAA", "RH_HAA")
    assert robot.knee_signs.tolist() == list(KNEES["inward"])
    np.testing.assert_allclose(robot.joint_upper_rad[:3], np.radians([40, 100, 150]), atol=1e-5)
    assert set(robot.torque_limit_nm) == {40.0}
    assert set(robot.kp_nm_per_rad) == {90.0}
    assert robot.trunk_half_size_m == (0.3, 0.06, 0.08)
    assert robot.width_m == pytest.approx(2 * (0.05 + 0.08 + 0.01 + 0.02))
    assert robot.foot_geoms == FEET
    assert robot.mass_kg == pytest.approx(float(build_model(robot).body_subtreemass[1]), abs=1e-3)
    assert "3 in" not in decided(described, "feet")
    assert decided(described, "knees").endswith("(4 spheres added at the knee joints)")
    assert decided(described, "default pose, rad").endswith("(key frame 'home')")
    assert robot.nominal_height_m == pytest.approx(0.4 * np.cos(0.7) + 0.02, abs=1e-3)

    root = ET.parse(robot.mjcf_path).getroot()
    assert {each.tag for each in root} == {"compiler", "option", "default", "worldbody"}
    tags = {each.tag for each in root.iter("worldbody") for each in each.iter()}
    assert tags == {"worldbody", "body", "inertial", "joint", "geom"}
    assert "quat" not in {key for body in root.iter("body") for key in body.attrib}
    model = mujoco.MjModel.from_xml_path(str(robot.mjcf_path))
    bits = {int(model.geom(name).conaffinity[0]) for name in robot.knee_geoms}
    assert bits == {1}
    by_body = model.geom_conaffinity[model.geom_bodyid == model.body("base").id]
    assert by_body.tolist() == [3, 3, 3]
    assert model.opt.timestep == 0.005


def posed(model: mujoco.MjModel, robot: RobotCard) -> mujoco.MjData:
    """The default pose with the trunk at the origin."""
    data = mujoco.MjData(model)
    data.qpos[:7] = 0, 0, 0, 1, 0, 0, 0
    for name, angle in zip(robot.joint_names, robot.default_joint_pos_rad, strict=True):
        data.joint(name).qpos[0] = angle
    mujoco.mj_forward(model, data)
    return data


def test_masses_and_inertias_are_the_files(tmp_path: Path) -> None:
    path = menagerie_file(tmp_path, *WHOLE)
    robot, _ = describe(path, tmp_path, Answers())
    found = []
    for file in (path, robot.mjcf_path):
        model = mujoco.MjModel.from_xml_path(str(file))
        data, inertia = posed(model, robot), np.empty((model.nv, model.nv))
        mujoco.mj_fullM(model, data, inertia)
        order = [*range(6), *(model.joint(name).dofadr[0] for name in robot.joint_names)]
        found.append((inertia[np.ix_(order, order)], data.subtree_com[1] - data.xpos[1]))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=2e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)


HOSTILE = st.text("-<>&'\"=,é犬 x", min_size=1, max_size=6)


@settings(max_examples=5)
@given(HOSTILE, HOSTILE)
def test_what_is_written_is_strict_xml_and_read_again_as_the_same_robot(
    tmp_path_factory: pytest.TempPathFactory, model: str, joint: str
) -> None:
    """Whatever the model, its file and a joint are called."""
    folder = tmp_path_factory.mktemp("again")
    edits = (("Beast", escape(model, QUOTE)), ("LF_HAA", escape(f"{joint}!", QUOTE)))
    path = menagerie_file(folder, *edits).rename(folder / f"--{model}.xml")
    robot = init_robot(path, folder / "once", Answers(name="mine", trunk_half_size_m=BOX)).robot
    assert ET.parse(robot.mjcf_path).getroot().get("model") == "mine"
    assert robot.joint_names[0] == f"{joint}!"

    def by_joint(values: np.ndarray) -> dict[str, float]:
        return dict(zip(robot.joint_names, values.tolist(), strict=True))

    answers = Answers(
        torque_nm=by_joint(robot.torque_limit_nm),
        pose_rad=by_joint(robot.default_joint_pos_rad),
        kp=by_joint(robot.kp_nm_per_rad),
        kd=by_joint(robot.kd_nms_per_rad),
    )
    again = init_robot(robot.mjcf_path, folder / "again", answers).robot
    assert again.mjcf_path.read_bytes() == robot.mjcf_path.read_bytes()
    cards = [json.loads(each.path.read_text()) for each in (robot, again)]
    assert cards[0].pop("source") != cards[1].pop("source")
    assert cards[0] == cards[1]


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.sampled_from(sorted(KNEES)))
def test_the_cards_kinematics_are_the_files(
    tmp_path_factory: pytest.TempPathFactory, seed: int, knees: str
) -> None:
    """Legs of any shape, signs and zeros, with bodies' frames turned in any way."""
    folder, rng = tmp_path_factory.mktemp("turned"), np.random.default_rng(seed)
    drawn = robot_of_another_shape(seed)
    wide = replace(
        drawn,
        joint_lower_rad=drawn.default_joint_pos_rad - 6.0,
        joint_upper_rad=drawn.default_joint_pos_rad + 6.0,
    )
    turned_file(folder / "turned.xml", wide, seed)
    robot, _ = describe(folder / "turned.xml", folder, Answers(knees=knees))
    assert robot.joint_names == drawn.joint_names
    np.testing.assert_array_equal(robot.joint_signs, drawn.joint_signs)
    assert robot.knee_signs.tolist() == list(KNEES[knees])
    model = mujoco.MjModel.from_xml_path(str(folder / "turned.xml"))
    data, kinematics = mujoco.MjData(model), LegKinematics(robot)
    for _ in range(3):
        joint_pos = robot.default_joint_pos_rad + rng.uniform(-1.0, 1.0, N_JOINTS)
        for name, angle in zip(robot.joint_names, joint_pos, strict=True):
            data.joint(name).qpos[0] = angle
        mujoco.mj_kinematics(model, data)
        axes, origin = data.body("trunk").xmat.reshape(3, 3), data.body("trunk").xpos
        feet = [(data.geom(name).xpos - origin) @ axes for name in robot.foot_geoms]
        np.testing.assert_allclose(kinematics.foot_positions(joint_pos[None])[0], feet, atol=1e-4)


@pytest.mark.parametrize(
    "foot",
    [
        FOOT,
        'size="0.02" fromto="0 0 -0.03 0 0 0.03"',
        'type="cylinder" size="0.02 0.01"',
        'type="box" size="0.04 0.01 0.02"',
        'type="ellipsoid" size="0.04 0.02 0.02"',
        'type="mesh" mesh="block"',
    ],
)
def test_a_foot_of_any_shape_becomes_a_sphere_that_touches_the_ground_where_it_did(
    tmp_path: Path, foot: str
) -> None:
    path = menagerie_file(tmp_path, *WHOLE, foot=foot)
    robot, _ = describe(path, tmp_path, Answers())
    lowest = []
    for file in (path, robot.mjcf_path):
        spec = mujoco.MjSpec.from_file(str(file))
        spec.worldbody.add_geom(
            name="ground", type=mujoco.mjtGeom.mjGEOM_BOX, size=[2, 2, 1], pos=[0, 0, -1.5]
        )
        for key in spec.keys:
            spec.delete(key)
        model = spec.compile()
        data = posed(model, robot)
        ground = model.geom("ground").id
        feet = [model.geom(name).id for name in robot.foot_geoms]
        points = np.zeros((N_LEGS, 6))
        height = [
            mujoco.mj_geomDistance(model, data, foot, ground, 1.0, ends)
            for foot, ends in zip(feet, points, strict=True)
        ]
        lowest.append((np.array(height), points[:, :2]))
    np.testing.assert_allclose(lowest[0][0], lowest[1][0], atol=5e-4)
    # Where an edge or a face lies on the ground, any of its points may be found.
    assert np.abs(lowest[0][1] - lowest[1][1]).max() < 0.045


def servo(gains: str) -> tuple[str, str]:
    """The edit that gives position actuators other gains."""
    return SERVO, gains


MOTOR = (
    (f'<position {SERVO} forcerange="-40 40"/>', '<motor ctrlrange="-4 4" gear="10"/>'),
    ("<position class", "<motor class"),
)
DAMPED = ('damping="0.1"', 'damping="1"')


@pytest.mark.parametrize(
    ("edits", "kp", "kd", "damping", "said"),
    [
        ((), 90.0, 2.0, 0.15, "the file's"),
        ((servo('kp="90"'), DAMPED), 90.0, 1.0, 0.05, "the file's"),
        ((servo('kp="90" kv="0.1"'),), 90.0, None, 0.15, "the file's is 0.06 of critical"),
        ((servo('kp="20" kv="2"'),), 34.0, None, 0.15, "the file's kp sags by 0.23"),
        ((servo('kp="90" kv="40"'),), 90.0, None, 0.15, "the file's reaches 7.6 of"),
        (MOTOR, 34.0, None, 0.15, "the file has no position actuators"),
    ],
)
def test_gains_are_the_files_where_they_serve(
    tmp_path: Path,
    edits: tuple[tuple[str, str], ...],
    kp: float,
    kd: float | None,
    damping: float,
    said: str,
) -> None:
    described = init(tmp_path, *edits)
    robot = described.robot
    assert described.findings.warnings == ()
    assert set(robot.kp_nm_per_rad) == {kp}
    assert set(robot.torque_limit_nm) == {40.0}
    model = build_model(robot)
    assert set(model.dof_damping[6:]) == {damping}
    assert stiffness(robot, model, robot.kp_nm_per_rad, robot.kd_nms_per_rad)[0] < 0.6
    assert float(described.findings.stance.sag_rad.max()) <= 0.15
    if kd is not None:
        assert set(robot.kd_nms_per_rad) == {kd}
    assert said in decided(described, "kp, Nm/rad") + decided(described, "kd, Nms/rad")


def test_armature_is_derived_where_there_is_none(tmp_path: Path) -> None:
    described = init(tmp_path, ('armature="0.01"', ""))
    armature = build_model(described.robot).dof_armature[6:]
    np.testing.assert_allclose(armature, np.tile([0.0036, 0.0059, 0.0088], 4))
    assert "Aliengo's for this mass and leg length" in decided(described, "armature, kg m2")


def test_what_the_user_says_goes_before_the_file(tmp_path: Path) -> None:
    answers = Answers(
        name="mine",
        limits={"calf": (-2.0, 2.0), "LF_KFE": (-1.9, 1.9)},
        torque_nm={"hip": 20.0},
        pose_rad={"hip": 0.0, "thigh": -0.6, "calf": 1.2},
        kp={"calf": 100.0},
        kd={"hip": 1.0, "thigh": 1.0, "calf": 1.5},
        armature={"hip": 0.02},
        damping={"calf": 0.3},
        trunk_half_size_m=(0.25, 0.1, 0.06),
    )
    robot = init(tmp_path, answers=answers).robot
    assert robot.name == "mine"
    assert robot.joint_upper_rad[2::3].tolist() == [1.9, 2.0, 2.0, 2.0]
    assert robot.torque_limit_nm[:3].tolist() == [20.0, 40.0, 40.0]
    assert robot.default_joint_pos_rad.tolist() == [0.0, -0.6, 1.2] * 4
    assert robot.kp_nm_per_rad[:3].tolist() == [90.0, 90.0, 100.0]
    assert robot.kd_nms_per_rad[:3].tolist() == [1.0, 1.0, 1.5]
    assert robot.trunk_half_size_m == (0.25, 0.1, 0.06)
    model = build_model(robot)
    assert model.dof_armature[6:9].tolist() == [0.02, 0.01, 0.01]
    assert model.dof_damping[8] == 0.3
    trunk = model.geom_size[model.geom_bodyid == model.body("base").id]
    np.testing.assert_allclose(trunk, [[0.25, 0.1, 0.06]])


ARM = (
    '<site name="imu"/>',
    '<site name="imu"/><body name="arm" pos="0.1 0 0.05"><joint name="shoulder" axis="0 1 0"/>'
    '<geom class="collision" size="0.02" fromto="0 0 0 0 0 0.2"/><body pos="0 0 0.2">'
    '<joint name="elbow" axis="0 1 0"/><geom class="collision" type="sphere" size="0.02"/>'
    "</body></body>",
)


def test_other_joints_are_welded_where_the_key_frame_has_them(tmp_path: Path) -> None:
    bent = ('qpos="0 0 0.35 1 0 0 0 ', 'qpos="0 0 0.35 1 0 0 0 1.5708 0 ')
    path = menagerie_file(tmp_path / "collection", ARM, bent)
    said = refusal(path)
    assert "shoulder,elbow: joints of no leg; to fix them give --weld shoulder,elbow" in said
    robot = init_robot(path, tmp_path / "robot", Answers(weld=("shoulder", "elbow"))).robot
    assert robot.trunk_half_size_m == pytest.approx((0.32, 0.06, 0.08), abs=1e-3)
    assert "no joint tail to weld; it has " in refusal(path, weld=("tail",))


SCENE = """<body name="ball" pos="1 0 0"><freejoint/><geom size="0.1"/></body>
<body name="goal" mocap="true"/><body><geom type="hfield" hfield="hills"/></body></worldbody>
<tendon><fixed name="rope"><joint joint="LF_HAA" coef="1"/></fixed></tendon>
<equality><weld body1="goal" body2="base"/></equality>
<contact><pair geom1="floor" geom2="LF"/></contact>
<sensor><framepos objtype="geom" objname="floor"/></sensor>"""
ACTUATORS = """<motor tendon="rope"/><intvelocity site="imu" kp="1" actrange="-1 1"/>
<adhesion body="LF_FOOT" ctrlrange="0 1"/></actuator>"""
KEYED = f' 1 0 0 1 0 0 0" ctrl="{"0 " * 15}" act="0" mpos="1 1 1" qvel="{"0 " * 24}"/></keyframe>'


def test_what_is_left_out_takes_along_what_refers_to_it(tmp_path: Path) -> None:
    path = menagerie_file(
        tmp_path / "collection",
        ("</worldbody>", SCENE),
        ("</asset>", '<hfield name="hills" file="gone.png" size="1 1 1 1"/></asset>'),
        ("</actuator>", ACTUATORS),
        ('"/></keyframe>', KEYED),
    )
    mujoco.MjSpec.from_file(str(path))
    described = init_robot(path, tmp_path / "robot", Answers())
    assert decided(described, "default pose, rad").endswith("(key frame 'home')")


def test_of_two_quadrupeds_one_is_taken_and_the_other_named(tmp_path: Path) -> None:
    path = menagerie_file(tmp_path, *WHOLE)
    spec, other = (mujoco.MjSpec.from_file(str(path)) for _ in range(2))
    for key in spec.keys:
        spec.delete(key)
    spec.attach(other, prefix="b_", frame=spec.worldbody.add_frame(pos=[2, 0, 0]))
    spec.compile()
    (tmp_path / "two.xml").write_text(spec.to_xml())
    described = init_robot(tmp_path / "two.xml", tmp_path / "robot", Answers(knees="inward"))
    source = "bodies of other joints: b_base (one robot is taken, base)"
    assert decided(described, "left out") == source


def write_box(path: Path, half: float) -> None:
    """A cube as OBJ."""
    corners = (half * (2.0 * np.array([*np.ndindex(2, 2, 2)]) - 1)).tolist()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"v {x} {y} {z}\n" for x, y, z in corners) + "f 1 2 3\nf 6 7 8\n")


@pytest.mark.parametrize("root", ['<attach model="pup" prefix="b_"/>', ""], ids=["whole", "body"])
def test_attached_models_have_mesh_folders_of_their_own(tmp_path: Path, root: str) -> None:
    """Also where another model has a mesh of that name, and where an include attaches it."""
    block = 'name="block" vertex="-.02 -.02 -.02 .02 -.02 -.02 -.02 .02 -.02 .02 .02 -.02\n      '
    block += '-.02 -.02 .02 .02 -.02 .02 -.02 .02 .02 .02 .02 .02"'
    edits = (*WHOLE[:2], ('<mesh file="shell.obj"/>', ""), (block, 'name="block" file="block.obj"'))
    path = menagerie_file(tmp_path / "pup", *edits, foot='type="mesh" mesh="block"')
    write_box(tmp_path / "pup" / "assets" / "block.obj", 0.02)
    write_box(tmp_path / "crate" / "assets" / "block.obj", 0.5)
    crate = tmp_path / "crate" / "crate.xml"
    crate.write_text(
        '<mujoco><compiler meshdir="assets"/><asset><mesh name="block" file="block.obj"/></asset>'
        '<worldbody><body name="crate"><geom type="mesh" mesh="block"/></body></worldbody></mujoco>'
    )
    (tmp_path / "models.xml").write_text(
        '<mujoco><asset><model name="crate" file="crate/crate.xml"/>'
        '<model name="pup" file="pup/beast.xml"/></asset></mujoco>'
    )
    pup = root or '<frame><attach model="pup" body="base" prefix="b_"/></frame>'
    crate_too = '<body pos="3 0 0"><attach model="crate" body="crate" prefix="c_"/></body>'
    (tmp_path / "scene.xml").write_text(
        f'<mujoco model="scene"><include file="models.xml"/><worldbody>{crate_too}{pup}</worldbody>'
        "</mujoco>"
    )
    alone = init_robot(path, tmp_path / "alone", Answers(knees="inward")).robot
    robot = init_robot(tmp_path / "scene.xml", tmp_path / "there", Answers(knees="inward")).robot
    assert robot.joint_names == tuple(f"b_{name}" for name in alone.joint_names)
    assert robot.foot_radius_m == alone.foot_radius_m == 0.02
    np.testing.assert_allclose(robot.foot_offset_m, alone.foot_offset_m, atol=1e-6)
    (tmp_path / "pup" / "assets" / "block.obj").unlink()
    assert "block.obj" in refusal(tmp_path / "scene.xml", knees="inward")


GO1 = load_robot("go1")
URDF = robot_urdf(GO1, build_model(GO1)).text
FOOT_SPHERE = f'<sphere radius="{GO1.foot_radius_m}" />'
KNOWN: dict[str, Any] = {
    "kp": dict.fromkeys(("hip", "thigh", "calf"), 35.0),
    "kd": dict.fromkeys(("hip", "thigh", "calf"), 1.0),
}


def urdf_file(path: Path, *edits: tuple[str, str]) -> Path:
    """Go1 as `robot_urdf` writes it, with parts replaced."""
    text = URDF
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


LINK = '<link name="trunk">'
ROOT = '<link name="{0}"/><joint name="{0}" type="{1}"><parent link="{0}"/>'
ROOT += '<child link="trunk"/></joint>'
VISUAL = '<visual><geometry><mesh filename="package://go1/hull.dae"/></geometry></visual>'


@pytest.mark.parametrize(
    "root", ["", ROOT.format("base", "fixed"), ROOT.format("world", "floating")]
)
def test_a_urdf_becomes_the_robot_that_it_was_written_from(tmp_path: Path, root: str) -> None:
    edits = [(LINK, f"{root}{LINK}{VISUAL}")]
    path = urdf_file(tmp_path / "go1.urdf", *edits)
    answers = Answers(name="mine", knees="backward", **KNOWN)
    described = init_robot(path, tmp_path / "robot", answers)
    robot = described.robot
    assert robot.joint_names == GO1.joint_names
    assert decided(described, "left out") == "1 visual shapes (they do not collide)"
    assert robot.mass_kg == pytest.approx(GO1.mass_kg, abs=1e-3)
    np.testing.assert_array_equal(robot.torque_limit_nm, GO1.torque_limit_nm)
    for key in ("hip_offset_m", "thigh_offset_m", "knee_offset_m", "foot_offset_m"):
        np.testing.assert_allclose(getattr(robot, key), getattr(GO1, key), atol=2e-4)
    for key in ("joint_lower_rad", "joint_upper_rad"):
        np.testing.assert_allclose(getattr(robot, key), getattr(GO1, key), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("package://go1_description/meshes/foot.obj", "src/go1_description/meshes/foot.obj"),
        ("package://go1_description/meshes/foot.obj", "src/other/meshes/foot.obj"),
        ("package://spot_meshes/foot.obj", "src/spot_meshes/foot.obj"),
        ("../meshes/foot.obj", "src/other/meshes/foot.obj"),
        ("file://{}/foot.obj", "foot.obj"),
    ],
    ids=["named", "folder-of-another-name", "beside", "relative", "file"],
)
def test_a_urdfs_meshes_are_found(tmp_path: Path, name: str, there: str) -> None:
    mesh = f'<mesh filename="{name.format(tmp_path)}"/>'
    path = urdf_file(tmp_path / "src" / "other" / "urdf" / "go1.urdf", (FOOT_SPHERE, mesh))
    answers = {"name": "mine", "knees": "backward", **KNOWN}
    said = refusal(path, **answers)
    assert "does not read: foot.obj; put STL or OBJ files into" in said
    write_box(tmp_path / there, 0.03)
    assert init_robot(path, tmp_path / "robot", Answers(**answers)).robot.foot_radius_m == 0.03


MESH = '<mesh filename="package://{}/foot.{}"/>'
XACRO = 'xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:include filename="x"/>'


@pytest.mark.parametrize(
    ("complaint", "edits"),
    [
        ("MuJoCo does not read: foot.dae; put STL or", [(FOOT_SPHERE, MESH.format("a", "dae"))]),
        (
            "MuJoCo takes package://a/foot.stl and package://b/foot.stl for one mesh",
            [
                (FOOT_SPHERE, MESH.format("a", "stl")),
                ("<box s", MESH.format("b", "stl") + "<box s"),
            ],
        ),
        ("it is a xacro file; make its URDF first", [('name="go1">', f'name="go1" {XACRO}')]),
        ("give --torque hip=NM,thigh=NM,calf=NM", [('effort="', 'effort="0" was="')]),
    ],
    ids=["dae", "one-name", "xacro", "no-effort"],
)
def test_what_a_urdf_lacks_gets_one_line(
    tmp_path: Path, complaint: str, edits: list[tuple[str, str]]
) -> None:
    (tmp_path / "foot.dae").write_text("<COLLADA/>")
    path = urdf_file(tmp_path / "go1.urdf", *edits)
    assert complaint in refusal(path, name="mine", knees="backward")


def test_the_barest_file_is_enough(tmp_path: Path) -> None:
    """No names, actuators, free joint, key frame or armature, and two joints of one body."""
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    trunk = spec.worldbody.add_body(pos=[1, 2, 3])
    trunk.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.2, 0.1, 0.05], mass=8)
    motor = {"actfrcrange": [-30, 30]}
    for x, y in ((-1, 1), (-1, -1), (1, -1), (1, 1)):
        thigh = trunk.add_body(pos=[0.2 * x, 0.1 * y, 0])
        thigh.add_joint(axis=[1, 0, 0], range=[-1, 1], **motor)
        thigh.add_joint(axis=[0, 1, 0], range=[-2, 2], pos=[0, 0.05 * y, 0.01], **motor)
        thigh.add_geom(size=[0.03, 0, 0], mass=0.5)
        calf = thigh.add_body(pos=[0, 0.05 * y, -0.2])
        calf.add_joint(axis=[0, -1, 0], range=[0.3, 2.5], **motor)
        calf.add_geom(size=[0.02, 0, 0], pos=[0, 0, -0.2], mass=0.2)
    spec.compile()
    (tmp_path / "bare.xml").write_text(spec.to_xml())
    described = init_robot(tmp_path / "bare.xml", tmp_path / "robot", Answers())
    robot = described.robot
    assert described.findings.warnings == ()
    assert robot.name == "bare"
    assert robot.joint_names[:3] == ("FL_hip", "FL_thigh", "FL_calf")
    np.testing.assert_allclose(robot.thigh_offset_m[0], [0, 0.05, 0.01])
    np.testing.assert_allclose(robot.knee_offset_m[0], [0, 0, -0.21])


def test_a_robot_without_a_pose_crouches(tmp_path: Path) -> None:
    path = menagerie_file(tmp_path / "collection", ("-0.7 1.4", "0 0"))
    assert refusal(path).endswith(
        "give --knees backward|forward|inward|outward (where the knees point)"
    )
    one_way = ('class="knee"/>', 'class="knee" range="10 150"/>')
    robot = init(tmp_path, ("-0.7 1.4", "0 0"), one_way).robot
    assert robot.knee_signs.tolist() == list(KNEES["backward"])
    np.testing.assert_allclose(robot.default_joint_pos_rad[1::3], -0.706, atol=0.01)


def test_meshes_become_primitives_around_them(tmp_path: Path) -> None:
    block = ('type="box" size="0.2 0.06 0.05"', 'mesh="block" pos="0.3 0 0" type="mesh"')
    described = init(tmp_path, block)
    assert decided(described, "meshes").startswith("1 replaced by the smallest box or capsule")
    assert described.robot.trunk_half_size_m[0] == pytest.approx(0.32, abs=1e-4)


def test_files_that_are_missing_are_named_only_if_they_collide(tmp_path: Path) -> None:
    path = menagerie_file(
        tmp_path / "collection",
        ('type="box" size="0.2 0.06 0.05"', 'type="mesh" mesh="shell"'),
        ('size="0.04" fromto', f'{UNSEEN} size="0.04" fromto'),
        ('type="sphere" size="0.03"', 'type="mesh" mesh="shell"'),
    )
    said = refusal(path)
    assert "MuJoCo does not read: shell.obj; put STL or OBJ files into" in said
    assert said.endswith("/assets, or give --leave-out-meshes")
    assert "--trunk-box X,Y,Z" in refusal(path, leave_out_meshes=True)
    answers = Answers(leave_out_meshes=True, trunk_half_size_m=(0.2, 0.06, 0.05))
    described = init_robot(path, tmp_path / "robot", answers)
    assert decided(described, "meshes") == "without shell.obj (--leave-out-meshes)"
    weighs = ('<inertial pos="0 0 0.01" mass="8" diaginertia="0.1 0.2 0.2"/>', "")
    path = menagerie_file(tmp_path / "other", weighs)
    assert "without <inertial> have their mass from meshes that are missing" in refusal(path)


RANGES = (40, 100, 150)
UNLIMITED = (f'{SERVO} forcerange="-40 40"', SERVO)
TOE = ('name="LF_KFE" class="knee"/>', 'name="LF_KFE" class="knee"/><joint name="toe"/>')
FOOTLESS = (
    ('size="0.012" fromto', f'size="0.012" {UNSEEN} fromto'),
    ('name="LF" class="collision"', f'name="LF" class="collision" {UNSEEN}'),
)
LIGHT = (
    ('armature="0.01"', 'armature="0.0001"'),
    ('"0.001 0.0001 0.001"', '"1e-5 1e-5 1e-5"'),
    ('pos="0 -0.1 0" mass="0.2"', 'pos="0 0 0" mass="0.2"'),
)


DEGREES = [(f'range="-{end} {end}"', f'range="-{end / 57:.4f} {end / 57:.4f}"') for end in RANGES]


@pytest.mark.parametrize(
    ("complaint", "edits"),
    [
        ("it does not say everything; give --limit calf=LOW:HIGH", [('range="-150 150"', "")]),
        (
            "give --limit hip=LOW:HIGH --torque hip=NM,thigh=NM,calf=NM",
            [UNLIMITED, ('axis="1 0 0" range="-40 40"', 'axis="1 0 0"')],
        ),
        ("give --name NAME (not the shipped go1)", [("Beast", "Go1")]),
        (
            "give --pose hip=RAD,thigh=RAD,calf=RAD (no crouch is within the joints' ranges)",
            [("-0.7 1.4", "0 0"), ('range="-150 150"', 'range="-10 10"')],
        ),
        (
            "has 2 (RF_HAA, RH_HAA): the axis of LF_HAA, a leg's hip, is (0.994, 0.110, 0.000) in",
            [('axis="1 0 0"', 'axis="0.9 0.1 0"')],
        ),
        ("have springs (stiffness)", [('class="pitch"/>', 'class="pitch" stiffness="5"/>')]),
        ("LF_HFE is no hinge", [('class="pitch"/>', 'class="pitch" type="slide"/>')]),
        ("the branch of LF_HAA has 4 joints (LF_HAA, LF_HFE, LF_KFE, toe); fix joints", [TOE]),
        ("no colliding shape is below the knee of FL, LF_KFE: give its foot", FOOTLESS),
        ("the trunk's x has to point forwards", [('pos="0.22 -0.05 0"', 'pos="0.22 0.15 0"')]),
        ("and its torque limit is 3", [('forcerange="-40 40"', 'forcerange="-3 3"')]),
        ("its joints turn by 40 to 150 rad: degrees", [('angle="degree"', 'angle="radian"')]),
        ("its joints turn by 0.0122 to 0.0459 rad: degrees and radians are mixed up", DEGREES),
        ("no gains are stable at the physics step of 5 ms", LIGHT),
    ],
)
def test_what_the_file_does_not_say_is_asked_and_what_is_no_quadruped_refused(
    tmp_path: Path, complaint: str, edits: list[tuple[str, str]]
) -> None:
    assert complaint in refusal(menagerie_file(tmp_path, *edits))


def test_answers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = menagerie_file(tmp_path)
    said = refusal(path, limits={"knee": (0.0, 1.0)})
    assert "--limit names knee; allowed: hip, thigh, calf, or a" in said
    assert "--name ../x: it has to consist of letters" in refusal(path, name="../x")
    assert "--pose has to name all joints" in refusal(path, pose_rad={"hip": 0.0})
