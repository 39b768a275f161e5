"""Ranges of numbers: one declaration for a dataclass's field, an option and a form."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, get_type_hints


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`; `above`, `below`: without `low`, or `high`, itself."""

    low: float = -inf
    high: float = inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        at_end = (self.above and value == self.low) or (self.below and value == self.high)
        return self.low <= value <= self.high and not at_end and -inf < value < inf

    def __str__(self) -> str:
        if self.above:
            return f"above {self.low:,}" + (f", at most {self.high:,}" if self.high < inf else "")
        if self.below:
            return f"at least {self.low:,} and below {self.high:,}"
        if self.high < inf:
            return f"{self.low:,} to {self.high:,}"
        return f"at least {self.low:,}" if self.low > -inf else "a finite number"


Positive = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Fraction = Annotated[float, Range(0, 1, below=True)]
Share = Annotated[float, Range(0, 1, above=True)]
NotNegative = Annotated[float, Range(0)]
AboveZero = Annotated[float, Range(0, above=True)]


def check_ranges(record: object) -> None:
    """Check the numbers of a dataclass whose fields are annotated with a `Range`; not None.

    Raises:
        ValueError: a number is outside its range; it says which and what is allowed.
    """
    for name, kind in get_type_hints(type(record), include_extras=True).items():
        for allowed in getattr(kind, "__metadata__", ()):
            value = getattr(record, name)
            if isinstance(allowed, Range) and value is not None and value not in allowed:
                raise ValueError(f"{name} must be {allowed}, got {value}")
