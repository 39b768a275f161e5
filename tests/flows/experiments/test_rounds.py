"""Rounds of corrections: what each round learns from, and going on after a kill."""

from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from gaitforge.collectors.legged.data import StoredForm
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.plan import Corrections, Experiment
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.pipeline.presets.choices import chosen_claim
from tests.flows.making import COLLECT, GRID, TRAINING, Counting, run_experiment
from tests.flows.processes import part_in_work, soon

pytestmark = pytest.mark.slow

SMALL = replace(GRID, terrains=("flat",), parts=1, episodes_per_part=4)
BASE = replace(
    COLLECT,
    grid=SMALL,
    form=StoredForm(state=True),
    robots=4,
    threads=1,
    randomisation={"friction": "0.6:1"},
)
PLAN = Experiment(
    {"mlp": {**TRAINING, "model": "mlp", "model_overrides": {}}},
    corrections=Corrections(
        replace(BASE, grid=replace(SMALL, seed=51), form=StoredForm(), randomisation={}),
        rounds=2,
        plain=True,
    ),
    select=SelectPlan(where="success OR NOT success"),
    evaluate={
        "terrains": ("flat",),
        "skills": ("run",),
        "levels": (2,),
        "episodes": 1,
    },
)


def correct(plan: Experiment, store: Path, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Run or resume the rounds; the summary, without what takes time."""
    made = chosen_claim("dagger", plan, (str(store),), {}, (), out)
    return run_experiment(made, out, reporter)


def started(folder: Path) -> Path:
    store = folder / "legged.zarr"
    collect(BASE, store, Silent())
    return store


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with the store and its rounds, run without interruption; the summary."""
    folder = tmp_path_factory.mktemp("dagger")
    return folder, correct(PLAN, started(folder), folder / "out", Silent())


def test_each_round_learns_from_all_corrections_so_far(done: tuple[Path, dict[str, Any]]) -> None:
    folder, record = done
    store = open_store(folder / "legged.zarr")
    sets = {each["set"]: each["steps"] for each in record["sets"]}
    assert list(sets) == ["round-0", "round-1", "plain-1", "round-2", "plain-2"]
    assert store.info().parts == 1 + 2 * 2
    friction = store.select().episodes("friction")["friction"].to_numpy()
    assert 0.6 <= friction.min() < friction.max() <= 1, "rounds draw as the store does"
    start = store.select(part=BASE.part_ids()).steps
    corrected = store.select().where("policy IS NOT NULL")
    drivers = set(corrected.episodes().column("policy").to_pylist())
    assert drivers == {"round-0-mlp", "round-1-mlp"}
    assert sets["round-0"] == start
    assert sets["round-2"] == start + corrected.steps
    assert sets["plain-2"] == store.select().where("policy IS NULL").steps
    assert sets["round-1"] < sets["round-2"]
    for run in record["runs"]:
        assert run["steps"] == round(TRAINING["steps"] * sets[run["set"]] / start)
    plain, driven = (
        set(store.select().where(f"policy {null}").episodes().column("seed").to_pylist())
        for null in ("IS NULL", "IS NOT NULL")
    )
    assert driven < plain, "plain imitation sees the same episodes"


def test_finished_rounds_are_no_work_and_no_others(done: tuple[Path, dict[str, Any]]) -> None:
    folder, record = done
    store, out, counting = folder / "legged.zarr", folder / "out", Counting()
    assert correct(PLAN, store, out, counting) == record
    assert counting.units == {}
    assert PLAN.corrections is not None
    other = replace(PLAN, corrections=replace(PLAN.corrections, share=0.5))
    with pytest.raises(ValueError, match="holds an experiment with other settings"):
        correct(other, store, out, Silent())


@pytest.mark.long
def test_a_killed_run_goes_on_and_ends_the_same(
    done: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, record = done
    store, out = started(tmp_path), tmp_path / "out"

    def in_round_1() -> bool:
        return (out / "train/round-1-mlp").exists()

    for killed_at in (part_in_work(store), in_round_1):
        process = get_context("spawn").Process(target=correct, args=(PLAN, store, out, Silent()))
        process.start()
        soon(killed_at)
        process.kill()
        process.join()
    assert len(open_store(store).parts()) < 5
    again = correct(PLAN, store, out, Silent())
    for name in ("run", "steps", "return", "success"):
        assert [run[name] for run in again["runs"]] == [run[name] for run in record["runs"]]
    expected = open_store(folder / "legged.zarr").info().hash
    assert open_store(store).info().hash == expected
