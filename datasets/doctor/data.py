"""What the doctor examines: a selection of a store, or a source that some format's reader reads."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.datasets.catalog.listing import episode_name
from gaitforge.datasets.errors import DatasetError, listed
from gaitforge.datasets.formats import FORMATS, importer_class, options_of
from gaitforge.datasets.formats.blocks import Block, blocks
from gaitforge.datasets.formats.checks import not_finite_allowed
from gaitforge.datasets.formats.protocol import Importer
from gaitforge.datasets.formats.sources import Span
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection.selection import Selection

Arrays = Mapping[str, np.ndarray]
Columns = dict[str, np.ndarray]

MOST_CHANNELS = 4096
"""Fields with more numbers a step (pictures) are not examined."""
_COLUMNS = (
    *("episode", "length", "seed", "return", "success", "terminated", "truncated"),
    *("action_noise", "split", "expert", "expert_hash", "robot"),
)
_IDS = 400
"""Episodes of one command: their ids stay below the 10,000 characters of a condition."""


class Data(ABC):
    """Episodes to examine; `spans` bound the memory.

    Attributes:
        address: of a store, or path of a source; schema: of the store or its import.
        spans: the episodes in order, as they are read.
        stated: field -> name ("min", "mean", …) -> values that the data's own files state.
        format: name of a source's format; "" for a store.
    """

    format: str = ""
    address: str
    schema: Schema
    spans: Sequence[Span]
    stated: Mapping[str, Mapping[str, Any]] = {}

    @abstractmethod
    def load(self, span: Span) -> tuple[Arrays, Columns]:
        """Step field -> (T, *shape), and catalog column -> (E,), of a span; may raise."""

    @abstractmethod
    def commands(self, remedy: str, name: str, text: str, ids: Sequence[int]) -> list[str]:
        """The commands that drop episodes, annotate them, or note a fault of all of them."""

    @property
    def store(self) -> str:
        """The store, quoted for a shell; for a source, the one that commands import it into."""
        return shlex.quote(self.address)

    @cached_property
    def names(self) -> list[str]:
        """The step fields that are examined."""
        fields = (self.schema.field(name) for name in self.schema.names("step"))
        return [each.name for each in fields if np.prod(each.shape) <= MOST_CHANNELS]

    def close(self) -> None:  # noqa: B027, a store has nothing open
        """Release the source."""

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return sum(span.n_steps for span in self.spans)

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return sum(len(span.lengths) for span in self.spans)

    def view(self, episode: int) -> str:
        """The command that plays an episode."""
        return f"gaitforge view {self.store} --episode {episode_name(episode)}"

    def edits(self, remedy: str, name: str, text: str, ids: Sequence[int]) -> list[str]:
        """Commands on the store; several where a condition could not hold all episodes."""
        if not len(ids):
            return [f"gaitforge card {self.store} --limitations {shlex.quote(f'{name}: {text}')}"]
        pieces = (ids[at : at + _IDS] for at in range(0, len(ids), _IDS))
        wheres = [f'--where "episode in ({", ".join(map(str, piece))})"' for piece in pieces]
        verb, said = ("drop", f" --reason {name}") if remedy == "drop" else ("annotate", "")
        more = said or f" doctor={name}"
        return [f"gaitforge dataset {verb} {self.store} {where}{more}" for where in wheres]


class StoreData(Data):
    """A `selection` of a store; `catalog`: column -> (E,), read without any array."""

    def __init__(self, selection: Selection) -> None:
        self.address, self.schema = selection.store.address, selection.schema
        self.selection = selection
        self.catalog = columns_of(selection.episodes(), self.schema.group_by)

    @cached_property
    def spans(self) -> Sequence[Span]:  # type: ignore[override]
        """See `Data`."""
        return list(blocks(self.selection))

    def load(self, span: Span) -> tuple[Arrays, Columns]:
        """See `Data.load`."""
        assert isinstance(span, Block)
        columns = {name: values[span.episodes] for name, values in self.catalog.items()}
        return span.read(self.names), columns

    def sampled(self, steps: int) -> "StoreData":
        """About so many steps of episodes chosen at random, always the same ones."""
        share, rows = steps / self.selection.steps, self.selection.rows
        if share >= 1:
            return self
        count = max(1, round(share * len(rows)))
        chosen = np.random.default_rng(0).choice(rows, count, replace=False)
        return StoreData(self.selection.with_rows(np.sort(chosen)))

    def commands(self, remedy: str, name: str, text: str, ids: Sequence[int]) -> list[str]:
        """See `Data.commands`."""
        if remedy == "verify":
            return [f"gaitforge verify {self.store}"]
        return self.edits(remedy, name, text, ids)


class ForeignData(Data):
    """A source of another project's format, read without an import."""

    def __init__(self, name: str, source: str, importer: Importer) -> None:
        self.format, self.address, self.schema = name, source, importer.schema
        self.spans, self.stated = importer.parts, importer.statistics
        self._importer = importer
        self._last: tuple[Span, tuple[Arrays, Columns]] | None = None

    def load(self, span: Span) -> tuple[Arrays, Columns]:
        """See `Data.load`."""
        if self._last is None or self._last[0] is not span:
            with not_finite_allowed():
                part = self._importer.read_part(span)
            arrays = {name: part.arrays[name] for name in self.names}
            self._last = span, (arrays, columns_of(part.episodes, self.schema.group_by))
        return self._last[1]

    def close(self) -> None:
        """See `Data.close`."""
        self._importer.close()

    @property
    def store(self) -> str:
        """See `Data.store`."""
        return shlex.quote(f"{Path(self.address).stem}.zarr")

    def commands(self, remedy: str, name: str, text: str, ids: Sequence[int]) -> list[str]:
        """See `Data.commands`: an import comes first, since sources are not edited."""
        if remedy == "verify":
            return []  # an import would be refused for the reason that the text gives
        first = f"gaitforge import {self.format} {shlex.quote(self.address)} {self.store}"
        if name == "not-finite":
            return [f"{first} --drop-nan"]
        if remedy == "export":
            return [first, f"gaitforge export {self.store} {self.format} {self.store[:-5]}-again"]
        return [first, *self.edits(remedy, name, text, ids)]


def columns_of(episodes: Any, group_by: Sequence[str]) -> Columns:
    """The columns that checks read, of a table of episodes or of column -> values, as arrays."""
    if isinstance(episodes, pa.Table):
        there, values = episodes.column_names, lambda name: episodes.column(name).to_pylist()
    else:
        there, values = list(episodes), episodes.__getitem__
    return {name: np.asarray(values(name)) for name in (*_COLUMNS, *group_by) if name in there}


def open_source(source: str, name: str = "", options: Any = None) -> ForeignData:
    """Open a file or folder of another project's format.

    Args:
        name: the format; "" for the only one whose reader takes the source.
        options: of its reader; None for the defaults.

    Raises:
        DatasetError: no reader or several take it, or the one asked for refuses it.
    """
    if name:
        cls = importer_class(name)
        return ForeignData(name, source, cls(source, options or cls.Options()))
    taken: dict[str, Importer] = {}
    for each in (name for name, entry in FORMATS.items() if not entry.missing):
        cls = importer_class(each)
        try:
            taken[each] = cls(source, options_of(cls.Options, None))
        except (DatasetError, OSError):
            continue
    if len(taken) != 1:
        for importer in taken.values():
            importer.close()
        why = f"several formats read it ({listed(taken)})" if taken else "no format reads it"
        names = listed(taken or FORMATS)
        raise DatasetError(f"{source} is no store, and {why}; give --format, one of {names}")
    [(name, importer)] = taken.items()
    return ForeignData(name, source, importer)
