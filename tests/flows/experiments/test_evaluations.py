"""Further evaluations: policies that are there are scored once more, and trained never again."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.evaluations import settings_of
from gaitforge.flows.experiments.plan import Experiment, Published
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.presets.choices import chosen_claim
from gaitforge.pipeline.report.experiment import stages_of
from gaitforge.pipeline.report.results import result_rows, verdict_rows
from tests.flows.gym_stores import make_gym_store
from tests.flows.making import Counting, run_experiment

CONTEXT = 4
TINY: dict[str, Any] = {"steps": 2, "batch_size": 4, "held_out_fraction": 0.0, "threads": 1}
FCNET: dict[str, Any] = {
    "model": "fcnet",
    "model_overrides": {
        "hidden_dim": 8,
        "decoder_dim": 8,
        "n_layers": 1,
        "n_modes": 2,
        "context_len": CONTEXT,
    },
    "window_len": 8,
    **TINY,
}
MLP: dict[str, Any] = {"model": "mlp", "model_overrides": {"hidden_dim": 8, "n_layers": 1}, **TINY}
PLAN = Experiment(
    {"mlp": MLP, "fcnet": FCNET, "asked": {**FCNET, "objective": "return"}},
    sets={"medium": "quality = 'medium'", "all": ""},
    select=SelectPlan(where="terminated or truncated"),
    targets=(1.0,),
    evaluate={"episodes": 2},
)
CLEARED = {"cleared": {"reset_every": "context"}}
PUBLISHED = {
    "published": {
        "reset_every": "context",
        "return_target": 1.0,
        "sets": {"all": {"return_target": 1.15}},
    }
}


def evaluated(**evaluations: Any) -> Callable[[], Experiment]:
    return lambda: replace(PLAN, evaluations=evaluations)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (evaluated(**{"a b": {}}), "evaluations: 'a b' cannot be a name"),
        (evaluated(**{"step-3": {}}), "'step-3' cannot be a name; a run has files"),
        (evaluated(**{"x-train": {}}), "'x-train' cannot be a name; a run has files"),
        (evaluated(cleared={"episodes": 5}), "no setting 'episodes'; it is on the same episodes"),
        (evaluated(cleared={"sets": {"none": {}}}), "no set 'none'; allowed: medium, all"),
        (evaluated(cleared={"sets": {"all": {"seed": 1}}}), "no setting 'seed'"),
        (evaluated(cleared={"sets": 3}), "needs settings of each set"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_in_a_line(
    make: Callable[[], Experiment], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_a_value_that_does_not_fit_is_refused_before_the_first_training(tmp_path: Path) -> None:
    store = str(make_gym_store(tmp_path / "hopper.zarr"))
    plan = evaluated(cleared={"reset_every": "often"})()
    with pytest.raises(ValueError, match=r"setting 'reset_every' needs a whole number"):
        stages_of(Claim("x", plan, (store,)), tmp_path / "out")


def test_files_of_two_evaluations_are_told_apart(tmp_path: Path) -> None:
    store = str(make_gym_store(tmp_path / "hopper.zarr"))
    plan = Experiment({"a": FCNET, "a-seed-0-again": FCNET}, evaluations=CLEARED)
    stages_of(Claim("x", plan, (store,)), tmp_path / "out")
    plan = replace(plan, evaluations={"again-seed-0": {"reset_every": 2}})
    with pytest.raises(ValueError, match=r"file of stage 'evaluate a-seed-0' .* would both"):
        stages_of(Claim("x", plan, (store,)), tmp_path / "out")


@pytest.mark.parametrize(
    ("measure", "complaint"),
    [
        ("succes", "did you mean 'success'"),
        ("highest success", "no measure 'highest success'"),
        ("claered score", "did you mean 'cleared score'"),
        ("test_mse", "no measure 'test_mse'"),
    ],
)
def test_a_statement_about_no_measure_is_refused_before_the_first_stage(
    tmp_path: Path, measure: str, complaint: str
) -> None:
    store = str(make_gym_store(tmp_path / "hopper.zarr"))
    for ahead, behind in (("fcnet", "mlp"), ("mlp", "fcnet")):
        statement = Published(ahead, behind, "a paper", measure=measure)
        plan = replace(PLAN, evaluations=CLEARED, published=(statement,))
        with pytest.raises(ValueError, match=complaint) as refusal:
            stages_of(Claim("x", plan, (store,)), tmp_path / "out")
        assert "\n" not in str(refusal.value)
    # A typed statement is not left out, as a preset's is whose evaluation was taken away.
    typed = json.dumps([{"ahead": "fcnet", "behind": "mlp", "source": "a", "measure": measure}])
    new = chosen_claim("x", PLAN, [store], {}, [f"published={typed}"], tmp_path)
    with pytest.raises(ValueError, match=r"published: .* have no measure"):
        stages_of(new, tmp_path / "out")


@pytest.mark.parametrize("measure", ["", "score", "success", "cleared score", "train_s"])
def test_a_statement_about_a_measure_is_taken(tmp_path: Path, measure: str) -> None:
    store = str(make_gym_store(tmp_path / "hopper.zarr"))
    statements = (
        Published("fcnet", "mlp", "a paper", measure=measure),
        Published("absent", "gone", "a paper", measure="whatever"),
    )
    plan = replace(PLAN, evaluations=CLEARED, published=statements)
    assert stages_of(Claim("x", plan, (store,)), tmp_path / "out")


def test_settings_are_those_of_the_runs_network_and_set() -> None:
    published = PUBLISHED["published"]
    asked = TrainConfig(**{**FCNET, "objective": "return"})
    of_all = {"reset_every": CONTEXT, "return_target": 1.15}
    assert settings_of(published, "all", asked) == of_all
    assert settings_of(published, "medium", asked) == of_all | {"return_target": 1.0}
    assert settings_of(published, "all", TrainConfig(**FCNET)) == {"reset_every": CONTEXT}
    assert settings_of(published, "all", TrainConfig(**MLP)) == {"reset_every": 0}


def test_a_conditioned_policy_is_scored_on_other_episodes_without_training(tmp_path: Path) -> None:
    """Measured on other episodes, the expert's return is another one than it was trained with."""
    store = str(make_gym_store(tmp_path / "hopper.zarr", references=False))
    out = tmp_path / "out"
    plan = replace(PLAN, learners={"asked": PLAN.learners["asked"]}, sets={"": ""})
    before = run_experiment(Claim("x", plan, (store,)), out, Silent())
    weights = {path: path.stat().st_mtime_ns for path in (out / "train").rglob("*.safetensors")}
    longer = replace(plan, evaluate={"episodes": 5}, seeds=(0, 1))
    after = run_experiment(Claim("x", longer, (store,)), out, Silent())
    assert {path: path.stat().st_mtime_ns for path in weights} == weights
    first, now = (data["sets"][0]["expert"] for data in (before, after))
    assert first != now
    scales = [
        (read_record(path) or {})["plan"]["config"]["return_scale"]
        for path in out.glob("train/*/plan.json")
    ]
    assert scales == [first, first]
    assert after["runs"][0]["episodes"] == 5


def test_a_folder_that_grows_by_an_evaluation_trains_nothing(tmp_path: Path) -> None:
    store = str(make_gym_store(tmp_path / "hopper.zarr"))
    out = tmp_path / "out"
    before = run_experiment(Claim("x", PLAN, (store,)), out, Silent())
    first_files = {path: path.read_bytes() for path in (out / "evaluate").rglob("*.json")}
    trained = {path: path.stat().st_mtime_ns for path in (out / "train").rglob("*.safetensors")}
    assert trained
    statement = Published("fcnet", "mlp", "a paper", "", "cleared score")
    grown = replace(PLAN, evaluations=CLEARED | PUBLISHED, published=(statement,))
    counting = Counting()
    after = run_experiment(Claim("x", grown, (store,)), out, counting)
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert not [name for name, units in counting.units.items() if "train" in name and units]
    assert {path: path.read_bytes() for path in first_files} == first_files
    names = {path.stem for path in (out / "evaluate").rglob("*.json")}
    runs = {
        f"hopper-{data}-{learner}-seed-0" for data in PLAN.sets for learner in ("fcnet", "asked")
    }
    assert {f"{run}-{name}" for run in runs for name in grown.evaluations} < names
    assert not [name for name in names if "mlp-seed-0-" in name], "nothing to clear"

    for row, old in zip(after["runs"], before["runs"], strict=True):
        assert row["score"] == old["score"]
        measures = row["measures"]
        if row["learner"] == "mlp":
            assert measures["cleared score"] == row["score"]
            continue
        kept = read_record(out / "evaluate" / f"{row['run']}-cleared.json")
        assert kept is not None
        assert kept["plan"]["reset_every"] == CONTEXT
        assert measures["cleared return"] == kept["return"] != row["return"]
        asked = read_record(out / "evaluate" / f"{row['run']}-published.json")
        assert asked is not None
        if row["learner"] == "asked":
            target = 1.15 if row["set"] == "all" else 1.0
            assert asked["plan"]["return_target"] == target

    [told] = after["verdicts"]
    assert told["measure"] == "cleared score"
    for k, name in enumerate(("fcnet", "mlp")):
        scores = [r["measures"]["cleared score"] for r in after["runs"] if r["learner"] == name]
        assert told["means"][k] == pytest.approx(sum(scores) / len(scores))
    assert verdict_rows(after)[0]["measure"] == "cleared score"
    shown = result_rows(after)[0]
    assert {"score, cleared", "score, published"} < shown.keys()
    again = Counting()
    assert run_experiment(Claim("x", grown, (store,)), out, again) == after
    assert again.units == {}


def point(value: str, **learners: Any) -> dict[str, Any]:
    return {value: {"mlp": {}, "fcnet": {}, "asked": {}, **learners}}


@pytest.mark.parametrize(
    ("vary", "complaint"),
    [
        ({"size": point("wide")}, "size needs finite numbers, got 'wide'"),
        ({"size": point("nan")}, "size needs finite numbers"),
        ({"size": {**point("4"), **point("4.0")}}, "size: 4.0 comes twice"),
        ({"size": {"4": {"mlp": {}}}}, "size 4 has no settings of 'fcnet'"),
        ({"data": point("0.5")}, "data needs a list of numbers"),
        ({"size": {}}, "it needs values"),
        ({"size": point("4", mlp={"rate": 3})}, "mlp: TrainConfig has no 'rate'"),
    ],
)
def test_values_with_settings_that_cannot_be_are_refused(vary: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        replace(PLAN, vary=vary)
    assert "\n" not in str(refusal.value)


def test_a_value_may_have_several_settings_of_each_learner() -> None:
    wide = {"model_overrides": {"hidden_dim": 16}, "window_len": 16}
    vary = {"context": {**point("8", fcnet={"window_len": 8}), **point("16.5", fcnet=wide)}}
    plan = replace(PLAN, vary=vary)
    assert list(plan.values()) == [8, 16.5]
    short, long = (plan.config("fcnet", 0, value) for value in plan.values())
    assert (short.window_len, long.window_len) == (8, 16)
    assert dict(short.model_overrides) == FCNET["model_overrides"]
    assert dict(long.model_overrides) == {**FCNET["model_overrides"], "hidden_dim": 16}
    assert plan.config("mlp", 0, 8).to_json() == PLAN.config("mlp", 0).to_json()
    assert {"window_len", "model_overrides"} <= plan.chosen_settings("fcnet")
