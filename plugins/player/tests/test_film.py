"""Films and Rerun recordings of what `gaitforge view` shows: the episode itself, or one line."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gaitforge.collectors.rendering.rendering import Shot
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.collectors.rotations import from_yaw, rotate, yaw_of
from gaitforge.datasets import open_store
from gaitforge.datasets.catalog.summaries import episode_name
from gaitforge.pipeline.report.picture_files import FADE_FRAMES
from tests.pipeline.command_line import Run, assert_refused
from tests.pipeline.report.test_pictures import draw_blocks

CELL = ("--terrain", "flat", "--skill", "stand", "--level", "1", "--episodes", "2")


@pytest.fixture
def shots(monkeypatch: pytest.MonkeyPatch) -> list[Shot]:
    """What was drawn, by a stand-in for MuJoCo's renderer, which needs OpenGL."""
    drawn: list[Shot] = []

    def draw(shots: Sequence[Shot], width_px: int, height_px: int) -> list[np.ndarray]:
        drawn.extend(shots)
        return draw_blocks(shots, width_px, height_px)

    monkeypatch.setattr("gaitforge.plugins.player.films.draw", draw)
    return drawn


def test_a_film_of_stored_states(walked: Path, tmp_path: Path, run: Run, shots: list[Shot]) -> None:
    selection, index = open_store(walked).select(), 2
    name = episode_name(int(selection.episode_ids()[index]))
    stored = selection.episode(index)["state"]
    film = tmp_path / "new" / "film.webp"
    done = run("view", walked, "--episode", name, "--video", film)
    assert (done.code, done.out.split()[0]) == (0, str(film))
    drawn = np.concatenate([shot.scene.state[shot.steps] for shot in shots])
    frames = len(stored) // 2 + 1  # with the state after the last step
    assert len(drawn) == frames
    np.testing.assert_array_equal(drawn[: -(-len(stored) // 2)], stored[::2])
    with Image.open(film) as written:
        assert (written.size, getattr(written, "n_frames", 1)) == ((640, 430), frames + FADE_FRAMES)
    assert [*film.parent.iterdir()] == [film]


def test_the_first_of_the_list_or_the_chosen_ones_are_filmed(
    walked: Path, trained: Path, tmp_path: Path, run: Run, shots: list[Shot]
) -> None:
    film = tmp_path / "film.gif"
    told = json.loads(run("view", walked, "--video", film, "--json").out)
    assert told == {"episodes": 1, "video": [str(film)]}
    selection = open_store(walked).select()
    worst = int(np.argmin(selection.episodes()["return"].to_numpy()))
    np.testing.assert_array_equal(
        shots[0].scene.state[:-1], selection.episode(worst)["state"].astype(np.float64)
    )
    told = json.loads(run("view", trained, *CELL, "--video", film, "--json").out)
    assert told == {"episodes": 1, "video": [str(film)]}


@pytest.mark.slow
def test_several_episodes_are_tiles_of_one_film_each_with_its_ghost(
    walked: Path, tmp_path: Path, run: Run, shots: list[Shot]
) -> None:
    selection, film = open_store(walked).select(), tmp_path / "film.webp"
    names = [episode_name(id_) for id_ in selection.episode_ids()[:3].tolist()]
    asked = ("--episode", ",".join(names), "--against", "expert", "--video", film, "--json")
    told = json.loads(run("view", walked, *asked).out)
    assert told == {"episodes": 3, "video": [str(film)]}
    longest = 0
    for k in range(3):
        scene = next(
            s.scene
            for s in shots
            if np.array_equal(s.scene.state[:-1], selection.episode(k)["state"])
        )
        assert scene.ghost is not None
        np.testing.assert_array_equal(scene.ghost[0], scene.state[0])
        assert scene.ghost.shape == scene.state.shape
        longest = max(longest, len(scene.state))
    with Image.open(film) as written:
        assert written.size == (2 * 320, 2 * 230)
        assert getattr(written, "n_frames", 1) == -(-longest // 3) + FADE_FRAMES
    assert [*tmp_path.iterdir()] == [film]


@pytest.mark.slow
def test_the_renderer_draws_the_ghost_beside_the_robot(
    trained: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.pipeline.report.pictures.TILES_MS", 500)
    green = []
    for name, against in (("alone", ()), ("ghost", ("--against", "expert"))):
        film = tmp_path / f"{name}.webp"
        done = run("view", trained, *CELL, "--episode", "0,1", *against, "--video", film)
        if "cannot draw here" in done.err:
            pytest.skip(done.err)
        assert done.code == 0, done.err
        with Image.open(film) as written:
            assert written.size == (640, 230)
            written.seek(1)
            red, grass, blue = np.moveaxis(np.asarray(written.convert("RGB"), int), -1, 0)
        green.append(
            [
                int(half.sum())
                for half in np.split((grass > red + 15) & (grass > blue + 15), 2, axis=1)
            ]
        )
    assert max(green[0]) < 50
    assert min(green[1]) > 300


def test_mp4_has_all_frames(walked: Path, tmp_path: Path, run: Run, shots: list[Shot]) -> None:
    av = pytest.importorskip("av", reason="the extra video is not installed")
    assert run("view", walked, "--video", tmp_path / "film.mp4").code == 0
    with av.open(str(tmp_path / "film.mp4")) as film:
        assert len(list(film.decode(video=0))) == sum(len(shot.steps) for shot in shots)


def test_a_missing_extra_is_one_line_before_the_work(
    walked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    for option, name, package, extra in (
        ("--video", "out.mp4", "av", "video"),
        ("--rerun", "out.rrd", "rerun", "rerun"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setattr("gaitforge.plugins.player.episodes.stored_show", None)
        outcome = run("view", walked, option, tmp_path / name)
        assert_refused(outcome, f"pip install -e '.[{extra}]'")
    assert list(tmp_path.iterdir()) == []


def test_a_rerun_recording_holds_what_is_stored(walked: Path, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("rerun", reason="the extra rerun is not installed")
    from rerun.chunk import RrdReader  # pyright: ignore[reportMissingImports]

    selection, index, robot = open_store(walked).select(), 1, load_robot("aliengo")
    name = episode_name(int(selection.episode_ids()[index]))
    stored, path = selection.episode(index), tmp_path / "out.rrd"
    assert_refused(run("view", walked, "--rerun", tmp_path / "out.txt"), "has to end in .rrd")
    asked = ("view", walked, "--episode", name, "--against", "expert", "--rerun", path)
    assert run(*asked).code == 0
    chunks = {}
    for chunk in RrdReader(path).stream():
        chunks.setdefault(chunk.entity_path, []).append(chunk.to_record_batch().to_pydict())

    def column(entity: str, field: str) -> np.ndarray:
        parts = [part for part in chunks[entity] if field in part]
        return np.array([value for part in parts for value in part[field]], dtype=object)

    trunk = f"/world/robot/{robot.trunk_body}"
    times = np.array([each / np.timedelta64(1, "s") for each in column(trunk, "time")])
    np.testing.assert_allclose(times, 0.02 * np.arange(len(stored["state"]) + 1), atol=1e-6)
    places = np.array(column(trunk, "Transform3D:translation").tolist(), float)[:, 0]
    np.testing.assert_allclose(places[:-1], stored["state"][:, :3], atol=1e-5)
    rewards = np.array(column("/curves/reward_of_a_step", "Scalars:scalars").tolist(), float)
    np.testing.assert_allclose(rewards[:, 0], stored["reward"], atol=1e-5)
    speeds = np.array(column("/curves/velocity", "Scalars:scalars").tolist(), float)
    arrows = np.array(column("/world/command", "Arrows3D:vectors").tolist(), float)[:, 0]
    wanted = np.stack([speeds[:, 0], speeds[:, 2], np.zeros(len(speeds))], axis=1)
    heading = from_yaw(yaw_of(stored["state"][:, 3:7].astype(float)))
    np.testing.assert_allclose(arrows, 0.35 * rotate(heading, wanted), atol=1e-5)
    assert {"/world/ground", "/episode", f"/world/ghost/{robot.trunk_body}"} <= chunks.keys()
    assert {f"{trunk}/0", "/world/robot/FL_calf/0"} <= chunks.keys()
