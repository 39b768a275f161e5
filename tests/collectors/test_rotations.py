"""Quaternion algebra against closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.rotations import from_yaw, gravity_in_body, rotate, rotate_inverse, yaw_of

angles = st.floats(-3.1, 3.1)
vectors = st.tuples(*[st.floats(-10, 10)] * 3).map(np.array)
quaternions = (
    st.tuples(*[st.floats(-1, 1)] * 4)
    .map(np.array)
    .filter(lambda q: np.linalg.norm(q) > 0.1)
    .map(lambda q: q / np.linalg.norm(q))
)


def about(axis: int, angle: float) -> np.ndarray:
    """The quaternion of a rotation about a coordinate axis."""
    quat = np.zeros(4)
    quat[0], quat[1 + axis] = np.cos(angle / 2), np.sin(angle / 2)
    return quat


@given(st.integers(0, 2), angles, vectors)
def test_rotation_about_an_axis_turns_the_other_two(
    axis: int, angle: float, vector: np.ndarray
) -> None:
    i, j = (axis + 1) % 3, (axis + 2) % 3
    expected = vector.copy()
    expected[i] = np.cos(angle) * vector[i] - np.sin(angle) * vector[j]
    expected[j] = np.sin(angle) * vector[i] + np.cos(angle) * vector[j]
    np.testing.assert_allclose(rotate(about(axis, angle), vector), expected, atol=1e-9)


@given(quaternions, vectors)
def test_the_inverse_undoes_a_rotation_which_keeps_lengths(
    quat: np.ndarray, vector: np.ndarray
) -> None:
    turned = rotate(quat, vector)
    np.testing.assert_allclose(rotate_inverse(quat, turned), vector, atol=1e-9)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector), abs=1e-9)


@given(quaternions)
def test_gravity_in_body_is_the_world_s_down_seen_from_the_body(quat: np.ndarray) -> None:
    down = rotate_inverse(quat, np.array([0.0, 0.0, -1.0]))
    np.testing.assert_allclose(gravity_in_body(quat), down, atol=1e-9)


def test_gravity_of_a_level_a_nose_down_and_a_right_leaning_body() -> None:
    # Positive pitch lowers the nose (x forward), positive roll the right side (y left).
    np.testing.assert_allclose(gravity_in_body(about(2, 1.0)), [0, 0, -1], atol=1e-12)
    nose_down = gravity_in_body(about(1, 0.3))
    np.testing.assert_allclose(nose_down, [np.sin(0.3), 0, -np.cos(0.3)], atol=1e-12)
    leaning = gravity_in_body(about(0, 0.3))
    np.testing.assert_allclose(leaning, [0, -np.sin(0.3), -np.cos(0.3)], atol=1e-12)


@given(angles)
def test_yaw_comes_back(yaw: float) -> None:
    assert float(yaw_of(from_yaw(np.array(yaw)))) == pytest.approx(yaw, abs=1e-9)


@given(angles, st.floats(-1.0, 1.0))
def test_pitching_keeps_the_heading(yaw: float, pitch: float) -> None:
    forward = rotate(about(2, yaw), rotate(about(1, pitch), np.array([1.0, 0.0, 0.0])))
    w1, w2 = about(2, yaw), about(1, pitch)
    product = np.array([w1[0] * w2[0], -w1[3] * w2[2], w1[0] * w2[2], w1[3] * w2[0]])
    assert float(yaw_of(product)) == pytest.approx(np.arctan2(forward[1], forward[0]), abs=1e-9)


@given(st.lists(quaternions, min_size=1, max_size=5), vectors)
def test_a_batch_is_its_rows(quats: list[np.ndarray], vector: np.ndarray) -> None:
    batch = np.stack(quats)
    rows = np.tile(vector, (len(quats), 1))
    expected = np.stack([rotate(q, vector) for q in quats])
    np.testing.assert_array_equal(rotate(batch, rows), expected)
    np.testing.assert_array_equal(
        gravity_in_body(batch), np.stack([gravity_in_body(q) for q in quats])
    )
