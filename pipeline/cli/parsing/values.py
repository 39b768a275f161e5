"""Types of the command line's values; a wrong one is refused in one line."""

import argparse
import csv
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from gaitforge.collectors.simulators import check_backend
from gaitforge.common.ranges import Range


def names(text: str) -> tuple[str, ...]:
    """Comma-separated names; one that holds a comma is in double quotes."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return tuple(name for row in rows for part in row if (name := part.strip()))


def experts(text: str) -> str:
    """Names of experts with commas; paths become absolute, for work that runs elsewhere."""
    from gaitforge.collectors.experts.expert import absolute_expert

    return absolute_expert(text)


MOST_NUMBERS = 1_000_000
LARGEST = 2**63 - 1


def numbers(text: str) -> tuple[int, ...]:
    """Comma-separated numbers and ascending ranges, at least one: 0,2,5-9."""
    ranges: list[range] = []
    for part in names(text):
        low, dash, high = part.partition("-")
        try:
            ranges.append(range(int(low), int(high if dash else low) + 1))
        except ValueError:
            ranges.append(range(0))
    if not ranges or not all(ranges):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list like 0,2,5-9")
    if sum(span.stop - span.start for span in ranges) > MOST_NUMBERS:
        raise argparse.ArgumentTypeError(f"'{text}' has more than {MOST_NUMBERS:,} numbers")
    return tuple(number for span in ranges for number in span)


def by_joint(text: str) -> list[tuple[str, float]]:
    """Comma-separated values of joints: hip=0,thigh=0.8,calf=-1.5."""
    try:
        return [(name, _number(value)) for name, value in _pairs(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not like hip=0,thigh=0.8") from None


def ranges_by_joint(text: str) -> list[tuple[str, tuple[float, float]]]:
    """Comma-separated ranges of joints: hip=-1:1,thigh=-0.5:3."""
    try:
        parts = [(name, value.split(":")) for name, value in _pairs(text)]
        return [(name, (_number(low), _number(high))) for name, (low, high) in parts]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not like hip=-1:1,thigh=-0.5:3") from None


def half_sizes(text: str) -> tuple[float, float, float]:
    """Three positive lengths: 0.3,0.1,0.08."""
    try:
        x, y, z = map(_number, text.split(","))
    except ValueError:
        x = y = z = 0.0
    if min(x, y, z) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not like 0.3,0.1,0.08")
    return x, y, z


@dataclass(frozen=True)
class Number:
    """Type of an option: a whole number in a range."""

    allowed: Range

    def __call__(self, text: str) -> int:
        """The number of a text."""
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value > LARGEST or value not in self.allowed:
            too_large = value is not None and value > LARGEST
            allowed = f"{self.allowed.low} to {LARGEST}" if too_large else self.allowed
            raise argparse.ArgumentTypeError(f"needs a whole number of {allowed}, not '{text}'")
        return value


positive = Number(Range(1))
whole = Number(Range(0))


def store_address(text: str) -> Path | str:
    """A store's folder, or `s3://bucket/prefix`."""
    return text if text.startswith("s3:/") else Path(text)


def simulator(text: str) -> str:
    """A physics back end."""
    try:
        return check_backend(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _pairs(text: str) -> list[tuple[str, str]]:
    """NAME=VALUE,NAME=VALUE; ValueError for anything else."""
    pairs = [part.rpartition("=") for part in names(text)]
    if not all(name for name, _, _ in pairs):
        raise ValueError(text)
    return [(name, value) for name, _, value in pairs]


def _number(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value


def shares(text: str) -> tuple[float, ...]:
    """Comma-separated numbers: 0.7,0.3."""
    try:
        return tuple(float(part) for part in names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' are no numbers, such as 0.7,0.3") from None
