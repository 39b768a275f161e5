"""Notes beside a file's arrays are held against these; formats' tests edit files of theirs."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gaitforge.datasets import DatasetError
from gaitforge.datasets.formats.sources import Span, check_notes

LENGTHS = np.array([3, 1])
REWARDS = np.array([0.1, 0.2, 0.3, -5.0], np.float32)
RIGHT: dict[str, Any] = {
    "length": [3, 1],
    "terminated": [True, False],
    "truncated": [False, True],
    "return": [0.6, -5.0],
}


def check(changes: dict[str, Any], rewards: np.ndarray = REWARDS) -> None:
    columns = {name: values for name, values in (RIGHT | changes).items() if values is not None}
    check_notes(
        "x.hdf5",
        "notes",
        pa.table(columns),
        Span(LENGTHS, 7, 0),
        remedy="delete them",
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        rewards=rewards,
    )


def test_notes_that_say_what_the_arrays_say_pass() -> None:
    check({})
    assert check_notes("x", "notes", pa.table(RIGHT), Span(LENGTHS, 0, 0), remedy="") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": [3, 2]}, "length of episode 8 is 2 in the notes, but 1 in the arrays; del"),
        ({"terminated": [False, False]}, "terminated of episode 7 is 0 in the notes, but 1 in "),
        ({"truncated": [False, None]}, "truncated of episode 8 is nan in the notes, "),
        ({"return": [0.6, -5.001]}, "return of episode 8 is -5.001 in the notes, but -5 in "),
        ({"return": None}, "the notes lack the column return"),
        ({"return": ["a", "b"]}, "the column return of the notes is not of numbers"),
    ],
)
def test_notes_that_say_something_else_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=f"x.hdf5: notes: {message}") as error:
        check(changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_a_return_summed_before_rounding_or_in_any_order_passes(dtype: str) -> None:
    given = np.random.default_rng(0).normal(scale=3.0, size=2000)
    stored = given.astype(dtype)
    summed = stored.astype("f8") if dtype == "int8" else given
    running = float(np.cumsum(summed[::-1].astype("f4"))[-1])
    table = pa.table({"length": [2000], "return": [running]})
    span = Span(np.array([2000]), 0, 0)
    check_notes("x", "notes", table, span, remedy="", rewards=stored)
    with pytest.raises(DatasetError, match="return of episode 0"):
        check_notes("x", "notes", table, span, remedy="", rewards=stored * 0 + 1)
