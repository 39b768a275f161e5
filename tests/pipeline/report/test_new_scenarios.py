"""A new terrain is one record, a new skill one record: both are simulated, drawn and reported."""

import json
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.experts.ppo import SKILL_SHARES, TERRAIN_SHARES
from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.rollout import (
    EvaluationGrid,
    cell_measures,
    evaluate,
    run_episodes,
)
from gaitforge.collectors.rendering.rendering import scene_of
from gaitforge.collectors.robots.kinematics import C
from gaitforge.collectors.scenarios.skills import SKILLS, Skill
from gaitforge.collectors.scenarios.terrains import TERRAINS, PassageRule, Terrain
from gaitforge.flows.tasks.evaluation import Cell
from gaitforge.pipeline.report.pictures import FilmPlan, Take, describe, hardest_terrain, heading
from gaitforge.pipeline.report.report import write_report
from tests.collectors.making import ROBOT, Constant
from tests.pipeline.report.run_folder import write_json, write_run_folder

DUNES = Terrain(
    "dunes",
    seed=77,
    height=lambda x, y, level, rng: 0.01 * level * np.sin(2 * np.pi * x / 2.5),
    skills=("run",),
)
MARCH = Skill(
    "march",
    succeeded=lambda track: len(track.values) > 0,
    describe=lambda command: f"marches at {command[C.VEL_X]:.1f} m/s",
    ranges={C.VEL_X: (0.3, 0.5)},
    terrains=("dunes",),
    passage=PassageRule("bar", ("dunes",), lambda robot, hardness: 0.6 - 0.1 * hardness),
)


@pytest.fixture(autouse=True)
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TERRAINS, "dunes", DUNES)
    monkeypatch.setitem(SKILLS, "march", MARCH)


def test_records_of_both_sides_say_what_goes_together() -> None:
    grid = CollectionGrid(terrains=("flat", "dunes"), skills=tuple(SKILLS), parts=1)
    assert {skill for terrain, skill in grid.cells() if terrain == "dunes"} == {
        "stand",
        "rush",
        "run",
        "march",
    }
    assert ("flat", "march") not in grid.cells()
    assert "dunes" not in TERRAIN_SHARES, "no share: the experts' training stays as it is"
    assert "march" not in SKILL_SHARES
    assert len({terrain.seed for terrain in TERRAINS.values()}) == len(TERRAINS)


@pytest.mark.slow
def test_they_are_simulated_drawn_and_reported(tmp_path: Path) -> None:
    grid = EvaluationGrid(("dunes",), ("march",), levels=(4,), episodes=2)
    env = LeggedEnvironment(ROBOT, 2, threads=1, episode_steps=10)
    try:
        (result, _) = run_episodes(env, Constant(), grid.specs(), record=True)
        assert not env.success(0, terminated=True), "a fall is never a success"
        (results,) = evaluate(Constant(), env, grid)
    finally:
        env.close()
    where = {"terrain": "dunes", "skill": "march", "level": 4}
    cell = Cell(where, results, cell_measures(results)).row("march")
    assert result.success == (not result.terminated)
    assert result.draws.passage is not None
    scene = scene_of(result, ROBOT)
    assert np.ptp(scene.ground.heights) == pytest.approx(2 * 0.04, abs=0.01)
    assert len(scene.barriers) == 1
    assert hardest_terrain("march", tuple(TERRAINS)) == "dunes"
    assert hardest_terrain("run", ("dunes",)) == "dunes"
    assert list(FilmPlan(("march",), ("dunes",)).grids()) == ["march"]
    assert describe(result).startswith("marches at 0.")
    assert heading(Take(result, 1, 1)).where == "dunes, level 4"

    run = write_run_folder(tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    policy = summary["cells"][0]["policy"]
    summary["cells"].append(cell | {"policy": policy})
    write_json(run / "summary.json", summary)
    page = write_report(run).read_text()
    assert "dunes" in page
    assert "march" in page
