"""Pictures of recorded episodes: true to the record, and one clear line without OpenGL."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.rollout import EpisodeResult, run_episodes
from gaitforge.collectors.rendering.rendering import (
    OPENGL_BACKENDS,
    RenderingError,
    Scene,
    Shot,
    draw,
    frame_steps,
    lay_out,
    scene_of,
)
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.collectors.scenarios.terrains import make_tile, tile_heights
from tests.collectors.making import ROBOT, Constant
from tests.collectors.robots.robot_folders import robot_folder

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
        assert len(scene.state) == STEPS
        assert len(scene.barriers) == barriers
        assert scene.view_pos.shape == (STEPS, 3)
        offset = np.abs(scene.view_pos[:, :2] - scene.state[:, :2])
        assert offset.max() < 0.1


def test_an_episode_that_was_not_recorded_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="was not recorded"):
        scene_of(replace(record("stand"), record=None), ROBOT)


def test_frames_span_the_whole_episode() -> None:
    np.testing.assert_array_equal(frame_steps(192, 4), [0, 64, 127, 191])
    np.testing.assert_array_equal(frame_steps(1, 3), [0, 0, 0])


def test_without_opengl_one_line_says_why_and_what_to_install(
    scenes: dict[str, Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    with pytest.raises(RenderingError, match=r"cannot draw here .*nothing.*install") as caught:
        draw([Shot(scenes["run"], frame_steps(STEPS, 2))], *SIZE)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def drawn(scenes: dict[str, Scene]) -> list[np.ndarray]:
    """Two frames of every scene by MuJoCo, where it can draw."""
    steps = frame_steps(STEPS, 2)
    try:
        return draw([Shot(scene, steps) for scene in scenes.values()], *SIZE)
    except RenderingError as error:
        pytest.skip(f"no OpenGL by {' or '.join(OPENGL_BACKENDS)}: {error}")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_robot_like_menageries_is_seen(scenes: dict[str, Scene], tmp_path: Path) -> None:
    """Its shapes are for collisions only, in group 3, and its file brings lights of its own."""
    lights = '<worldbody><light pos="0 0 9" diffuse="0 0 0"/>'
    edits = [("<worldbody>", lights), ('group="1"', 'group="3"'), ('group="2"', 'group="3"')]
    mine = load_robot(str(robot_folder(tmp_path / "mine", mjcf=edits)))
    plain = load_robot("go1")
    try:
        seen = [
            draw([Shot(replace(scenes["run"], robot=robot), frame_steps(STEPS, 1))], *SIZE)[0]
            for robot in (mine, plain)
        ]
    except RenderingError as error:
        pytest.skip(f"no OpenGL by {' or '.join(OPENGL_BACKENDS)}: {error}")
    assert (seen[1].max(axis=-1) < 110).sum() > 200, "trunk"
    np.testing.assert_array_equal(seen[0], seen[1])


def test_mujoco_draws_no_shots_without_a_process() -> None:
    assert draw([], *SIZE) == []
