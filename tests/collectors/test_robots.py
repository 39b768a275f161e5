"""The robot card against its MJCF, and closed-form leg kinematics against both."""

from __future__ import annotations

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false
from dataclasses import replace

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.kinematics import LegKinematics
from collectors.robots import N_JOINTS, N_LEGS, check_robot, load_robot
from tests.collectors.making import DEFAULT_POSE, ROBOT, STANDING_HEIGHT_M

KINEMATICS = LegKinematics(ROBOT)
REACH_M = ROBOT.thigh_length_m + ROBOT.calf_length_m


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(ROBOT.mjcf_path))


def joint_angles() -> st.SearchStrategy[np.ndarray]:
    """(1, 12) angles within the joint limits and short of the straight leg."""
    margin = 0.05
    limits = zip(ROBOT.joint_lower_rad + margin, ROBOT.joint_upper_rad - margin, strict=True)
    return st.tuples(*(st.floats(float(low), float(high)) for low, high in limits)).map(
        lambda q: np.array([q])
    )


def feet_below_hips() -> st.SearchStrategy[np.ndarray]:
    """(1, 4, 3) feet under and outside their hips, within reach and limits."""
    foot = st.tuples(st.floats(-0.15, 0.15), st.floats(0.0, 0.2), st.floats(-0.40, -0.18))
    signs = np.stack([np.ones(N_LEGS), ROBOT.leg_signs[:, 1], np.ones(N_LEGS)], axis=1)
    return st.lists(foot, min_size=N_LEGS, max_size=N_LEGS).map(
        lambda feet: (np.array(feet) * signs + ROBOT.hip_positions_m)[None]
    )


def test_the_card_weighs_what_the_model_weighs(model: mujoco.MjModel) -> None:
    assert float(model.body_mass.sum()) == pytest.approx(ROBOT.mass_kg, abs=1e-3)
    assert ROBOT.mass_kg == pytest.approx(24.64, abs=0.01)


def test_the_card_names_the_models_joints_in_its_order(model: mujoco.MjModel) -> None:
    hinges = [model.joint(i) for i in range(model.njnt) if model.jnt_type[i] == 3]
    assert tuple(joint.name for joint in hinges) == ROBOT.joint_names
    driven = [model.joint(int(model.actuator(i).trnid[0])).name for i in range(model.nu)]
    assert tuple(driven) == ROBOT.joint_names
    assert [name[:2] for name in ROBOT.joint_names[::3]] == list(ROBOT.legs)


def test_the_cards_joint_limits_are_the_models(model: mujoco.MjModel) -> None:
    ranges = np.array([model.joint(name).range for name in ROBOT.joint_names])
    np.testing.assert_allclose(ranges[:, 0], ROBOT.joint_lower_rad)
    np.testing.assert_allclose(ranges[:, 1], ROBOT.joint_upper_rad)


def test_the_cards_torque_limits_and_gains_are_the_models(model: mujoco.MjModel) -> None:
    np.testing.assert_allclose(model.actuator_forcerange[:, 1], ROBOT.torque_limit_nm)
    np.testing.assert_allclose(model.actuator_forcerange[:, 0], -ROBOT.torque_limit_nm)
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], ROBOT.kp_nm_per_rad)
    np.testing.assert_allclose(model.actuator_biasprm[:, 2], -ROBOT.kd_nms_per_rad)


def test_the_cards_feet_are_the_models(model: mujoco.MjModel) -> None:
    for leg in ROBOT.legs:
        foot = model.geom(f"{leg}_foot")
        assert float(foot.size[0]) == pytest.approx(ROBOT.foot_radius_m)
        np.testing.assert_allclose(foot.pos, model.site(f"{leg}_foot").pos)
        assert foot.priority[0] == 1, "the foot's friction decides over the ground's"


def test_the_default_pose_stands_at_39_cm() -> None:
    assert pytest.approx(0.39, abs=0.01) == STANDING_HEIGHT_M


@given(joint_pos=joint_angles())
def test_forward_kinematics_agrees_with_the_model(
    model: mujoco.MjModel, joint_pos: np.ndarray
) -> None:
    data = mujoco.MjData(model)
    data.qpos[:7] = [0, 0, 0, 1, 0, 0, 0]
    data.qpos[7:] = joint_pos[0]
    mujoco.mj_kinematics(model, data)
    sites = np.array([data.site(f"{leg}_foot").xpos for leg in ROBOT.legs])
    np.testing.assert_allclose(KINEMATICS.foot_positions(joint_pos)[0], sites, atol=1e-9)


@given(feet_below_hips())
def test_inverse_kinematics_reaches_the_foot(feet: np.ndarray) -> None:
    joint_pos = KINEMATICS.joint_positions(feet)
    np.testing.assert_allclose(KINEMATICS.foot_positions(joint_pos), feet, atol=1e-9)


@given(feet_below_hips())
def test_knees_bend_backwards(feet: np.ndarray) -> None:
    calves = KINEMATICS.joint_positions(feet).reshape(N_LEGS, 3)[:, 2]
    assert (calves <= 0.0).all()


def test_inverse_kinematics_gives_the_default_pose_back() -> None:
    feet = KINEMATICS.foot_positions(DEFAULT_POSE[None])
    np.testing.assert_allclose(KINEMATICS.joint_positions(feet)[0], DEFAULT_POSE, atol=1e-9)


@given(st.floats(1.05, 5.0), st.floats(-0.5, 0.5))
def test_a_target_out_of_reach_gets_the_straight_leg_that_points_at_it(
    times_reach: float, forward: float
) -> None:
    sideways = np.array([0.0, ROBOT.thigh_offset_m, 0.0]) * ROBOT.leg_signs[:, 1:]
    direction = np.array([np.sin(forward), 0.0, -np.cos(forward)])
    hips = ROBOT.hip_positions_m + sideways
    feet = hips + times_reach * REACH_M * direction
    joint_pos = KINEMATICS.joint_positions(feet[None])
    assert np.isfinite(joint_pos).all()
    np.testing.assert_allclose(joint_pos.reshape(N_LEGS, 3)[:, 2], 0.0, atol=1e-9)
    reached = KINEMATICS.foot_positions(joint_pos)[0] - hips
    np.testing.assert_allclose(reached, np.tile(REACH_M * direction, (N_LEGS, 1)), atol=1e-9)


@given(joint_angles())
def test_the_height_gradient_is_the_derivative_of_the_feets_height(joint_pos: np.ndarray) -> None:
    gradient = KINEMATICS.height_gradient(joint_pos)[0]
    step = 1e-6
    for joint in range(N_JOINTS):
        nudge = np.zeros((1, N_JOINTS))
        nudge[0, joint] = step
        above = KINEMATICS.foot_positions(joint_pos + nudge)[0, joint // 3, 2]
        below = KINEMATICS.foot_positions(joint_pos - nudge)[0, joint // 3, 2]
        assert gradient[joint] == pytest.approx((above - below) / (2 * step), abs=1e-7)


def test_an_unknown_robot_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown robot 'spot'; available robots: aliengo"):
        load_robot("spot")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"joint_names": ROBOT.joint_names[:11]}, "11 joints on 4 legs"),
        ({"joint_lower_rad": np.zeros(3)}, "joint_lower_rad needs 12 numbers"),
        ({"default_joint_pos_rad": DEFAULT_POSE + 5.0}, "FL_hip_joint is outside its limits"),
    ],
)
def test_a_card_that_contradicts_itself_is_refused(changes: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_robot(replace(ROBOT, **changes))
