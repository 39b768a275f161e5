"""MJCFs as users have them: what becomes of one, and the line that a wrong one gets."""

from contextlib import closing
from dataclasses import replace

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from gaitforge.collectors.physics import make_backend
from gaitforge.collectors.physics.mujoco.model import build_model, stiffness
from gaitforge.collectors.physics.robot_check import TRIAL_S, check_robot
from gaitforge.collectors.robots.robot import RobotCard, RobotError, list_robots, load_robot
from gaitforge.collectors.scenarios.terrains import Barrier
from gaitforge.collectors.timing import SUBSTEP_S
from tests.collectors.making import hold, start_at
from tests.collectors.robots.robot_folders import (
    GO1,
    MISSING,
    Edits,
    changed,
    collection_style_folder,
    robot_folder,
    write_robot,
)


@pytest.fixture
def foreign(tmp_path: Path) -> RobotCard:
    """Go1 written as model collections write it."""
    return load_robot(str(collection_style_folder(tmp_path / "foreign")))


def refusal(folder: Path) -> str:
    robot = load_robot(str(folder))
    with pytest.raises(RobotError) as caught:
        check_robot(robot)
    message = str(caught.value)
    assert message.startswith("robot 'mine': ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", list_robots())
def test_a_shipped_robot_is_what_its_card_says_and_stands(name: str) -> None:
    robot = load_robot(name)
    model = build_model(robot)
    trunk = model.body(robot.trunk_body).id
    assert float(model.body_subtreemass[trunk]) == pytest.approx(robot.mass_kg, abs=2e-3)
    ranges = np.array([model.joint(joint).range for joint in robot.joint_names])
    np.testing.assert_allclose(ranges, np.stack([robot.joint_lower_rad, robot.joint_upper_rad], 1))
    for foot in robot.foot_geoms:
        assert float(model.geom(foot).size[0]) == pytest.approx(robot.foot_radius_m)
    np.testing.assert_allclose(model.geom("trunk").size, robot.trunk_half_size_m)

    findings = check_robot(robot)
    assert findings.warnings == ()
    assert TRIAL_S == 2.0
    assert findings.trial.height_m == pytest.approx(robot.nominal_height_m, rel=0.035)
    assert findings.trial.tilt_rad < 0.02
    assert findings.trial.joint_speed_rads < 0.2
    assert findings.default_height_m == pytest.approx(robot.nominal_height_m, rel=0.05)
    assert (np.abs(findings.stance.torque_nm) < robot.torque_limit_nm / 2).all()


def test_motors_and_sensors_follow_the_card_whatever_the_mjcf_has(foreign: RobotCard) -> None:
    model = build_model(foreign)
    assert model.nkey == 0
    assert model.npair == 0
    assert model.opt.timestep == SUBSTEP_S
    driven = [model.joint(int(model.actuator(i).trnid[0])).name for i in range(model.nu)]
    assert tuple(driven) == foreign.joint_names
    assert {model.joint(i).name for i in range(1, 4)} == {f"FR_{p}_joint" for p in PARTS}
    assert not any(model.sensor(i).name.endswith("touch") for i in range(model.nsensor))
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], foreign.kp_nm_per_rad)
    np.testing.assert_allclose(model.actuator_forcerange[:, 1], foreign.torque_limit_nm)


PARTS = ("hip", "thigh", "calf")


def test_targets_and_joints_keep_the_cards_order(foreign: RobotCard) -> None:
    moved = []
    for robot in (GO1, foreign):
        backend = make_backend("mujoco", robot, 1, 1)
        target = robot.default_joint_pos_rad + np.linspace(-0.3, 0.3, 12)
        backend.reset(0, start_at(z=50.0))
        hold(backend, 20, target)
        moved.append(backend.state.joint_pos[0].copy())
        backend.close()
    np.testing.assert_allclose(moved[0], moved[1], atol=1e-6)
    np.testing.assert_allclose(moved[0], target, atol=0.02)


def test_any_shape_that_collides_meets_the_ground_and_barriers(foreign: RobotCard) -> None:
    for robot in (GO1, foreign):
        backend = make_backend("mujoco", robot, 1, 1)
        start = start_at(z=0.33, joint_pos=robot.default_joint_pos_rad)
        backend.reset(0, start)
        hold(backend, 5, robot.default_joint_pos_rad)
        assert backend.state.barrier_force[0] == 0.0
        assert (backend.state.foot_force[0, :, 2] > 1.0).all()
        above = Barrier((0.0, 0.0, 0.47), (0.1, 0.5, 0.1), 0.0)
        backend.reset(0, replace(start, barriers=(above,)))
        hold(backend, 1, robot.default_joint_pos_rad)
        assert backend.state.barrier_body_force[0] > 1.0
        backend.close()


def test_hip_bodies_need_no_names(tmp_path: Path) -> None:
    edits = [(f'<body name="{leg}_hip" ', "<body ") for leg in ("FL", "FR", "RL", "RR")]
    robot = load_robot(str(robot_folder(tmp_path, mjcf=edits)))
    assert check_robot(robot).warnings == ()


FOOT = '<geom name="FR_foot" class="foot"'
TRUNK = '<geom name="trunk" type="box"'
CALF = '<joint name="RR_calf_joint" class="calf"'
HEAVY = ('mass="5.561"', 'mass="6.561"')
ROLL = '<joint axis="1 0 0"'


def swapped(key: str, first: int, second: int) -> dict[str, Any]:
    """Go1's card entry with two items exchanged."""
    items = list(getattr(GO1, key))
    items[first], items[second] = items[second], items[first]
    return {key: items}


def other_leg_order(*legs: str) -> dict[str, Any]:
    """Go1's card with all names in another order of legs."""
    return {
        "joint_names": [f"{leg}_{part}_joint" for leg in legs for part in PARTS],
        "foot_geoms": [f"{leg}_foot" for leg in legs],
        "knee_geoms": [f"{leg}_knee" for leg in legs],
    }


@pytest.mark.parametrize(
    ("card", "mjcf", "complaint"),
    [
        ({"trunk_body": "torso"}, (), "mine.xml has no body 'torso'"),
        (changed("foot_geoms", 2, "sole"), (), "mine.xml has no geom 'sole'"),
        (
            {**changed("joint_names", 5, "elbow"), "motor_names": MISSING},
            (),
            "mine.xml has no joint 'elbow'",
        ),
        ({}, [('<freejoint name="root"/>', "")], "no free joint; body 'trunk' needs one"),
        (
            {},
            [
                ('<body name="trunk"', '<body name="base"><freejoint/><inertial pos="0 0 0" '
                 'mass="1" diaginertia="1 1 1"/><body name="trunk"'),
                ('<freejoint name="root"/>', ""),
                ("\n  </worldbody>", "</body>\n  </worldbody>"),
            ],
            "the free joint of mine.xml moves body 'base', not 'trunk'",
        ),
        (
            {},
            [(TRUNK, '<body name="tail"><joint name="wag"/><geom size="0.01"/></body>' + TRUNK)],
            "mine.xml has joints that the card does not name: wag",
        ),
        ({}, [(CALF, CALF + ' type="slide"')], "RR_calf_joint has to be a hinge"),
        ({}, [(CALF, CALF + ' damping="-1"')], "damping of RR_calf_joint in mine.xml is -1, below"),
        ({}, [(ROLL, '<joint axis="0 0 1"')],
         "the axis of FL_hip_joint, hip of FL, is (0.000, 0.000, 1.000) in the trunk's frame; "
         "by joint_signs it has to be (1.000, 0.000, 0.000)"),
        (swapped("joint_names", 1, 2), (), "'FL_thigh_joint' cannot be the FL leg's calf"),
        (
            other_leg_order("FR", "FL", "RR", "RL"),
            (),
            "legs have to be named in the order FL, FR, RL, RR, by where they are: "
            "'FR_hip_joint', named as FL, is 0.188 m before and -0.047 m left of the hips' middle",
        ),
        (swapped("foot_geoms", 0, 1), (), "foot_geoms: 'FR_foot' is not on the FL leg"),
        (swapped("knee_geoms", 2, 3), (), "knee_geoms: 'RR_knee' is not on the RL leg"),
        ({}, [(FOOT, FOOT + ' conaffinity="0"')], "'FR_foot' does not meet the ground"),
        ({}, [(TRUNK, TRUNK + ' conaffinity="1"')], "meets both the ground and barriers"),
        (
            {},
            [(CALF, CALF + ' range="-1.4 -0.838"')],
            "the default position of RR_calf_joint, -1.5, is outside the range -1.4 to -0.838",
        ),
        (
            {},
            [(CALF, CALF + ' range="-2 -0.838"')],
            "the limits of RR_calf_joint are -2.722 to -0.838 in the card, "
            "and mine.xml stops it at -2 to -0.838",
        ),
        (
            {},
            [(CALF, CALF + ' actuatorfrcrange="-20 20"')],
            "the torque limit of RR_calf_joint is 35.55 in the card, "
            "and its actuatorfrcrange in mine.xml ends at 20",
        ),
        ({}, [HEAVY], "mass_kg is 13.101, the bodies of mine.xml weigh 14.101"),
        (
            {"knee_offset_m": [0.0, 0.0, -0.25]},
            (),
            "in the default pose 'FL_foot' is at (0.173, 0.127, -0.311) in mine.xml, and at "
            "(0.146, 0.127, -0.337) by the card's offsets",
        ),
        ({"foot_radius_m": 0.03}, (), "foot_radius_m is 0.03, the radius of 'FL_foot' 0.02"),
        (
            {"kp_nm_per_rad": 500.0, "kd_nms_per_rad": 40.0},
            (),
            "gains are too stiff for the physics step of 5 ms, by a factor of 12.0 at R",
        ),
        ({"kp_nm_per_rad": 3.5}, (), "FL_calf_joint sags by 1.4 rad with kp_nm_per_rad 3.5; it ta"),
        ({"torque_limit_nm": [4.0] * 12}, (), "standing at 0.32 m takes 4.9 Nm of FL_calf_joint, "),
        ({"nominal_height_m": 0.425}, (), "nominal_height_m 0.425 takes FL_calf_joint to -0."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_mjcf_that_contradicts_its_card_is_refused(
    tmp_path: Path, card: dict[str, Any], mjcf: Edits, complaint: str
) -> None:
    assert complaint in refusal(robot_folder(tmp_path, card, mjcf))


@pytest.mark.parametrize(
    ("mjcf", "complaint"),
    [
        ("", "mine.xml: "),
        ("<mujoco><worldbody>", "mine.xml: XML parse error"),
        ("<mujoco><robot/></mujoco>", "mine.xml: XML Error: Schema violation"),
        ("<mujoco/>", "mine.xml has no body 'trunk'"),
        (GO1.mjcf_path.read_text().replace('mass="0.196"', 'mass="0"'), "mine.xml: Error: mass"),
    ],
    ids=lambda value: value[:20],
)
def test_an_mjcf_that_is_none_gets_mujocos_first_line(
    tmp_path: Path, mjcf: str, complaint: str
) -> None:
    assert complaint in refusal(write_robot(tmp_path, mjcf))


@pytest.mark.parametrize(
    ("card", "warning"),
    [
        ({"nominal_height_m": 0.25}, "the default pose stands at 0.331 m, nominal_height_m is 0.2"),
        ({"kp_nm_per_rad": 11.0}, "gains are soft: under its own weight FL_calf_joint, FR_calf_"),
        ({"kp_nm_per_rad": 11.0}, "it does not stand: after 2 s its trunk is 0."),
        ({"torque_limit_nm": [8.0] * 12}, "motors are weak: trotting overloads FL_calf_joint"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_robot_that_can_be_used_but_looks_wrong_gets_a_warning(
    tmp_path: Path, card: dict[str, Any], warning: str
) -> None:
    findings = check_robot(load_robot(str(robot_folder(tmp_path, card))))
    assert any(found.startswith(warning) for found in findings.warnings), findings.warnings


@pytest.mark.parametrize(("kp", "share"), [(35.0, 1.3), (200.0, 0.8), (200.0, 1.3)])
def test_gains_are_refused_beyond_what_the_physics_step_bears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kp: float, share: float
) -> None:
    """The linear theory of the step, held against the simulator."""
    monkeypatch.chdir(tmp_path)
    model, gains = build_model(GO1), np.full(12, kp)
    at_0, at_1 = (stiffness(GO1, model, gains, np.full(12, kd))[0] for kd in (0.0, 1.0))
    kd = (share - at_0) / (at_1 - at_0)
    folder = robot_folder(tmp_path / "mine", {"kp_nm_per_rad": kp, "kd_nms_per_rad": kd})
    if share < 1.0:
        assert check_robot(load_robot(str(folder))).trial.air_speed_rads < 0.01
    else:
        assert f"too stiff for the physics step of 5 ms, by a factor of {share:.1f}" in refusal(
            folder
        )
    assert not list(tmp_path.glob("MUJOCO_LOG*"))


def test_a_simulation_that_diverges_is_an_error_and_no_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    robot = replace(GO1, kp_nm_per_rad=np.full(12, 1e9), torque_limit_nm=np.full(12, 1e9))
    with closing(make_backend("mujoco", robot, 2, 1)) as backend:
        backend.reset(0, start_at(z=0.33, joint_pos=robot.default_joint_pos_rad))
        with pytest.raises(RobotError, match="the simulation diverged"):
            hold(backend, 200, robot.default_joint_pos_rad + 0.1)
    assert not list(tmp_path.iterdir())


def test_a_floor_of_the_mjcfs_own_holds_nobody_up(foreign: RobotCard) -> None:
    model = build_model(foreign)
    data = mujoco.MjData(model)
    data.qpos[2] = 0.25
    mujoco.mj_forward(model, data)
    floor = model.geom("floor").id
    assert not any(floor in contact.geom for contact in data.contact)
