"""What readers share: refusing bad input, identity of the content, parts, catalog columns."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate, pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from datasets.errors import DatasetError
from datasets.layout import SHARD_STEPS
from datasets.schema import DTYPES, TERRAIN_AND_SKILL, Field

PART_BYTES = 64 << 20
"""Largest imported part, uncompressed, unless one episode is longer.

Two threads each hold a part several times: as read, as a shard, compressed.
"""

EPISODE_BYTES = 8 * PART_BYTES
"""Largest episode, uncompressed: an episode is read and written as a whole."""

CONTENT_DIGITS = 64
"""The first digits of an ``identity``, which depend on the content alone."""

_HASH_BLOCK = 32 << 20
_HASH_READ = 1 << 20
_HASH_THREADS = 2
_PICKLE_START, _NEWEST_PICKLE = 0x80, 5
"""A pickle of protocol 2 or newer starts with this byte and the protocol."""

_WIDENED = {"uint16": "int32", "uint32": "int64"}
_FAULTS = (
    *(OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError),
    *(AssertionError, MemoryError, pa.ArrowException),
)
"""What libraries raise on damaged files."""


def refuse(source: Path | str, key: str, problem: str) -> NoReturn:
    """Raise DatasetError for bad input: the file, the key in it, and the problem."""
    raise DatasetError(f"{source}: {key}: {problem}" if key else f"{source}: {problem}")


def refuse_unreadable(path: Path, wanted: str, error: BaseException | str) -> NoReturn:
    """Raise DatasetError for a file that is not of the ``wanted`` kind; names a pickle as such."""
    with open(path, "rb") as stream:
        start = stream.read(2)
    if len(start) == 2 and start[0] == _PICKLE_START and start[1] <= _NEWEST_PICKLE:
        refuse(path, "", f"is a pickle, which can run any code and is never loaded; give {wanted}")
    refuse(path, "", f"cannot be read as {wanted}: {first_line(error)}")


def first_line(error: BaseException | str) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def damage_named(
    source: Path | str, key: str = "", problem: str = "cannot be read, it may be damaged"
) -> Iterator[None]:
    """Turn whatever a library raises on damaged data into one DatasetError that names the file."""
    try:
        yield
    except DatasetError:
        raise
    except _FAULTS as error:
        refuse(source, key, f"{problem}: {first_line(error)}")


def read_json(path: Path, wanted: str) -> dict[str, Any]:
    """The JSON object in a file; refuses anything else. ``wanted`` names the format."""
    if not path.is_file():
        refuse(path, "", f"no such file; give the folder of a {wanted}")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        refuse_unreadable(path, "JSON", "it is nested too deeply")
    except (OSError, ValueError) as error:
        refuse_unreadable(path, "JSON", error)
    if not isinstance(tree, dict):
        refuse(path, "", "must be a JSON object")
    return tree


def stored_dtype(dtype: np.dtype) -> str:
    """The store's dtype that holds every value of ``dtype``; "" if there is none."""
    native = dtype.newbyteorder("=").name
    native = _WIDENED.get(native, native)
    return native if native in DTYPES else ""


def check_finite(source: Path | str, key: str, rows: np.ndarray, first: int = 0) -> None:
    """Refuse rows with NaN or infinity; ``first`` is the number of the first row in the source."""
    if rows.dtype.kind != "f":
        return
    # A finite sum proves all rows finite without an array of booleans; a finite one may overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        total = rows.sum(dtype=np.float64)
    if not np.isfinite(total) and not (finite := np.isfinite(rows)).all():
        wrong = np.flatnonzero(~finite.reshape(len(rows), -1).all(axis=1))[0]
        refuse(source, key, f"row {first + int(wrong)} is not finite")


def identity(files: Sequence[Path], options: Any = None) -> str:
    """Hexadecimal digest of the files' content, wherever they lie, and of the options.

    The first ``CONTENT_DIGITS`` depend on all bytes of the files in order and nothing else; episode
    ids come from these. The rest depends on the options that shape the parts.
    """
    return joint_identity(content_digests(files), options)


def joint_identity(digests: Iterable[str], options: Any = None) -> str:
    """The ``identity`` of files with these ``content_digests``."""
    content = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return content + hashlib.sha256(repr(options).encode()).hexdigest()[:16]


def content_digests(files: Sequence[Path]) -> list[str]:
    """SHA-256 over the SHA-256 of the blocks of each file, which two threads compute."""
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


def check_option(name: str, value: Any, unit: str, kinds: Any = int | float) -> None:
    """Refuse an option that is not a number of ``kinds`` from 0 on; 0 stands for the default."""
    known = isinstance(value, kinds) and not isinstance(value, bool)
    if not known or not isfinite(value) or value < 0:
        raise DatasetError(
            f"option {name} must be a number of {unit}, or 0 for the default, not {value!r}"
        )


def step_bytes(fields: Iterable[Field]) -> int:
    """Uncompressed bytes of a step."""
    return sum(each.row_bytes for each in fields if each.per == "step")


def check_episodes_fit(
    source: Path | str, key: str, lengths: np.ndarray, fields: Iterable[Field], advice: str
) -> None:
    """Refuse, before any value is read, an episode of more than ``EPISODE_BYTES``.

    Args:
        source, key: what the message names.
        lengths: (E,) steps of each episode.
        fields: of the store.
        advice: ends the message: how to get shorter episodes.
    """
    longest = int(np.argmax(lengths))
    needed = int(lengths[longest]) * step_bytes(fields)
    if needed > EPISODE_BYTES:
        refuse(
            source,
            key,
            f"episode {longest} of {lengths[longest]} steps takes {needed / 1e6:,.0f} MB, and at "
            f"most {EPISODE_BYTES / 1e6:,.0f} MB are read at once; {advice}",
        )


def pack_episodes(lengths: np.ndarray, row_bytes: int) -> list[np.ndarray]:
    """Group episodes (E,), in order, to at most ``PART_BYTES`` and one shard; lengths per group."""
    most_steps = max(1, min(SHARD_STEPS, PART_BYTES // max(1, row_bytes)))
    ends = np.cumsum(lengths, dtype=np.int64)
    parts, first = [], 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most_steps, side="right")))
        parts.append(np.asarray(lengths[first:stop], np.int64))
        first = stop
    return parts


class Parts:
    """A source's episodes, in order, cut into parts of bounded size.

    Attributes:
        lengths: for each part, the lengths (E,) of its episodes.
    """

    def __init__(self, lengths: np.ndarray, fields: Iterable[Field]) -> None:
        self.lengths = pack_episodes(lengths, step_bytes(fields))
        self._episodes = list(accumulate(map(len, self.lengths), initial=0))
        self._steps = list(accumulate((int(each.sum()) for each in self.lengths), initial=0))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def n_episodes(self) -> int:
        """Episodes of all parts."""
        return self._episodes[-1]

    @property
    def n_steps(self) -> int:
        """Steps of all parts."""
        return self._steps[-1]

    def episodes(self, number: int) -> slice:
        """The episodes of a part, counted over the source."""
        return slice(*self._episodes[number : number + 2])

    def steps(self, number: int) -> slice:
        """The steps of a part, counted over the source."""
        return slice(*self._steps[number : number + 2])


def field_name(key: str) -> str:
    """A key of another format as a field name: "infos/Env State" -> "infos_env_state"."""
    return re.sub(r"[^a-z0-9_]", "_", key.lower())


def consecutive_slices(widths: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Name -> (start, stop), one after the other."""
    return dict(zip(widths, pairwise(accumulate(widths.values(), initial=0)), strict=True))


def tiling_slices(field: Field) -> list[tuple[str, tuple[int, int]]]:
    """A field's named slices in order of their start; empty unless they tile its one axis."""
    ordered = sorted(field.slices.items(), key=lambda item: item[1])
    ends = [0, *(stop for _, (_, stop) in ordered)]
    tiles = [start for _, (start, _) in ordered] == ends[:-1] and (ends[-1],) == field.shape
    return ordered if tiles else []


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
    """The catalog's columns for imported episodes.

    Args:
        first: number of the part's first episode in the source.
        lengths: (E,).
        source_identity: an ``identity``. Episode ids come from its content digits: they differ
            from those of other sources and do not depend on the source's name or the options.
        group_by: the schema's.
        **columns: values, or one value for all; the others get "unknown" (seed -1, level 0).
    """
    count = len(lengths)
    given: Mapping[str, Any] = {
        "episode": (int(source_identity[:7], 16) << 32) + first + np.arange(count),
        "length": lengths,
        "seed": -1,
        **dict.fromkeys(group_by, "unknown"),
        "level": 0,
        "robot": "unknown",
        "simulator": "unknown",
        "simulator_version": "",
        "expert": "unknown",
        "expert_hash": "",
        "return": 0.0,
        **dict.fromkeys(("success", "terminated", "truncated"), False),
        **columns,
    }
    return {
        name: [value] * count if isinstance(value, str | int | float | bool) else value
        for name, value in given.items()
    }
