"""Heartbeats and failures of the parts in work, as files.

A heartbeat, `active/<part>.json`, is replaced about every two seconds and removed when the part
ends. A failed attempt leaves `failed/<part>-<n>.json`. Writes that fail are ignored. Ages are those
of the files, by the file system's clock; see `gaitforge.common.liveness`.
"""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gaitforge.common.files import join_inside, temporary_file
from gaitforge.common.interrupts import Interrupted
from gaitforge.common.liveness import (
    SILENT_S,
    ProcessIdentity,
    file_system_time,
    read_current,
)
from gaitforge.flows.progress import Advance
from gaitforge.flows.records.logs import log_event, short
from gaitforge.flows.records.part_records import PartCollected
from gaitforge.flows.records.plans import read_fields

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

    `phase` is "simulate" or "write". `age_s` is that of the file, not stored in it.
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
        log_event(self._records, "info", "part started", part=self._beat.part)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
        self._beat = replace(self._beat, steps=self._beat.steps + steps)
        if time.monotonic() - self._written >= HEARTBEAT_S:
            self._write()

    def writing(self) -> None:
        """The steps are done and the part is being written."""
        self._beat = replace(self._beat, phase="write")
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
        self._advance(max(0, steps - self._shown), "")
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
