"""Helpers of formats' readers and writers: identity, parts, columns, checks, blocks and notes.

Readers have helpers for the identity of the content, for parts and for catalog columns.

Checks of foreign input: every refusal is one DatasetError that names the file and the key.

Writers have helpers that read a selection in blocks, and checks before writing.

Notes are gaitforge's schema and catalog, which an export embeds in a foreign file or folder. They
give back what the foreign layout has no place for. Someone may edit the arrays afterwards (relabel
rewards or endings) and leave the notes as they are. An import refuses notes that contradict the
arrays, instead of writing a catalog that contradicts its own data.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, count
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, first_line, listed
from gaitforge.datasets.layout import SHARD_STEPS
from gaitforge.datasets.schema import DTYPES, TERRAIN_AND_SKILL, Field
from gaitforge.datasets.selection import EpisodeSelection, Unit

# Checks of foreign input.
_PICKLE_START = 0x80
_NEWEST_PICKLE = 5
"""A pickle of protocol 2 or newer starts with this byte and the protocol."""

_FAULTS = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    MemoryError,
    pa.ArrowException,
)
"""What libraries raise on damaged files."""


_ALLOWED: ContextVar[bool] = ContextVar("not_finite_allowed", default=False)


class NotFiniteError(DatasetError):
    """A value is NaN or infinite."""


@contextmanager
def not_finite_allowed() -> Iterator[None]:
    """Let `check_finite` pass everything, in this thread."""
    token = _ALLOWED.set(True)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def refuse(source: Path | str, key: str, problem: str) -> NoReturn:
    """Raise DatasetError for bad input: the file, the key in it, and the problem."""
    raise DatasetError(f"{source}: {key}: {problem}" if key else f"{source}: {problem}")


def refuse_unreadable(path: Path, kind: str, error: BaseException | str) -> NoReturn:
    """Raise DatasetError for a file that is not of this `kind`; names a pickle as such."""
    with open(path, "rb") as stream:
        start = stream.read(2)
    if len(start) == 2 and start[0] == _PICKLE_START and start[1] <= _NEWEST_PICKLE:
        refuse(path, "", f"is a pickle, which can run any code and is never loaded; give {kind}")
    refuse(path, "", f"cannot be read as {kind}: {first_line(error)}")


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


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """The JSON object in a file; refuses anything else. `kind` names the format."""
    if not path.is_file():
        refuse(path, "", f"no such file; give the folder of a {kind}")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        refuse_unreadable(path, "JSON", "it is nested too deeply")
    except (OSError, ValueError) as error:
        refuse_unreadable(path, "JSON", error)
    if not isinstance(tree, dict):
        refuse(path, "", "must be a JSON object")
    return tree


def check_finite(source: Path | str, key: str, rows: np.ndarray, first: int = 0) -> None:
    """Refuse rows with NaN or infinity; `first` is the number of the first row in the source.

    Raises NotFiniteError.
    """
    if rows.dtype.kind != "f" or _ALLOWED.get():
        return
    # A finite sum proves all rows finite without an array of booleans; finite rows may overflow it.
    with np.errstate(over="ignore", invalid="ignore"):
        total = rows.sum(dtype=np.float64)
    if not np.isfinite(total) and not (finite := np.isfinite(rows)).all():
        wrong = np.flatnonzero(~finite.reshape(len(rows), -1).all(axis=1))[0]
        raise NotFiniteError(f"{source}: {key}: row {first + int(wrong)} is not finite")


def check_option(name: str, value: Any, unit: str, kinds: Any = int | float) -> None:
    """Refuse an option that is not a number of `kinds` from 0 on; 0 stands for the default."""
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or value < 0:
        raise DatasetError(
            f"option {name} must be a number of {unit}, or 0 for the default, not {value!r}"
        )


# Helpers of the readers.
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


# Blocks of a selection, for the writers.
@dataclass(frozen=True, eq=False)
class Block(Span):
    """Consecutive episodes of a selection, few enough that all their fields fit in memory."""

    selection: EpisodeSelection
    part_id: str

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Field -> (T, *shape), or (E, *shape) for a field per episode."""
        unit = Unit(self.part_id, self.episodes.start, self.episodes.stop)
        return {name: self.selection.read_unit(name, unit) for name in names}


def blocks(selection: EpisodeSelection) -> Iterator[Block]:
    """The selection's blocks in order."""
    fields = selection.schema.fields
    step = 0
    for unit in selection.units():
        for span in cut_spans(selection.lengths[unit.first : unit.stop], fields):
            first = unit.first + span.first
            yield Block(span.lengths, first, step + span.first_step, selection, unit.part_id)
        step += int(selection.lengths[unit.first : unit.stop].sum())


def check_fields(selection: EpisodeSelection, what: str, needed: Sequence[str]) -> None:
    """Refuse a store without the needed fields, or with a reward that is not one number.

    Fields named `final_*` are needed an episode; `what` names the format: "a D4RL file".
    """
    schema = selection.schema
    address = selection.store.address
    held = {(field.name, field.per) for field in schema.fields}
    per = {name: "episode" if name.startswith("final_") else "step" for name in needed}
    missing = [name for name in needed if (name, per[name]) not in held]
    if missing:
        raise DatasetError(
            f"{what} needs the fields {listed(needed)}; {address} lacks {listed(missing)}"
        )
    if "reward" in needed and schema.field("reward").shape:
        raise DatasetError(f"{what} needs one reward a step")


def check_room(selection: EpisodeSelection, destination: Path, advice: str = "") -> None:
    """Refuse a disk without room for the selection's uncompressed values.

    HDF5 can crash the process when the disk fills up. `advice` ends the message.
    """
    needed = field_bytes(selection.schema.fields, selection.steps)
    free = shutil.disk_usage(next(parent for parent in destination.parents if parent.is_dir())).free
    if free < needed:
        sizes = f"it may take {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free"
        raise DatasetError(f"cannot write {destination}: {sizes}; export to another disk{advice}")


# Checks before writing, and notes.
def refuse_options(path: Path, key: str, options: Any, remedy: str) -> None:
    """Refuse options for a file with notes at `key`, which they could not change."""
    names = [
        field.name for field in fields(options) if getattr(options, field.name) != field.default
    ]
    if names:
        subject = f"option {names[0]} has" if len(names) == 1 else f"options {listed(names)} have"
        refuse(path, key, f"{subject} no effect on a file with gaitforge's notes; {remedy}")


def check_notes(
    source: Path | str,
    key: str,
    rows: pa.Table,
    span: Span,
    *,
    remedy: str,
    rewards: np.ndarray | None = None,
    **flags: np.ndarray | None,
) -> None:
    """Refuse catalog rows (E,) from the notes that contradict the arrays beside them.

    Args:
        source, key: what messages name: the file or folder, and where its notes are.
        span: the episodes by the arrays.
        remedy: ends the message, such as "delete the group to use the arrays".
        rewards: (T,) of these episodes, end to end; None where there is no scalar reward.
        **flags: terminated, truncated: (E,) bool by the arrays; None where the layout has none.
    """

    def compare(name: str, actual: np.ndarray, tolerance: np.ndarray | float = 0.0) -> None:
        values = _numbers(source, key, rows, name)
        if len(values) != len(actual):
            refuse(source, key, f"the notes have {len(values)} episodes, not {len(actual)}")
        # An episode with NaN, which is about to be dropped, contradicts nothing.
        if (differ := ~(np.abs(values - actual) <= tolerance) & ~np.isnan(actual)).any():
            row = int(np.argmax(differ))
            problem = f"{name} of episode {span.first + row} is {values[row]:.7g} in the notes"
            arrays = f"but {float(actual[row]):.7g} in the arrays"
            refuse(source, key, f"{problem}, {arrays}; {remedy}")

    lengths = span.lengths
    compare("length", lengths)
    for name, values in flags.items():
        if values is not None:
            compare(name, values)
    if rewards is not None:
        compare("return", episode_returns(rewards, lengths), _summation_error(rewards, lengths))


def _numbers(source: Path | str, key: str, rows: pa.Table, name: str) -> np.ndarray:
    """A column as float64, with NaN, which equals nothing, for a missing value."""
    if name not in rows.column_names:
        refuse(source, key, f"the notes lack the column {name}")
    column = rows.column(name)
    try:
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowException:
        refuse(source, key, f"the column {name} of the notes is not of numbers")


def _summation_error(rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(E,) largest difference between a collector's return and the sum of the stored rewards.

    It summed n rewards in some order, at the coarsest in float32, which is off by at most n units
    in the last place of the sum of their magnitudes (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 4.2), and perhaps before they were rounded to their dtype.
    """
    size = episode_returns(np.abs(rewards.astype(np.float64)), lengths)
    relative = lengths * float(np.finfo(np.float32).eps)
    smallest = 0.0
    if rewards.dtype.kind == "f":
        rounding = np.finfo(rewards.dtype)
        relative = relative + float(rounding.eps)
        smallest = float(rounding.smallest_subnormal)
    return relative * size + lengths * smallest
