"""Policies under other conditions, of the shipped expert alone and of a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.stage import run_stages
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.pipeline.report.experiment import stages_in
from gaitforge.plugins.papers.robustness import RobustnessPlan
from gaitforge.plugins.papers.robustness_page import NEVER, limit_rows, summary_rows
from tests.flows.experiments.still import Still
from tests.pipeline.canary import code_of

GRID = EvaluationGrid(("flat",), ("stand", "run"), (2,), 2)
POLICY = f"{Still.__module__}:{Still.__name__}"


def test_policies_are_evaluated_under_each_condition_once_and_the_page_shows_it(
    tmp_path: Path,
) -> None:
    conditions = {"friction": (0.3, 0.02), "terrain": ("gravel",)}
    evaluation = LeggedEvaluation(grid=GRID, robots=4, threads=1)
    plan = RobustnessPlan((POLICY,), conditions, evaluation)
    plan.claim(tmp_path)
    stages = stages_in(tmp_path)
    run_stages(tmp_path, stages, Silent())
    assert all(stage.is_done(tmp_path) for stage in stages)
    summary = read_record(tmp_path / "summary.json") or {}
    assert len(summary["rows"]) == 2 * 4
    by = {(r["policy"], r["quantity"], r["value"]): r for r in summary["rows"]}
    default, ice = by["expert", "default", ""], by["expert", "friction", 0.02]
    assert ice["return"] < default["return"]
    assert by["Still", "default", ""]["action_rate_p99"] < default["action_rate_p99"]
    assert {row["condition"] for row in summary_rows(summary)} >= {"default", "friction 0.3"}
    [friction] = limit_rows(summary)
    assert friction["quantity"] == "friction"
    page = (tmp_path / "report.html").read_text()
    assert "Success: friction" in page
    assert "terrain gravel" in page


def test_a_policy_that_never_succeeds_is_robust_until_nothing(tmp_path: Path) -> None:
    grid = replace(GRID, skills=("rush",))  # it stands
    evaluation = LeggedEvaluation(grid=grid, robots=2, threads=1)
    plan = RobustnessPlan((POLICY,), {"friction": (0.6, 0.5)}, evaluation)
    run_stages(tmp_path, plan.stages(tmp_path), Silent())
    summary = read_record(tmp_path / "summary.json") or {}
    assert [r["success"] for r in summary["rows"] if r["policy"] == "Still"] == [0.0] * 3
    limits = {row["policy"]: row["until"] for row in summary["limits"]}
    assert limits["Still"] is None
    assert limits["expert"] == 0.5
    [row] = limit_rows(summary)
    assert row["Still"] == NEVER
    assert NEVER in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": ()}, "needs the folders"),
        ({"policies": (POLICY, POLICY)}, "two policies are named Still"),
        ({"conditions": {"ice": (1,)}}, "nothing is randomised by the name 'ice'"),
        ({"conditions": {"terrain": ("moon",)}}, "unknown terrain 'moon'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RobustnessPlan(**{"policies": (POLICY,), **change})  # pyright: ignore


def test_a_policys_class_on_the_command_line_is_trusted() -> None:
    assert code_of(["run", "robustness", "my:Policy", "--out", "o"]) == {"my:Policy"}
