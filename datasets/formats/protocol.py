"""The base classes of a format's reader and writer, and the README of an export.

A reader (`Importer`) inspects its source when it is made: which schema the store gets and how the
episodes are cut into parts. Then it reads any of these parts, in any order and from several
threads. A part's content depends on the source, the options and the part alone, so an interrupted
import resumes with the missing parts. The drivers in `transfer/` do everything else: staging,
threads, commits, verification, temporary names and renames.

The README has YAML front matter as the Hugging Face Hub reads it, and text.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import amount
from gaitforge.datasets.formats.sources import Span, catalog_columns
from gaitforge.datasets.schema import WORDS, Schema, actions_in_words
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.datasets.storage.about import About, read_about

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
            says whether gaitforge's schema and catalog are embedded (`sources.py`), its `actions`
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

        `sources.blocks` bounds the memory.
        """

    def as_read(
        self, schema: Schema, arrays: Mapping[str, np.ndarray], lengths: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """Fields as the importer returns them; by default unchanged."""
        return arrays


# The README of an export.
README = "README.md"
TAGS = ("robotics", "gaitforge", "locomotion", "offline-reinforcement-learning")


def front_matter(about: About, name: str, episodes: int, tags: tuple[str, ...] = ()) -> str:
    """The YAML of a dataset's card on the Hub: licence, name, tags, task and size category.

    Values are JSON, which YAML includes. A licence that is no identifier becomes `other`.
    """
    entries: dict[str, object] = {}
    if about.licence:
        is_identifier = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]*", about.licence)
        entries["license"] = about.licence.lower() if is_identifier else "other"
        if not is_identifier:
            entries["license_name"] = about.licence
    entries |= {
        "pretty_name": name,
        "tags": [*TAGS, *tags],
        "task_categories": ["robotics", "reinforcement-learning"],
        "size_categories": [_size(episodes)],
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items()]
    return "\n".join(["---", *lines, "---", ""])


def readme(selection: EpisodeSelection, name: str, load: str, tags: tuple[str, ...] = ()) -> str:
    """A README of a selection's export, with the texts of the store's `about.json`.

    Args:
        load: lines of Python that load it.
    """
    about = read_about(selection.store)
    schema = selection.schema
    lines = [front_matter(about, name, len(selection), tags), f"# {plain(name)}", ""]
    lines += [plain(about.description), ""] if about.description else []
    lines += [
        f"{amount(len(selection), 'episode')}, {amount(selection.steps, 'control step')} of "
        f"{schema.control_dt_s:g} s; robot {plain(schema.robot)}. Written by gaitforge from a "
        f"selection with the hash `{selection.hash}`.",
        "",
        "```python",
        load,
        "```",
        "",
    ]
    if words := actions_in_words(schema):
        lines += [f"Actions: {words}.", ""]
    titles = {"licence": "Licence", "authors": "Authors", "limitations": "Limitations"}
    for key, title in titles.items():
        if text := about.texts.get(key):
            lines += [f"## {title}", "", plain(text), ""]
    if about.citation:
        lines += ["## Citation", "", "```bibtex", fenced(about.citation), "```", ""]
    lines += ["## Fields", ""]
    for field in schema.fields:
        meaning = f"{plain(field.description)} ({plain(field.unit)})"
        lines.append(f"- `{field.name}` {list(field.shape)}, per {field.per}: {meaning}")
    return "\n".join([*lines, ""])


def plain(text: str) -> str:
    """Text as Markdown without HTML, links, pictures or fences of its own."""
    escaped = re.sub(r"(\\|<(?=[A-Za-z/!?]))", r"\\\1", text)
    return fenced(escaped.replace("](", "]\\("))


def fenced(text: str) -> str:
    """Text that cannot end the fence around it."""
    return text.replace("```", "'''")


def _size(count: int) -> str:
    """The Hub's category of a number of examples."""
    limits = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 10**6: "100K<n<1M"}
    return next((name for limit, name in limits.items() if count < limit), "1M<n<10M")
