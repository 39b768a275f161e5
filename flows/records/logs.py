"""Logs without secrets: one JSON line per event, one file per process, under `<records>/log/`.

Every line has `time` (UTC, ISO 8601), `level`, `event`, `host`, `pid`, and the ids of what it is
about (`part`, `run`).
"""

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

from gaitforge.common.redaction import MASK, is_secret_name, redacted

LOG = "log"
MAX_BYTES = 1 << 20
"""Size of a full file, which becomes NAME.old.jsonl, in place of an older one."""
MAX_FILES = 256
MAX_TEXT = 500
"""Characters of one value."""

Level = Literal["info", "warning", "error"]


def log_event(records: Path, level: Level, event: str, **fields: object) -> None:
    """Add one line to this process's log; a disk that refuses it does not stop the work.

    Args:
        records: the records folder; event: a few constant words; fields: JSON values.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    _logger(records, os.getpid()).log(number, event, extra={"fields": fields})


class JsonLines(RotatingFileHandler):
    """A handler for one process's log; its file is open only while a line is written."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        super().emit(record)
        if self.stream is not None:
            with suppress(OSError):
                self.stream.close()
            self.stream = None

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore it: a log must not end the work."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a JSON line."""
        fields = _without_secrets(vars(record)["fields"])
        line = {
            "time": datetime.now(UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "event": short(record.getMessage()),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        return json.dumps(line | fields)


@lru_cache(maxsize=64)
def _logger(records: Path, pid: int) -> logging.Logger:
    """A logger of this process and folder, apart from the program's own loggers."""
    host = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
    path = records / LOG / f"{host}-{pid}.jsonl"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files = sorted(path.parent.glob("*.jsonl"), key=os.path.getmtime, reverse=True)
        for old in files[MAX_FILES - 1 :]:
            old.unlink(missing_ok=True)
    handler = JsonLines(path, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True)
    handler.namer = lambda name: f"{name.removesuffix('.jsonl.1')}.old.jsonl"
    logger = logging.Logger(f"gaitforge:{records}")
    logger.addHandler(handler)
    return logger


def short(text: str) -> str:
    """A text in one line, cut, without secrets."""
    return " ".join(redacted(text).split())[:MAX_TEXT]


def _without_secrets(value: Any) -> Any:
    """A value of a line as JSON has it, its texts shortened and without secrets."""
    if isinstance(value, str):
        return short(value)
    if isinstance(value, Mapping):
        return {
            name: MASK if is_secret_name(str(name)) else _without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    return value
