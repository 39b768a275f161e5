"""Rounds of corrections: what each round learns from, and going on after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from gaitforge.collectors.legged.data import StoredForm
from gaitforge.collectors.legged.evaluation import EvaluationGrid
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.dagger import DaggerPlan, run_dagger
from gaitforge.flows.stages.evaluate import EvaluatePlan
from gaitforge.flows.stages.train import SelectPlan
from tests.flows.making import COLLECT, GRID, TRAINING, Counting
from tests.flows.processes import part_in_work, soon

SMALL = replace(GRID, terrains=("flat",), parts=1, episodes_per_part=4)
BASE = replace(COLLECT, grid=SMALL, form=StoredForm(state=True), robots=4, threads=1)
PLAN = DaggerPlan(
    rounds=2,
    collect=replace(BASE, grid=replace(SMALL, seed=50), form=StoredForm()),
    select=SelectPlan(where="success OR NOT success"),
    config=replace(TRAINING.config, model="mlp", model_overrides={}),
    evaluate=EvaluatePlan(EvaluationGrid(("flat",), ("run",), (2,), episodes=1)),
)


def started(folder: Path) -> Path:
    store = folder / "legged.zarr"
    collect(BASE, store, Silent())
    return store


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """A folder with the store and its rounds, run without interruption; the rows."""
    folder = tmp_path_factory.mktemp("dagger")
    return folder, run_dagger(PLAN, started(folder), folder / "out", Silent())


def test_each_round_learns_from_all_corrections_so_far(done: tuple[Path, list[dict]]) -> None:
    folder, rows = done
    store = open_store(folder / "legged.zarr")
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert store.info().parts == 1 + 2 * 2
    start = store.select(part=BASE.part_ids()).steps
    corrected = store.select().where("policy IS NOT NULL")
    assert set(corrected.episodes().column("policy").to_pylist()) == {"round-0", "round-1"}
    assert rows[0]["steps"] == rows[0]["plain_steps"] == start
    assert rows[2]["steps"] == start + corrected.steps
    assert rows[2]["plain_steps"] == store.select().where("policy IS NULL").steps
    assert rows[1]["steps"] < rows[2]["steps"]
    for row in rows:
        assert row["updates"] == round(PLAN.config.steps * row["steps"] / start)
    plain, driven = (
        set(store.select().where(f"policy {null}").episodes().column("seed").to_pylist())
        for null in ("IS NULL", "IS NOT NULL")
    )
    assert driven < plain, "plain imitation sees the same episodes"
    known = json.loads((folder / "out/dagger.json").read_text())
    assert known["rounds"] == rows


def test_finished_rounds_are_no_work_and_no_others(
    done: tuple[Path, list[dict]],
) -> None:
    folder, rows = done
    counting = Counting()
    plan = replace(PLAN, rounds=1)
    assert run_dagger(plan, folder / "legged.zarr", folder / "out", counting) == rows[:2]
    assert not any(counting.units.values())
    with pytest.raises(ValueError, match="holds rounds with other settings"):
        run_dagger(replace(PLAN, share=0.5), folder / "legged.zarr", folder / "out", Silent())


@pytest.mark.long
def test_a_killed_run_goes_on_and_ends_the_same(
    done: tuple[Path, list[dict]], tmp_path: Path
) -> None:
    folder, rows = done
    store, out = started(tmp_path), tmp_path / "out"

    def in_round_1() -> bool:
        return (out / "train/round-1").exists()

    for killed_at in (part_in_work(store), in_round_1):
        process = get_context("spawn").Process(target=run_dagger, args=(PLAN, store, out, Silent()))
        process.start()
        soon(killed_at)
        process.kill()
        process.join()
    assert len(open_store(store).parts()) < 5
    assert run_dagger(PLAN, store, out, Silent()) == rows
    expected = open_store(folder / "legged.zarr").info().hash
    assert open_store(store).info().hash == expected
