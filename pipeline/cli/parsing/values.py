"""Types of the command line's values, and options that are given but not read.

A value of the wrong type is refused in one line.

An option that nothing reads is refused. It may matter in one of a command's modes only: with one
task, without a plan's file, of one kind of policy. No list says which. The arguments note what is
read, and what was given but not read by the time that the work begins is refused. So a command
reads an option where it uses it, and nowhere else.
"""

import argparse
import csv
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from gaitforge.collectors.simulators import check_backend
from gaitforge.common.errors import listed
from gaitforge.common.limits import Range


# Types of values.
def names(text: str) -> tuple[str, ...]:
    """Comma-separated names; one that holds a comma is in double quotes."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return tuple(name for row in rows for part in row if (name := part.strip()))


def experts(text: str) -> str:
    """Names of experts with commas; paths become absolute, for work that runs elsewhere."""
    from gaitforge.collectors.experts.expert import absolute_expert

    return absolute_expert(text)


def run_name(text: str) -> str:
    """A training run's folder, however it is typed, or the name of a policy that ships."""
    return str(Path(text))


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
    """A store's folder, or the text of a URL, as `s3://bucket/prefix`."""
    return text if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) else Path(text)


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


# Options that a command line gives and nothing reads.
GIVEN = "given"
"""The argument that names what the command line gives: argument -> options, see `Parser`."""
_WORDS = ("command", "action", "trust")
"""Arguments that the program itself reads, before any command."""


class Arguments(argparse.Namespace):
    """Arguments of a command that note which of them were read."""

    def __init__(self, values: Mapping[str, Any]):
        super().__init__(**values)
        self._read: set[str] = set()
        self._advice = ""

    def __getattribute__(self, name: str) -> Any:
        """An argument; it counts as read from now on."""
        value = super().__getattribute__(name)
        if not name.startswith("_"):
            self._read.add(name)
        return value


def noting(arguments: argparse.Namespace) -> Arguments:
    """The same arguments, noting what is read; themselves if they do so already."""
    return arguments if isinstance(arguments, Arguments) else Arguments(vars(arguments))


def advise(arguments: argparse.Namespace, advice: str) -> None:
    """Say why a command reads no other options, for the message that refuses them."""
    noting(arguments)._advice = advice


def uses(arguments: argparse.Namespace, *names: str) -> None:
    """Count arguments as read; all of them without names.

    For options that are read later than the work begins, or that act as they are parsed.
    """
    for name in names or vars(arguments):
        getattr(arguments, name)


def of_simulator(arguments: argparse.Namespace, *plans: object) -> None:
    """Count `--isaacgym-python` as read if a plan is simulated there; it acts as it is parsed."""
    if any(getattr(plan, "sim", "") == "isaacgym" for plan in plans):
        uses(arguments, "isaacgym_python")


class ChosenValues(Mapping[str, Any]):
    """Arguments that are not None, by other names; each counts as read when it is looked up.

    Args:
        names: a value's name -> its argument; arguments that the command lacks are left out.
    """

    def __init__(self, arguments: argparse.Namespace, names: Mapping[str, str]) -> None:
        values = vars(arguments)
        self._arguments = arguments
        self._names = {key: name for key, name in names.items() if values.get(name) is not None}

    def __getitem__(self, key: str) -> Any:
        return getattr(self._arguments, self._names[key])

    def __contains__(self, key: object) -> bool:
        """Whether it is chosen; this does not read it."""
        return key in self._names

    def __iter__(self) -> Iterator[str]:
        yield from self._names

    def __len__(self) -> int:
        return len(self._names)


def refuse_unread(arguments: Arguments, besides: Collection[str] = ()) -> None:
    """Raise ValueError for options that were given and that nothing has read.

    Args:
        besides: arguments that others read.
    """
    given_options = vars(arguments).get(GIVEN, {})
    used = {*arguments._read, *besides, *_WORDS}
    unread = [
        option for name, options in given_options.items() if name not in used for option in options
    ]
    if unread:
        effect = "has no effect" if len(unread) == 1 else "have no effect"
        used_options = [
            o for name, options in given_options.items() if name in used for o in options
        ]
        flags = [option for option in used_options if option.startswith("-")]
        advice = f" beside {listed(flags)}; give only what goes together" if flags else " here"
        if arguments._advice:
            advice = f": {arguments._advice}"
        raise ValueError(f"{listed(unread)} {effect}{advice}")
