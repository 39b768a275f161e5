"""What the doctor examines, and what it finds.

The data under examination are a selection of a store, or a source that a format's reader reads.

The doctor's findings come with the commands that remove or note a fault.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.common.extensions import extension_names
from gaitforge.datasets.catalog.summaries import episode_name
from gaitforge.datasets.data_checks import DataFinding, Severity
from gaitforge.datasets.edits.operations import whole_episode_fields
from gaitforge.datasets.formats import format_names, importer_class, recognised_as
from gaitforge.datasets.formats.protocol import Importer
from gaitforge.datasets.formats.sources import Block, Span, blocks, not_finite_allowed
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection import EpisodeSelection

# Findings.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The worst one first."""


@dataclass(frozen=True)
class Example:
    """An episode that shows a finding: its name, a step of it, and the command that shows it."""

    episode: str
    step: int
    view: str


@dataclass(frozen=True, eq=False)
class Finding(DataFinding):
    """One kind of fault, and where it is.

    Attributes:
        rows: (N,) numbers of the episodes that it is about; empty if it is about all.
        location: field and channel that show it, to find the step of an example.
        steps: (N,) the step of each of `rows` that shows it, where the check knows it.
        remedy: which command helps: "drop", "annotate", "leave out" (of an import), "limitations"
            (of the card), "export", "verify", "trim head", "trim tail" (of a step), or "cut" (of
            episodes where the doctor sees seams).
        details: further JSON values about it.
        examples: up to three; commands: to paste into a shell, in order.
    """

    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    location: tuple[str, int] | None = None
    steps: np.ndarray | None = None
    remedy: str = "annotate"
    details: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    commands: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON values."""
        names = ("name", "severity", "text", "count")
        examples = [vars(example) for example in self.examples]
        record = {name: getattr(self, name) for name in names}
        return {**record, **self.details, "examples": examples, "commands": list(self.commands)}


def of_episodes(
    name: str, severity: Severity, text: str, rows: np.ndarray, **details: Any
) -> list[Finding]:
    """A finding about some episodes; none without any."""
    return [Finding(name, severity, text, len(rows), rows, **details)] if len(rows) else []


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first, then warnings, then notes."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


# Data under examination.
Arrays = Mapping[str, np.ndarray]
Columns = Mapping[str, np.ndarray]

FINAL = "final_obs"
"""Field per episode that is examined beside the steps: the observation after the last one."""

MOST_CHANNELS = 4096
"""Fields with more numbers a step (pictures) are not examined."""

_VIEW = "view"
"""The command that plays episodes, of a plug-in."""
_TILE = "terrain_variant"
"""Column of episodes that the viewer can play: of the legged task."""

_COLUMNS = (
    "episode",
    "length",
    "seed",
    "return",
    "success",
    "terminated",
    "truncated",
    "action_noise",
    "split",
    "expert",
    "expert_hash",
    "robot",
    _TILE,
)
_IDS = 400
"""Episodes of one command: their ids stay below the 10,000 characters of a condition."""


@dataclass(frozen=True, eq=False)
class Data:
    """Episodes to examine.

    Attributes:
        address: of a store, or path of a source.
        schema: of the store, or of what an import would make.
        spans: the episodes in order, as they are read, which bounds the memory.
        read: gives field -> (T, *shape) and catalog column -> (E,) of a span; may raise.
        format: of a source; "" for a store. settings: of its reader, as "NAME=VALUE".
        stated: field -> min, max, mean, std, as the source's own files state them.
        close: releases the source.
    """

    address: str
    schema: Schema
    spans: Sequence[Span]
    read: Callable[[Span], tuple[Arrays, Columns]]
    format: str = ""
    settings: Sequence[str] = ()
    stated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    close: Callable[[], object] = lambda: None

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return sum(span.n_steps for span in self.spans)

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return sum(len(span.lengths) for span in self.spans)

    @property
    def store(self) -> str:
        """The store, quoted for a shell; for a source, the one that commands import it into."""
        return shlex.quote(f"{Path(self.address).stem}.zarr" if self.format else self.address)

    def view(self, episode: int, columns: Columns) -> str:
        """The command that plays an episode, or else lists its columns."""
        plays = _TILE in columns and _VIEW in extension_names("command")
        verb = _VIEW if plays else "query"
        return f"gaitforge {verb} {self.store} --episode {episode_name(episode)}"

    def commands(self, finding: Finding, ids: Sequence[int]) -> list[str]:
        """The commands that take a finding about these episodes away, or note it."""
        store = self.store
        source = shlex.quote(self.address)
        settings = "".join(f" --set {shlex.quote(setting)}" for setting in self.settings)
        first = f"gaitforge import {self.format} {source} {store}{settings}"
        if finding.remedy == "verify":  # an import would be refused for the reason in the text
            return [] if self.format else [f"gaitforge verify {store}"]
        if finding.remedy == "leave out" and self.format:
            return [f"{first} --drop-nan"]
        if finding.remedy == "export":
            return [first, f"gaitforge export {store} {self.format} {store}-{self.format}"]
        edits = self._edits(finding, ids)
        return [first, *edits] if self.format else edits

    def _edits(self, finding: Finding, ids: Sequence[int]) -> list[str]:
        """The commands for a store."""
        name = finding.name
        store = self.store
        remedy = finding.remedy
        if remedy == "limitations" or not ids:
            line = shlex.quote(f"{name}: {finding.text}")
            return [f"gaitforge card {store} --add-limitation {line}"]
        whole = whole_episode_fields(self.schema)
        if remedy in ("trim head", "trim tail") and whole:
            remedy = "annotate"  # such a field would be wrong of a part of an episode
        if remedy == "cut":
            apart = shlex.quote(f"{shlex.split(store)[0].removesuffix('.zarr')}-cut.zarr")
            without = f" --without {shlex.quote(','.join(whole))}" if whole else ""
            return [f"gaitforge dataset cut {store} {apart}{without}"]
        verb, option = {
            "drop": ("drop", f"--reason {name}"),
            "trim head": ("trim", "--head 1"),
            "trim tail": ("trim", "--tail 1"),
        }.get(remedy, ("annotate", f"doctor_{name.replace('-', '_')}=true"))
        pieces = [ids[at : at + _IDS] for at in range(0, len(ids), _IDS)]
        wheres = [f'--where "episode in ({", ".join(map(str, piece))})"' for piece in pieces]
        return [f"gaitforge dataset {verb} {store} {where} {option}" for where in wheres]


def catalog_columns(episodes: Any, group_by: Sequence[str]) -> Columns:
    """The columns that checks read, of a table of episodes or of column -> values, as arrays."""
    if isinstance(episodes, pa.Table):
        episodes = {name: episodes.column(name).to_pylist() for name in episodes.column_names}
    names = (name for name in (*_COLUMNS, *group_by) if name in episodes)
    return {name: np.asarray(episodes[name]) for name in names}


def store_data(selection: EpisodeSelection) -> Data:
    """A selection of a store."""
    schema = selection.schema
    names = _examined(selection.schema)
    columns = catalog_columns(selection.episodes(), schema.group_by)

    def read(span: Span) -> tuple[Arrays, Columns]:
        assert isinstance(span, Block)
        span_columns = {name: values[span.episodes] for name, values in columns.items()}
        return span.read(names), span_columns

    return Data(selection.store.address, schema, list(blocks(selection)), read)


def source_data(
    source: str, name: str = "", options: Any = None, settings: Sequence[str] = ()
) -> Data:
    """A file or folder of another project's format, which is not imported.

    Args:
        name: the format; "" for the only one whose reader takes the source.
        options: of its reader; None for the defaults.
        settings: the options as an import takes them, for the commands.

    Raises:
        DatasetError: no reader or several take it, or the one asked for refuses it.
    """
    name, importer = _opened(source, [name] if name else format_names(), options)
    schema = importer.schema
    names = _examined(importer.schema)

    def read(span: Span) -> tuple[Arrays, Columns]:
        with not_finite_allowed():
            part = importer.read_part(span)
        columns = catalog_columns(part.episodes, schema.group_by)
        return {name: part.arrays[name] for name in names}, columns

    origin = name, settings, importer.statistics, importer.close
    return Data(source, schema, importer.parts, read, *origin)


def _examined(schema: Schema) -> list[str]:
    names = [*schema.names("step"), *({FINAL} & set(schema.names("episode")))]
    return [name for name in names if np.prod(schema.field(name).shape) <= MOST_CHANNELS]


def _why_unread(source: str, refusals: Mapping[str, str]) -> str:
    """What is wrong with a source that no format reads, of the refusals by format; "" if unknown.

    That is what the format says that recognises it, or else what several say alike, as of a file
    that is damaged.
    """
    known = [name for name in recognised_as(source) if name in refusals]
    if known:
        return "; ".join(f"read as {name}: {refusals[name]}" for name in known)
    texts = list(refusals.values())
    alike = [text for text in dict.fromkeys(texts) if texts.count(text) > 1]
    return listed(alike) if Path(source).is_file() else ""


def _opened(source: str, formats: Iterable[str], options: Any) -> tuple[str, Importer]:
    """The only one of the formats that reads the source; the refusal, if it is the only one."""
    opened: dict[str, Importer] = {}
    refusals: dict[str, str] = {}
    asked = list(formats)
    for name in asked:
        try:
            cls = importer_class(name)
            opened[name] = cls(source, options or cls.Options())
        except (DatasetError, OSError) as error:
            if len(asked) == 1:
                raise
            refusals[name] = str(error)
    if len(opened) == 1:
        return next(iter(opened.items()))
    for importer in opened.values():
        importer.close()
    names = listed(opened or asked)
    if opened:
        why = f"several formats read it ({names})"
        raise DatasetError(f"{source} is no store, and {why}; give --format, one of {names}")
    if reason := _why_unread(source, refusals):
        advice = "--format takes a format, and --set its options"
        raise DatasetError(f"{source} is no store, and no format reads it; {reason}; {advice}")
    raise DatasetError(
        f"{source} is no store, and no format reads it; give --format, one of {names}"
    )
