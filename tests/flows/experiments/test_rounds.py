"""Rounds of corrections: what each round learns from, and going on after a kill."""

import shutil
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from gaitforge.collectors.legged.data import StoredForm
from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.first_round import note_rounds
from gaitforge.flows.experiments.plan import Corrections, Experiment
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.pipeline.experiments.choices import chosen_claim
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
    return run_experiment(correct_claim(plan, store, out), out, reporter)


def correct_claim(plan: Experiment, store: Path, out: Path) -> Claim:
    return chosen_claim("dagger", plan, (str(store),), {}, (), out)


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


def test_another_dagger_on_the_store_begins_with_the_same_episodes(
    done: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = done
    store, first = folder / "legged.zarr", tuple(BASE.part_ids())
    said: list[str] = []

    def begins_with(plan: Experiment, place: Path) -> SelectPlan:
        out, stores = tmp_path / "other", (str(place),)
        return chosen_claim("dagger", plan, stores, {}, (), out, said.append).experiment.select

    other = replace(PLAN, learners={"other": {"model": "mlp"}})
    assert begins_with(other, store).parts == first
    assert all(part in said[0] for part in open_store(store).parts() if part not in first)
    # Without records, as in a store that was copied: the catalog tells who drove.
    alone = tmp_path / "alone.zarr"
    shutil.copytree(store, alone)
    assert begins_with(other, alone).parts == first
    # The plain rounds of another size are known by what the first one noted.
    assert PLAN.corrections is not None
    plan = PLAN.corrections.collect
    larger = replace(plan, grid=replace(plan.grid, episodes_per_part=6))
    larger_rounds = replace(other, corrections=replace(PLAN.corrections, collect=larger))
    note_rounds(correct_claim(PLAN, store, folder / "out").experiment, store)
    assert begins_with(larger_rounds, store).parts == first
    # An import has parts of its own, which hold the corrections beside the demonstrations.
    export_selection("d4rl", SelectPlan().select(store), tmp_path / "x.hdf5")
    imported = tmp_path / "imported.zarr"
    import_source("d4rl", tmp_path / "x.hdf5", imported)
    alone_rounds = replace(other, corrections=replace(PLAN.corrections, plain=False))
    select = begins_with(alone_rounds, imported)
    assert len(open_store(imported).parts()) == 1
    chosen = select.select(imported).episodes("policy", "seed")
    assert set(chosen["policy"].to_pylist()) == {None}
    # What a user names is taken.
    corrections = [part for part in open_store(store).parts() if part not in first]
    made = chosen_claim(
        "dagger", other, (str(store),), {}, [f"select.parts={corrections[0]}"], tmp_path / "x"
    )
    assert made.experiment.select.parts == (corrections[0],)


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
