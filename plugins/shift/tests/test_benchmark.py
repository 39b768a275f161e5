"""Learners are trained and scored under all draws, and the table says what the records say."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record, to_tree
from gaitforge.flows.stages.stage import run_stages
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.pipeline.report.experiment import stages_in
from gaitforge.plugins.shift.benchmark import ShiftPlan, scored
from gaitforge.plugins.shift.page import outcome_rows, precision, summary_rows
from gaitforge.plugins.shift.sets import DRAWS, EXPERT, MEDIUM, QUALITIES, WEAK
from recipes.verdicts import SUMMARIES, keep, read_summaries, with_tables
from tests.flows.experiments.claiming import assert_another, assert_grown
from tests.flows.gym_stores import make_gym_store
from tests.pipeline.command_line import call

TINY = {
    "mlp": {"model_overrides": {"hidden_dim": 8}, "steps": 2, "batch_size": 4},
    "asked": {
        "model": "fcnet",
        "objective": "return",
        "model_overrides": {"hidden_dim": 16, "decoder_dim": 8, "n_layers": 1},
        "steps": 2,
        "batch_size": 2,
    },
}
GRID = EvaluationGrid(("flat",), ("stand",), (2,), 2)
TWO = {draws: DRAWS[draws] for draws in ("nominal", "payload")}


def tiny(store: Path, **changes: Any) -> ShiftPlan:
    evaluation = LeggedEvaluation(grid=GRID, robots=2, threads=1)
    return ShiftPlan(
        (str(store),), **{"learners": TINY, "seeds": (0,), "evaluation": evaluation, **changes}
    )


@pytest.fixture(scope="module")
def finished(
    stores: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Mapping[str, Any]]:
    """The folder of a finished benchmark, and its summary."""
    out = tmp_path_factory.mktemp("run")
    tiny(stores["nominal"], draws=TWO).claim(out)
    run_stages(out, stages_in(out), Silent())
    return out, read_record(out / "summary.json") or {}


def test_every_policy_is_scored_under_all_draws_and_what_is_done_is_not_repeated(
    finished: tuple[Path, Mapping[str, Any]],
) -> None:
    out, summary = finished
    assert all(stage.is_done(out) for stage in stages_in(out))
    assert len(summary["runs"]) == len(TWO) * (len(TINY) + 3)
    for row in summary["runs"]:
        name = row["run"]
        record = read_record(scored(out, row["draws"], name)) or {}
        assert record["plan"]["randomisation"] == dict(DRAWS[row["draws"]])
        hundred, zero = (
            (read_record(scored(out, row["draws"], n)) or {})["return"] for n in (EXPERT, WEAK)
        )
        assert row["score"] == pytest.approx(100 * (record["return"] - zero) / (hundred - zero))
    [row] = summary["sets"]
    assert (row["set"], row["episodes"], row["collection"]) == ("mixed", 12, "")


def test_the_table_has_a_row_for_each_learner_and_reference(
    finished: tuple[Path, Mapping[str, Any]],
) -> None:
    out, summary = finished
    table = {row["policy"]: row for row in summary_rows(summary)}
    assert list(table) == [*TINY, EXPERT, WEAK, MEDIUM]
    assert [table[EXPERT][draws] for draws in TWO] == ["100.0"] * 2
    assert [table[WEAK][draws] for draws in TWO] == ["0.0"] * 2
    assert (table["mlp"]["updates"], table["mlp"]["seeds"]) == ("2", "1")
    assert {"nominal return", "payload success"} <= outcome_rows(summary)[0].keys()
    assert len(precision(summary)) == len(TWO)
    assert "Returns and success" in (out / "report.html").read_text()


def test_scores_of_several_seeds_have_their_mean_and_an_interval_around_it() -> None:
    row = {"set": "mixed", "learner": "mlp", "draws": "nominal", "steps": 2}
    scores = (10.0, 20.0, 60.0)
    runs = [{**row, "seed": seed, "score": score} for seed, score in enumerate(scores)]
    [told] = summary_rows({"runs": runs})
    mean, _, limits = told["nominal"].partition(" ")
    low, _, high = limits.strip("()").split()
    assert float(mean) == fmean(scores)
    assert 10.0 <= float(low) < fmean(scores) < float(high) <= 60.0


def test_conditioned_learners_are_asked_for_one_return_under_all_draws(
    finished: tuple[Path, Mapping[str, Any]],
) -> None:
    out, _ = finished
    records = [read_record(scored(out, draws, "mixed-asked-seed-0")) or {} for draws in TWO]
    plans = [record["plan"] for record in records]
    asked = [plan["return_target"] * plan["references"]["hundred"] for plan in plans]
    expert = (read_record(scored(out, "nominal", EXPERT)) or {})["return"]
    assert asked == pytest.approx([expert] * len(TWO))


def added(**changes: Any) -> Callable[[Any], Any]:
    return lambda plan: replace(plan, **changes)


def test_learners_seeds_and_draws_may_be_added(stores: Mapping[str, Path], tmp_path: Path) -> None:
    draws = {**DRAWS, "gravity": {"gravity_ms2": "11:13"}}
    more = added(learners={**TINY, "fcnet": {}}, seeds=(0, 1), draws=draws)
    assert_grown(tiny(stores["nominal"]), more, tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"seeds": (1,)}, "among its seeds"),
        ({"learners": {**TINY, "mlp": {**TINY["mlp"], "steps": 3}}}, "another steps for learner"),
        ({"qualities": ("by-expert",)}, "among its sets"),
    ],
)
def test_what_is_trained_otherwise_is_another_benchmark(
    change: dict[str, Any], complaint: str, stores: Mapping[str, Path], tmp_path: Path
) -> None:
    assert_another(tiny(stores["nominal"]), added(**change), complaint, tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"data": ()}, "learns from one store, got 0"),
        ({"data": ("a.zarr", "b.zarr")}, "learns from one store, got 2"),
        ({"qualities": ("good",)}, f"no quality 'good'; allowed: {', '.join(QUALITIES)}"),
        ({"draws": {}}, "needs draws"),
        ({"draws": {"a b": {}}}, "draws: 'a b' cannot be a name"),
        ({"draws": {"ice": {"frction": "0.1"}}}, "did you mean 'friction'"),
        ({"zero": EXPERT}, "three policies"),
        ({"seeds": ()}, "needs seeds"),
        ({"learners": {"mlp": {"stepz": 3}}}, "learners: mlp"),
    ],
)
def test_what_is_no_benchmark_is_refused_in_a_line(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        ShiftPlan(**{"data": ("a.zarr",), **change})
    assert "\n" not in str(refusal.value)


def test_wrong_stores_and_options_are_refused_in_a_line(
    stores: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gym = make_gym_store(tmp_path / "hopper.zarr")
    out = ("--out", tmp_path / "run")
    nominal = stores["nominal"]
    for words, complaint in (
        ((gym, *out), "is not of legged robots"),
        ((tmp_path / "none.zarr", *out), "none.zarr"),
        ((nominal, *out, "--where", "level = 1"), "--where"),
        ((nominal, *out, "--set", "qualities=worst"), "no quality 'worst'"),
    ):
        capsys.readouterr()
        assert call("run", "legged-shift-v1", *words) == 2
        error = capsys.readouterr().err
        assert complaint in error
        assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_plan_is_read_again_and_its_options_hold_for_every_learner(
    stores: Mapping[str, Path], tmp_path: Path
) -> None:
    plan = tiny(stores["nominal"])
    values = {"learners": ["mlp", "bot"], "seeds": (3,), "steps": 7, "episodes": 5}
    chosen = plan.with_options(
        values, ["draws.gravity.gravity_ms2=11:13", "learners.bot.seed=1"][:1]
    )
    assert {name: config["steps"] for name, config in chosen.learners.items()} == {
        "mlp": 7,
        "bot": 7,
    }
    assert (chosen.seeds, chosen.evaluation.grid.episodes) == ((3,), 5)
    assert chosen.under("gravity").randomisation == {"gravity_ms2": "11:13"}
    chosen.claim(tmp_path)
    assert to_tree(ShiftPlan.claimed(tmp_path)) == to_tree(chosen)


def test_pages_of_results_have_the_tables_of_kept_summaries(
    finished: tuple[Path, Mapping[str, Any]], tmp_path: Path
) -> None:
    out, summary = finished
    keep(out, "tiny", folder=tmp_path)
    begin = "<!-- table of tiny: written by `python -m recipes.verdicts write` -->"
    page = f"# Results\n\n{begin}\nold\n<!-- end of the table -->\n\nAfter.\n"
    written = with_tables(page, read_summaries(tmp_path))
    assert "old" not in written
    assert written.endswith("<!-- end of the table -->\n\nAfter.\n")
    for row in summary_rows(summary):
        assert f"| {' | '.join(row.values())} |" in written
    assert "| nominal return |" in written
    assert with_tables(written, read_summaries(tmp_path)) == written
    for path in SUMMARIES.parent.glob("*.md"):
        assert with_tables(path.read_text(), read_summaries()) == path.read_text(), (
            "python -m recipes.verdicts write"
        )
