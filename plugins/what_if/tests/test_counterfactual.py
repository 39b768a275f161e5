"""Stored episodes simulated again with one thing changed, and their paired differences."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.datasets import open_store
from gaitforge.datasets.edits.operations import annotate, drop
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import records_folder
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.replay import paired, replay
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.plugins.what_if.counterfactual import CounterfactualPlan

GRID = CollectionGrid(
    terrains=("flat", "rough"), skills=("run", "stand"), levels=(0, 3), parts=2,
    episodes_per_part=24, manoeuvres=("constant", "turn", "straight"),
)  # fmt: skip
PLAN = LeggedPlan(grid=GRID, robots=24, threads=1, randomisation={"friction": "0.6:1"})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counterfactual") / "legged.zarr"
    collect(PLAN, path, Silent())
    return path


def test_a_changed_randomisation_is_stored_declared_and_replayed(source: Path) -> None:
    store = open_store(source)
    declared = store.schema.attributes["randomisation"]["friction"]
    assert {n: declared[n] for n in ("unit", "low", "high")} == {"unit": "1", "low": 0.6, "high": 1}
    assert declared["distribution"] == "0.6:1"
    friction = store.select().episodes("friction")["friction"].to_numpy()
    assert 0.6 <= friction.min() < friction.max() <= 1.0
    assert replay(source, 6, 0, Silent()) == []
    default = replace(PLAN, randomisation={})
    assert not set(default.part_ids()) & set(PLAN.part_ids())
    # Other ranges move the draw and nothing else.
    assert replace(PLAN, randomisation={"friction": "0.6 : 1.0"}).part_ids() == PLAN.part_ids()


@pytest.mark.parametrize("actions", ["", "stored"])
def test_without_a_change_every_bit_is_the_originals(
    source: Path, tmp_path: Path, actions: str
) -> None:
    plan = CounterfactualPlan(str(source), actions=actions, threads=1)
    collect(plan, tmp_path / "again.zarr", Silent())
    again, before = open_store(tmp_path / "again.zarr").select(), open_store(source).select()
    for name in ("obs", "reward", "final_obs"):
        np.testing.assert_array_equal(again.read(name), before.read(name))
    columns = ("original_episode", "original_success", "diverged_at", "success")
    rows = again.episodes(*columns).to_pylist()
    assert [row["success"] for row in rows] == [row["original_success"] for row in rows]
    assert [row["original_episode"] for row in rows] == before.episode_ids().tolist()
    assert {row["diverged_at"] for row in rows} == {-1}
    assert replay(tmp_path / "again.zarr", 5, 0, Silent()) == []


def test_one_draw_changed_leaves_the_others_and_narrows_the_interval(
    source: Path, tmp_path: Path
) -> None:
    changes = {"payload_kg": "2"}
    plan = CounterfactualPlan(str(source), "skill = 'run'", changes, threads=1)
    collect(plan, tmp_path / "heavy.zarr", Silent())
    store = open_store(tmp_path / "heavy.zarr")
    heavy = store.select().episodes().to_pylist()
    before = {row["episode"]: row for row in open_store(source).select().episodes().to_pylist()}
    assert {row["skill"] for row in heavy} == {"run"}
    for row in heavy:
        original = before[row["original_episode"]]
        same = ("seed", "terrain", "level", "friction", "kp_factor", "push_step", "command_vel_x")
        assert [row[name] for name in same[:-1]] == [original[name] for name in same[:-1]]
        assert (row["payload_kg"], row["original_return"]) == (2.0, original["return"])
    rows = paired(store.select(), ())
    assert len(rows) == 1
    assert rows[0]["episodes"] == len(heavy)
    assert rows[0]["ci95"] < 0.5 * rows[0]["unpaired_ci95"]
    assert rows[0]["difference"] == pytest.approx(rows[0]["return"] - rows[0]["original"])
    assert replay(tmp_path / "heavy.zarr", 3, 0, Silent()) == []
    default = replace(plan, randomisation={"preset": "default", "payload_kg": "2"})
    assert default.schema().attributes["randomisation"]["friction"]["high"] == 1.25
    # The same command again makes nothing; another change has other parts.
    assert collect(plan, tmp_path / "heavy.zarr", Silent()) == []
    assert not set(replace(plan, where="").part_ids()) & set(plan.part_ids())


def test_a_changed_quantity_counts_for_draws_that_the_store_changed_one_by_one(
    tmp_path: Path,
) -> None:
    grid = CollectionGrid(("flat",), ("stand",), (0,), 1, 2)
    tilted = LeggedPlan(grid=grid, robots=2, threads=1, randomisation={"joint_offset_3_rad": "0.1"})
    collect(tilted, tmp_path / "tilted.zarr", Silent())
    plan = CounterfactualPlan(str(tmp_path / "tilted.zarr"), "", {"joint_offset_rad": "none"})
    declared = plan.schema().attributes["randomisation"]
    assert {declared[f"joint_offset_{k}_rad"]["high"] for k in range(12)} == {0}


def test_what_was_dropped_stays_out_and_annotations_choose(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "legged.zarr"
    shutil.copytree(source, copy)
    shutil.copytree(records_folder(source), records_folder(copy))
    episodes = open_store(copy).select()
    drop(episodes.where("skill = 'run'"))
    annotate(open_store(copy).select().where("level = 3"), {"hard": True})
    plan = CounterfactualPlan(str(copy), "hard", threads=1)
    collect(plan, tmp_path / "again.zarr", Silent())
    rows = open_store(tmp_path / "again.zarr").select().episodes().to_pylist()
    assert {(row["skill"], row["level"]) for row in rows} == {("stand", 3)}
    assert len(rows) == len(episodes.where("skill = 'stand' and level = 3"))


def test_what_cannot_be_compared_is_refused(source: Path) -> None:
    with pytest.raises(ValueError, match="no column original_return"):
        paired(open_store(source).select())
    with pytest.raises(ValueError, match=r"no episodes of .* are selected"):
        CounterfactualPlan(str(source), "level > 8").part_ids()
    with pytest.raises(ValueError, match="did you mean 'friction'"):
        CounterfactualPlan(str(source), randomisation={"fricton": 1})
