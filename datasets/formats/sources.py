"""What readers of formats share: what identifies a source, its parts, its catalog columns."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from datasets.errors import DatasetError
from datasets.layout import SHARD_STEPS
from datasets.schema import DTYPES, TERRAIN_AND_SKILL
from datasets.selection.selection import Selection, Unit

PART_BYTES = 64 << 20
"""Most uncompressed bytes of an imported part, unless one episode is longer.

A part is held several times while it is written (as read, as a shard, compressed), by two threads.
"""

EPISODE_BYTES = 8 * PART_BYTES
"""Most uncompressed bytes of one episode, which is read and written as a whole."""

CONTENT_DIGITS = 64
"""Digits of an ``identity`` that name the content alone."""

_HASH_BLOCK = 32 << 20
_HASH_READ = 1 << 20
_HASH_THREADS = 2
_PICKLE_START, _NEWEST_PICKLE = 0x80, 5
"""First byte of a pickle of protocol 2 or newer; its second byte is the protocol."""

_UNKNOWN_TEXT = "unknown"
_WIDENED = {"uint16": "int32", "uint32": "int64"}


def refuse(source: Path | str, key: str, problem: str) -> NoReturn:
    """Raise the one line on bad input: the file, the key in it, and what is wrong."""
    where = f"{source}: {key}" if key else str(source)
    raise DatasetError(f"{where}: {problem}")


def stored_dtype(dtype: np.dtype) -> str:
    """The store's dtype that holds every value of ``dtype``, or "" where there is none."""
    native = dtype.newbyteorder("=").name
    native = _WIDENED.get(native, native)
    return native if native in DTYPES else ""


def check_finite(source: Path | str, key: str, rows: np.ndarray, first: int = 0) -> None:
    """Refuse rows that are not finite; ``first`` is the number of their first one in the source."""
    if rows.dtype.kind != "f":
        return
    # One sum tells of any infinity or NaN without an array of booleans; it may also overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        total = rows.sum(dtype=np.float64)
    if not np.isfinite(total) and not (finite := np.isfinite(rows)).all():
        wrong = np.flatnonzero(~finite.reshape(len(rows), -1).all(axis=1))[0]
        refuse(source, key, f"row {first + int(wrong)} is not finite")


def identity(files: Sequence[Path], options: Any = None) -> str:
    """Hexadecimal digits that name the content of files, wherever they lie, and how it is read.

    The first ``CONTENT_DIGITS`` come from every byte of the files, in order, and from nothing else;
    episodes take their ids from these. The others come from the options that shape the parts.

    Raises:
        DatasetError: a file cannot be read.
    """
    return joint_identity(content_digests(files), options)


def joint_identity(digests: Iterable[str], options: Any = None) -> str:
    """The ``identity`` of files whose ``content_digests`` are known."""
    content = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return content + hashlib.sha256(repr(options).encode()).hexdigest()[:16]


def content_digests(files: Sequence[Path]) -> list[str]:
    """A digest of all bytes of each file.

    SHA-256 of the SHA-256 of blocks, which two threads compute at a few gigabytes a second, so that
    reading a source once more costs an import little.

    Raises:
        DatasetError: a file cannot be read.
    """
    try:
        starts = [range(0, max(1, path.stat().st_size), _HASH_BLOCK) for path in files]
        jobs = [(path, at) for path, each in zip(files, starts, strict=True) for at in each]
        with ThreadPoolExecutor(_HASH_THREADS) as pool:
            blocks = pool.map(_block_digest, jobs)
            joined = ["".join(next(blocks) for _ in each) for each in starts]
    except OSError as error:
        refuse(str(error.filename), "", f"cannot be read: {error.strerror}")
    return [hashlib.sha256(each.encode()).hexdigest() for each in joined]


def _block_digest(job: tuple[Path, int]) -> str:
    path, at = job
    digest, left = hashlib.sha256(), _HASH_BLOCK
    with open(path, "rb") as stream:
        stream.seek(at)
        while left and (content := stream.read(min(left, _HASH_READ))):
            digest.update(content)
            left -= len(content)
    return digest.hexdigest()


def check_steps_option(name: str, value: Any) -> None:
    """Refuse an option that is no number of steps, or 0 for a default."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DatasetError(
            f"option {name} must be a number of steps, or 0 for the default, not {value!r}"
        )


def check_seconds_option(name: str, value: Any) -> None:
    """Refuse an option that is no duration in seconds, or 0 for a default."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not isfinite(value) or value < 0:
        raise DatasetError(
            f"option {name} must be a number of seconds, or 0 for the default, not {value!r}"
        )


def check_episodes_fit(
    source: Path | str, key: str, lengths: np.ndarray, row_bytes: int, advice: str
) -> None:
    """Refuse, before anything is read, an episode of more than ``EPISODE_BYTES``.

    Args:
        source, key: what the message names: the file, and what in it ends episodes.
        lengths: (E,) steps of each episode; row_bytes: uncompressed bytes of a step.
        advice: how to get shorter episodes; ends the message.
    """
    longest = int(np.argmax(lengths))
    needed = int(lengths[longest]) * row_bytes
    if needed > EPISODE_BYTES:
        refuse(
            source,
            key,
            f"episode {longest} of {lengths[longest]} steps takes {needed / 1e6:,.0f} MB, and at "
            f"most {EPISODE_BYTES / 1e6:,.0f} MB are read at once; {advice}",
        )


def pack_episodes(lengths: np.ndarray, row_bytes: int) -> list[np.ndarray]:
    """Cut episodes, in order, into parts of bounded size: for each part its episodes' lengths.

    Args:
        lengths: (E,) steps of each episode.
        row_bytes: uncompressed bytes of a step.
    """
    most_steps = max(1, min(SHARD_STEPS, PART_BYTES // max(1, row_bytes)))
    ends = np.cumsum(lengths, dtype=np.int64)
    parts, first = [], 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most_steps, side="right")))
        parts.append(np.asarray(lengths[first:stop], np.int64))
        first = stop
    return parts


def bounded_units(selection: Selection) -> Iterator[Unit]:
    """The selection's reading units, cut so that all fields of one fit into bounded memory."""
    fields = selection.store.schema.fields
    row_bytes = sum(each.row_bytes for each in fields if each.per == "step")
    for unit in selection.units():
        first = unit.first
        for part in pack_episodes(selection.lengths[unit.first : unit.stop], row_bytes):
            yield Unit(unit.part_id, first, first + len(part))
            first += len(part)


def check_room(selection: Selection, destination: Path, advice: str = "") -> None:
    """Refuse a disk without room for the values of a selection, uncompressed.

    A disk that is full while HDF5 writes can crash the process in HDF5 itself.

    Args:
        advice: what else could be done.

    Raises:
        DatasetError: there is not enough room.
    """
    schema = selection.store.schema
    needed = selection.steps * sum(schema.field(name).row_bytes for name in schema.names("step"))
    free = shutil.disk_usage(next(each for each in destination.parents if each.is_dir())).free
    if free < needed:
        raise DatasetError(
            f"cannot write {destination}: it may take {needed / 1e6:,.1f} MB and "
            f"{free / 1e6:,.1f} MB are free; export to another disk{advice}"
        )


def field_name(key: str) -> str:
    """A key of another format as the name of a field: "infos/Env State" -> "infos_env_state"."""
    return re.sub(r"[^a-z0-9_]", "_", key.lower())


def episode_returns(rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(E,) float64: sums of the rewards of consecutive episodes."""
    return np.add.reduceat(rewards.astype(np.float64), np.cumsum(lengths) - lengths)


def catalog_columns(
    first: int,
    lengths: np.ndarray,
    source_identity: str,
    group_by: Sequence[str] = TERRAIN_AND_SKILL,
    **columns: Any,
) -> dict[str, Any]:
    """The catalog's columns for episodes that come from elsewhere.

    Args:
        first: number of the part's first episode in the source.
        lengths: (E,).
        source_identity: an ``identity``; the content makes the episodes' ids differ from those of
            other sources, and be the same however the source is called and read.
        group_by: the schema's.
        **columns: values, or one value for all; what is not given says that it is unknown
            (seed -1, level 0, no return).
    """
    count = len(lengths)
    ids = (int(source_identity[:7], 16) << 32) + first + np.arange(count)
    unknown: dict[str, Any] = {
        "seed": -1,
        **dict.fromkeys(group_by, _UNKNOWN_TEXT),
        "level": 0,
        "robot": _UNKNOWN_TEXT,
        "simulator": _UNKNOWN_TEXT,
        "simulator_version": "",
        "expert": _UNKNOWN_TEXT,
        "expert_hash": "",
        "return": 0.0,
        "success": False,
        "terminated": False,
        "truncated": False,
    }
    given: Mapping[str, Any] = {"episode": ids, "length": lengths, **unknown, **columns}
    return {
        name: [value] * count if isinstance(value, str | int | float | bool) else value
        for name, value in given.items()
    }


def refuse_unreadable(path: Path, wanted: str, error: BaseException | str) -> NoReturn:
    """Raise the one line on a file that is not what it should be; a pickle is called by name."""
    with open(path, "rb") as stream:
        start = stream.read(2)
    if len(start) == 2 and start[0] == _PICKLE_START and start[1] <= _NEWEST_PICKLE:
        refuse(path, "", f"is a pickle, which can run any code and is never loaded; give {wanted}")
    refuse(path, "", f"cannot be read as {wanted}: {(str(error).splitlines() or ['?'])[0]}")
