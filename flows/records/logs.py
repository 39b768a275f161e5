"""Structured logs: one JSON line an event, one file a process, under `<records>/log/`.

Every line has `time` (UTC, ISO 8601), `level`, `event`, `host`, `pid`, and the ids of what it is
about (`part`, `run`). A file is moved aside at `MAX_BYTES` and only one older piece is kept; of all
files the newest `MAX_FILES` are. What environment variables keep secret is masked.
"""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

LOG = "log"
MAX_BYTES = 1 << 20
MAX_FILES = 256
MAX_TEXT = 500
"""Characters of one value: a line stays short whatever an error says."""

Level = Literal["info", "warning", "error"]

_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|_KEY(_|$)|AUTH", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_MASK = "***"
_SHORTEST_SECRET = 6


def log_event(records: Path, level: Level, event: str, **fields: Any) -> None:
    """Add one line to this process's log; a disk that refuses it does not stop the work.

    Args:
        records: the records folder; event: a few words that do not change from line to line;
        fields: what this line is about, as JSON values.
    """
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="microseconds"),
        "level": level,
        "event": event,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    for name, value in fields.items():
        line[name] = short(value) if isinstance(value, str) else value
    path = records / LOG / f"{process_name()}.jsonl"
    # The log tells of the work and must never be what ends it.
    with suppress(OSError):
        _make_room(path)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def read_log(records: Path) -> list[dict[str, Any]]:
    """Every process's lines, oldest first; a line that a crash cut short is left out."""
    lines = []
    # Of one process the piece moved aside, NAME.old.jsonl, comes before NAME.jsonl.
    for path in sorted((records / LOG).glob("*.jsonl"), reverse=True):
        with suppress(FileNotFoundError):  # moved aside in this moment
            for text in path.read_text(encoding="utf-8").splitlines():
                with suppress(json.JSONDecodeError):
                    lines.append(json.loads(text))
    return sorted(lines, key=lambda line: line["time"])


def process_name() -> str:
    """Host and process id, as they stand in file names."""
    host = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
    return f"{host}-{os.getpid()}"


def short(text: str) -> str:
    """A text in one line, cut, without secrets."""
    return redacted(" ".join(text.split()))[:MAX_TEXT]


def redacted(text: str) -> str:
    """A text without the values of secret environment variables and passwords in URLs."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            text = text.replace(value, _MASK)
    return _PASSWORD_IN_URL.sub(rf"\1:{_MASK}@", text)


def _make_room(path: Path) -> None:
    try:
        if path.stat().st_size >= MAX_BYTES:
            os.replace(path, path.with_name(f"{path.stem}.old.jsonl"))
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        files = sorted(path.parent.glob("*.jsonl"), key=_modified, reverse=True)
        for old in files[MAX_FILES - 1 :]:
            old.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
