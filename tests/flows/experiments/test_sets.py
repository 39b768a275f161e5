"""Suites: what is run, kept and told, on a Gymnasium task and on legged robots."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.stage import run_stages
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.flows.tasks.legged import legged_plan
from gaitforge.pipeline.report.experiment import stages_of
from gaitforge.pipeline.report.pages import policy
from gaitforge.pipeline.report.report import REPORT_NAME, write_report
from tests.flows.gym_stores import make_gym_store
from tests.flows.making import Counting, run_experiment
from tests.pipeline.report.test_report import PageReader

pytestmark = pytest.mark.slow

TINY: dict[str, Any] = {
    "steps": 4,
    "batch_size": 4,
    "held_out_fraction": 0.2,
    "history_every": 1,
    "validation_batches": 1,
    "threads": 1,
}
FCNET = {
    "model": "fcnet",
    "model_overrides": {"hidden_dim": 8, "decoder_dim": 8, "n_layers": 1, "n_modes": 2},
    "window_len": 8,
    **TINY,
}
MLP = {"model": "mlp", "model_overrides": {"hidden_dim": 8, "n_layers": 1}, **TINY}
PLAN = Experiment(
    {
        "bc": MLP,
        "gaussian": {**MLP, "objective": "gaussian-bc"},
        "fcnet": {**FCNET, "objective": "return"},
    },
    sets={"medium": "quality = 'medium'", "all": ""},
    select=SelectPlan(where="terminated or truncated"),
    settings={"split_seed": 0},
    seeds=(0, 1),
    targets=(1.0, 0.5),
    curve=4,
    evaluate={"episodes": 2, "environments": 2},
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gym_store(tmp_path_factory.mktemp("suite") / "hopper.zarr")


@pytest.fixture(scope="module")
def done(store: Path) -> Path:
    """The folder of a finished suite."""
    out = store.parent / "out"
    run_experiment(Claim("mine", PLAN, (str(store),)), out, Silent(), pages=True)
    return out


def record_in(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())


def test_every_set_learner_and_seed_is_a_run_and_each_result_the_mean_of_its_seeds(
    done: Path, store: Path
) -> None:
    record = record_in(done)
    assert [(r["set"], r["learner"], r["seeds"]) for r in record["results"]] == [
        (name, learner, [0, 1]) for name in PLAN.sets for learner in PLAN.learners
    ]
    for result in record["results"]:
        own = [
            run
            for run in record["runs"]
            if (run["set"], run["learner"]) == (result["set"], result["learner"])
        ]
        scores = [run["score"] for run in own]
        assert result["score"]["mean"] == pytest.approx(sum(scores) / 2)
        assert min(scores) - 1e-9 <= result["score_ci95"][0] <= result["score_ci95"][1]
        for run in own:
            zero, expert = record["sets"][0]["zero"], record["sets"][0]["expert"]
            assert run["score"] == pytest.approx(100 * (run["return"] - zero) / (expert - zero))
            assert [step for step, _ in run["curve"]] == [1, 2, 3, 4]
            assert run["curve"][-1][1] == run["score"]
    episodes = {each["set"]: each["episodes"] for each in record["sets"]}
    complete = open_store(store).select().where("terminated or truncated")
    assert episodes == {"medium": 12, "all": len(complete)}


def test_conditioned_learners_are_asked_for_shares_of_the_best_return(done: Path) -> None:
    record = record_in(done)
    best = {each["set"]: each["score_best"] for each in record["sets"]}
    for run in record["runs"]:
        if run["learner"] != "fcnet":
            assert run["asked"] == []
            continue
        assert [each["target"] for each in run["asked"]] == [1.0, 0.5]
        for each in run["asked"]:
            assert each["asked"] == pytest.approx(each["target"] * best[run["set"]], abs=1e-6)


def test_overall_is_the_mean_over_all_runs_of_a_learner(done: Path) -> None:
    record = record_in(done)
    for each in record["overall"]:
        scores = [run["score"] for run in record["runs"] if run["learner"] == each["learner"]]
        assert each["runs"] == len(scores) == 4
        assert each["mean"] == pytest.approx(sum(scores) / 4)
        assert each["mean_ci95"][0] <= each["mean"] <= each["mean_ci95"][1]


def test_a_finished_suite_does_nothing_and_a_lost_row_is_made_from_what_is_kept(
    done: Path, store: Path
) -> None:
    stages, before = stages_of(Claim("mine", PLAN, (str(store),)), done), record_in(done)
    assert all(stage.is_done(done) for stage in stages)
    (done / "runs" / "hopper-all-gaussian-seed-1.json").unlink()
    counting = Counting()
    run_stages(done, stages, counting)
    assert record_in(done)["runs"] == before["runs"]


def test_every_set_and_budget_is_timed_once_before_its_trainings(
    store: Path, tmp_path: Path
) -> None:
    plan = replace(PLAN, train_s=2.0, vary={"budget": (1, 5)}, learners={"bc": MLP})
    stages = {
        stage.name: stage for stage in stages_of(Claim("mine", plan, (str(store),)), tmp_path)
    }
    timed = [name for name in stages if name.startswith("time ")]
    assert timed == [f"time hopper-{data}-bc-{k}" for data in PLAN.sets for k in plan.values()]
    trained = [name for name in stages if name.startswith("train ")]
    assert len(trained) == len(timed) * len(plan.seeds)
    for name in trained:
        run, _, _ = name.removeprefix("train ").rpartition("-seed-")
        assert f"time {run}" in stages[name].after


def test_more_seeds_keep_the_runs_there_are(done: Path, store: Path) -> None:
    plan = replace(PLAN, seeds=(0, 1, 2))
    more = stages_of(Claim("mine", plan, (str(store),)), done)
    undone = [stage.name for stage in more if not stage.is_done(done)]
    assert len(undone) == 2 * len(PLAN.sets) * len(PLAN.learners) + 2
    assert all(name.endswith("seed-2") for name in undone[:-2])


def test_the_page_shows_the_records_numbers(done: Path) -> None:
    record, text = record_in(done), (done / REPORT_NAME).read_text()
    page = PageReader(text)
    assert page.loads == []
    assert page.unnamed_charts == 0
    sections = ["overall", "result", "asked", "curves", "data", "training", "latency"]
    sections += ["repeat", "next"]
    assert page.ids == sections
    for each in record["overall"]:
        assert any(f"{each['iqm']:,.1f}" in cell for cell in page.row(policy(each["learner"])))
    assert write_report(done).read_text() == text


def test_legged_policies_are_scored_by_the_expert(tmp_path: Path) -> None:
    grid = {"parts": 2, "episodes_per_part": 6, "terrains": ("flat",), "skills": ("stand", "run")}
    plan = legged_plan("legged-mixed", {**grid, "robots": 6, "threads": 1})
    experts = plan.expert.split(",")
    collect(plan, tmp_path / "mixed.zarr", Silent())
    rows = open_store(tmp_path / "mixed.zarr").select().episodes().to_pylist()
    assert {row["expert"] for row in rows} == set(experts[:2]), "the parts take them in turn"
    assert len({row["expert_hash"] for row in rows}) == 2
    plan = Experiment(
        {"best": {**FCNET, "best": 0.5, "executed_actions": True, "held_out_fraction": 0.0}},
        evaluate={
            "terrains": ("flat",),
            "skills": ("stand",),
            "levels": (0,),
            "episodes": 2,
            "robots": 2,
            "threads": 1,
        },
    )
    out = tmp_path / "out"
    run_experiment(Claim("mine", plan, (str(tmp_path / "mixed.zarr"),)), out, Silent())
    record = record_in(out)
    expert = json.loads((out / "evaluate" / "expert.json").read_text())
    (result,) = record["results"]
    assert result["score"]["mean"] == pytest.approx(
        100 * result["return"]["mean"] / expert["return"]
    )
    assert record["overall"][0]["iqm_ci95"] is None, "one seed"


def test_stores_that_do_not_fit_are_refused_before_anything_is_trained(
    store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for stores, complaint in (
        ([store, store], "one store of each task"),
        ([tmp_path / "nothing"], "no store"),
    ):
        with pytest.raises(ValueError, match=complaint):
            stages_of(Claim("mine", PLAN, tuple(map(str, stores))), out)
    empty = replace(PLAN, sets={"none": "quality = 'random'"})
    with pytest.raises(ValueError, match="no episode of"):
        stages_of(Claim("mine", empty, (str(store),)), out)
