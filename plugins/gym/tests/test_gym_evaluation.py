"""Evaluating policies on a task: whose episodes, scored by what, and once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.stages.transfer import ExportPlan, run_export
from gaitforge.flows.tasks.evaluation import References
from gaitforge.flows.tasks.policy_sources import PolicySource, run_source
from gaitforge.flows.tasks.registry import run_evaluation
from gaitforge.learners.export.export import PolicyExportOptions
from gaitforge.learners.training.config import TrainConfig
from gaitforge.plugins.gym.evaluation import GymEvaluation
from gaitforge.plugins.gym.tests.making import RETURNS as MEASURED
from gaitforge.plugins.gym.tests.making import make_training
from tests.flows.gym_stores import RETURNS, TINY, make_gym_store
from tests.flows.making import Counting

pytest.importorskip("gymnasium")

PLAN = GymEvaluation(
    episodes=4, environments=3, references=References(RETURNS["random"], RETURNS["expert"])
)
SCALED = replace(TINY, return_scale=RETURNS["expert"])
ONNX_ONLY = ExportPlan(options=PolicyExportOptions(("onnx",), batch_size=2))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gym_store(tmp_path_factory.mktemp("gym") / "hopper.zarr")


@pytest.fixture(scope="module")
def trained(store: Path) -> PolicySource:
    """A return-conditioned FCNet after two updates."""
    return train(store, SCALED, "fcnet")


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A finished training of experts."""
    return str(make_training(tmp_path_factory.mktemp("experts") / "hopper"))


def train(store: Path, config: TrainConfig, name: str) -> PolicySource:
    out = store.parent / name
    plan = TrainPlan(SelectPlan(where="terminated or truncated"), config)
    run_training(plan, store, out, Silent())
    return run_source(out)


def test_every_kind_of_policy_is_evaluated_on_the_same_starts(
    trained: PolicySource, policies: str
) -> None:
    plan = replace(PLAN, policies=policies)
    sources = [trained, *(plan.source(name) for name in ("expert", "medium", "random"))]
    records = {source.name: evaluate_policy(source, plan, Silent()) for source in sources}
    assert len({record.returns for record in records.values()}) == len(sources)
    for name, record in records.items():
        (row,), (returns,) = record.cells, record.returns
        assert record.policy == row["policy"] == name
        assert record.return_ == row["return"] == pytest.approx(np.mean(returns))
        assert record.steps == record.episodes * record.length
        assert record.score == pytest.approx(100 * (record.return_ + 5) / 305)
        # D4RL's published returns of the Hopper.
        published = 100 * (record.return_ + 20.272305) / (3234.3 + 20.272305)
        assert row["d4rl_score"] == pytest.approx(published)
        assert record.latency_us_median > 0
    keys = {plan.key(source)["weights"] for source in sources}
    assert len(keys) == len(sources)


@pytest.mark.parametrize("objective", ["return", "iql"])
def test_an_exported_policy_scores_what_its_run_does(
    objective: str, store: Path, tmp_path: Path
) -> None:
    """Asked for the same return, its actions clipped, and its last one kept as it was done."""
    model = "fcnet" if objective == "return" else "mlp"
    sizes = SCALED.model_overrides if objective == "return" else {}
    scale = SCALED.return_scale if objective == "return" else None
    config = replace(
        SCALED, objective=objective, model=model, model_overrides=sizes, return_scale=scale
    )
    trained = train(store, config, f"exported-{objective}")
    out = tmp_path / "out"
    result = run_export(ONNX_ONLY, trained.folder, out, Silent())
    assert "no data of a legged robot's task" in result.note
    assert run_evaluation(out) == run_evaluation(trained.folder)
    plan = replace(PLAN, return_target=0.5)
    expected, found = (
        evaluate_policy(run_source(f), plan, Silent()) for f in (trained.folder, out)
    )
    assert found.returns[0] == pytest.approx(expected.returns[0], rel=1e-3)
    if objective == "return":
        other = evaluate_policy(run_source(out), PLAN, Silent())
        assert other.returns != found.returns, "the policy reads its target"


@pytest.mark.slow
def test_an_export_is_not_asked_for_two_things_by_one_number(store: Path, tmp_path: Path) -> None:
    """Only the return is in units that the references change, in a run's evaluation, too."""
    halved = replace(SCALED, return_scale=RETURNS["expert"] / 2)
    trained = train(store, replace(halved, condition=("return_to_go", "driver")), "both")
    run_export(ONNX_ONLY, trained.folder, tmp_path / "out", Silent())
    with pytest.raises(ValueError, match="by one number for return_to_go, driver"):
        evaluate_policy(run_source(tmp_path / "out"), PLAN, Silent())


def test_without_references_those_of_the_tasks_policies_count(policies: str) -> None:
    plan = replace(PLAN, references=None, policies=policies)
    record = evaluate_policy(plan.source("expert"), plan, Silent())
    assert record.references == References(
        MEASURED["random"], MEASURED["expert"], "the experts' recipe"
    )
    shipped = replace(plan, policies="").known_references()
    assert shipped is not None
    assert shipped.hundred > 3000


def test_the_target_is_in_units_of_the_experts_return(store: Path) -> None:
    """Runs with other scales are asked for the same return."""
    halved = train(store, replace(SCALED, return_scale=RETURNS["expert"] / 2), "halved")
    asked = {
        target: evaluate_policy(halved, replace(PLAN, return_target=target), Silent()).returns
        for target in (0.5, 1.0)
    }
    other = replace(PLAN, references=References(-5.0, 150.0), return_target=2.0)
    assert evaluate_policy(halved, other, Silent()).returns == asked[1.0]
    assert asked[0.5] != asked[1.0], "the policy reads its target"


def test_an_evaluation_is_kept_until_weights_or_plan_change(
    trained: PolicySource, tmp_path: Path
) -> None:
    path, counting = tmp_path / "it.json", Counting()
    first = evaluate_policy(trained, PLAN, counting, path)
    assert evaluate_policy(trained, PLAN, counting, path) == first
    assert sum(counting.units.values()) == PLAN.episodes
    other = evaluate_policy(trained, replace(PLAN, seed=4), counting, path)
    assert other.returns != first.returns
    assert sum(counting.units.values()) == 2 * PLAN.episodes


@pytest.mark.parametrize("content", ["[1]", '{"steps": 3}', '{"key": {}, "plan": {}}'])
def test_what_is_no_evaluation_is_not_overwritten(content: str, tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"holds something else than an evaluation|is no record"):
        evaluate_policy(PLAN.source("random"), PLAN, Silent(), path)
    assert path.read_text() == content


def test_an_evaluation_in_another_simulation_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source, counting = tmp_path / "it.json", PLAN.source("random"), Counting()
    evaluate_policy(source, PLAN, Silent(), path)
    monkeypatch.setattr(
        "gaitforge.plugins.gym.evaluation.package_version", lambda task: "gymnasium 9"
    )
    evaluate_policy(source, PLAN, counting, path)
    assert sum(counting.units.values()) == PLAN.episodes


def test_a_run_and_a_store_know_the_task_and_its_references(
    store: Path, trained: PolicySource, tmp_path: Path
) -> None:
    found = GymEvaluation.of_store(open_store(store).schema)
    assert found == run_evaluation(trained.folder)
    assert found is not None
    assert found.references == References(RETURNS["random"], RETURNS["expert"], "the store")
    walker = make_gym_store(tmp_path / "walker.zarr", "Walker2d-v5", references=False)
    other = GymEvaluation.of_store(open_store(walker).schema)
    assert other == GymEvaluation(env="Walker2d-v5")
    assert run_evaluation(tmp_path) is None


def test_policies_of_another_task_are_refused(policies: str, tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "walker.zarr", "Walker2d-v5", episodes=4)
    walker = replace(PLAN, env="Walker2d-v5", policies=policies)
    with pytest.raises(ValueError, match="holds policies of Hopper-v5, not of Walker2d-v5"):
        replace(walker, references=None).known_references()
    with pytest.raises(ValueError, match="holds policies of Hopper-v5, not of Walker2d-v5"):
        evaluate_policy(walker.source("expert"), walker, Silent())
    run = train(store, replace(SCALED, objective="bc", return_scale=None), "walker")
    with pytest.raises(ValueError, match="was trained on walker2d"):
        evaluate_policy(run, PLAN, Silent())


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"env": "Bee-v5"}, "no task 'Bee-v5'"),
        ({"episodes": 0}, "at least 1 episode"),
        ({"environments": 0}, "environments must be at least 1"),
        ({"return_target": float("nan")}, "return_target must be a finite number"),
    ],
)
def test_impossible_plans_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        GymEvaluation(**values)


def test_an_expert_no_better_than_chance_scores_nothing() -> None:
    with pytest.raises(ValueError, match="is not above"):
        References(10.0, 10.0)
