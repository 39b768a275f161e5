"""Limits of numbers and sizes: ranges of a plan's fields, and bounds for foreign files."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from math import inf
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from gaitforge.common.errors import DatasetError


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


LATER = {"later": True}
"""Metadata of a dataclass's field that earlier versions did not have, and whose default means what
their files mean: files and hashes leave it out while it has its default, so they stay the same."""


def said_fields(record: Any) -> list[str]:
    """Names of a dataclass's fields that its files have: all but the `LATER` ones of default."""
    return [field.name for field in fields(record) if not _is_unsaid(field, record)]


def _is_unsaid(field: Field[Any], record: Any) -> bool:
    if not field.metadata.get("later"):
        return False
    is_made = field.default_factory is not MISSING
    default = field.default_factory() if is_made else field.default
    return getattr(record, field.name) == default


def check_ranges(record: object) -> None:
    """Check the numbers of a dataclass whose fields are annotated with a `Range`; not None.

    Raises:
        ValueError: a number is outside its range; it says which and what is allowed.
    """
    for name, allowed in _ranges(type(record)):
        value = getattr(record, name)
        if value is not None and value not in allowed:
            raise ValueError(f"{name} must be {allowed}, got {value}")


@cache
def _ranges(kind: type) -> list[tuple[str, Range]]:
    """The fields of a dataclass that have ranges."""
    hints = get_type_hints(kind, include_extras=True)
    annotated = ((name, getattr(hint, "__metadata__", ())) for name, hint in hints.items())
    return [(name, each) for name, data in annotated for each in data if isinstance(each, Range)]


_IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def check_types(owner: str, kind: type, values: Mapping[str, Any]) -> None:
    """Check values of a dataclass's fields, by name: numbers, texts, and lists of them.

    Other types, and those that cannot be told, are not checked.

    Raises:
        ValueError: a value is of another type; it begins with `owner`.
    """
    try:
        hints = get_type_hints(kind) if values else {}
    except NameError:  # of another package, imported for type checkers alone
        return
    for name, value in values.items():
        hint = hints.get(name, Any)
        if not _is_of(value, hint):
            raise ValueError(f"{owner} {name} must be {_in_words(hint)}, got {value!r}")


def _is_of(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_is_of(value, option) for option in get_args(hint))
    if origin in (tuple, list, Sequence):
        of_items = {item for item in get_args(hint) if item is not Ellipsis}
        of_item = of_items.pop() if len(of_items) == 1 else Any
        is_list = isinstance(value, list | tuple)
        return is_list and all(_is_of(item, of_item) for item in cast(Any, value))
    if hint in (int, float):
        number = Integral if hint is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    return isinstance(value, hint) if hint in (bool, str, type(None)) else True


def _in_words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, get_args(hint)))
    if origin in (tuple, list, Sequence):
        return "a list"
    if hint is type(None):
        return "none"
    return _IN_WORDS.get(hint, "an object of named values")


FREE_BYTES = 1 << 26
"""Bytes that a file may state whatever it holds."""
MOST_RATIO = 2000
"""Most bytes stated for each that is held: gzip packs 1,032 zeros into one."""

PARQUET_RATIO = 500
"""The same of Parquet files, whose rows differ at least in their numbers."""
_VALUE_BYTES = 8
"""Most bytes of a value of a Parquet file in memory, where a dictionary hides the size."""


def is_plausible(stated: int, held: int, ratio: int = MOST_RATIO) -> bool:
    """Whether `held` bytes of a file may unpack to the `stated` ones."""
    return 0 <= stated <= max(FREE_BYTES, ratio * held)


def check_plausible(what: str, stated: int, held: int, ratio: int = MOST_RATIO) -> None:
    """DatasetError, beginning with `what`, unless `is_plausible`."""
    if not is_plausible(stated, held, ratio):
        raise DatasetError(f"{what} states {stated:,} bytes and holds {held:,}; it is damaged")


def check_parquet(what: str, metadata: Any, held: int) -> None:
    """As `check_plausible`, for the metadata of a Parquet file of `held` bytes."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    places = range(metadata.num_columns)
    values = sum(group.column(column).num_values for group in groups for column in places)
    unpacked = sum(group.total_byte_size for group in groups)
    check_plausible(what, max(_VALUE_BYTES * values, unpacked), held, PARQUET_RATIO)


def check_archive(path: Path) -> None:
    """As `check_plausible`, for the files in a zip archive, such as an NPZ."""
    with zipfile.ZipFile(path) as archive:
        stated = sum(entry.file_size for entry in archive.infolist())
    check_plausible(str(path), stated, path.stat().st_size)
