"""The gait's feed-forward: how joints raise feet, and stances that the weight does not bend."""

import numpy as np
import pytest

from gaitforge.collectors.physics import make_backend
from gaitforge.collectors.robots.kinematics import NEUTRAL, C, GaitReference, ramped
from gaitforge.collectors.rotations import gravity_in_body
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.timing import CONTROL_DT_S
from tests.collectors.making import ROBOT, start_at


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
