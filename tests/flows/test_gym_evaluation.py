"""Evaluating policies on a task: whose episodes, normalised by what, and once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.comparison.runs import Spread
from gaitforge.flows.stages.gym.evaluation import (
    GymEvaluationPlan,
    GymSource,
    ReferenceReturns,
    evaluate_gym,
    measured_references,
    stored_references,
)
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.learners.training.config import TrainConfig
from tests.collectors.gym.making import RETURNS as MEASURED
from tests.collectors.gym.making import make_training
from tests.flows.gym_stores import RETURNS, TINY, make_gym_store
from tests.flows.making import Counting

pytest.importorskip("gymnasium")

PLAN = GymEvaluationPlan(
    episodes=4, environments=3, references=ReferenceReturns(RETURNS["random"], RETURNS["expert"])
)
SCALED = replace(TINY, return_scale=RETURNS["expert"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gym_store(tmp_path_factory.mktemp("gym") / "hopper.zarr")


@pytest.fixture(scope="module")
def trained(store: Path) -> Path:
    """A return-conditioned FCNet after two updates."""
    return train(store, SCALED, "fcnet")


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training of experts."""
    return make_training(tmp_path_factory.mktemp("experts") / "hopper")


def train(store: Path, config: TrainConfig, name: str) -> Path:
    out = store.parent / name
    plan = TrainPlan(SelectPlan(where="terminated or truncated"), config)
    run_training(plan, store, out, Silent())
    return out


def test_every_kind_of_policy_is_evaluated_on_the_same_starts(
    trained: Path, policies: Path
) -> None:
    sources = [
        GymSource("fcnet", run=trained),
        GymSource("expert", policies=str(policies)),
        GymSource("medium", policies=str(policies), quality="medium"),
        GymSource("random"),
    ]
    records = {source.name: evaluate_gym(source, PLAN, Silent()) for source in sources}
    assert len({tuple(record.returns) for record in records.values()}) == len(sources)
    for name, record in records.items():
        assert record.policy == name
        assert record.return_.mean == pytest.approx(np.mean(record.returns))
        assert record.return_.std == pytest.approx(np.std(record.returns, ddof=1))
        assert record.steps == sum(record.lengths)
        assert record.return_.mean is not None
        expected = 100 * (record.return_.mean + 5) / 305
        assert record.normalised.mean == pytest.approx(expected)
        # D4RL's published returns of the Hopper.
        published = 100 * (record.return_.mean + 20.272305) / (3234.3 + 20.272305)
        assert record.d4rl_normalised.mean == pytest.approx(published)
    assert len({source.key() for source in sources}) == len(sources)


def test_without_references_only_d4rls_score_is_known(policies: Path) -> None:
    source = GymSource("expert", policies=str(policies))
    record = evaluate_gym(source, replace(PLAN, references=None), Silent())
    assert record.normalised == Spread(None, None)
    assert record.d4rl_normalised.mean is not None


def test_the_target_is_in_units_of_the_experts_return(store: Path) -> None:
    """Runs with other scales are asked for the same return."""
    halved = train(store, replace(SCALED, return_scale=RETURNS["expert"] / 2), "halved")
    source = GymSource("halved", run=halved)
    asked = {
        target: evaluate_gym(source, replace(PLAN, return_target=target), Silent()).returns
        for target in (0.5, 1.0)
    }
    own = replace(PLAN, references=None, return_target=2.0)
    assert evaluate_gym(source, own, Silent()).returns == asked[1.0]
    assert asked[0.5] != asked[1.0], "the policy reads its target"


def test_an_evaluation_is_kept_until_weights_or_plan_change(trained: Path, tmp_path: Path) -> None:
    source, path, counting = GymSource("fcnet", run=trained), tmp_path / "it.json", Counting()
    first = evaluate_gym(source, PLAN, counting, path)
    assert evaluate_gym(source, PLAN, counting, path) == first
    assert sum(counting.units.values()) == PLAN.episodes
    other = evaluate_gym(source, replace(PLAN, seed=4), counting, path)
    assert other.returns != first.returns
    assert sum(counting.units.values()) == 2 * PLAN.episodes


@pytest.mark.parametrize("content", ["[1]", '{"steps": 3}', '{"key": {}, "plan": {}}'])
def test_what_is_no_evaluation_is_not_overwritten(content: str, tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="holds something else than an evaluation"):
        evaluate_gym(GymSource("random"), PLAN, Silent(), path)
    assert path.read_text() == content


def test_an_evaluation_in_another_simulation_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source, counting = tmp_path / "it.json", GymSource("random"), Counting()
    evaluate_gym(source, PLAN, Silent(), path)
    monkeypatch.setattr(
        "gaitforge.flows.stages.gym.evaluation.package_version", lambda task: "gymnasium 9"
    )
    assert evaluate_gym(source, PLAN, counting, path).simulation == "gymnasium 9"
    assert sum(counting.units.values()) == PLAN.episodes


def test_references_are_read_from_a_recipe_or_a_store(
    store: Path, policies: Path, tmp_path: Path
) -> None:
    measured = measured_references(policies, PLAN.env)
    assert (measured.random, measured.expert) == (MEASURED["random"], MEASURED["expert"])
    stored = stored_references(open_store(store).schema)
    assert stored is not None
    assert (stored.random, stored.expert) == (RETURNS["random"], RETURNS["expert"])
    without = make_gym_store(tmp_path / "without.zarr", references=False)
    assert stored_references(open_store(without).schema) is None


def test_policies_of_another_task_are_refused(policies: Path, tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "walker.zarr", "Walker2d-v5", episodes=4)
    with pytest.raises(ValueError, match="holds policies of Hopper-v5, not of Walker2d-v5"):
        measured_references(policies, "Walker2d-v5")
    expert = GymSource("expert", policies=str(policies))
    with pytest.raises(ValueError, match="holds policies of Hopper-v5, not of Walker2d-v5"):
        evaluate_gym(expert, replace(PLAN, env="Walker2d-v5"), Silent())
    run = train(store, replace(SCALED, objective="bc", return_scale=None), "walker")
    with pytest.raises(ValueError, match="was trained on walker2d"):
        evaluate_gym(GymSource("walker", run=run), PLAN, Silent())


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"env": "Ant-v5"}, "no task 'Ant-v5'"),
        ({"episodes": 0}, "at least 1 episode"),
        ({"environments": 0}, "environments must be at least 1"),
        ({"return_target": float("nan")}, "a finite number"),
        ({"references": {"random": 0, "expert": 1}}, "references are measured returns"),
    ],
)
def test_impossible_plans_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        GymEvaluationPlan(**values)


def test_an_expert_no_better_than_chance_normalises_nothing() -> None:
    with pytest.raises(ValueError, match="is not above the random policy's"):
        ReferenceReturns(10.0, 10.0)
