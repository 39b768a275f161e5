"""When dying workers of Dask are a part's fault."""

import pytest

from gaitforge.flows.runners.dask import MASS, _Deaths


def test_a_part_is_blamed_only_once_all_others_are_made() -> None:
    deaths = _Deaths(["a", "b", "c"], 4)
    for k in range(9):
        deaths.died("a", f"w{k}", 1)
    deaths.finished("b")
    for k in range(9):
        deaths.died("a", f"w{9 + k}", 1)  # c is still in work
    assert deaths.count("a") > deaths.count("c"), "c comes first"
    deaths.finished("c")
    for k in range(3):
        deaths.died("a", f"w{20 + k}", 1)
    with pytest.raises(ValueError, match=r"part a: the worker that made it died 4 times.*The same"):
        deaths.died("a", "last", 1)


def test_workers_that_die_in_rows_blame_no_part() -> None:
    deaths, parts = _Deaths(["a", "b", "c"], 4), ["a", "b"]
    for k in range(4 * MASS - 1):
        deaths.died(parts[k % 2], f"w{k}", 1)
        deaths.died("c", f"w{k}", 1)  # waited in the same worker
    with pytest.raises(ValueError, match=r"40 workers died in a row.*--worker-deaths") as line:
        deaths.died("a", "last", 1)
    assert "part a" not in str(line.value)


def test_a_finished_part_begins_the_count_anew() -> None:
    most = 4 * MASS - 1
    deaths = _Deaths(["a", "b", "c"], 4)
    for part in ("a", "b"):
        for k in range(most):
            deaths.died("c", f"worker-{part}-{k}", 1)
        assert deaths.count("c") == (1 if part == "a" else 2) * most
        deaths.finished(part)
    assert deaths.count("c") == 0, "those of the last part may have been of its host"
