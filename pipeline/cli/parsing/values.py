"""Types of the command line's values; a wrong one is refused in one line."""

import argparse
from pathlib import Path

from collectors.simulators import check_backend


def names(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def numbers(text: str) -> tuple[int, ...]:
    """Comma-separated numbers and ranges: 0,2,5-9."""
    found: list[int] = []
    for part in names(text):
        low, separator, high = part.partition("-")
        try:
            found += range(int(low), int(high) + 1) if separator else [int(low)]
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a list like 0,2,5-9") from None
    return tuple(found)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole_number(text, 1)


def whole(text: str) -> int:
    """A whole number of at least 0."""
    return _whole_number(text, 0)


def store_address(text: str) -> Path | str:
    """A store's folder, or `s3://bucket/prefix`."""
    return text if text.startswith("s3:/") else Path(text)


def simulator(text: str) -> str:
    """A physics back end."""
    try:
        return check_backend(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole_number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"needs a whole number of at least {least}, not '{text}'")
    return value
