"""Contact sheets and films: typical episodes, files of the right size, drawn once."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from gaitforge.collectors.experts.expert import FEATURE_DIM, load_expert
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.rollout import run_episodes
from gaitforge.collectors.rendering.colours import BARRIER, SKY
from gaitforge.collectors.rendering.rendering import RenderingError, Shot
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.datasets import open_store
from gaitforge.pipeline.report.picture_files import (
    FADE_FRAMES,
    FRAME_PX,
    MAX_ANIMATION_BYTES,
    MAX_SHEET_BYTES,
    Heading,
    animation,
    contact_sheet,
)
from gaitforge.pipeline.report.pictures import (
    FilmPlan,
    describe,
    draw_stored,
    hardest_terrain,
    make_experiment_sheets,
    make_films,
    make_sheets,
    record_takes,
    stored_takes,
)
from tests.pipeline.command_line import call
from tests.pipeline.report.run_folder import write_json

PLAN = FilmPlan(skills=("stand", "crawl"), terrains=("flat",), episodes=1)
HEADING = Heading("crawl", "rough, level 4", "0.5 m/s", "success", True, "4 of 5 succeed")


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An expert that does what its gait says."""
    folder = tmp_path_factory.mktemp("expert")
    weights = {
        "mean": np.zeros(FEATURE_DIM, np.float32),
        "std": np.ones(FEATURE_DIM, np.float32),
        "layer0.weight": np.zeros((N_JOINTS, FEATURE_DIM), np.float32),
        "layer0.bias": np.zeros(N_JOINTS, np.float32),
    }
    save_file(weights, folder / "gait.safetensors")
    write_json(folder / "gait.json", {"robot": "aliengo"})
    return str(folder / "gait.safetensors")


def draw_blocks(shots: Sequence[Shot], width_px: int, height_px: int) -> list[np.ndarray]:
    """Stands in for MuJoCo's renderer, which needs OpenGL: a shaded sky, amber where a bar is."""
    drawn = []
    for shot in shots:
        shades = np.linspace(0.6, 1.0, width_px)[:, None] * np.array(SKY)
        frames = np.tile(shades.astype(np.uint8), (len(shot.steps), height_px, 1, 1))
        if shot.scene.barriers:
            frames[:, :60, 100:300] = BARRIER
        drawn.append(frames)
    return drawn


@pytest.fixture(scope="module", autouse=True)
def renderer() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gaitforge.pipeline.report.pictures.draw", draw_blocks)
        yield


@pytest.fixture(scope="module")
def sheets(expert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "pictures"
    make_sheets(folder, load_expert(expert), PLAN)
    return folder


def test_every_skill_is_shown_where_it_is_hardest() -> None:
    shown = {skill: hardest_terrain(skill, tuple(TERRAINS)) for skill in SKILLS}
    assert shown == {
        "stand": "stairs",
        "rush": "stairs",
        "crawl": "rough",
        "squeeze": "rough",
        "tilt": "rough",
        "run": "slope",
    }
    assert hardest_terrain("tilt", ("slope",)) == "slope"
    assert hardest_terrain("run", ("stairs",)) is None


def test_skills_that_fit_no_terrain_are_left_out_and_none_is_an_error() -> None:
    assert list(FilmPlan(("run", "stand"), ("stairs",)).grids()) == ["stand"]
    with pytest.raises(ValueError, match="none of the skills run is commanded on stairs"):
        FilmPlan(("run",), ("stairs",)).grids()
    for wrong in ({"skills": ("fly",)}, {"terrains": ("sea",)}):
        with pytest.raises(ValueError, match=r"unknown (skill 'fly'|terrain 'sea')"):
            replace(PLAN, **wrong)


def test_the_shown_episode_is_the_one_of_median_return(expert: str) -> None:
    plan = replace(PLAN, skills=("crawl",), episodes=3)
    (take,) = record_takes(load_expert(expert), plan)
    policy, specs = load_expert(expert).policy, plan.grids()["crawl"].specs()
    env = LeggedEnvironment(policy.robot, 3, threads=1)
    try:
        results = list(run_episodes(env, policy, specs))
    finally:
        env.close()
    returns = [result.episode_return for result in results]
    assert take.result.episode_return == np.median(returns)
    assert (take.succeeded, take.episodes) == (sum(r.success for r in results), 3)
    assert "bar" in describe(take.result)


@pytest.mark.slow
def test_sheets_are_pictures_of_bounded_size_with_the_passage_in_them(sheets: Path) -> None:
    index = json.loads((sheets / "pictures.json").read_text())
    assert index["renderer"] == "mujoco"
    assert [sheet["skill"] for sheet in index["sheets"]] == ["stand", "crawl"]
    amber = {}
    for sheet in index["sheets"]:
        path = sheets / sheet["file"]
        assert path.stat().st_size <= MAX_SHEET_BYTES
        with Image.open(path) as image:
            assert image.width > 4 * FRAME_PX[0]
            assert image.height > 2 * FRAME_PX[1]
            pixels = np.asarray(image.convert("RGB")).astype(int)
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
        amber[sheet["skill"]] = int((np.abs(pixels - BARRIER).max(axis=-1) < 45).sum())
    assert amber["stand"] == 0
    assert amber["crawl"] > 1000


def test_sheets_are_drawn_once_for_a_plan(sheets: Path, expert: str, tmp_path: Path) -> None:
    def stamps() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in sheets.iterdir()}

    first = stamps()
    make_sheets(sheets, load_expert(expert), PLAN)
    assert stamps() == first
    (sheets / "stand.png").unlink()
    make_sheets(sheets, load_expert(expert), PLAN)
    assert set(stamps()) == set(first)
    assert stamps()["stand.png"] != first["stand.png"]
    before = stamps()
    make_sheets(sheets, load_expert(expert), replace(PLAN, level=2))
    record = json.loads((sheets / "pictures.json").read_text())
    assert {sheet["level"] for sheet in record["sheets"]} == {2}
    assert stamps()["crawl.png"] != before["crawl.png"]
    make_sheets(sheets, load_expert(expert), PLAN)


def test_an_experiment_shows_its_own_expert_at_its_middle_level(
    expert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [{"skill": "squeeze", "terrain": "flat", "level": level} for level in (8, 1, 4)]
    plan = {"collect": {"expert": expert}, "expert": ""}
    record = {"plan": plan, "cells": cells, "runs": [], "results": []}
    write_json(tmp_path / "summary.json", record)
    said: list[str] = []
    make_experiment_sheets(tmp_path, said.append)
    record = json.loads((tmp_path / "pictures" / "pictures.json").read_text())
    assert said == []
    (sheet,) = record["sheets"]
    assert (sheet["skill"], sheet["terrain"], sheet["level"]) == ("squeeze", "flat", 4)
    assert record["weights"] == load_expert(expert).hash
    assert (tmp_path / "pictures" / sheet["file"]).is_file()

    def refuse(*_: object) -> None:
        raise RenderingError("MuJoCo cannot draw here; install OSMesa")

    monkeypatch.setattr("gaitforge.pipeline.report.pictures.draw", refuse)
    (tmp_path / "pictures" / "pictures.json").unlink()
    make_experiment_sheets(tmp_path, said.append)
    assert not (tmp_path / "pictures" / "pictures.json").exists()
    assert said == ["no pictures: MuJoCo cannot draw here; install OSMesa"]
    with pytest.raises(ValueError, match="no finished experiment in"):
        make_experiment_sheets(tmp_path / "other", said.append)


def test_films_play_at_25_frames_a_second_in_every_format(expert: str, tmp_path: Path) -> None:
    plan = replace(PLAN, skills=("crawl",))
    for formats in (("avi",), ()):
        with pytest.raises(ValueError, match="allowed: png, gif, webp, mp4"):
            make_films(expert, tmp_path, PLAN, formats)
    assert list(tmp_path.iterdir()) == []
    written = make_films(expert, tmp_path / "films", plan, ("gif", "png", "webp"))
    assert [path.name for path in written] == ["crawl.gif", "crawl.png", "crawl.webp"]
    for path in written:
        assert path.stat().st_size <= MAX_ANIMATION_BYTES
    (take,) = record_takes(load_expert(expert), plan)
    for path in (written[0], written[2]):
        with Image.open(path) as image:
            assert getattr(image, "n_frames", 1) == -(-take.result.length // 2) + FADE_FRAMES
            image.seek(1)
            image.load()
            assert image.info["duration"] == 40


@pytest.mark.slow
def test_big_animations_are_made_small_enough() -> None:
    rng = np.random.default_rng(0)
    still = rng.integers(0, 256, (1, 250, 400, 3), dtype=np.uint8)
    frames = np.concatenate([np.roll(still, 3 * k, axis=2) for k in range(30)])
    content = animation([(HEADING, frames)], 40, "gif")
    assert len(content) <= MAX_ANIMATION_BYTES
    with Image.open(io.BytesIO(content)) as image:
        assert image.width < FRAME_PX[0]


def test_a_sheet_keeps_the_order_of_its_frames() -> None:
    shades = np.linspace(20, 230, 8).round().astype(np.uint8)
    frames = np.broadcast_to(shades[:, None, None, None], (8, 50, 80, 3))
    with Image.open(io.BytesIO(contact_sheet(HEADING, frames, np.arange(8.0)))) as image:
        pixels = np.asarray(image.convert("L"))
    rows = [pixels.shape[0] - 56 - 15, pixels.shape[0] - 15]
    seen = [int(pixels[row, 6 + column * 86 + 70]) for row in rows for column in range(4)]
    np.testing.assert_allclose(seen, shades, atol=12)


def test_the_film_command_prints_what_it_wrote(
    expert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--skill", "stand", "--terrain", "flat", "--level", "3", "--expert", expert]
    options += ["--format", "png", "--out", tmp_path / "films"]
    assert call("expert", "film", *options) == 0
    assert str(tmp_path / "films" / "stand.png") in capsys.readouterr().out


def test_stored_episodes_are_shown_as_they_were(store: Path, tmp_path: Path) -> None:
    """One of each skill, replayed bit for bit; a changed one is refused."""
    selection = open_store(store).select()
    takes, _ = stored_takes(selection)
    rows = {row["episode"]: row for row in selection.listing(show=["return"])}
    assert sorted(take.result.spec.skill for take in takes.values()) == ["run", "stand"]
    for take in takes.values():
        row = rows[take.policy]
        assert take.result.episode_return == pytest.approx(row["return"], abs=1e-6)
        assert (take.episodes, take.result.length) == (2, row["length"])
    try:
        sheets = draw_stored(selection, tmp_path)
    except RenderingError as error:
        pytest.skip(str(error))
    assert [sheet["file"] for sheet in sheets] == ["run.png", "stand.png"]
    assert Image.open(tmp_path / "run.png").format == "PNG"
