"""Ranges of numbers in dataclasses' annotations."""

from dataclasses import dataclass
from math import inf, nan
from typing import Annotated

import pytest

from gaitforge.common.limits import Positive, Range, check_ranges


@dataclass(frozen=True)
class Plan:
    """A number of each kind of range."""

    count: Positive = 1
    workers: Annotated[int, Range(1, 5120)] = 1
    share: Annotated[float, Range(0, 1, above=True)] = 1.0
    target: Annotated[float, Range()] = 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"count": 10**400}, None),
        ({"workers": 5121}, "workers must be 1 to 5,120, got 5121"),
        ({"workers": 5120}, None),
        ({"share": 0.0}, "share must be above 0, at most 1, got 0.0"),
        ({"share": nan}, "share must be above 0, at most 1, got nan"),
        ({"target": -inf}, "target must be a finite number, got -inf"),
        ({"target": -1e300}, None),
    ],
)
def test_numbers_outside_their_range_are_refused(
    change: dict[str, float], message: str | None
) -> None:
    plan = Plan(**change)  # type: ignore[arg-type]
    if message is None:
        check_ranges(plan)
        return
    with pytest.raises(ValueError, match=r".") as refusal:
        check_ranges(plan)
    assert str(refusal.value) == message
