"""Structured logs: one JSON line per event, one file per process, under `<records>/log/`.

Every line has `time` (UTC, ISO 8601), `level`, `event`, `host`, `pid`, and the ids of what it is
about (`part`, `run`). The values of secret environment variables are masked.
"""

import json
import logging
import os
import re
import socket
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

LOG = "log"
MAX_BYTES = 1 << 20
"""Size of a full file, which becomes NAME.old.jsonl, in place of an older one."""
MAX_FILES = 256
MAX_TEXT = 500
"""Characters of one value."""

Level = Literal["info", "warning", "error"]

_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|_KEY(_|$)|AUTH", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_MASK = "***"
_SHORTEST_SECRET = 6


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
        fields = {
            name: short(value) if isinstance(value, str) else value
            for name, value in vars(record)["fields"].items()
        }
        line = {
            "time": datetime.now(UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
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
    return redacted(" ".join(text.split()))[:MAX_TEXT]


def redacted(text: str) -> str:
    """A text without the values of secret environment variables and passwords in URLs."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            text = text.replace(value, _MASK)
    return _PASSWORD_IN_URL.sub(rf"\1:{_MASK}@", text)
