"""Distributions of randomised quantities, as they are written in plans."""

from dataclasses import dataclass
from math import exp, floor, isfinite, log
from statistics import NormalDist

_FORMS = {
    "fixed": "0.2",
    "uniform": "0.1:0.3",
    "log": "log:0.1:10",
    "normal": "normal:0:0.1:-0.3:0.3 (mean, deviation, ends)",
    "choice": "choice:0.2:0.5:0.9",
}
FORMS = ", ".join(_FORMS.values())
"""Examples of how a distribution is written."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of one number.

    Attributes:
        kind: one of `_FORMS`; numbers: its parameters, as they are written.
        shares: whether the numbers are shares of a size of the robot, written with "%".
    """

    kind: str
    numbers: tuple[float, ...]
    shares: bool = False

    @classmethod
    def parsed(cls, text: str) -> "Distribution":
        """A distribution as it is written, see `FORMS`; ValueError for anything else."""
        words = text.replace(" ", "").split(":")
        kind = words.pop(0) if words[0] in _FORMS else ("fixed", "uniform")[len(words) > 1]
        percent = {word.endswith("%") for word in words}
        try:
            numbers = tuple(float(word.removesuffix("%")) for word in words)
        except ValueError:
            numbers = ()
        count = {"fixed": 1, "uniform": 2, "log": 2, "normal": 4}.get(kind, len(numbers))
        if (
            not numbers
            or len(numbers) != count
            or len(percent) > 1
            or not all(map(isfinite, numbers))
        ):
            raise ValueError(f"'{text}' is no distribution; such are: none, {FORMS}")
        shares = percent == {True}
        distribution = cls(
            kind, tuple(number / 100 for number in numbers) if shares else numbers, shares
        )
        if kind == "normal" and distribution.numbers[1] <= 0:
            raise ValueError(f"'{text}': a deviation is above 0")
        if kind == "log" and distribution.low <= 0:
            raise ValueError(f"'{text}': a log-uniform range is above 0")
        if kind != "choice" and distribution._ends[0] > distribution._ends[1]:
            raise ValueError(f"'{text}': the low end comes first")
        return distribution

    def __str__(self) -> str:
        numbers = [_written(number, self.shares) for number in self.numbers]
        words = numbers if self.kind in ("fixed", "uniform") else [self.kind, *numbers]
        return ":".join(words)

    @property
    def _ends(self) -> tuple[float, float]:
        if self.kind == "choice":
            return min(self.numbers), max(self.numbers)
        return self.numbers[-2:][0], self.numbers[-1]

    @property
    def low(self) -> float:
        """The least number."""
        return self._ends[0]

    @property
    def high(self) -> float:
        """The largest number."""
        return self._ends[1]

    def scaled(self, size: float) -> "Distribution":
        """The distribution of shares of a size; itself if its numbers are no shares."""
        if not self.shares:
            return self
        return Distribution(self.kind, tuple(size * number for number in self.numbers))

    def at(self, unit: float, whole: bool = False) -> float:
        """The quantile of `unit`, in [0, 1); `whole`: of whole numbers, both ends included."""
        low, high = self._ends
        if self.kind == "fixed" or low == high:
            return low
        if self.kind == "choice":
            return self.numbers[int(unit * len(self.numbers))]
        if self.kind == "uniform":
            return (
                float(floor(low + unit * (high - low + 1.0)))
                if whole
                else low + unit * (high - low)
            )
        if self.kind == "log":
            value = exp(log(low) + unit * (log(high) - log(low)))
            value = min(max(value, low), high)
        else:
            normal = NormalDist(*self.numbers[:2])
            first = normal.cdf(low)
            last = normal.cdf(high)
            # A range far in the tail has no probability left to divide.
            share = min(max(first + unit * (last - first), 1e-300), 1 - 1e-16)
            value = min(max(normal.inv_cdf(share), low), high)
        return float(round(value)) if whole else value


def _written(number: float, share: bool) -> str:
    """The shortest text that is read as the same number."""
    value, scale, unit = (100 * number, 100, "%") if share else (number, 1, "")
    text = f"{value:g}"
    return (text if float(text) / scale == number else repr(value)) + unit
