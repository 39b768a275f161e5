"""The gait's feed-forward: how joints raise feet, and stances that the weight does not bend."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.physics import make_backend
from gaitforge.collectors.robots.commands import NEUTRAL, C, ramped
from gaitforge.collectors.robots.gait import GaitReference
from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.rotations import gravity_in_body
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.timing import CONTROL_DT_S
from tests.collectors.making import ROBOT, SMALL_ROBOT, start_at

STEP_RAD = 1e-5


def joint_angles() -> st.SearchStrategy[np.ndarray]:
    """(1, 12) angles within the joint limits."""
    limits = zip(ROBOT.joint_lower_rad.tolist(), ROBOT.joint_upper_rad.tolist(), strict=True)
    return st.tuples(*(st.floats(low, high) for low, high in limits)).map(lambda q: np.array([q]))


def directions() -> st.SearchStrategy[np.ndarray]:
    """(1, 1, 3) unit vectors, upright or tilted."""

    def unit(turned: float, leaned: float) -> np.ndarray:
        flat = np.sin(leaned)
        return np.array([[[flat * np.cos(turned), flat * np.sin(turned), np.cos(leaned)]]])

    tilted = st.builds(unit, st.floats(-np.pi, np.pi), st.floats(0.0, np.pi))
    return st.just(np.array([[[0.0, 0.0, 1.0]]])) | tilted


@given(joint_angles(), directions(), st.sampled_from([ROBOT, SMALL_ROBOT]))
def test_the_rise_of_feet_by_their_joints_is_what_small_turns_do(
    joint_pos: np.ndarray, up: np.ndarray, robot: RobotCard
) -> None:
    kinematics = LegKinematics(robot)
    turns = STEP_RAD * np.eye(N_JOINTS)

    def rise(joint_pos: np.ndarray) -> np.ndarray:
        """(12, 4) how far along `up` every foot is after each joint's turn."""
        return kinematics.foot_positions(joint_pos) @ up[0, 0]

    by_joint = (rise(joint_pos + turns) - rise(joint_pos - turns)) / (2 * STEP_RAD)
    own_leg = by_joint[np.arange(N_JOINTS), np.repeat(np.arange(N_LEGS), JOINTS_PER_LEG)]
    found = kinematics.rise_gradient(joint_pos, up)[0]
    np.testing.assert_allclose(found, own_leg, atol=1e-8)


def standing(height_m: float, pitch: float, roll: float) -> np.ndarray:
    """(16,) a command to stand like this."""
    command = np.array([low for low, _ in (NEUTRAL | SKILLS["stand"].ranges).values()])
    command[[C.BODY_HEIGHT, C.BODY_PITCH, C.BODY_ROLL]] = height_m, pitch, roll
    return command


STANCES = [
    (0.0, 0.0, 0.0),
    (0.0, 0.0, 0.3),
    (0.0, 0.0, -0.3),
    (0.0, 0.3, 0.0),
    (0.0, -0.3, 0.0),
    (-0.1, 0.0, 0.3),
    (-0.1, 0.2, -0.2),
]


@pytest.fixture(scope="module")
def found() -> np.ndarray:
    """(stances, 3) height, pitch and roll after 2 s of every stance, by the gait alone."""
    gait, backend = GaitReference(ROBOT), make_backend("mujoco", ROBOT, len(STANCES), 1)
    try:
        for index in range(len(STANCES)):
            backend.reset(index, start_at())
        target = np.array([standing(*stance) for stance in STANCES])
        clock = np.zeros(len(STANCES))
        for step in range(100):
            command = ramped(target, np.full(len(STANCES), step * CONTROL_DT_S))
            backend.step(gait.joint_targets(command, clock))
        x, y, z = gravity_in_body(backend.state.base_quat).T
        height = backend.state.base_pos[:, 2] - ROBOT.nominal_height_m
        return np.stack([height, np.arcsin(x), np.arctan2(-y, -z)], axis=1)
    finally:
        backend.close()


@pytest.mark.parametrize("index", range(len(STANCES)), ids=[str(stance) for stance in STANCES])
def test_the_feed_forward_holds_the_commanded_stance_under_the_weight(
    found: np.ndarray, index: int
) -> None:
    height, pitch, roll = STANCES[index]
    assert found[index, 0] == pytest.approx(height, abs=0.015)
    assert found[index, 1] == pytest.approx(pitch, abs=0.04)
    assert found[index, 2] == pytest.approx(roll, abs=0.04)
