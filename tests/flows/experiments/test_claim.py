"""The plan of a folder: only the same experiment changes it, and nothing that is at work."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import Selection, Store, open_store
from gaitforge.flows.experiments.claim import Claim, claim
from gaitforge.flows.experiments.plan import Corrections, Experiment
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import write_record
from gaitforge.flows.stages.status import EXPERIMENT
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.learners.checkpoint import load_policy
from gaitforge.pipeline.report.experiment import stages_of
from tests.flows.experiments.claiming import assert_alone, assert_another, assert_grown, put
from tests.flows.gym_stores import TINY, make_gym_store
from tests.flows.making import run_experiment
from tests.pipeline.command_line import call

ON_STORE = Experiment({"mlp": {"steps": 3}}, settings={"batch_size": 4}, vary={"data": (0.5,)})
PLANS: dict[str, Any] = {
    "collects": Claim("demo", Experiment({"mlp": {}}, collect=LeggedPlan())),
    EXPERIMENT: Claim("compare", ON_STORE, ("none.zarr",)),
    "dagger": Claim("dagger", Experiment({"mlp": {}}, corrections=Corrections()), ("none.zarr",)),
}


@pytest.mark.parametrize("there", PLANS)
@pytest.mark.parametrize("new", PLANS)
def test_a_folder_takes_its_own_experiment_again_and_no_other(
    there: str, new: str, tmp_path: Path
) -> None:
    assert_alone(PLANS[there], PLANS[new], tmp_path)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("content", [{"plan": {}}, {"kind": "legged"}, []])
def test_the_plan_of_something_else_stays(name: str, content: Any, tmp_path: Path) -> None:
    write_record(tmp_path / "plan.json", content)
    path = tmp_path / "plan.json"
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"plan.json (of something else|is no record)"):
        put(PLANS[name], tmp_path)
    assert path.read_bytes() == before


def experiment(**changes: Any) -> Callable[[Claim], Claim]:
    return lambda plan: replace(plan, experiment=replace(plan.experiment, **changes))


MLP, FCNET = {"mlp": {"steps": 3}}, {"fcnet": {"steps": 3}}
GROWN = [
    (EXPERIMENT, experiment(learners={**FCNET, **MLP}, seeds=(1, 0))),
    (EXPERIMENT, experiment(vary={"data": (1.0, 0.5)})),
    (EXPERIMENT, experiment(learners={"mlp": {"steps": 3, "device": "cuda"}})),
    (EXPERIMENT, experiment(evaluate={"episodes": 3}, tested=False)),
]
OTHERS = [
    (EXPERIMENT, experiment(learners=FCNET), "among its learners"),
    (EXPERIMENT, experiment(seeds=(1,)), "among its seeds"),
    (EXPERIMENT, experiment(sets={"good": "success"}), "among its sets"),
    (EXPERIMENT, experiment(sets={"": "success"}), "another set ''"),
    (EXPERIMENT, experiment(vary={"data": (1.0,)}), "among its values of data"),
    (EXPERIMENT, experiment(vary={}), "another number that varies"),
    (EXPERIMENT, experiment(learners={"mlp": {"steps": 4}}), "another steps for learner 'mlp'"),
    (EXPERIMENT, experiment(learners={"mlp": {"steps": 3, "best": 0.5}}), "another share of the"),
    (EXPERIMENT, experiment(settings={"batch_size": 5}), "another batch_size"),
    (EXPERIMENT, experiment(select=SelectPlan(where="success")), "another select"),
    (EXPERIMENT, experiment(train_s=3.0), "another train_s"),
    (EXPERIMENT, experiment(curve=3), "another curve"),
    ("dagger", experiment(corrections=Corrections(share=0.5)), "other settings"),
    ("collects", experiment(learners={"mlp": {"steps": 4}}), "other settings"),
]


@pytest.mark.parametrize(("name", "change"), GROWN)
def test_what_is_added_is_the_same_experiment(
    name: str, change: Callable[[Any], Any], tmp_path: Path
) -> None:
    assert_grown(PLANS[name], change, tmp_path)


@pytest.mark.parametrize(("name", "change", "complaint"), OTHERS)
def test_what_is_left_out_or_otherwise_is_another_experiment(
    name: str, change: Callable[[Any], Any], complaint: str, tmp_path: Path
) -> None:
    assert_another(PLANS[name], change, complaint, tmp_path)


@pytest.mark.parametrize("name", PLANS)
def test_a_training_takes_no_folder_of_an_experiment(name: str, tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "hopper.zarr")
    put(PLANS[name], tmp_path / "out")
    with pytest.raises(ValueError, match="holds the plan of another work"):
        run_training(TrainPlan(config=TINY), store, tmp_path / "out", Silent())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["plan.json"]


def test_a_store_may_have_moved_but_not_be_another_one(tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "a.zarr")
    other = make_gym_store(tmp_path / "b.zarr", episodes=5)
    out, plan = tmp_path / "out", replace(PLANS[EXPERIMENT], stores=(str(store),))
    claim(plan, out)
    with pytest.raises(ValueError, match=r"the store .*a.zarr"):
        claim(replace(plan, stores=(str(other),)), out)
    moved = replace(plan, stores=(str(store.rename(tmp_path / "c.zarr")),))
    claim(moved, out)
    claim(replace(moved, stores=(*moved.stores, str(other))), out)


def test_a_command_that_fails_or_only_shows_writes_no_plan(tmp_path: Path) -> None:
    store, out = make_gym_store(tmp_path / "hopper.zarr"), tmp_path / "out"
    words = ["compare", store, "--models", "mlp", "--steps", "2", "--out", out]
    assert call(*words, "--stage", "no such stage") == 2
    assert not out.exists()
    assert call(*words, "--runner", "slurm", "--dry-run") == 0
    assert not out.exists()
    claim(PLANS["collects"], out)
    before = (out / "plan.json").read_bytes()
    assert call(*words) == 2
    assert call(*words, "--runner", "slurm", "--dry-run") == 2
    assert (out / "plan.json").read_bytes() == before


@pytest.mark.slow
def test_a_store_that_was_edited_since_is_no_reason_to_train_anew_or_said_in_one_line(
    tmp_path: Path,
) -> None:
    """What a training cannot see changes nothing; what it learns from belongs to its folder."""
    store = open_store(make_gym_store(tmp_path / "hopper.zarr", episodes=4))
    mlp = {"model": "mlp", "model_overrides": {"hidden_dim": 8, "n_layers": 1}, "steps": 2}
    small = {"batch_size": 4, "window_len": 4, "held_out_fraction": 0.0, "threads": 1}
    asked = {
        **small,
        "objective": "return",
        "condition": ["share"],
        "return_scale": 123.0,
        "return_zero": -45.0,
    }
    evaluate = {"episodes": 2, "environments": 2}
    experiment = Experiment(
        {"mlp": {**mlp, **small}, "asked": {**mlp, **asked}},
        select=SelectPlan(where="terminated or truncated"),
        targets=(1.0,),
        evaluate=evaluate,
    )
    claim, out = Claim("mine", experiment, (str(store.path),)), tmp_path / "out"
    run_experiment(claim, out, Silent())
    policy = load_policy(out / "train" / "asked-seed-0")
    assert policy.return_at(0.0) == -45.0, "a user's setting is not replaced by a measured one"
    assert policy.return_at(1.0) == 123.0

    def edited() -> list[str]:
        """Names of the stages that would be done anew."""
        stages = [stage for stage in stages_of(claim, out) if stage.name != "report"]
        return [stage.name for stage in stages if not stage.is_done(out)]

    assert edited() == []
    store.select().annotate({"remark": "seen"})
    assert edited() == []
    store.select().where("quality = 'medium'").annotate({"terrain": "ice"})
    before = (out / "summary.json").read_bytes()
    for change in (lambda: None, lambda: one_episode(store).drop(), lambda: trim(store)):
        change()
        assert "train mlp-seed-0" in edited()
        with pytest.raises(ValueError, match="holds a run with another dataset") as refused:
            run_experiment(claim, out, Silent())
        assert str(refused.value).count("\n") == 0
        assert (out / "summary.json").read_bytes() == before


def one_episode(store: Store) -> Selection:
    selection = open_store(store.path).select()
    return selection.with_rows(selection.rows[:1])


def trim(store: Store) -> None:
    one_episode(store).trim(head=1, tail=1)
