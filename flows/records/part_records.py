"""Records of plans and parts, in `<store>.records` beside the store.

    plan-<digest>.json       a plan, its task (`kind`), its parts, and the versions it was run with
    <part>.json              a collected part: sizes and times
    active/<part>.json       a part in work (`gaitforge.flows.records.activity`)
    failed/<part>-<n>.json   an attempt that failed
    log/<host>-<pid>.jsonl   what a process did (`gaitforge.flows.records.logs`)

Importing this loads neither a simulator nor torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from gaitforge import datasets
from gaitforge.common.files import join_inside
from gaitforge.common.liveness import file_system_time
from gaitforge.datasets.layout import OVERLAYS
from gaitforge.datasets.storage.s3.bucket import is_bucket_url, local_folder
from gaitforge.flows.records.plans import read_fields
from gaitforge.flows.records.records import digest, provenance, read_record, to_tree, write_record


@dataclass(frozen=True)
class PartCollected:
    """A collected part: its size, and its times in seconds since the epoch, commit included.

    `ended` is by the clock of the store's file system, and `started` earlier by its duration.

    `started` equals `ended` where only the commit is known.
    """

    part: str
    episodes: int
    steps: int
    bytes: int
    started: float
    write_s: float
    ended: float


class PlanRecord(TypedDict):
    """A plan that was run into a store: its task, its JSON values, its parts and their steps."""

    kind: str
    plan: dict[str, object]
    parts: list[str]
    steps: list[int]


@dataclass(frozen=True)
class _PlanRecord:
    """The types of a `PlanRecord`."""

    kind: str
    plan: dict[str, Any]
    parts: tuple[str, ...]
    steps: tuple[int, ...]


def records_folder(store: Path | str) -> Path:
    """The folder of a store's records: beside it, or beside a remote store's mirror.

    Those of an added field are inside its store's: <store>.records/<field>.records.
    """
    folder = local_folder(store)
    name = f"{folder.name}.records"
    if folder.parent.name == OVERLAYS:
        return records_folder(folder.parent.parent) / name
    return folder.with_name(name)


def store_address(store: Path | str) -> Path | str:
    """A store's address that holds in any working directory."""
    return str(store) if is_bucket_url(store) else Path(store).absolute()


def part_records(store_path: Path | str, parts: Sequence[str]) -> list[PartCollected]:
    """The records of the given parts of a store, in order; parts without one are left out."""
    folder = records_folder(store_path)
    paths = [join_inside(folder, f"{part}.json") for part in parts]
    records = [(path, read_record(path)) for path in paths]
    return [
        read_fields(PartCollected, record, path) for path, record in records if record is not None
    ]


def records_of_commits(
    store: "datasets.Store", store_path: Path | str, parts: Sequence[str]
) -> list[PartCollected]:
    """The records of committed parts, in order; other parts are left out.

    A record that is missing, as when the writer died after the commit, is made from the commit.
    """
    kept = {record.part: record for record in part_records(store_path, parts)}
    absent = set(store.missing(parts))
    return [
        kept.get(part) or _record_of_commit(store, store_path, part)
        for part in parts
        if part not in absent
    ]


def _record_of_commit(store: "datasets.Store", store_path: Path | str, part: str) -> PartCollected:
    committed = store.files.find(part).record
    catalog_file = store.files.path(part)  # none of its own once it was merged with others
    ended = file_system_time(records_folder(store_path))
    if catalog_file.exists():
        ended = catalog_file.stat().st_mtime
    record = PartCollected(
        part, committed.episodes, committed.steps, committed.bytes, ended, 0.0, ended
    )
    write_part_record(store_path, record)
    return record


def write_part_record(store_path: Path | str, record: PartCollected) -> None:
    """Keep the record of a part."""
    write_record(join_inside(records_folder(store_path), f"{record.part}.json"), record)


def write_plan_record(
    store_path: Path | str, kind: str, plan: object, parts: Mapping[str, int]
) -> None:
    """Keep a plan that is run into a store, with its task's name and its parts' expected steps."""
    record = {"kind": kind, "plan": to_tree(plan), "parts": list(parts)}
    record |= {"steps": list(parts.values()), **provenance()}
    write_record(records_folder(store_path) / f"plan-{digest(plan)}.json", record)


def copy_records(sources: Sequence[Path | str], target: Path | str) -> None:
    """Copy the plan and part records of stores to a store that is made of their parts.

    Records that the target has already stay as they are.
    """
    folder = records_folder(target)
    for source in sources:
        for path in sorted(records_folder(source).glob("*.json")):
            record = read_record(path)
            if record is not None and not (folder / path.name).exists():
                write_record(folder / path.name, record)


def plan_records(store_path: Path | str) -> list[PlanRecord]:
    """The plans that were run into a store, by file name.

    Raises:
        ValueError: a record is damaged; the line names its file.
    """
    records: list[PlanRecord] = []
    for path in sorted(records_folder(store_path).glob("plan-*.json")):
        tree = read_record(path)
        if tree is not None and PlanRecord.__required_keys__ <= tree.keys():
            record = read_fields(_PlanRecord, tree, path)
            if len(record.parts) != len(record.steps):
                raise ValueError(f"{path} is damaged: it needs as many steps as parts")
            records.append(cast(PlanRecord, tree))
    return records


def collection_rate(records: Sequence[PartCollected]) -> float:
    """Steps a second over the time in which any of the parts was in work."""
    timed = [record for record in records if record.ended > record.started]
    busy = 0.0
    reached = 0.0
    for record in sorted(timed, key=lambda r: r.started):
        busy += max(0.0, record.ended - max(record.started, reached))
        reached = max(reached, record.ended)
    return sum(record.steps for record in timed) / busy if busy else 0.0
