"""The registry of other projects' dataset formats, and which of them a source seems to be of.

    from gaitforge.datasets.formats.transfer.exporting import export_selection
    from gaitforge.datasets.formats.transfer.importing import import_source

    import_source("d4rl", "hopper_medium.hdf5", "hopper.zarr")
    export_selection("d4rl", open_store("hopper.zarr").select(), "again.hdf5")

A plug-in or another package brings a format: an `Importer` and an `Exporter` (`protocol.py`), and
a `FormatEntry` that an entry point names, see docs/howto/format.md. A format's modules load when it
is used, so its packages are optional. Bad input raises DatasetError
everywhere: one line that names the file and the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from gaitforge.common.errors import DatasetError, listed, missing_package, names_allowed
from gaitforge.common.extensions import extension, extension_names

if TYPE_CHECKING:
    from gaitforge.datasets.formats.protocol import Exporter, Importer


@dataclass(frozen=True)
class FormatEntry:
    """One format.

    Attributes:
        summary: one line for people.
        layout: what it is on disk.
        importer, exporter: "module:class".
        needs: packages beyond the project's own; extra: the extra that installs them.
    """

    summary: str
    layout: str
    importer: str
    exporter: str
    needs: tuple[str, ...] = ()
    extra: str = ""

    @property
    def missing(self) -> list[str]:
        """The packages of `needs` that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


FORMATS: dict[str, FormatEntry] = {}
"""Formats of the core: none; plug-ins and other packages bring them."""


def format_names() -> list[str]:
    """The formats here, and those of plug-ins and other packages."""
    return list(dict.fromkeys([*FORMATS, *extension_names("format")]))


def find_format(name: str) -> FormatEntry:
    """The entry of a format; DatasetError if there is none, or another package's is broken."""
    if name in FORMATS:
        return FORMATS[name]
    if (packaged := extension("format", name)) is None:
        raise DatasetError(f"unknown format '{name}'; {names_allowed(name, format_names())}")
    entry = packaged.load()
    if not isinstance(entry, FormatEntry):
        raise DatasetError(f"{packaged.where} is no FormatEntry: {packaged.path}")
    return entry


def importer_class(name: str) -> "type[Importer]":
    """The class that reads a format; DatasetError if it needs packages that are not installed."""
    return _load(name, find_format(name).importer)


def exporter_class(name: str) -> "type[Exporter]":
    """The class that writes a format; DatasetError if it needs packages that are not installed."""
    return _load(name, find_format(name).exporter)


def _load(name: str, path: str) -> Any:
    entry = find_format(name)
    if entry.missing:
        raise DatasetError(missing_package(f"format {name}", entry.missing, entry.extra))
    module, cls = path.split(":")
    return getattr(import_module(module), cls)


def options_of(cls: type[Any], values: Mapping[str, Any] | None) -> Any:
    """The options `cls` with the given values; DatasetError for an unknown or refused one."""
    kinds = get_type_hints(cls, include_extras=True)
    for name, value in (values or {}).items():
        if name not in kinds:
            raise DatasetError(f"unknown option '{name}'; {names_allowed(name, kinds)}")
        allowed = getattr(kinds[name], "__metadata__", [(value,)])[0]
        if value not in allowed:
            raise DatasetError(f"option {name} is {value!r}; allowed: {listed(allowed)}")
    return cls(**(values or {}))


def recognised_as(source: str | Path) -> list[str]:
    """The formats that a source seems to be of, of those whose packages are installed."""
    return [name for name in format_names() if _recognises(name, Path(source))]


def _recognises(name: str, source: Path) -> bool:
    try:
        return not find_format(name).missing and importer_class(name).recognises(source)
    except (DatasetError, OSError):  # a broken format of another package, or no right to read
        return False
