"""The base classes of a format's reader and writer.

A reader (`Importer`) inspects its source when it is made: which schema the store gets and how the
episodes are cut into parts. Then it reads any of these parts, in any order and from several
threads. A part's content depends on the source, the options and the part alone, so an interrupted
import resumes with the missing parts. The drivers in `transfer/` do everything else: staging,
threads, commits, verification, temporary names and renames.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from gaitforge.datasets.formats.sources import Span, catalog_columns
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection.actions import WORDS
from gaitforge.datasets.selection.selection import EpisodeSelection

Advance = Callable[[int], None]
"""Progress callback: takes the number of steps just done; may raise to stop the work."""

Begin = Callable[[int], Advance]
"""Takes the total number of steps, returns a progress callback."""


def no_progress(total: int) -> Advance:
    """A `Begin` that reports nothing."""
    return lambda steps: None


@dataclass(frozen=True)
class PartInput:
    """The content of one part.

    Attributes:
        arrays: every field of the schema -> (T, *shape), or (E, *shape) for one per episode.
        episodes: catalog column -> (E,) values, or a table of them.
    """

    arrays: Mapping[str, np.ndarray]
    episodes: Mapping[str, Sequence[Any] | np.ndarray] | pa.Table


@dataclass(frozen=True)
class Carried:
    """Fields that were `kept` ("observations -> obs") and `left` (with the reason), as text.

    `notes` are assumptions and decisions.
    """

    kept: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The result of an import or export, including parts that an earlier call imported.

    `bytes` are uncompressed bytes of all fields; `seconds` is the duration of this call.
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


@dataclass(frozen=True)
class NoOptions:
    """No options."""


@dataclass(frozen=True)
class ExportOptions:
    """Options of every writer.

    Attributes:
        actions: "executed" or "clean"; empty for executed ones where the store tells them, as
            rewards and next observations follow from these.
    """

    actions: Annotated[str, WORDS] = ""


class Importer(ABC):
    """Reads one source; constructed as `cls(source, options)`.

    The constructor checks what it can without reading all values, `read_part` checks the values
    it reads (`check_finite`, right dtype). Both raise DatasetError: one line that names file and
    key.

    Attributes:
        Options: frozen dataclass with a default for every option.
        schema: of the store.
        identity: hexadecimal digest of the content and the options (`sources.identity`).
        files: the files it reads; when their size or time changes, an interrupted import restarts.
        parts: how the episodes are cut, which bounds the memory.
        carried: what is converted and what is not.
        metadata: what the store's parts cannot hold; the format's exporter writes it back.
        selections: name -> ids of its episodes; the driver saves them as selections.
        statistics: field -> min, max, mean, std of its channels, where the source's files state
            them; nobody has compared them with the values.
    """

    Options: ClassVar[type[Any]] = NoOptions
    schema: Schema
    identity: str
    files: Sequence[Path]
    parts: Sequence[Span]
    carried: Carried
    metadata: bytes = b""
    selections: Mapping[str, np.ndarray] = MappingProxyType({})
    statistics: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    @abstractmethod
    def __init__(self, source: str, options: Any) -> None: ...

    @classmethod
    def recognises(cls, source: Path) -> bool:
        """Whether a source seems to be of this format, also if it is damaged or incomplete."""
        return False

    @abstractmethod
    def read_part(self, part: Span) -> PartInput:
        """The content of one of the `parts`; called from several threads."""

    def catalog(self, part: Span, **columns: Any) -> dict[str, Any]:
        """The catalog's columns of a part; see `catalog_columns`."""
        first = part.first
        group_by = self.schema.group_by
        return catalog_columns(first, part.lengths, self.identity, group_by, **columns)

    @property
    def episodes(self) -> int:
        """Episodes of all parts."""
        return sum(len(part.lengths) for part in self.parts)

    @property
    def steps(self) -> int:
        """Steps of all parts."""
        return sum(part.n_steps for part in self.parts)

    def close(self) -> None:  # noqa: B027, most have nothing to release
        """Release the source."""


class Exporter(ABC):
    """Writes selections; constructed as `cls(options)`.

    Every export is read back by the format's importer and compared before it appears.

    Attributes:
        Options: frozen dataclass with a default for every option. Its `notes`, if it has one,
            says whether gaitforge's schema and catalog are embedded (`notes.py`), its `actions`
            which ones are written.
        reading: importer options that recover the most from an export without notes.
        actions: those that are written by default, see `Selection.with_actions`; "clean" for a
            layout without rewards, whose actions are labels to imitate.
    """

    Options: ClassVar[type[Any]] = ExportOptions
    reading: ClassVar[Mapping[str, Any]] = {}
    actions: ClassVar[str] = ""

    def __init__(self, options: Any) -> None:
        self._options = options

    def check(self, selection: EpisodeSelection, destination: Path) -> None:  # noqa: B027, most hold all
        """Raise DatasetError if the format cannot hold the selection; nothing is written yet."""

    @abstractmethod
    def write(self, selection: EpisodeSelection, temporary: Path, advance: Advance) -> Carried:
        """Write a new file or folder `temporary`, which the driver renames.

        `blocks.blocks` bounds the memory.
        """

    def as_read(
        self, schema: Schema, arrays: Mapping[str, np.ndarray], lengths: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """Fields as the importer returns them; by default unchanged."""
        return arrays
