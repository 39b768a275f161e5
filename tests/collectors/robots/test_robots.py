"""Robot cards, what is refused of them, and closed-form leg kinematics against the MJCF."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false
import os
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.robots.kinematics import GaitReference, LegKinematics
from gaitforge.collectors.robots.robot import (
    CARD_FILE,
    CARD_KEYS,
    N_JOINTS,
    N_LEGS,
    ROBOTS,
    RobotCard,
    RobotError,
    absolute_robot,
    list_robots,
    load_robot,
    load_robots,
    robots_attribute,
    stored_robot,
)
from gaitforge.collectors.scenarios.skills import SKILLS
from tests.collectors.making import ROBOT, robot_of_another_shape
from tests.collectors.robots.robot_folders import GO1, MISSING, changed, robot_folder

KINEMATICS = LegKinematics(ROBOT)
REACH_M = ROBOT.leg_length_m


def test_the_shipped_robots_load_by_name() -> None:
    assert {"aliengo", "go1"} <= set(list_robots())
    for name in list_robots():
        robot = load_robot(name)
        assert robot.name == name
        assert robot.source
    assert load_robot().name == "aliengo"


@given(st.floats(1.05, 5.0), st.floats(-0.5, 0.5))
def test_a_target_out_of_reach_gets_the_straight_leg_that_points_at_it(
    times_reach: float, forward: float
) -> None:
    direction = np.array([np.sin(forward), 0.0, -np.cos(forward)])
    hips = ROBOT.hip_offset_m + ROBOT.thigh_offset_m
    feet = hips + times_reach * REACH_M * direction
    joint_pos = KINEMATICS.joint_positions(feet[None])
    assert np.isfinite(joint_pos).all()
    np.testing.assert_allclose(joint_pos.reshape(N_LEGS, 3)[:, 2], 0.0, atol=1e-9)
    reached = KINEMATICS.foot_positions(joint_pos)[0] - hips
    np.testing.assert_allclose(reached, np.tile(REACH_M * direction, (N_LEGS, 1)), atol=1e-9)


@given(st.integers(0, 2**31))
def test_legs_of_any_shape_have_their_feet_where_mujoco_puts_them_and_come_back(seed: int) -> None:
    """Any offsets, signs and zeros of joints, and direction of each knee."""
    robot, rng = robot_of_another_shape(seed), np.random.default_rng(seed)
    kinematics = LegKinematics(robot)
    joint_pos = rng.uniform(robot.joint_lower_rad, robot.joint_upper_rad, (3, N_JOINTS))
    feet = kinematics.foot_positions(joint_pos)
    found = [feet_by_mujoco(robot, each) for each in joint_pos]
    np.testing.assert_allclose(feet, found, atol=1e-9)
    np.testing.assert_allclose(kinematics.joint_positions(feet), joint_pos, atol=1e-7)


@given(st.integers(0, 2**31))
def test_the_rise_gradient_is_the_derivative_of_the_feets_height(seed: int) -> None:
    robot, rng = robot_of_another_shape(seed), np.random.default_rng(seed)
    kinematics = LegKinematics(robot)
    joint_pos = rng.uniform(robot.joint_lower_rad, robot.joint_upper_rad, (1, N_JOINTS))
    up = rng.normal(size=3)
    up /= np.linalg.norm(up)
    gradient = kinematics.rise_gradient(joint_pos, up[None, None])[0]
    step = 1e-6
    for joint in range(N_JOINTS):
        nudge = np.zeros((1, N_JOINTS))
        nudge[0, joint] = step
        above = kinematics.foot_positions(joint_pos + nudge)[0, joint // 3] @ up
        below = kinematics.foot_positions(joint_pos - nudge)[0, joint // 3] @ up
        assert gradient[joint] == pytest.approx((above - below) / (2 * step), abs=1e-7)


@given(st.integers(0, 2**31))
def test_robots_of_several_shapes_together_get_the_bits_that_each_gets_alone(seed: int) -> None:
    robots = [ROBOT, *(robot_of_another_shape(seed + k) for k in range(3))]
    rng = np.random.default_rng(seed)
    together, alone = LegKinematics(*robots), [LegKinematics(robot) for robot in robots]
    feet = rng.uniform(-0.3, 0.3, (2 * len(robots), N_LEGS, 3)) + np.array([0.0, 0.0, -0.4])
    joint_pos, up = together.joint_positions(feet), rng.normal(size=(len(feet), 1, 3))
    gradients = together.rise_gradient(joint_pos, up)
    positions = together.foot_positions(joint_pos)
    commands = np.stack([SKILLS["rush"].draw_command(rng, robot) for robot in robots])
    targets = GaitReference(*robots).joint_targets(commands, np.full(len(robots), 0.3))
    for row in range(len(feet)):
        one, r, only = alone[row % len(robots)], row % len(robots), slice(row, row + 1)
        np.testing.assert_array_equal(joint_pos[row], one.joint_positions(feet[only])[0])
        np.testing.assert_array_equal(
            gradients[row], one.rise_gradient(joint_pos[only], up[only])[0]
        )
        np.testing.assert_array_equal(positions[row], one.foot_positions(joint_pos[only])[0])
        own = GaitReference(robots[r]).joint_targets(commands[r : r + 1], np.array([0.3]))
        np.testing.assert_array_equal(targets[r], own[0])


def feet_by_mujoco(robot: RobotCard, joint_pos: np.ndarray) -> np.ndarray:
    """(4, 3) feet of a chain of bodies with the card's offsets and axes."""
    spec = mujoco.MjSpec()
    for leg in range(N_LEGS):
        body = spec.worldbody
        for part, offset in enumerate(
            (robot.hip_offset_m, robot.thigh_offset_m, robot.knee_offset_m)
        ):
            body = body.add_body(pos=offset[leg])
            turn = robot.joint_signs[3 * leg + part]
            body.add_joint(axis=[turn, 0.0, 0.0] if part == 0 else [0.0, turn, 0.0])
            body.add_geom(size=[0.01, 0.0, 0.0])
        body.add_site(name=f"foot {leg}", pos=robot.foot_offset_m[leg])
    model = spec.compile()
    data = mujoco.MjData(model)
    data.qpos[:] = joint_pos
    mujoco.mj_kinematics(model, data)
    return np.array([data.site(f"foot {leg}").xpos for leg in range(N_LEGS)])


def refusal(robot: Path | str) -> str:
    with pytest.raises(RobotError) as caught:
        load_robot(str(robot))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_robot_is_a_name_a_folder_or_a_card(tmp_path: Path) -> None:
    folder = robot_folder(tmp_path / "mine")
    for place in (folder, folder / CARD_FILE):
        robot = load_robot(str(place))
        assert robot.name == "mine"
        assert robot.path == folder / CARD_FILE
        np.testing.assert_array_equal(robot.kp_nm_per_rad, GO1.kp_nm_per_rad)
    (folder / CARD_FILE).rename(folder / "other.json")
    assert load_robot(str(folder / "other.json")).name == "mine"


def test_an_absolute_robot_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    names = [absolute_robot(robot) for robot in ("go1", "mine", "mine/robot.json")]
    assert names == ["go1", str(tmp_path / "mine"), str(tmp_path / "mine")]
    monkeypatch.chdir("/")
    assert [load_robot(name).name for name in names] == ["go1", "mine", "mine"]
    with pytest.raises(RobotError, match="no robot 'mine'"):
        absolute_robot("mine")


def test_a_gain_given_once_holds_for_every_joint(tmp_path: Path) -> None:
    gains = np.linspace(20, 40, N_JOINTS).tolist()
    folder = robot_folder(tmp_path, {"kp_nm_per_rad": gains, "kd_nms_per_rad": 0.7})
    robot = load_robot(str(folder))
    np.testing.assert_array_equal(robot.kp_nm_per_rad, gains)
    np.testing.assert_array_equal(robot.kd_nms_per_rad, np.full(N_JOINTS, 0.7))


def test_what_is_no_robot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no robot 'rex'; allowed: a1, aliengo, " in refusal("rex")
    assert "no robot ''" in refusal("")
    assert f"{tmp_path / 'empty'} holds no robot.json" in refusal(tmp_path / "empty")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"<mujoco/>", "cannot be read as JSON"),
        (b"\xff\xfe\x00", "cannot be read as JSON"),
        (b'["aliengo"]', "has to be a JSON object"),
    ],
)
def test_a_card_that_is_none_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / CARD_FILE).write_bytes(content)
    assert complaint in refusal(tmp_path)


def test_a_card_without_an_entry_is_refused(tmp_path: Path) -> None:
    for key in CARD_KEYS:
        assert f"its card robot.json lacks {key}" in refusal(robot_folder(tmp_path, {key: MISSING}))


JOINTS = list(GO1.joint_names)


@pytest.mark.parametrize(
    ("card", "complaint"),
    [
        ({"speed": 3}, "has the unknown speed; allowed: name, mjcf"),
        ({"name": 3}, "name has to be a text"),
        ({"name": "my robot"}, "name has to consist of letters, digits"),
        ({"name": "aliengo"}, "that is a shipped robot's name"),
        ({"mjcf": "gone.xml"}, "gone.xml does not exist"),
        ({"joint_names": JOINTS[:11]}, "joint_names needs 12 names, not 11"),
        ({"joint_names": [*JOINTS[:11], JOINTS[0]]}, "names FL_hip_joint more than once"),
        ({"knee_geoms": [*GO1.knee_geoms[:3], ""]}, "knee_geoms has to be a list of names"),
        ({"kp_nm_per_rad": [35.0] * 11}, "kp_nm_per_rad needs 1, 3 or 12 numbers, not 11"),
        ({"kp_nm_per_rad": "35"}, "kp_nm_per_rad has to be a number or a list of numbers"),
        ({"kp_nm_per_rad": True}, "kp_nm_per_rad has to be a number"),
        ({"kp_nm_per_rad": [[35.0], [35.0, 35.0]]}, "kp_nm_per_rad has to be a number"),
        ({"joint_signs": [1, -1, 0]}, "joint_signs has to be 1 or -1"),
        ({"motor_names": JOINTS[:11]}, "motor_names needs 12 names, not 11"),
        ({"motor_names": [*JOINTS[:11], "tail"]}, "differing: RR_calf_joint"),
        ({"kp_nm_per_rad": -35.0}, "kp_nm_per_rad has to be positive"),
        ({"mass_kg": float("nan")}, "mass_kg has to be a number or a list of numbers, all finite"),
        ({"mass_kg": 10**400}, "mass_kg has to be a number or a list of numbers, all finite"),
        ({"mass_kg": [13.1, 13.1]}, "mass_kg needs one number, not 2"),
        ({"hip_offset_m": 0.19}, "hip_offset_m needs 3 numbers, the front left leg's, or 4 lists"),
        ({"hip_offset_m": [0.19, 0.05]}, "or 4 lists of 3, not 2 numbers"),
        ({"foot_offset_m": [0.0, 0.01, 0.0]}, "foot_offset_m need a length in x and z"),
        (changed("torque_limit_nm", 2, 0.0), "torque_limit_nm has to be positive"),
        (
            {"joint_lower_rad": [2.0, -0.663, -2.722]},
            "the lower limit of FL_hip_joint, 2, is not below the upper, 1.047",
        ),
        (
            {"default_joint_pos_rad": [0.0, 0.8, -1.5] * 2 + [0.0, 3.5, -1.5] * 2},
            "the default position of RL_thigh_joint, 3.5, is outside its limits -0.663 to 2.967",
        ),
        (
            {"nominal_height_m": 0.5},
            "nominal_height_m 0.5 is out of reach: on straight legs it is 0.446",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_card_that_cannot_be_is_refused(
    tmp_path: Path, card: dict[str, Any], complaint: str
) -> None:
    message = refusal(robot_folder(tmp_path, card))
    assert message.startswith("robot '")
    assert complaint in message


def test_robots_of_one_name_are_refused_together(tmp_path: Path) -> None:
    """A simulation takes the model of a row by its robot's name."""
    for folder in ("first", "second"):
        robot_folder(tmp_path / folder)
    with pytest.raises(RobotError, match="robot mine is named more than once"):
        load_robots(str(tmp_path))


def test_a_stores_robot_is_written_again_where_its_temporary_files_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    robot = load_robot(str(robot_folder(tmp_path / "robot")))
    attributes = {ROBOTS: robots_attribute([robot])}
    stored = stored_robot(attributes, robot.name)
    text = robot.mjcf_path.read_text()
    stored.mjcf_path.write_text(text.replace('mass="', 'mass="1'))
    assert stored_robot(attributes, robot.name).mjcf_path.read_text() == text
    stored.mjcf_path.unlink()  # as a cleaner of temporary folders does
    assert stored_robot(attributes, robot.name).mjcf_path.read_text() == text


def test_a_temporary_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    robot = load_robot(str(robot_folder(tmp_path / "robot")))
    user = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: user + 1)
    with pytest.raises(RobotError, match="belongs to another user"):
        stored_robot({ROBOTS: robots_attribute([robot])}, robot.name)
