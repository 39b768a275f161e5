"""`gaitforge status`: the progress of a collection or a training run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from flows.stages.status import CollectionStatus, TrainingStatus, as_tree, status
from pipeline.cli.arguments import Parser, flag, option, store_address
from pipeline.tables import table

_WATCH_S = 2.0
_MOST_FAILED = 5
"""Failed parts that are shown; JSON has them all."""

_CLEAR = "\x1b[H\x1b[J"


def add_status(parser: Parser) -> None:
    """`gaitforge status STORE|RUN`."""
    option(
        parser,
        "place",
        "a store, or the folder of a training run",
        store_address,
        metavar="STORE|RUN",
    )
    flag(parser, "--watch", "repeat every two seconds until the work has ended")
    parser.take("--json")
    parser.runs(_status, "gaitforge status data/legged.zarr --watch")


def _status(arguments: argparse.Namespace) -> int:
    while True:
        found = status(arguments.place)
        if arguments.json:
            indent = None if arguments.watch else 1
            print(json.dumps(as_tree(found), indent=indent), flush=True)
        else:
            start = _CLEAR if arguments.watch and sys.stdout.isatty() else ""
            collection = isinstance(found, CollectionStatus)
            lines = _collection_lines(found) if collection else _training_lines(found)
            print(start + "\n".join(lines), flush=True)
        if not arguments.watch or found.state in ("complete", "stopped"):
            return 0
        time.sleep(_WATCH_S)


def duration(seconds: float | None) -> str:
    """Seconds as 3 s, 4 min 05 s or 6 h 07 min; a dash if unknown."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _collection_lines(found: CollectionStatus) -> list[str]:
    share = f" ({found.done / found.planned:.0%})" if found.planned else ""
    lines = [
        f"{found.store}: {found.state}",
        f"parts    {found.done:,} of {found.planned:,} planned{share}, {found.missing:,} missing"
        + (f", {found.other:,} of no plan kept beside the store" if found.other else ""),
        f"size     {found.steps:,} steps, {found.episodes:,} episodes, {found.bytes / 1e6:,.1f} MB",
        f"rate     {found.steps_per_s:,.0f} steps/s over the last parts"
        + (f", {found.working_steps_per_s:,.0f} now" if found.state == "working" else ""),
    ]
    if found.missing:
        left = duration(found.remaining_s) if found.state == "working" else "nobody works on them"
        lines.append(f"left     {found.remaining_steps:,} steps, {left}")
    if found.active:
        lines += ["", table([_active_row(vars(part)) for part in found.active])]
    lines += _failed_lines(found)
    return lines


def _active_row(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "part in work": part["part"],
        "host": part["host"],
        "pid": str(part["pid"]),
        "steps": part["steps"],
        "of": part["total"],
        "steps/s": round(part["steps_per_s"]),
        "phase": "stale" if part["stale"] else part["phase"],
        "heartbeat": f"{duration(part['heartbeat_age_s'])} ago",
    }


def _failed_lines(found: CollectionStatus) -> list[str]:
    still = [part for part in found.failed if not part.made_since]
    mended = len(found.failed) - len(still)
    lines = [""] if found.failed else []
    for part in still[-_MOST_FAILED:]:
        lines.append(f"failed   {part.part}, {part.failures} times; last: {part.error}")
    if len(still) > _MOST_FAILED:
        lines.append(f"failed   {len(still) - _MOST_FAILED} more; --json lists them")
    if mended:
        lines.append(f"mended   {mended} parts failed at first and were made later")
    return lines


def _training_lines(found: TrainingStatus) -> list[str]:
    share = f" ({found.step / found.steps:.0%})" if found.steps else ""
    lines = [f"{found.run}: {found.state}"]
    if found.state == "stopped":
        lines[0] += f", wrote nothing for {duration(found.quiet_s)}"
    lines.append(f"step     {found.step:,} of {found.steps:,}{share}, {found.model}")
    if found.loss is not None:
        held_out = found.validation_loss
        beside = f", {held_out:.5f} on held-out episodes" if held_out is not None else ""
        lines.append(f"loss     {found.loss:.5f}{beside}")
    if found.steps_per_s is not None:
        lines.append(f"rate     {found.steps_per_s:,.0f} control steps/s")
    lines.append(f"time     {duration(found.elapsed_s)} so far, {duration(found.remaining_s)} left")
    return lines
