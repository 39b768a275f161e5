"""Types of the command line's values; a wrong one is refused in one line."""

import argparse
from pathlib import Path

from collectors.simulators import check_backend


def names(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


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
    if sum(each.stop - each.start for each in ranges) > MOST_NUMBERS:
        raise argparse.ArgumentTypeError(f"'{text}' has more than {MOST_NUMBERS:,} numbers")
    return tuple(number for each in ranges for number in each)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole_number(text, 1)


def whole(text: str) -> int:
    """A whole number of at least 0."""
    return _whole_number(text, 0)


def port(text: str) -> int:
    """A TCP port; 0 for any free one."""
    return _whole_number(text, 0, 65535)


def store_address(text: str) -> Path | str:
    """A store's folder, or `s3://bucket/prefix`."""
    return text if text.startswith("s3:/") else Path(text)


def simulator(text: str) -> str:
    """A physics back end."""
    try:
        return check_backend(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole_number(text: str, least: int, most: int = LARGEST) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        wanted = f"at least {least}" if most == LARGEST and value < least else f"{least} to {most}"
        raise argparse.ArgumentTypeError(f"needs a whole number of {wanted}, not '{text}'")
    return value
