"""Networks trained by PPO on a legged and a Gymnasium task, with seeds, scored and shown."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.common.history import HISTORY
from gaitforge.flows.experiments.plan import OPEN, Published
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record, write_record
from gaitforge.flows.stages.stage import find_stage, run_stages
from gaitforge.learners.models.registry import build_network, count_parameters, preset
from gaitforge.learners.tokens import TokenLayout
from gaitforge.pipeline.presets.experiments import preset as shipped
from gaitforge.pipeline.report.experiment import stages_in
from gaitforge.plugins.papers.reinforcement import ReinforcementPlan
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
    ("size", "runs", "parameters"), [("small", 36, 30_000), ("full", 120, 345_000)]
)
def test_the_paper_s_networks_have_about_as_many_parameters(
    size: str, runs: int, parameters: int
) -> None:
    plan = shipped("bot-rl", size)
    assert isinstance(plan, ReinforcementPlan)
    assert len(list(plan.runs())) == runs
    layout = TokenLayout("obs", POLICY_SLICES)
    for run in plan.runs():
        if run.task == "a1-walk" and run.seed == 0:
            spec = preset(run.config.model, {**run.config.model_overrides, "history": 1}
                          if run.config.model == "bot" else run.config.model_overrides)  # fmt: skip
            own = count_parameters(build_network(spec, layout, 12))
            assert own == pytest.approx(parameters, rel=0.11)
