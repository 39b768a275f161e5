"""The plans of this plug-in: which one a folder takes, their names, and what is no plan."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.common.trust import trusting
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.experiments.staged_plan import plan_class
from gaitforge.flows.records.records import to_tree, write_record
from gaitforge.flows.stages.stage import Stage
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.pipeline.presets.experiments import preset
from gaitforge.plugins.papers.measurements import MeasurementPlan
from gaitforge.plugins.papers.reinforcement import ReinforcementPlan
from gaitforge.plugins.papers.robustness import RobustnessPlan
from tests.flows.experiments.claiming import assert_alone, assert_another, assert_grown
from tests.flows.experiments.still import STILL
from tests.flows.experiments.test_names import NAMES, check, listed, script_of
from tests.flows.gym_stores import make_gym_store
from tests.flows.test_malformed_plans import check_settings, check_values

MEASUREMENT, REINFORCEMENT, ROBUSTNESS = "measurement", "reinforcement", "robustness"
PPO = {"environments": 2, "steps": 256}
HOPPER = {"hopper": {"env": "Hopper-v5"}}
GRID = EvaluationGrid(("flat",), ("stand",), (2,), 1)
PLANS: dict[str, Any] = {
    "experiment": Claim("demo", Experiment({"mlp": {}}, collect=LeggedPlan())),
    REINFORCEMENT: ReinforcementPlan({"mlp": {}}, HOPPER, {}, seeds=(0,)),
    MEASUREMENT: MeasurementPlan({"spectra": {"n": [4]}}),
}
with trusting([STILL]):
    PLANS[ROBUSTNESS] = RobustnessPlan(
        (STILL,), {"friction": (0.3,)}, LeggedEvaluation(grid=GRID, robots=1)
    )
KINDS = (MEASUREMENT, REINFORCEMENT, ROBUSTNESS)


@pytest.mark.parametrize("there", PLANS)
@pytest.mark.parametrize("new", PLANS)
def test_a_folder_takes_its_own_plan_again_and_no_other(
    there: str, new: str, tmp_path: Path
) -> None:
    assert_alone(PLANS[there], PLANS[new], tmp_path)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("content", [{"plan": {}}, {"kind": "legged"}, []])
def test_the_plan_of_something_else_stays(name: str, content: Any, tmp_path: Path) -> None:
    write_record(tmp_path / "plan.json", content)
    before = (tmp_path / "plan.json").read_bytes()
    with pytest.raises(ValueError, match=r"plan.json (of something else|is no record)"):
        PLANS[name].claim(tmp_path)
    assert (tmp_path / "plan.json").read_bytes() == before


def field(**changes: Any) -> Callable[[Any], Any]:
    return lambda plan: replace(plan, **changes)


GROWN = [
    (ROBUSTNESS, field(conditions={"friction": (0.3, 0.1), "payload_kg": (3.0,)})),
    (REINFORCEMENT, field(seeds=(0, 1), learners={"mlp": {}, "flat": {"model": "mlp"}})),
    (MEASUREMENT, field(measures={"spectra": {"n": [4, 8]}, "attention": {}})),
]
OTHERS = [
    (ROBUSTNESS, field(conditions={"friction": (0.1,)}), "among its values of friction"),
    (ROBUSTNESS, field(conditions={"payload_kg": (3.0,)}), "among its values of friction"),
    (ROBUSTNESS, field(evaluation=LeggedEvaluation(grid=GRID, robots=2)), "of another robots"),
    (REINFORCEMENT, field(seeds=(1,)), "among its seeds"),
    (REINFORCEMENT, field(learners={"mlp": {"steps": 7}}), "another steps of learner 'mlp'"),
    (REINFORCEMENT, field(tasks={"swim": HOPPER["hopper"]}), "among its tasks"),
    (MEASUREMENT, field(repeats=3), "another number of repeats"),
    (MEASUREMENT, field(measures={"spectra": {"field": "action"}}), "another field of spectra"),
]


@pytest.mark.parametrize(("name", "change"), GROWN)
def test_what_is_added_is_the_same_plan(
    name: str, change: Callable[[Any], Any], tmp_path: Path
) -> None:
    assert_grown(PLANS[name], change, tmp_path)


@pytest.mark.parametrize(("name", "change", "complaint"), OTHERS)
def test_what_is_left_out_or_otherwise_is_another_plan(
    name: str, change: Callable[[Any], Any], complaint: str, tmp_path: Path
) -> None:
    assert_another(PLANS[name], change, complaint, tmp_path)


@pytest.mark.parametrize("name", KINDS)
def test_a_folders_plan_is_read_again(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    plan.claim(tmp_path)
    assert plan_class(name) is type(plan)
    for path in (tmp_path, tmp_path / "plan.json"):
        assert to_tree(plan_class(name).claimed(path)) == to_tree(plan)


@settings(deadline=None)
@given(NAMES, NAMES)
def test_any_names_of_reinforcement_learning_are_refused_or_stay_in_the_folder(
    task: str, learner: str
) -> None:
    out = Path("out")
    env = {"env": "Hopper-v5", **PPO}

    def make() -> list[Stage]:
        plan = ReinforcementPlan({learner: {"model": "mlp"}}, {task: env}, {}, (0, 1))
        return plan.stages(out)

    stages = listed(make)
    check(stages, out)
    for stage in stages:
        lines = script_of(stage).splitlines()
        assert [line for line in lines if stage.file_name in line] == [lines[2]]


def test_two_runs_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'b-c' on task 'a', seed 0 and .*'c' on task 'a-b'"):
        ReinforcementPlan(
            {"b-c": {"model": "mlp"}, "c": {"model": "mlp"}},
            {"a": {"env": "Hopper-v5"}, "a-b": {"env": "Hopper-v5"}},
            {},
        )


def test_folders_of_policies_and_values_of_conditions_are_names_or_refused(tmp_path: Path) -> None:
    grid = EvaluationGrid(("flat",), ("stand",), (2,), 1)
    plan = RobustnessPlan(
        (STILL,),
        {"friction": (0.3, "0.2")},
        LeggedEvaluation(grid=grid, robots=1, threads=1),
    )
    check(plan.stages(tmp_path), tmp_path)
    for name in ("a\nb", "a;b", "-a", "a  b", "ä\u2028"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        with pytest.raises(ValueError, match=r"policies: .* cannot be a name") as refusal:
            replace(plan, policies=(str(tmp_path / name),))
        assert "\n" not in str(refusal.value)
    for values in ((0.3, "0.30"), ("0.3\n",), "0.3", 0.3):
        with pytest.raises(ValueError, match="conditions: friction"):
            replace(plan, conditions={"friction": values})


def test_blocks_that_a_store_names_are_files_inside(tmp_path: Path) -> None:
    stores = (str(make_gym_store(tmp_path / "ho pp;er.zarr")),)
    plan = MeasurementPlan({"spectra": {"n": [4]}}, stores)
    check(plan.stages(tmp_path), tmp_path)


@cache
def fewer_runs() -> Any:
    """A preset with entries of every kind, and two learners of its six."""
    plan: Any = preset("bot-rl")
    learners = {name: plan.learners[name] for name in ("mlp", "bot-mix")}
    return replace(plan, learners=learners, seeds=(0,), published=plan.published[:1])


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_what_is_no_plan_is_a_value_error(data: st.DataObject) -> None:
    check_values(fewer_runs(), data)
    check_settings(fewer_runs(), data)
