"""What tests that kill processes need: waiting with a limit, and who listens where."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gaitforge.datasets import DatasetError, open_store
from gaitforge.flows.records.logs import LOG
from gaitforge.flows.records.part_records import Heartbeat, read_active, records_folder

ROOT = Path(__file__).resolve().parents[2]

Found = TypeVar("Found")


def soon(look: Callable[[], Found | None], limit_s: float = 180.0) -> Found:
    """What `look` finds, once it finds something; it looks less and less often."""
    end, wait_s = time.monotonic() + limit_s, 0.02
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(wait_s)
        wait_s = min(1.1 * wait_s, 0.5)
    raise AssertionError(f"nothing found in {limit_s} s")


def wait_for_json(path: Path, limit_s: float = 180.0) -> Any:
    """What a file holds, once it exists and is written to its end."""

    def look() -> Any:
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    return soon(look, limit_s)


def committed(store: Path) -> list[str]:
    """The store's parts; none while the store is still being made."""
    try:
        return open_store(store).parts()
    except DatasetError:
        return []


def part_in_work(store: Path) -> Callable[[], Heartbeat | None]:
    """A look at the heartbeats, for any part in work."""

    def look() -> Heartbeat | None:
        beats = read_active(records_folder(store))
        return beats[0] if beats else None

    return look


def gaitforge(*arguments: str | Path) -> subprocess.Popen[str]:
    """The command line in a process of its own, one core's worth of threads each."""
    return subprocess.Popen(
        [sys.executable, "-m", "gaitforge", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_running(pid: int) -> bool:
    """Whether a process exists and is not one that only waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def listening(pid: int) -> set[str]:
    """Addresses, as in /proc, at which a process and its descendants listen for TCP."""
    pids = [pid, *descendants(pid)]
    sockets = set()
    for each in pids:
        for descriptor in Path(f"/proc/{each}/fd").glob("*"):
            try:
                sockets.add(os.readlink(descriptor))
            except OSError:
                continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in sockets:
                addresses.add(columns[1].split(":")[0])
    return addresses


def descendants(pid: int) -> list[int]:
    """Children of a process, and theirs; none of one that has ended."""
    children = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            children += map(int, task.read_text().split())
    return [each for child in children for each in (child, *descendants(child))]


def read_log(records: Path) -> list[dict[str, Any]]:
    """Every process's lines, oldest first; a line that a crash cut short is left out."""
    lines = []
    # A process's older file, NAME.old.jsonl, comes before NAME.jsonl.
    for path in sorted((records / LOG).glob("*.jsonl"), reverse=True):
        for text in path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
    return sorted(lines, key=lambda line: line["time"])
