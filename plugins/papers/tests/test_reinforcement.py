"""Networks trained by PPO on a legged and a Gymnasium task, with seeds, scored and shown."""

import json
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from gaitforge.collectors.experts.ppo import ExpertTrainingConfig
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.common.history import HISTORY
from gaitforge.flows.experiments.plan import OPEN, Published
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import digest, read_record, to_tree, write_record
from gaitforge.flows.stages.stage import find_stage, run_stages
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.learners.actor_critic import RegistryNetworks
from gaitforge.learners.models.bodies import BODIES
from gaitforge.learners.models.registry import build_network, count_parameters
from gaitforge.pipeline.presets.experiments import preset as shipped
from gaitforge.pipeline.report.experiment import stages_in
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.papers.reinforcement import ReinforcementPlan, ReinforcementRun, area_under
from tests.pipeline.command_line import call

SHORT = {"horizon": 8, "epochs": 1, "mini_batches": 2, "threads": 1}
PLAN = ReinforcementPlan(
    learners={
        "mlp": {"model_overrides": {"hidden_dim": 8, "n_layers": 1}},
        "flat": {"model": "mlp", "model_overrides": {"hidden_dim": 4, "n_layers": 1}},
    },
    tasks={
        "walk": {**SHORT, "robot": "a1", "skills": ["walk"], "terrains": ["flat"],
                 "robots": 16, "steps": 16 * 8 * 26},
        "hopper": {**SHORT, "env": "Hopper-v5", "environments": 4, "steps": 4 * 8 * 4},
    },
    evaluate={
        "walk": {"grid": {"terrains": ["flat"], "skills": ["walk"], "levels": [2], "episodes": 2},
                 "robots": 2, "threads": 1},
        "hopper": {"episodes": 2, "environments": 2},
    },
    seeds=(0, 1),
    published=(Published("flat", "mlp", "Paper, Figure 1"),),
)  # fmt: skip
REPORT = "report.html"
A1_SLICES: dict[str, Any] = {"features": POLICY_SLICES, "critic": {}}


@pytest.mark.slow
def test_every_run_is_trained_scored_once_and_on_the_page(tmp_path: Path) -> None:
    PLAN.claim(tmp_path)
    run_stages(tmp_path, stages_in(tmp_path), Silent())
    stages = stages_in(tmp_path)
    assert all(stage.is_done(tmp_path) for stage in stages)
    summary: dict[str, Any] = read_record(tmp_path / "summary.json") or {}
    runs = {row["run"]: row for row in summary["runs"]}
    assert set(runs) == {run.name for run in PLAN.runs()}
    assert len(runs) == 8
    for row in runs.values():
        assert row["steps"] == PLAN.tasks[row["task"]]["steps"]
        assert sorted(row["curve"]["steps"]) == row["curve"]["steps"]
        assert row["curve"]["seconds"][-1] <= row["train_s"]
    assert any(row["curve"]["return"] for row in runs.values())
    assert (runs["walk-mlp-seed-0"]["vx_error"] is None) == (
        runs["hopper-mlp-seed-0"]["vx_error"] is not None
    )
    first = [row["of_first"] for row in summary["results"] if row["learner"] == "mlp"]
    assert first == [1.0, 1.0]
    page = (tmp_path / REPORT).read_text()
    assert all(text in page for text in (*runs, "Return: hopper", "Return: walk"))
    assert [row["set"] for row in summary["verdicts"]] == ["walk", "hopper"]
    assert all(text in page for text in ("Paper, Figure 1", "flat ahead of mlp", OPEN))

    wider = replace(PLAN, seeds=(0, 1, 2))
    left = [s.name for s in wider.stages(tmp_path) if not s.is_done(tmp_path)]
    new = [f"{what} {run.name}" for run in wider.runs() if run.seed == 2
           for what in ("train", "evaluate")]  # fmt: skip
    assert left == [*new, "compare", "report"]


def test_steps_of_every_run_reach_a_task_that_a_setting_brings(tmp_path: Path) -> None:
    tasks = 'tasks.a1-walk={"robot":"a1","robots":8}'
    words = ["run", "bot-rl", "--out", tmp_path, "--steps", "640", "--set", tasks]
    assert call(*words, "--stage", "compare") == 2  # nothing is trained yet
    plan = ReinforcementPlan.claimed(tmp_path)
    assert plan.tasks["a1-walk"] == {"robot": "a1", "robots": 8, "steps": 640}
    assert {run.config.steps for run in plan.runs()} == {640}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=3))
@example([0.0, 5.0])
@example([-1000.0, -500.0])
@example([5e-324, 5.0])
def test_a_better_return_is_never_less_of_the_first(returns: list[float]) -> None:
    with TemporaryDirectory() as folder:
        results = summarised(Path(folder), returns)
    first = returns[0]
    for result, value in zip(results, returns, strict=True):
        assert result["over_first"] == value - first
        assert (result["of_first"] is None) or first > 0
    by_share = sorted(results, key=lambda each: each["of_first"] or 0.0)
    if all(each["of_first"] is not None for each in results):
        means = [each["return"]["mean"] for each in by_share]
        assert means == sorted(means)
    assert first <= 0 or first < 1e-300 or results[0]["of_first"] == 1.0


def summarised(out: Path, returns: list[float]) -> list[dict[str, Any]]:
    """The results of learners whose runs had these returns."""
    learners = {f"l{k}": {"model": "mlp"} for k in range(len(returns))}
    plan = ReinforcementPlan(learners, {"hopper": PLAN.tasks["hopper"]}, {}, (0,))
    for run, value in zip(plan.runs(), returns, strict=True):
        names = ("return_ci95", "success_ci95", "cells")
        record: dict[str, Any] = dict.fromkeys(names, ()) | {"return": value}
        names = ("parameters", "success", "survival", "episodes", "latency_us_median")
        write_record(run.evaluated(out), record | dict.fromkeys(names, 1.0))
        run.folder(out).mkdir(parents=True)
        row = {"steps": 1, "steps_per_s": 1.0, "return": value}
        (run.folder(out) / HISTORY).write_text(json.dumps(row) + "\n")
    stages = plan.stages(out)
    for name in ("compare", "report"):
        find_stage(stages, name).run(Silent())
    return (read_record(out / "summary.json") or {})["results"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learners": {}}, "needs learners and tasks"),
        ({"seeds": (1, 1)}, "seeds, each once"),
        ({"evaluate": {"swim": {}}}, "there is no task swim"),
        ({"learners": {"fcnot": {}}}, "fcnot"),
        ({"learners": {"mlp": {"depth": 3}}}, "mlp on walk: .* has no 'depth'"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **change)


@pytest.mark.parametrize(
    ("size", "runs", "parameters"), [("small", 48, 30_000), ("full", 160, 345_000)]
)
def test_the_preset_s_networks_have_about_as_many_parameters(
    size: str, runs: int, parameters: int
) -> None:
    plan = shipped_rl(size)
    assert len(list(plan.runs())) == runs
    for run in plan.runs():
        is_small = size == "small" and run.learner != "body-mlp"  # that one has the paper's size
        if run.task == "a1-walk" and run.seed == 0 and (is_small or size == "full"):
            made = RegistryNetworks(run.config.model, run.config.model_overrides, A1_SLICES)
            own = count_parameters(build_network(made.spec, made.layout, 12))
            assert own == pytest.approx(parameters, rel=0.18)


@pytest.mark.parametrize(
    ("learner", "parameters"), [("body-mlp", 699_467), ("transformer", 688_762)]
)
def test_the_paper_s_networks_have_its_parameters(learner: str, parameters: int) -> None:
    """Sferrazza et al. 2024, Figure 12c: actor, critic and std for the 100 observed numbers."""
    body = BODIES["humanoid-isaacgym"]
    run = one_run(learner, "humanoid-mod")
    assert actor_and_critic(run, body.slices, body.act_dim) == parameters


@pytest.mark.parametrize("learner", ["body-mlp", "bot-mix", "bot-hard"])
@pytest.mark.parametrize("task", ["humanoid-mod", "humanoid-board", "humanoid-hill"])
def test_further_observations_of_a_task_add_rows_of_the_root_alone(learner: str, task: str) -> None:
    """Our tasks' last action and target, the board's state; two layers more on the hills."""
    pytest.importorskip("gymnasium_robotics")
    body = BODIES["humanoid-isaacgym"]
    run = one_run(learner, task)
    with closing(TaskBatch(find_task(run.config.env), 1, 1)) as batch:
        slices = batch.obs_slices
    added = max(stop for _, stop in slices.values()) - max(stop for _, stop in body.slices.values())
    layers = 2 if task == "humanoid-hill" and learner != "body-mlp" else 0
    assert run.config.model_overrides.get("n_layers", 10) == 10 + layers
    paper = actor_and_critic(one_run(learner, "humanoid-mod"), body.slices, body.act_dim)
    layer = 33_472  # 64 wide: 12,480 and 4,160 of attention, 16,576 of the rest, norms 256
    assert actor_and_critic(run, slices, body.act_dim) == (
        paper + 2 * 64 * added + 2 * layers * layer
    )


def test_trainings_in_full_have_the_published_steps() -> None:
    steps = {run.task: (run.config.steps, run.config.horizon) for run in shipped_rl("full").runs()}
    assert steps.pop("a1-walk") == (983_040_000, 24)
    assert set(steps.values()) == {(655_360_000, 32)}
    assert shipped_rl("small").runs().__next__().plan.tasks["humanoid-mod"]["steps"] == 2_000_000


@cache
def shipped_rl(size: str) -> ReinforcementPlan:
    plan = shipped("bot-rl", size)
    assert isinstance(plan, ReinforcementPlan)
    return plan


def one_run(learner: str, task: str) -> ReinforcementRun:
    return ReinforcementRun(shipped_rl("full"), task, learner, 0)


def actor_and_critic(run: ReinforcementRun, slices: Any, act_dim: int) -> int:
    """Parameters of an actor with its std, and of a critic that sees as much."""
    overrides = run.config.model_overrides
    groups = {"features": slices, "critic": {}}
    made = RegistryNetworks(run.config.model, overrides, groups, act_dim,
                            initial_weights=run.config.initial_weights)  # fmt: skip
    seen = TensorDict({"features": torch.zeros(1, made.layout.obs_dim)}, batch_size=[1])
    actor = made.actor(seen, {"actor": ["features"]}, "actor", act_dim,
                       distribution_cfg={"init_std": 1.0})  # fmt: skip
    critic = made.critic(seen, {"critic": ["features"]}, "critic", 1)
    return count_parameters(actor) + count_parameters(critic)


def test_a_plan_of_an_earlier_version_keeps_its_initial_weights_and_keys() -> None:
    """Its plan.json says nothing of them; what was trained is not trained again."""
    plan = plan_from_tree(ReinforcementPlan, without(to_tree(PLAN), "initial_weights"))
    for run in plan.runs():
        assert run.config.initial_weights == "torch"
        assert run.key == digest(without(to_tree(run.config), "initial_weights"))
    now = replace(PLAN, initial_weights="normal")
    assert all(run.config.initial_weights == "normal" for run in now.runs())
    assert not {run.key for run in now.runs()} & {run.key for run in plan.runs()}


def without(tree: Any, name: str) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != name}


@given(st.lists(st.tuples(st.integers(1, 50), st.none() | st.floats(-1e3, 1e3)), min_size=1))
def test_the_area_is_a_mean_of_the_curve(rows: list[tuple[int, float | None]]) -> None:
    steps = np.cumsum([step for step, _ in rows]).tolist()
    history = [{"steps": at, "return": value}
               for at, (_, value) in zip(steps, rows, strict=True)]  # fmt: skip
    returns = [value for _, value in rows if value is not None]
    area = area_under(history)
    if not returns:
        assert area is None
        return
    assert area is not None
    assert min(returns) - 1e-6 <= area <= max(returns) + 1e-6
    scaled = [row | {"steps": 7 * row["steps"]} for row in history]
    assert area_under(scaled) == pytest.approx(area)


def test_who_is_earlier_at_the_same_return_has_the_largerarea_under() -> None:
    def curve(at: int) -> list[dict[str, Any]]:
        return [{"steps": 10 * k, "return": 10.0 * (k >= at)} for k in range(1, 11)]

    early, late = area_under(curve(3)), area_under(curve(8))
    assert early == pytest.approx(7.5)
    assert late == pytest.approx(2.5)


def test_what_later_versions_add_leaves_records_and_keys_as_they_were() -> None:
    evaluation = to_tree(LeggedEvaluation())
    training = to_tree(ExpertTrainingConfig())
    for tree in (evaluation, training):
        assert not {"episode_s", "rewards"} & tree.keys()
    own = to_tree(LeggedEvaluation(episode_s=20.0, rewards={"alive": 1.0}))
    assert own == {**evaluation, "episode_s": 20.0, "rewards": {"alive": 1.0}}
    read = plan_from_tree(LeggedEvaluation, own)
    assert read.largest_return == pytest.approx(20.0)
    assert plan_from_tree(LeggedEvaluation, evaluation) == LeggedEvaluation()


def test_the_a1_is_trained_and_scored_by_the_same_episodes() -> None:
    for size in ("small", "full"):
        plan = shipped_rl(size)
        run = next(run for run in plan.runs() if run.task == "a1-walk")
        evaluation: Any = run.evaluation
        assert run.config.episode_s == evaluation.episode_s == 20.0
        assert run.config.rewards == evaluation.rewards
        assert evaluation.largest_return == pytest.approx(20 * 4.05)
