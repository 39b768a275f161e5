"""Pictures of recorded episodes: true to the record, readable, with a way out without OpenGL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.legged.environment import LeggedEnvironment
from collectors.legged.episodes import EpisodeSpec
from collectors.legged.rollout import EpisodeResult, run_episodes
from collectors.rendering.rendering import (
    OPENGL_BACKENDS,
    RENDERERS,
    RenderingError,
    Shot,
    draw,
    draw_with_mujoco,
)
from collectors.rendering.scene import Scene, frame_steps, lay_out, leg_points, scene_of
from collectors.rendering.side_view import BARRIER, LEFT_LEGS, RIGHT_LEGS, SKY
from collectors.robots.kinematics import LegKinematics
from collectors.robots.robot import N_JOINTS
from collectors.rotations import rotate
from collectors.scenarios.terrains import make_tile, tile_heights
from tests.collectors.making import ROBOT, Constant

STEPS = 12
SIZE = (240, 150)


def record(skill: str, terrain: str = "flat") -> EpisodeResult:
    """A short recorded episode of a robot that holds its default pose."""
    env = LeggedEnvironment(ROBOT, 1, threads=1, episode_steps=STEPS)
    try:
        spec = EpisodeSpec(0, terrain, level=4, skill=skill, seed=5)
        return next(run_episodes(env, Constant(), [spec], record=True))
    finally:
        env.close()


@pytest.fixture(scope="module")
def scenes() -> dict[str, Scene]:
    cells = (("run", "slope"), ("crawl", "rough"), ("squeeze", "flat"))
    return {skill: scene_of(record(skill, terrain), ROBOT) for skill, terrain in cells}


def moved_to(scene: Scene, along_m: float) -> Scene:
    """The scene with the robot, and its viewer, shifted along the track."""
    yaw = scene.view_yaw[0]
    shift = along_m * np.array([np.cos(yaw), np.sin(yaw)])
    state, view_pos = scene.state.copy(), scene.view_pos.copy()
    state[:, :2] += shift
    view_pos[:, :2] += shift
    return replace(scene, state=state, view_pos=view_pos)


def pixels_of(picture: np.ndarray, colour: tuple[int, int, int], tolerance: int = 12) -> int:
    near = np.abs(picture.astype(int) - np.array(colour)).max(axis=-1) <= tolerance
    return int(near.sum())


unit = st.floats(-1.0, 1.0)


@given(
    st.lists(unit, min_size=N_JOINTS, max_size=N_JOINTS),
    st.tuples(unit, unit, unit, unit).filter(lambda q: np.linalg.norm(q) > 0.1),
)
def test_drawn_feet_are_where_kinematics_puts_them(
    joints: list[float], quat: tuple[float, float, float, float]
) -> None:
    q = ROBOT.default_joint_pos_rad + np.array(joints)
    state = np.array([0.3, -0.2, 0.5, *np.array(quat) / np.linalg.norm(quat), *q])
    feet = LegKinematics(ROBOT).foot_positions(q[None])[0]
    expected = rotate(state[None, 3:7], feet) + state[:3]
    np.testing.assert_allclose(leg_points(ROBOT, state)[:, 3], expected, atol=1e-9)


def test_links_keep_their_lengths_in_every_step(scenes: dict[str, Scene]) -> None:
    points = leg_points(ROBOT, scenes["run"].state)
    lengths = np.linalg.norm(np.diff(points, axis=-2), axis=-1)
    expected = [ROBOT.thigh_offset_m, ROBOT.thigh_length_m, ROBOT.calf_length_m]
    np.testing.assert_allclose(lengths, np.broadcast_to(expected, lengths.shape), atol=1e-5)


@settings(max_examples=25)
@given(st.floats(-9.0, 9.0), st.floats(-9.0, 9.0))
def test_ground_goes_on_over_the_seams_of_the_tile(x: float, y: float) -> None:
    tile = make_tile("obstacles", 6, 1)
    ground = lay_out(tile, np.array([-5.0, -5.0]), np.array([5.0, 5.0]))
    node = np.rint(np.array([x, y]) / tile.resolution_m) * tile.resolution_m
    assert ground.at(node) == pytest.approx(tile_heights(tile, node[None])[0], abs=1e-6)
    around = node + tile.resolution_m * np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    between = ground.at(node + 0.4 * tile.resolution_m)
    heights = ground.at(around)
    assert heights.min() - 1e-6 <= between <= heights.max() + 1e-6


def test_a_scene_holds_the_record_and_the_passage(scenes: dict[str, Scene]) -> None:
    for skill, barriers in (("run", 0), ("crawl", 1), ("squeeze", 2)):
        scene = scenes[skill]
        assert scene.steps == STEPS
        assert len(scene.barriers) == barriers
        assert scene.view_pos.shape == (STEPS, 3)
        offset = np.abs(scene.view_pos[:, :2] - scene.state[:, :2])
        assert offset.max() < 0.1
        assert (np.diff(scene.way_m()) >= 0).all()


def test_an_episode_that_was_not_recorded_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="was not recorded"):
        scene_of(replace(record("stand"), record=None), ROBOT)


def test_frames_span_the_whole_episode() -> None:
    np.testing.assert_array_equal(frame_steps(192, 4), [0, 64, 127, 191])
    np.testing.assert_array_equal(frame_steps(1, 3), [0, 0, 0])


@pytest.mark.parametrize("skill", ["run", "crawl", "squeeze"])
def test_side_views_show_the_robot_on_the_ground(scenes: dict[str, Scene], skill: str) -> None:
    steps = frame_steps(STEPS, 3)
    pictures = draw([Shot(scenes[skill], steps)], *SIZE, renderer="side")
    assert pictures.renderer == "side"
    (frames,) = pictures.frames
    assert frames.shape == (3, SIZE[1], SIZE[0], 3)
    assert frames.dtype == np.uint8
    for frame in frames:
        assert pixels_of(frame, RIGHT_LEGS) > 60
        assert 0.2 < pixels_of(frame, SKY, 2) / (SIZE[0] * SIZE[1]) < 0.9


def test_side_views_show_a_bar_over_the_robot(scenes: dict[str, Scene]) -> None:
    scene = scenes["crawl"]
    assert scene.passage is not None
    under = moved_to(scene, scene.passage.start_m + scene.passage.depth_m / 2)
    last = np.array([STEPS - 1])
    seen, gone = (
        draw([Shot(moved, last)], *SIZE, renderer="side").frames[0][0]
        for moved in (under, moved_to(scene, 5.0))
    )
    rows, columns = np.nonzero(np.abs(seen.astype(int) - BARRIER).max(axis=-1) < 45)
    assert len(rows) > 100
    assert rows.max() < SIZE[1] * 0.6
    assert abs(columns.mean() - SIZE[0] / 2) < SIZE[0] * 0.1
    assert pixels_of(gone, BARRIER, 45) == 0


def test_the_front_view_shows_walls_on_both_sides_of_the_robot(scenes: dict[str, Scene]) -> None:
    scene = scenes["squeeze"]
    assert scene.passage is not None
    between = moved_to(scene, scene.passage.start_m + scene.passage.depth_m / 2)
    frame = draw([Shot(between, np.array([STEPS - 1]))], *SIZE, renderer="side").frames[0][0]
    front = frame[:, round(SIZE[0] * 0.6) :]
    columns = np.nonzero(np.abs(front.astype(int) - BARRIER).max(axis=-1) < 45)[1]
    right, left = (
        np.nonzero(np.abs(front.astype(int) - colour).max(axis=-1) < 12)[1]
        for colour in (RIGHT_LEGS, LEFT_LEGS)
    )
    assert columns.min() < right.min()
    assert right.mean() < left.mean()
    assert left.max() < columns.max()


def test_an_unknown_renderer_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match=f"renderers: {', '.join(RENDERERS)}"):
        draw([], *SIZE, renderer="povray")


def test_without_opengl_the_reason_is_one_line_and_side_views_take_over(
    scenes: dict[str, Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    shots, said = [Shot(scenes["run"], frame_steps(STEPS, 2))], []
    with pytest.raises(RenderingError, match="MuJoCo cannot draw here") as caught:
        draw(shots, *SIZE, renderer="mujoco")
    assert "\n" not in str(caught.value)
    assert "nothing" in str(caught.value)
    pictures = draw(shots, *SIZE, renderer="auto", say=said.append)
    assert pictures.renderer == "side"
    assert said == [f"{caught.value}; drawing side views instead"]


@pytest.fixture(scope="module")
def drawn(scenes: dict[str, Scene]) -> list[np.ndarray]:
    """Two frames of every scene by MuJoCo, where it can draw."""
    steps = frame_steps(STEPS, 2)
    try:
        return draw_with_mujoco([Shot(scene, steps) for scene in scenes.values()], *SIZE)
    except RenderingError as error:
        pytest.skip(f"no OpenGL by {' or '.join(OPENGL_BACKENDS)}: {error}")


def test_mujoco_draws_robot_ground_and_barriers(
    scenes: dict[str, Scene], drawn: list[np.ndarray]
) -> None:
    for skill, frames in zip(scenes, drawn, strict=True):
        assert frames.shape == (2, SIZE[1], SIZE[0], 3)
        red, green, blue = np.moveaxis(frames[0].astype(int), -1, 0)
        assert ((red > 120) & (red > green + 60) & (green > blue)).sum() > 40, "right legs"
        assert (frames[0].max(axis=-1) < 110).sum() > 200, "trunk"
        yellow = ((red > 150) & (green > 110) & (blue < green - 50)).sum()
        assert (yellow > 300) == (skill != "run")


def test_mujoco_draws_no_shots_without_a_process() -> None:
    assert draw_with_mujoco([], *SIZE) == []
