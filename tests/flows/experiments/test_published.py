"""Verdicts on a paper's statements: laws of the test, and rows for what has run."""

from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.common.extensions import extension_names
from gaitforge.flows.experiments.plan import (
    FAILS,
    HOLDS,
    OPEN,
    Published,
    chance,
    verdict,
    verdicts,
)
from gaitforge.pipeline.presets.experiments import preset
from gaitforge.pipeline.presets.preset import PRESETS
from gaitforge.pipeline.report.pages import grouped_rows
from gaitforge.pipeline.report.results import VERDICT_GROUPS, verdict_lines, verdict_rows

SCORES = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=5)


@given(SCORES, SCORES)
def test_a_verdict_turns_with_the_statement_and_keeps_with_the_order_of_seeds(
    ahead: list[float], behind: list[float]
) -> None:
    turned = {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}
    told = verdict(ahead, behind)
    assert verdict(behind, ahead) == turned[told]
    assert verdict(ahead[::-1], sorted(behind)) == told
    assert verdict([3 * x + 7 for x in ahead], [3 * x + 7 for x in behind]) == told
    assert told == OPEN or np.mean(ahead) != np.mean(behind)
    assert 0.0 < chance(ahead, behind) <= 1.0
    assert chance(ahead, behind) + chance(behind, ahead) >= 1.0
    if len(ahead) < 3 and len(behind) < 3:
        assert told == OPEN


def test_a_chance_is_the_share_of_orders_that_are_as_far_apart() -> None:
    ahead, behind = [5.0, 2.0, 7.0], [1.0, 4.0, 3.0, 0.0]
    seen = np.mean(ahead) - np.mean(behind)
    orders = np.array(list(permutations([*ahead, *behind])))
    apart = orders[:, :3].mean(axis=1) - orders[:, 3:].mean(axis=1)
    assert chance(ahead, behind) == pytest.approx(np.mean(apart >= seen - 1e-9))


def test_the_chance_of_drawn_splits_counts_the_one_that_was_seen() -> None:
    """More than 200,000 splits are drawn: of the farthest apart none is, but it was seen."""
    many = list(np.arange(30.0))
    assert chance(many[15:], many[:15]) == 1 / 200_001
    assert chance(many[:15], many[15:]) == 1.0
    # 352,716 splits, all of which can be counted here: three standard errors of the drawn share.
    runs = np.random.default_rng(3).normal(size=21) + np.repeat([0.4, 0.0], [11, 10])
    splits = np.array(list(combinations(range(21), 11)))
    exact = np.mean(runs[splits].sum(axis=1) >= runs[:11].sum() - 1e-9)
    drawn = chance(runs[:11].tolist(), runs[11:].tolist())
    assert 0.05 < exact < 0.95
    assert drawn == pytest.approx(exact, abs=3 * np.sqrt(exact * (1 - exact) / 200_000))


@given(st.lists(st.floats(), min_size=1, max_size=4), st.lists(st.floats(), min_size=1, max_size=4))
def test_no_run_makes_a_chance_of_0_or_a_verdict_of_what_is_no_number(
    ahead: list[float], behind: list[float]
) -> None:
    assert 0.0 < chance(ahead, behind) <= 1.0
    if not np.isfinite([*ahead, *behind]).all():
        assert verdict(ahead, behind) == OPEN


def test_the_page_shows_no_chance_of_0() -> None:
    said = (Published("a", "b", "Paper"),)
    runs = [{"learner": n, "seed": s, "score": s + 100.0 * (n == "a")}
            for n in "ab" for s in range(12)]  # fmt: skip
    record = {"verdicts": list(verdicts(said, runs, "score"))}
    assert [row["by chance"] for row in verdict_rows(record)] == ["< 0.001"]


def test_every_value_and_statement_that_has_run_gets_a_row_of_means_over_its_sets() -> None:
    runs = [
        {"learner": learner, "seed": seed, "value": value, "score": score + seed + value + shift}
        for learner, score in (("a", 10.0), ("b", 0.0))
        for seed in range(3)
        for value in (1.0, 2.0)
        for shift in (-1.0, 1.0)
    ]
    said = (Published("a", "b", "Paper, Table 1", "2 and 1"), Published("a", "absent", "Paper"))
    rows = list(verdicts(said, runs, "score"))
    assert [(row["value"], row["verdict"]) for row in rows] == [(1.0, HOLDS), (2.0, HOLDS)]
    assert rows[0]["means"] == [12.0, 2.0]
    assert rows[0]["numbers"] == "2 and 1"
    told = verdict_lines({"verdicts": [{**row, "unit": "µs"} for row in rows]})
    here = "a ahead of b; at 2 a 13.00\u00a0µs, b 3.00\u00a0µs, p 0.05"
    assert told == ["", "Paper, Table 1:", f"  holds here: {here}"]
    rows[0]["verdict"] = OPEN
    assert verdict_lines({"verdicts": rows})[-1].startswith(
        "  cannot be told at 1, holds here at 2:"
    )
    shared = grouped_rows(verdict_rows({"verdicts": rows}), VERDICT_GROUPS)
    assert [(names, len(group)) for names, group in shared] == [
        (["a ahead of b", "Paper, Table 1", "2 and 1"], 2)
    ]


@given(SCORES, SCORES)
def test_less_is_better_turns_every_verdict(ahead: list[float], behind: list[float]) -> None:
    runs = [
        {"learner": learner, "seed": seed, "figure": figure}
        for learner, figures in (("a", ahead), ("b", behind))
        for seed, figure in enumerate(figures)
    ]
    said = (Published("a", "b", "Paper"),)
    (more,) = verdicts(said, runs, "figure")
    (less,) = verdicts(said, runs, "figure", less_is_better=True)
    assert less["verdict"] == {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}[more["verdict"]]
    assert less["means"] == more["means"]


def test_a_statement_has_a_measure_of_its_own_and_a_missing_one_is_named() -> None:
    runs = [
        {"learner": learner, "seed": seed, "score": float(seed), "measures": {"length": length}}
        for learner, length in (("a", 0.9), ("b", 0.5))
        for seed in range(3)
    ]
    [row] = verdicts([Published("a", "b", "Paper", measure="length")], runs, "score")
    assert (row["means"], row["verdict"], row["measure"]) == ([0.9, 0.5], HOLDS, "length")
    with pytest.raises(ValueError, match="no measure 'height'; allowed: score, length"):
        list(verdicts([Published("a", "b", "Paper", measure="height")], runs, "score"))


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if name not in extension_names("preset")]
)
def test_statements_of_presets_are_about_their_learners_and_can_be_told(name: str) -> None:
    plan = preset(name)
    assert_told(plan)
    if PRESETS[name].full:
        assert getattr(preset(name, "full"), "published", ()) == getattr(plan, "published", ())


def assert_told(plan: Any) -> None:
    """Statements have a source, are about learners of the plan, and its seeds can tell."""
    for statement in plan.published:
        assert statement.source
        assert {statement.ahead, statement.behind} <= plan.learners.keys()
        assert len(plan.seeds) >= 3
