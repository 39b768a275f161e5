"""Formats of other projects, in and out, by name.

    import_source("d4rl", "hopper_medium.hdf5", "hopper.zarr")
    export_selection("d4rl", open_store("hopper.zarr").select(), "again.hdf5")

A format's module is loaded when the format is asked for, and a package of its own only when it is
used, so that a format nobody uses needs nothing installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from datasets.errors import DatasetError, listed
from datasets.formats.interface import Exporter, Importer, PartInput, Report


@dataclass(frozen=True)
class FormatEntry:
    """One format.

    Attributes:
        summary: one line for people; layout: what a source or destination is on disk.
        importer, exporter: "module:class" (see ``interface``); empty where there is none.
        needs: packages beside the project's own; extra: the extra that installs them.
    """

    summary: str
    layout: str
    importer: str
    exporter: str
    needs: tuple[str, ...] = ()
    extra: str = ""

    @property
    def missing(self) -> list[str]:
        """Those of ``needs`` that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


FORMATS: dict[str, FormatEntry] = {
    "d4rl": FormatEntry(
        "D4RL's flat HDF5, v0 to v2",
        "file.hdf5",
        "datasets.formats.d4rl.reader:D4rlImporter",
        "datasets.formats.d4rl.writer:D4rlExporter",
        ("h5py",),
        "hdf5",
    ),
    "fcnet": FormatEntry(
        "FCNet's three memory maps of quadruped trajectories",
        "folder of src_*.dat, tgt_*.dat, meta_*.dat",
        "datasets.formats.fcnet.reader:FcnetImporter",
        "datasets.formats.fcnet.writer:FcnetExporter",
    ),
    "minari": FormatEntry(
        "Minari datasets, HDF5 or Arrow, through the minari library",
        "folder, or the id of a local dataset",
        "datasets.formats.minari.reader:MinariImporter",
        "datasets.formats.minari.writer:MinariExporter",
        ("minari", "gymnasium"),
        "minari",
    ),
    "mocapact": FormatEntry(
        "MoCapAct's HDF5 of humanoid rollouts",
        "file.hdf5, or a folder of them",
        "datasets.formats.mocapact.reader:MocapactImporter",
        "datasets.formats.mocapact.writer:MocapactExporter",
        ("h5py",),
        "hdf5",
    ),
    "lerobot": FormatEntry(
        "LeRobot v3 (Parquet)",
        "folder",
        "datasets.formats.lerobot.reader:LerobotImporter",
        "datasets.formats.lerobot.writer:LerobotExporter",
    ),
}


def find_format(name: str) -> FormatEntry:
    """The entry behind a name.

    Raises:
        DatasetError: no such format.
    """
    if name not in FORMATS:
        raise DatasetError(f"unknown format '{name}'; formats: {listed(FORMATS)}")
    return FORMATS[name]


def importer_class(name: str) -> type[Importer]:
    """The class that reads a format.

    Raises:
        DatasetError: no such format, or its packages are not installed.
    """
    return _load(name, find_format(name).importer)


def exporter_class(name: str) -> type[Exporter]:
    """The class that writes a format.

    Raises:
        DatasetError: no such format, or its packages are not installed.
    """
    return _load(name, find_format(name).exporter)


def _load(name: str, where: str) -> Any:
    entry = FORMATS[name]
    if entry.missing:
        raise DatasetError(
            f"format {name} needs {listed(entry.missing)}: pip install 'gaitforge[{entry.extra}]'"
        )
    module, cls = where.split(":")
    return getattr(import_module(module), cls)


def options_of(kind: type[Any], given: Mapping[str, Any] | None) -> Any:
    """The importer's or exporter's options: its defaults with the given values.

    Raises:
        DatasetError: an option that it does not have.
    """
    known = list(kind.__dataclass_fields__)
    for name in given or {}:
        if name not in known:
            raise DatasetError(f"unknown option '{name}'; options: {listed(known)}")
    return kind(**(given or {}))


_DRIVERS = {"import_source": "importing", "export_selection": "exporting"}
"""Function -> its module, which brings the store with it: who only lists formats can spare that."""


def __getattr__(name: str) -> Any:
    if name not in _DRIVERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"datasets.formats.transfer.{_DRIVERS[name]}"), name)


__all__ = [
    "FORMATS",
    "Exporter",
    "FormatEntry",
    "Importer",
    "PartInput",
    "Report",
    "exporter_class",
    "find_format",
    "importer_class",
    "options_of",
]
