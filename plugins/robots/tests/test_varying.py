"""Families of robots: every body is usable, and follows from the seed alone."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.physics.mujoco.model import build_model
from gaitforge.collectors.physics.robot_check import check_robot
from gaitforge.collectors.robots.robot import VARIATION, RobotCard, RobotError, load_robot
from gaitforge.collectors.timing import GRAVITY_MS2
from gaitforge.plugins.robots.varying import (
    draw_factors,
    vary_robot,
    vary_robots,
    write_varied,
)
from tests.collectors.making import ROBOT
from tests.collectors.robots.robot_folders import GO1, robot_folder

UNCHANGED = dict.fromkeys(VARIATION, 1.0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("robot", [ROBOT, GO1], ids=lambda robot: robot.name)
def test_a_body_is_a_function_of_robot_seed_and_index(robot: RobotCard, tmp_path: Path) -> None:
    bodies = {}
    for name, seed, index in (("a", 0, 3), ("b", 0, 3), ("c", 0, 4), ("d", 1, 3)):
        vary_robot(robot, seed, index, tmp_path / name)
        bodies[name] = contents(tmp_path / name)
    assert bodies["a"] == bodies["b"]
    assert bodies["a"] != bodies["c"] != bodies["d"]
    assert {path.name for path in tmp_path.iterdir()} == set(bodies), "no temporary folder is left"


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 2**31), st.sampled_from([ROBOT, GO1]))
def test_every_body_is_usable_and_within_its_family(
    tmp_path_factory: pytest.TempPathFactory, seed: int, robot: RobotCard
) -> None:
    body = vary_robot(robot, seed, 0, tmp_path_factory.mktemp("family") / "body")
    assert check_robot(body).warnings == ()
    for name, (value, same) in body.variation.items():
        low, high = robot.variation[name]
        assert low <= value == same <= high
    model = build_model(body)
    left, right = (model.body_inertia[model.body(f"{leg}_calf").id] for leg in ("FL", "FR"))
    np.testing.assert_allclose(left, right, rtol=1e-6)


def test_the_unchanged_body_is_the_robot(tmp_path: Path) -> None:
    same = write_varied(ROBOT, UNCHANGED, "same", tmp_path)
    assert same.nominal_height_m == pytest.approx(ROBOT.nominal_height_m)
    np.testing.assert_allclose(same.default_joint_pos_rad, ROBOT.default_joint_pos_rad, atol=1e-9)
    ours, theirs = build_model(ROBOT), build_model(same)
    for what in ("body_mass", "body_ipos", "geom_size", "geom_pos", "dof_armature", "dof_damping"):
        np.testing.assert_allclose(getattr(theirs, what), getattr(ours, what), atol=1e-6)
    # MuJoCo orders the principal axes by size.
    np.testing.assert_allclose(
        np.sort(theirs.body_inertia, axis=1), np.sort(ours.body_inertia, axis=1), atol=1e-8
    )


@given(st.floats(0.6, 1.6))
@settings(max_examples=10)
def test_a_larger_body_is_dynamically_similar(
    tmp_path_factory: pytest.TempPathFactory, size: float
) -> None:
    """Masses grow with the cube of lengths, inertias with the fifth power; motion scales."""
    body = write_varied(ROBOT, UNCHANGED | {"size": size}, "x", tmp_path_factory.mktemp("body"))
    assert body.mass_kg == pytest.approx(size**3 * ROBOT.mass_kg)
    assert body.leg_length_m == pytest.approx(size * ROBOT.leg_length_m)
    assert body.width_m == pytest.approx(size * ROBOT.width_m)
    ours, theirs = build_model(ROBOT), build_model(body)
    inertia = np.sort(ours.body_inertia, axis=1) * size**5
    np.testing.assert_allclose(np.sort(theirs.body_inertia, axis=1)[1:14], inertia[1:14], rtol=1e-4)

    def without_dimension(robot: RobotCard, values: np.ndarray, time: float) -> np.ndarray:
        """Divided by weight x leg length x (leg length / g) ^ (time / 2)."""
        leg = robot.leg_length_m
        return values / (robot.weight_n * leg * (leg / GRAVITY_MS2) ** (time / 2))

    for key, time in (("kp_nm_per_rad", 0), ("kd_nms_per_rad", 1), ("torque_limit_nm", 0)):
        own, other = (without_dimension(r, getattr(r, key), time) for r in (ROBOT, body))
        np.testing.assert_allclose(own, other, rtol=1e-6)
    np.testing.assert_allclose(
        without_dimension(ROBOT, ours.dof_armature[6:], 2),
        without_dimension(body, theirs.dof_armature[6:], 2),
        rtol=1e-4,
    )


def test_ranges_on_the_card_are_kept(tmp_path: Path) -> None:
    card = {"variation": {"size": [1.0, 1.0], "calf_length": [1.1, 1.15]}}
    robot = load_robot(str(robot_folder(tmp_path, card)))
    drawn = [draw_factors(robot, 0, index) for index in range(100)]
    assert {each["size"] for each in drawn} == {1.0}
    calves = [each["calf_length"] for each in drawn]
    assert 1.1 <= min(calves) < 1.102
    assert 1.148 < max(calves) <= 1.15
    assert {len(each) for each in drawn} == {len(VARIATION)}


def test_bodies_of_a_robot_that_changed_are_not_taken_for_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    out = tmp_path / "family"
    robot_folder(folder, {"variation": {"size": [1.0, 1.0]}})
    first = vary_robots(load_robot(str(folder)), 0, 2, out, lambda: None)
    again = vary_robots(load_robot(str(folder)), 0, 2, out, lambda: None)
    assert [body.path for body in again] == [body.path for body in first]
    stiffer = {"kp_nm_per_rad": 40.0, "variation": {"size": [1.0, 1.0]}}
    for card in ({"variation": {"size": [1.3, 1.3]}}, stiffer):
        robot_folder(folder, card)
        with pytest.raises(RobotError, match="a body of another 'mine'"):
            vary_robots(load_robot(str(folder)), 0, 2, out, lambda: None)


@pytest.mark.parametrize(
    ("variation", "complaint"),
    [
        ({"colour": [1, 2]}, "variation has to be an object with some of size, trunk_length"),
        ([1, 2], "variation has to be an object"),
        ({"size": [1.2, 1.1]}, "variation: size has to be [low, high], both positive"),
        ({"size": [0, 1.1]}, "both positive"),
        ({"size": 1.1}, "size has to be [low, high]"),
    ],
)
def test_a_wrong_range_is_refused(tmp_path: Path, variation: object, complaint: str) -> None:
    with pytest.raises(RobotError) as caught:
        load_robot(str(robot_folder(tmp_path, {"variation": variation})))
    assert complaint in str(caught.value)


def test_a_family_that_cannot_stand_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = {"variation": {"kp": [0.05, 0.05]}}
    robot = load_robot(str(robot_folder(tmp_path / "mine", card)))
    monkeypatch.setattr("gaitforge.plugins.robots.varying.MAX_ATTEMPTS", 3)
    with pytest.raises(RobotError, match=r"none of 3 bodies .* narrow the ranges of `variation`"):
        vary_robot(robot, 0, 0, tmp_path / "body")
    assert not (tmp_path / "body").exists()
