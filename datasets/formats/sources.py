"""Helpers of the readers: identity of the content, parts, catalog columns."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.datasets.formats.checks import refuse
from gaitforge.datasets.layout import SHARD_STEPS
from gaitforge.datasets.schema import DTYPES, TERRAIN_AND_SKILL, Field

PART_BYTES = 64 << 20
"""Largest imported part, uncompressed, unless one episode is longer.

Two threads each hold a part several times: as read, as a shard, compressed.
"""

EPISODE_BYTES = 8 * PART_BYTES
"""Largest episode, uncompressed: an episode is read and written as a whole."""

CONTENT_DIGITS = 64
"""The first digits of an `identity`, which depend on the content alone."""

_HASH_BLOCK = 32 << 20
_HASH_READ = 1 << 20
_HASH_THREADS = 2
_WIDENED = {"uint16": "int32", "uint32": "int64"}


def stored_dtype(dtype: np.dtype) -> str:
    """The store's dtype that holds every value of `dtype`; "" if there is none."""
    native = dtype.newbyteorder("=").name
    native = _WIDENED.get(native, native)
    return native if native in DTYPES else ""


def identity(files: Sequence[Path], options: Any = None) -> str:
    """Hexadecimal digest of the files' content, wherever they lie, and of the options.

    The first `CONTENT_DIGITS` depend on all bytes of the files in order and nothing else; episode
    ids come from these. The rest depends on the options that shape the parts.
    """
    return joint_identity(content_digests(files), options)


def joint_identity(digests: Iterable[str], options: Any = None) -> str:
    """The `identity` of files with these `content_digests`."""
    content = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return content + hashlib.sha256(repr(options).encode()).hexdigest()[:16]


def content_digests(files: Sequence[Path]) -> list[str]:
    """SHA-256 over the SHA-256 of the blocks of each file, which two threads compute."""
    try:
        starts = [range(0, max(1, path.stat().st_size), _HASH_BLOCK) for path in files]
        jobs = [(path, at) for path, offsets in zip(files, starts, strict=True) for at in offsets]
        with ThreadPoolExecutor(_HASH_THREADS) as pool:
            blocks = pool.map(_block_digest, jobs)
            joined = ["".join(next(blocks) for _ in offsets) for offsets in starts]
    except OSError as error:
        refuse(str(error.filename), "", f"cannot be read: {error.strerror}")
    return [hashlib.sha256(digests.encode()).hexdigest() for digests in joined]


def _block_digest(job: tuple[Path, int]) -> str:
    path, at = job
    digest = hashlib.sha256()
    left = _HASH_BLOCK
    with open(path, "rb") as stream:
        stream.seek(at)
        while left and (content := stream.read(min(left, _HASH_READ))):
            digest.update(content)
            left -= len(content)
    return digest.hexdigest()


def field_bytes(fields: Iterable[Field], steps: int = 1, episodes: int = 0) -> int:
    """Uncompressed bytes of so many steps and episodes."""
    rows = {"step": steps, "episode": episodes}
    return sum(field.row_bytes * rows[field.per] for field in fields)


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive episodes that are read together: a part of a source, a block of a selection.

    Attributes:
        lengths: (E,) steps of each episode.
        first, first_step: its first episode and step, counted over the source or selection.
    """

    lengths: np.ndarray
    first: int
    first_step: int

    @cached_property
    def stops(self) -> np.ndarray:
        """(E,) the step after each episode, counted in the span."""
        return np.cumsum(self.lengths)

    @cached_property
    def starts(self) -> np.ndarray:
        """(E,) first step of each episode, counted in the span."""
        return self.stops - self.lengths

    @property
    def n_steps(self) -> int:
        """Steps of the span."""
        return int(self.stops[-1])

    @property
    def episodes(self) -> slice:
        """Range of episodes in the source or selection."""
        return slice(self.first, self.first + len(self.lengths))

    @property
    def steps(self) -> slice:
        """Range of steps in the source or selection."""
        return slice(self.first_step, self.first_step + self.n_steps)


def cut_spans(lengths: np.ndarray, fields: Iterable[Field]) -> list[Span]:
    """Cut episodes of `lengths` (E,), in order, into spans of at most `PART_BYTES` and one shard.

    A longer episode is a span of its own.
    """
    most_steps = max(1, min(SHARD_STEPS, PART_BYTES // max(1, field_bytes(fields))))
    ends = np.cumsum(lengths, dtype=np.int64)
    spans = []
    first = 0
    before = 0
    while first < len(lengths):
        stop = max(first + 1, int(np.searchsorted(ends, before + most_steps, side="right")))
        spans.append(Span(np.asarray(lengths[first:stop], np.int64), first, before))
        first = stop
        before = int(ends[stop - 1])
    return spans


def cut_parts(
    source: Path | str, key: str, lengths: np.ndarray, fields: Sequence[Field], advice: str
) -> list[Span]:
    """As `cut_spans`; refuses an episode of more than `EPISODE_BYTES` before any value is read.

    DatasetError names source and key, and ends with `advice` on how to get shorter episodes.
    """
    longest = int(np.argmax(lengths))
    needed = field_bytes(fields, int(lengths[longest])) / 1e6
    most = EPISODE_BYTES / 1e6
    if needed > most:
        problem = f"episode {longest} of {lengths[longest]} steps takes {needed:,.0f} MB"
        refuse(source, key, f"{problem}, and at most {most:,.0f} MB are read at once; {advice}")
    return cut_spans(lengths, fields)


def field_name(key: str) -> str:
    """A key of another format as a field name: "infos/Env State" -> "infos_env_state"."""
    return re.sub(r"[^a-z0-9_]", "_", key.lower())


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is `taken`, as "a b" and "a/b" have the same."""
    numbered = (f"{name}_{number}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate not in taken)


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
    """The catalog's columns for imported episodes of `lengths` (E,).

    Args:
        first: number of the part's first episode in the source.
        source_identity: an `identity`. Episode ids come from its content digits: they differ
            from those of other sources and do not depend on the source's name or the options.
        **columns: values, or one value for all; the others get "unknown" (seed -1, level 0).
    """
    rows = len(lengths)
    values: Mapping[str, Any] = {
        "episode": (int(source_identity[:7], 16) << 32) + first + np.arange(rows),
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
        name: [value] * rows if isinstance(value, str | int | float | bool) else value
        for name, value in values.items()
    }
