"""When dying workers of Dask are a part's fault."""

import pytest

from gaitforge.flows.runners.dask import MASS, _Deaths


def test_a_part_is_blamed_only_while_others_can_be_made() -> None:
    deaths = _Deaths(["a", "b", "c"], 4)
    for k in range(3):
        deaths.died("a", f"w{k}", 1)
    deaths.finished("b")
    with pytest.raises(ValueError, match=r"part a: the worker that made it died 4 times.*The same"):
        deaths.died("a", "w3", 1)


def test_workers_that_die_in_rows_blame_no_part() -> None:
    deaths, parts = _Deaths(["a", "b", "c"], 4), ["a", "b"]
    for k in range(4 * MASS - 1):
        deaths.died(parts[k % 2], f"w{k}", 1)
        deaths.died("c", f"w{k}", 1)  # waited in the same worker
    with pytest.raises(ValueError, match=r"40 workers died in a row.*--worker-deaths") as line:
        deaths.died("a", "last", 1)
    assert "part a" not in str(line.value)


def test_a_finished_part_begins_the_count_anew() -> None:
    deaths = _Deaths([str(k) for k in range(9)], 4)
    for part in range(8):
        for k in range(30):
            deaths.died("8" if k < 1 and part < 3 else str(part), f"w{part}-{k}", 1 if k < 1 else 0)
        deaths.finished(str(part))
