"""What a format's reader and writer are.

A reader (``Importer``) looks at a source once when it is made, says what store it becomes and in
which parts, and then gives any part by its number. Parts are numbered in the source's own order and
a part's content depends on the source, the options and the number alone: an import that was
interrupted goes on with the parts that are missing, and parts may be read in any order and from
several threads. The drivers (``importing``, ``exporting``) own everything else: staging, threads,
commits, verification, temporary names and renames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from datasets.schema import Schema
from datasets.selection.selection import Selection

Advance = Callable[[int], None]
"""Hears of steps that were done; stops the work by raising."""


Begin = Callable[[int], Advance]
"""Is told once how many steps there are, and gives whom to tell of those that are done."""


def unheard(total: int) -> Advance:
    """A ``Begin`` that nobody listens to."""
    return lambda steps: None


@dataclass(frozen=True)
class PartInput:
    """The content of one part, as ``Store.write_part`` takes it.

    Attributes:
        steps: field -> (T, *shape); episodes: column -> (E,) values, or a table of them.
        per_episode: field -> (E, *shape).
    """

    steps: Mapping[str, np.ndarray]
    episodes: Mapping[str, Sequence[Any] | np.ndarray] | pa.Table
    per_episode: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Carried:
    """What became of a source's or a selection's content: lines for people, one a thing.

    Attributes:
        kept: such as "observations -> obs".
        left: what the other side cannot hold, and why.
        notes: what was assumed or decided.
    """

    kept: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """An import or export that was done.

    Attributes:
        format, source, destination: what went where.
        episodes, steps, parts: of the whole, what was there already included.
        bytes: uncompressed bytes of the steps' fields.
        seconds: that this call took.
        carried: what was carried over, and what was not.
    """

    format: str
    source: str
    destination: str
    episodes: int
    steps: int
    parts: int
    bytes: int
    seconds: float
    carried: Carried


class Importer(Protocol):
    """Reads one source; made as ``cls(source, options)``.

    Opening checks what can be known without reading all values and raises DatasetError with one
    line that names file and key; ``read_part`` does so for what it reads (not finite, wrong dtype).
    Memory is bounded by the parts: ``parts.pack_episodes`` cuts them.

    Attributes:
        Options: frozen dataclass with defaults for everything.
        schema: of the store; identity: hexadecimal digits of the content and of how it is read
            (``sources.identity``).
        files: what is read; a change of their sizes or times starts an interrupted import anew.
        part_lengths: for each part, the lengths of its episodes.
        carried: what becomes of the content.
    """

    Options: ClassVar[type[Any]]
    schema: Schema
    identity: str
    files: Sequence[Path]
    part_lengths: Sequence[np.ndarray]
    carried: Carried

    def __init__(self, source: str, options: Any) -> None: ...

    def read_part(self, number: int) -> PartInput:
        """The content of a part; called from several threads at once."""
        ...

    def close(self) -> None:
        """Release the source."""
        ...


class Exporter(Protocol):
    """Writes selections; made as ``cls(options)``.

    What was written is read again with the format's reader and compared, before it appears. Where
    that does not give back equal fields under equal names, an exporter says so by further members:

    - ``reading``: options of the reader, name -> value, with which it gives back the most of what
      was written without notes;
    - ``as_read(schema, steps, lengths)``: what the reader makes of the fields a step of consecutive
      episodes.

    Attributes:
        Options: frozen dataclass with defaults for everything; its ``notes``, if any, says whether
            the catalog and schema are kept.
    """

    Options: ClassVar[type[Any]]

    def __init__(self, options: Any) -> None: ...

    def check(self, selection: Selection, destination: Path) -> None:
        """Refuse, before anything is written, what the format cannot hold."""
        ...

    def write(self, selection: Selection, temporary: Path, advance: Advance) -> Carried:
        """Write a file or folder at ``temporary``, which does not exist; the driver renames it.

        Memory is bounded by ``Selection.units``.
        """
        ...
