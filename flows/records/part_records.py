"""Records of plans and parts, in `<store>.records` beside the store.

    plan-<digest>.json       a plan, its task (`kind`), its parts, and the versions it was run with
    <part>.json              a collected part: sizes and times
    active/<part>.json       the heartbeat of a part in work
    failed/<part>-<n>.json   an attempt that failed
    log/<host>-<pid>.jsonl   what a process did (`gaitforge.flows.records.logs`)

Importing this loads neither a simulator nor torch.

Episodes of several versions of a simulator in one store cannot be simulated again together.

Heartbeats and failures tell of the parts in work. A heartbeat, `active/<part>.json`, is replaced
about every two seconds and removed when the part ends. A failed attempt leaves
`failed/<part>-<n>.json`. Writes that fail are ignored. Ages are those of the files, by the file
system's clock; see `gaitforge.common.locks`.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

from gaitforge import datasets
from gaitforge.common.errors import listed
from gaitforge.common.files import join_inside, temporary_file
from gaitforge.common.interrupts import Interrupted
from gaitforge.common.kernels import compile_listeners
from gaitforge.common.locks import (
    SILENT_S,
    ProcessIdentity,
    file_system_time,
    read_current,
)
from gaitforge.datasets import DatasetError, Store
from gaitforge.datasets.layout import OVERLAYS
from gaitforge.datasets.storage.s3 import is_bucket_url, local_folder
from gaitforge.flows.progress import COMPILING, Advance
from gaitforge.flows.records.logs import log_event, short
from gaitforge.flows.records.plans import read_fields
from gaitforge.flows.records.records import digest, provenance, read_record, to_tree, write_record


# Records of plans and of collected parts.
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


# Versions of simulators in a store.
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


# Heartbeats and failures of the parts in work.
ACTIVE = "active"
FAILED = "failed"
HEARTBEAT_S = 2.0
STALE_S = SILENT_S
"""Age of a dead or hanging process's heartbeat; compressing and writing a part takes less."""

MAX_FAILURES = 20
"""Failures kept of one part; a further one replaces the last."""


@dataclass(frozen=True)
class Heartbeat:
    """A part in work: `steps` of about `total` are done, in `seconds`.

    `phase` is "compile", "simulate" or "write". `age_s` is that of the file, not stored in it.
    """

    part: str
    process: ProcessIdentity
    seconds: float
    steps: int
    total: int
    phase: str = "simulate"
    age_s: float = 0.0

    @property
    def host(self) -> str:
        """Name of the host that works on it."""
        return self.process.host

    @property
    def pid(self) -> int:
        """Number of the process that works on it."""
        return self.process.pid

    @property
    def rate(self) -> float:
        """Steps a second so far."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def is_stale(self) -> bool:
        """Whether its process is gone (known on its own host) or has been silent for long."""
        return self.age_s > STALE_S or self.process.has_ended()

    def to_tree(self) -> dict[str, object]:
        """What the file holds."""
        return {name: value for name, value in asdict(self).items() if name != "age_s"}

    @classmethod
    def from_tree(cls, tree: dict[str, Any], age_s: float) -> "Heartbeat":
        """The inverse; ValueError for the file of another version."""
        return read_fields(cls, tree, "a sign of life", age_s=age_s)


@dataclass(frozen=True)
class Failure:
    """A failed attempt at a part, with the last line of its error."""

    part: str
    error: str
    host: str
    pid: int
    time: float


class PartActivity:
    """The files of one attempt at a part; use it in a `with` statement around the attempt.

    Args:
        records: the store's records folder; total: expected steps of the part.
    """

    def __init__(self, records: Path, part: str, total: int):
        self._records, self._path = records, join_inside(records / ACTIVE, f"{part}.json")
        self._started = time.monotonic()
        self._beat = Heartbeat(part, ProcessIdentity.of_this(), 0.0, 0, total)
        self._written = 0.0

    @property
    def steps(self) -> int:
        """Steps done so far."""
        return self._beat.steps

    def __enter__(self) -> "PartActivity":
        self._write()
        compile_listeners.append(self._compiling)
        log_event(self._records, "info", "part started", part=self._beat.part)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        compile_listeners.remove(self._compiling)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        ids = {"part": self._beat.part, "steps": self._beat.steps}
        if error is None:
            log_event(self._records, "info", "part committed", **ids)
        elif isinstance(error, Interrupted) or not isinstance(error, Exception):
            log_event(self._records, "warning", "part interrupted", **ids)
        else:
            log_event(self._records, "error", "part failed", **ids, error=last_line(error))
            self._keep_failure(last_line(error))

    def advance(self, steps: int) -> None:
        """Count some more steps."""
        self._beat = replace(self._beat, steps=self._beat.steps + steps, phase="simulate")
        if time.monotonic() - self._written >= HEARTBEAT_S:
            self._write()

    def writing(self) -> None:
        """The steps are done and the part is being written."""
        self._beat = replace(self._beat, phase="write")
        self._write()

    def _compiling(self) -> None:
        """Machine code is made, before or between the steps."""
        if self._beat.phase == "simulate":
            self._beat = replace(self._beat, phase="compile")
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        self._beat = replace(self._beat, seconds=self._written - self._started)
        with suppress(OSError):
            _replace_file(self._path, self._beat.to_tree())

    def _keep_failure(self, text: str) -> None:
        beat = self._beat
        folder = self._records / FAILED
        failure = Failure(beat.part, text, beat.host, beat.pid, time.time())
        with suppress(OSError):
            number = min(len(list(folder.glob(f"{beat.part}-*.json"))) + 1, MAX_FAILURES)
            _replace_file(folder / f"{beat.part}-{number}.json", asdict(failure))


def read_active(records: Path) -> list[Heartbeat]:
    """The parts in work, stale ones included, sorted by part."""
    trees = _trees(records / ACTIVE)
    # After the files: none of them is from the future.
    now = file_system_time(records / ACTIVE) if trees else 0.0
    beats: list[Heartbeat] = []
    for tree, modified in trees:
        with suppress(ValueError):
            beats.append(Heartbeat.from_tree(tree, max(0.0, now - modified)))
    return beats


def forget_stale(records: Path) -> None:
    """Remove the heartbeats of dead processes, whose parts are made anew."""
    for beat in read_active(records):
        if beat.is_stale:
            with suppress(OSError):
                join_inside(records / ACTIVE, f"{beat.part}.json").unlink(missing_ok=True)


class FollowedParts:
    """Follows parts: committed ones by their records, the rest by their heartbeats.

    Args:
        folder: the store's records; parts: to follow; advance: called with their steps.
    """

    def __init__(self, folder: Path, parts: Iterable[str], advance: Advance):
        self._folder, self._open, self._advance = folder, set(parts), advance
        self._collected = self._shown = 0

    def __call__(self, records: list[PartCollected]) -> None:
        """Report the steps since the last call; `records`: the parts that were committed since."""
        self._open -= {record.part for record in records}
        self._collected += sum(record.steps for record in records)
        beats = [beat for beat in read_active(self._folder) if beat.part in self._open]
        steps = self._collected + sum(beat.steps for beat in beats)
        # A restarted part begins at its first step; the shown progress stays.
        compiles = not steps and any(beat.phase == "compile" for beat in beats)
        self._advance(max(0, steps - self._shown), COMPILING if compiles else "")
        self._shown = max(steps, self._shown)


def read_failures(records: Path) -> list[Failure]:
    """The failed attempts, oldest first; damaged files are left out."""
    by_age = sorted(_trees(records / FAILED), key=lambda entry: entry[1])
    failures: list[Failure] = []
    for tree, _ in by_age:
        with suppress(ValueError):
            failures.append(read_fields(Failure, tree, "a failure"))
    return failures


def last_line(error: BaseException) -> str:
    """An error's last line, without secrets."""
    lines = str(error).strip().splitlines()
    return short(f"{type(error).__name__}: {lines[-1] if lines else ''}")


def _replace_file(path: Path, tree: dict[str, object]) -> None:
    """Replace a small file atomically; without a flush: after a power cut it is stale anyway."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(path) as temporary:
        temporary.write_text(json.dumps(tree))
        os.replace(temporary, path)


def _trees(folder: Path) -> list[tuple[dict[str, Any], float]]:
    """The JSON files of a folder, each with its time; damaged ones and those gone are left out."""
    trees: list[tuple[dict[str, Any], float]] = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            content, modified = read_current(path)
            trees.append((json.loads(content), modified))
    return trees
