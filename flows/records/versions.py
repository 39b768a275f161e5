"""Versions of simulators in a store: episodes of several cannot be simulated again together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gaitforge.common.errors import listed
from gaitforge.datasets import DatasetError, Store
from gaitforge.flows.records.logs import log_event
from gaitforge.flows.records.part_records import records_folder
from gaitforge.flows.records.records import read_record, write_record

MIXED = "mixed-versions.json"
"""There in a store's records once the user has allowed several versions in it."""
_COLUMNS = ("simulator", "simulator_version")


def allow_mixed_versions(store_path: Path | str) -> None:
    """Let a store have parts of several versions of a simulator, from now on."""
    folder = records_folder(store_path)
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder / MIXED, {"allowed": True})


def check_versions(store: Store, store_path: Path | str, simulator: str, version: str) -> None:
    """Raise ValueError where a store has parts of another version and may not have several."""
    stored = _stored_versions(store)
    other_versions = sorted(
        recorded for name, recorded in stored if name == simulator and recorded not in (version, "")
    )
    if not other_versions:
        return
    allowed = read_record(records_folder(store_path) / MIXED)
    if isinstance(allowed, dict) and allowed.get("allowed") is True:
        versions = {"simulator": simulator, "version": version, "others": listed(other_versions)}
        log_event(records_folder(store_path), "warning", "versions are mixed", **versions)
        return
    # The version of an environment names several packages, and perhaps the simulator among them.
    name = "" if simulator in version else f"{simulator} "
    raise ValueError(
        f"{store_path} was made by {name}{'; '.join(other_versions)}, and this is {name}{version}: "
        "episodes of both cannot be simulated again together. Use that version, collect into "
        "another store, or give --mix-versions"
    )


def mixed_versions(stores: Sequence[Store]) -> dict[str, list[str]]:
    """Simulator -> its versions in the stores, where there are several."""
    versions: dict[str, set[str]] = {}
    for store in stores:
        for name, version in _stored_versions(store):
            versions.setdefault(name, set()).add(version)
    return {name: sorted(numbers) for name, numbers in versions.items() if len(numbers) > 1}


def check_catalog(
    store: Store, store_path: Path | str, allowed: bool, catalog: Mapping[str, Any]
) -> None:
    """`check_versions` for the columns of a part that is to be committed, unless `allowed`."""
    if allowed or not set(_COLUMNS) <= catalog.keys():
        return
    pairs = zip(*(map(str, catalog[name]) for name in _COLUMNS), strict=True)
    for simulator, version in sorted(set(pairs)):
        check_versions(store, store_path, simulator, version)


def _stored_versions(store: Store) -> set[tuple[str, str]]:
    """Pairs of simulator and version in the store; none of damaged parts, which `verify` names."""
    try:
        selection = store.as_collected()
        if not set(_COLUMNS) <= set(selection.catalog.column_names):
            return set()
        rows = selection.describe(_COLUMNS)
    except DatasetError:
        rows = _readable_rows(store)
    return {(str(row["simulator"]), str(row["simulator_version"])) for row in rows}


def _readable_rows(store: Store) -> Iterator[Mapping[str, Any]]:
    for stem in store.files.stamps():
        with suppress(DatasetError):
            _, table = store.files.read_shown(stem)
            if set(_COLUMNS) <= set(table.column_names):
                yield from table.group_by(list(_COLUMNS)).aggregate([]).to_pylist()
