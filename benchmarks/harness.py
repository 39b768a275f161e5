"""The harness of the benchmarks: from sizes to a JSON record and tables."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import provenance, to_tree, write_record
from gaitforge.pipeline.terminal import show_one, table

Figures = Mapping[str, Any]
Rows = list[dict[str, Any]]

_QUIET_LOAD = 0.5
"""Busy processes, averaged over the last minute."""
_PEAK = """
import re
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024)
"""
"""Not the peak of `getrusage`, which includes the parent's memory at the fork."""


@dataclass(frozen=True)
class Bench:
    """A benchmark, as `python -m benchmarks` runs it.

    Attributes:
        file: name of the record in the output folder.
        config: sizes of the measurement; the documented figures are of these.
        quick: sizes that only check that everything runs; their figures mean nothing.
        measure: (config, temporary folder, reporter) -> figures; "notes" among them are lines.
        tables: record -> titles and rows to print; without it every figure beside its name.
    """

    file: str
    config: Any
    quick: Any
    measure: Callable[[Any, Path, Reporter], Figures]
    tables: Callable[[Figures], Iterable[tuple[str, Rows]]] | None = None

    def run(self, out: Path, config: Any, reporter: Reporter) -> dict[str, Any]:
        """Measure, and write the record: figures, load, config and provenance.

        Raises:
            ValueError: the folder cannot be written, or what `measure` raises.
        """
        before = os.getloadavg()[0]
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out) as folder:
            figures = self.measure(config, Path(folder), reporter)
        load = {"before": before, "after": os.getloadavg()[0], "cores": os.cpu_count()}
        notes = [f"load average {before:.1f} before, on {os.cpu_count()} cores"]
        if (siblings := _threads_of_a_core()) > 1:
            notes.append(
                f"{siblings} of these cores are hyper-threads of one: they share its units"
            )
        if before > _QUIET_LOAD:
            notes.append("the machine was busy: judge by the ratios, not by the times")
        notes += figures.get("notes", ())
        beside = {"notes": notes, "load_average": load, "config": config, **provenance()}
        record = to_tree({**figures, **beside})
        write_record(out / self.file, record)
        return record

    def show(self, record: Figures, as_json: bool) -> None:
        """Print a record as JSON, or its figures and notes for people."""
        if as_json:
            print(json.dumps(record, indent=1))
            return
        if self.tables is None:
            beside = {"notes", "load_average", "config", "bars", *provenance()}
            show_one({name: record[name] for name in record if name not in beside}, as_json=False)
            if "bars" in record:
                print(f"\nBars\n{table(record['bars'])}")
        else:
            for title, rows in self.tables(record):
                print(f"{title}\n{table(rows)}\n")
        print("\n".join(record["notes"]))


def bar(
    name: str,
    value: float | None,
    *,
    least: float | None = None,
    most: float | None = None,
    unit: str = "x",
) -> dict[str, object]:
    """A figure beside the limit that it must keep; `value` is None where it was not measured."""
    limit, wanted = (most, "at most") if least is None else (least, "at least")
    assert limit is not None
    met = None if value is None else value <= limit if least is None else value >= limit
    return {"bar": name, "value": value, "wanted": f"{wanted} {limit:g} {unit}", "met": met}


def median(values: Iterable[float]) -> float:
    """The median as a plain float."""
    return float(np.median(list(values)))


def _threads_of_a_core() -> int:
    """Processors that the first core shows to the system; 1 where it does not say."""
    listed = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    if not listed.is_file():
        return 1
    ranges = [text.split("-") for text in listed.read_text().strip().split(",")]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


def run_alone(program: str, *arguments: object) -> tuple[str, float]:
    """Run a Python program in a process of its own; its output and peak MiB.

    Raises ValueError if it failed.
    """
    command = [sys.executable, "-c", program + _PEAK, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"a process of the benchmark failed: {done.stderr[-300:]}")
    *printed, peak = done.stdout.splitlines()
    return "\n".join(printed), float(peak)
