"""What a working process says about the part that it works on, in files.

A heartbeat, `active/<part>.json`, is replaced about every two seconds and removed when the part
ends; what a killed process leaves is stale. A failed attempt leaves `failed/<part>-<n>.json`.
Writing either never stops the work: they tell of it, and the catalog alone decides.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from flows.progress import Interrupted
from flows.records.logs import log_event, short

ACTIVE, FAILED = "active", "failed"
HEARTBEAT_S = 2.0
STALE_S = 60.0
"""Age from which a heartbeat is one of a dead or hanging process: a part's arrays are compressed
and flushed in less."""

MAX_FAILURES = 20
"""Failures that are kept of one part; a further one replaces the last."""


@dataclass(frozen=True)
class Heartbeat:
    """A part in work: `steps` of about `total` are done; times in seconds since the epoch.

    `phase` is "simulate" or "write".
    """

    part: str
    host: str
    pid: int
    started: float
    updated: float
    steps: int
    total: int
    phase: str = "simulate"

    @property
    def rate(self) -> float:
        """Steps a second so far."""
        return self.steps / max(self.updated - self.started, 1e-9) if self.steps else 0.0

    def is_stale(self, now: float) -> bool:
        """Whether its process is gone (known on its own host) or has been silent for long."""
        if now - self.updated > STALE_S:
            return True
        return self.host == socket.gethostname() and not _is_alive(self.pid)


@dataclass(frozen=True)
class Failure:
    """An attempt at a part that failed, with the last line of what went wrong."""

    part: str
    error: str
    host: str
    pid: int
    time: float


class PartActivity:
    """The files of one attempt at a part; use it in a `with` statement around the attempt.

    Args:
        records: the store's records folder; total: steps that the part has at most.
    """

    def __init__(self, records: Path, part: str, total: int):
        self._records = records
        now = time.time()
        self._beat = Heartbeat(part, socket.gethostname(), os.getpid(), now, now, 0, total)
        self._written = 0.0

    @property
    def steps(self) -> int:
        """Steps done so far."""
        return self._beat.steps

    def __enter__(self) -> PartActivity:
        self._write()
        log_event(self._records, "info", "part started", part=self._beat.part)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            _active_path(self._records, self._beat.part).unlink(missing_ok=True)
        known = {"part": self._beat.part, "steps": self._beat.steps}
        if error is None:
            log_event(self._records, "info", "part committed", **known)
        elif isinstance(error, Interrupted) or not isinstance(error, Exception):
            log_event(self._records, "warning", "part interrupted", **known)
        else:
            text = last_line(error)
            log_event(self._records, "error", "part failed", **known, error=text)
            _keep_failure(self._records, self._beat, text)

    def advance(self, steps: int) -> None:
        """Some more steps are done."""
        self._beat = replace(self._beat, steps=self._beat.steps + steps)
        if time.monotonic() - self._written >= HEARTBEAT_S:
            self._write()

    def writing(self) -> None:
        """The steps are done and the part is being written."""
        self._beat = replace(self._beat, phase="write")
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        self._beat = replace(self._beat, updated=time.time())
        with suppress(OSError):
            _replace_file(_active_path(self._records, self._beat.part), asdict(self._beat))


def read_active(records: Path) -> list[Heartbeat]:
    """The parts in work, stale ones included, sorted by part."""
    found = (_read(path) for path in sorted((records / ACTIVE).glob("*.json")))
    return [Heartbeat(**tree) for tree in found if tree is not None]


def read_failures(records: Path) -> list[Failure]:
    """The failed attempts, oldest first."""
    found = (_read(path) for path in (records / FAILED).glob("*.json"))
    return sorted((Failure(**tree) for tree in found if tree is not None), key=lambda f: f.time)


def last_line(error: BaseException) -> str:
    """What an error says, in one line without secrets."""
    lines = str(error).strip().splitlines()
    return short(f"{type(error).__name__}: {lines[-1] if lines else ''}")


def _active_path(records: Path, part: str) -> Path:
    return records / ACTIVE / f"{part}.json"


def _keep_failure(records: Path, beat: Heartbeat, text: str) -> None:
    failure = Failure(beat.part, text, beat.host, beat.pid, time.time())
    with suppress(OSError):
        known = len(list((records / FAILED).glob(f"{beat.part}-*.json")))
        number = min(known + 1, MAX_FAILURES)
        _replace_file(records / FAILED / f"{beat.part}-{number}.json", asdict(failure))


def _replace_file(path: Path, tree: dict[str, Any]) -> None:
    """Put a small file in one step, without a flush: after a power cut it would be stale anyway."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_text(json.dumps(tree))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """A small file's JSON; None where it went in this moment, or is damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True
