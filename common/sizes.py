"""A bound for what foreign files may take in memory, from the bytes that they have.

A few bytes can state, or unpack to, gigabytes. What a file states is believed up to a size that
any machine has, and beyond that up to a ratio that honest data do not reach.
"""

import zipfile
from pathlib import Path
from typing import Any

from gaitforge.common.errors import DatasetError

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
