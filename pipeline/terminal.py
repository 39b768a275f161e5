"""What the terminal shows: results as tables or JSON, and progress."""

import json
import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from gaitforge.common.errors import printable
from gaitforge.datasets.catalog.rows import Records
from gaitforge.flows.progress import COMPILING, Advance, Reporter, Silent, leads

# Results as tables or JSON.
Rows = Sequence[Mapping[str, object]]
_SMALLEST = 0.0005
_LARGEST = 1e15
"""Sizes between which a table's numbers have three decimals, or none."""
NOTHING = "(nothing)"
"""A table without rows, where no word says what is missing."""


def show(records: Rows, as_json: bool, empty: str = NOTHING) -> None:
    """Print records as a table, or as a JSON list; `empty` stands for a table without rows."""
    show_result(list(records), records, as_json, empty=empty)


def show_one(record: Mapping[str, object], as_json: bool) -> None:
    """Print one record as lines of names and values, or as a JSON object."""
    if as_json:
        print(json_text(record))
        return
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        print(f"{name:<{width}}  {cell(value)}")


def show_result(
    record: object, rows: Rows, as_json: bool, *lines: str, empty: str = NOTHING
) -> None:
    """Print a record as JSON; or, for people, rows as a table and lines below it."""
    if not as_json:
        for line in chain(_table_lines(rows) if rows else [empty], lines):
            print(line)
    elif record and isinstance(record, list | tuple | Records):  # one by one: may be millions
        separator = "[\n "
        for item in record:
            sys.stdout.write(separator + json_text(item).replace("\n", "\n "))
            separator = ",\n "
        print("\n]")
    else:
        print(json_text(record))


def say_next(*words: Path | str) -> None:
    """Name the command that mostly comes next, in a line on standard error; grey on a terminal."""
    line = f"next: gaitforge {shlex.join(map(str, words))}"
    sys.stdout.flush()
    print(f"\x1b[90m{line}\x1b[0m" if sys.stderr.isatty() else line, file=sys.stderr)


def json_text(value: object, indent: int | None = 1) -> str:
    """A value as JSON for other programs: NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple | Records):
        return [_finite(item) for item in value]
    return value


def fields_of(value: object, *names: str) -> dict[str, object]:
    """Some attributes of an object, as a record."""
    return {name: getattr(value, name) for name in names}


def duration(seconds: float | None, unknown: str = "-") -> str:
    """Seconds as `8.4 s`, `95 s`, `12 min 05 s` or `3 h 20 min`."""
    if seconds is None or not math.isfinite(seconds):
        return unknown
    if seconds < 10:
        return f"{seconds:.1f} s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {remainder:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def table(records: Rows) -> str:
    """An aligned text table; numbers to the right, columns in the order of the first record."""
    return "\n".join(_table_lines(records))


def _table_lines(records: Rows) -> Iterator[str]:
    """The lines of a `table`, in two passes over the records, of which there may be millions."""
    if not records:
        yield NOTHING
        return
    first = records[0]
    widths = {name: len(name) for name in first}
    for record in records:
        for name, width in widths.items():
            widths[name] = max(width, len(cell(record.get(name))))
    sizes = list(widths.values())
    numeric = [isinstance(first[name], int | float) for name in widths]
    yield _line(list(widths), sizes, numeric)
    yield "  ".join("-" * width for width in sizes)
    for record in records:
        yield _line([cell(record.get(name)) for name in widths], sizes, numeric)


def cell(value: object) -> str:
    """A value as people read it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list) and all(isinstance(item, float) for item in value):
        return f"[{', '.join(map(cell, value))}]"
    return json.dumps(value) if isinstance(value, list | dict) else printable(str(value))


def _number(value: float) -> str:
    """Three decimals, or whole from 1,000 on; of very small and large numbers four digits."""
    size = abs(value)
    if size == 0 or _SMALLEST <= size < 1000 or not math.isfinite(size):
        return f"{value + 0.0:.3f}"
    return f"{value:,.0f}" if 1000 <= size < _LARGEST else f"{value:.4g}"


def _line(texts: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = (
        f"{text:>{width}}" if right else f"{text:<{width}}"
        for text, width, right in zip(texts, widths, numeric, strict=True)
    )
    return "  ".join(parts).rstrip()


# Progress.
LINE_PERIOD_S = 5.0
BAR_PERIOD_S = 0.2
ESTIMATE_S = 5.0
"""How long a step has to go on before the time that is left is told."""
_BAR_WITHOUT_ESTIMATE = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"


@dataclass(frozen=True)
class TerminalReporter:
    """Shows steps on standard error, so that standard output stays for results.

    Attributes:
        lines: print lines instead of a bar on a terminal too, for several processes at once.
    """

    lines: bool = False

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `gaitforge.flows.progress.Reporter.step`."""
        if self.lines or not sys.stderr.isatty():
            lines = _Lines(name, total, unit, min(done, total))
            yield lines.advance
            lines.close()
            return
        with tqdm(
            total=total,
            initial=min(done, total),
            desc=f"{name:<16}",
            unit=f" {unit}s",
            unit_scale=True,
            dynamic_ncols=True,
            mininterval=BAR_PERIOD_S,
            file=sys.stderr,
            bar_format=_BAR_WITHOUT_ESTIMATE,
        ) as bar:
            began: float | None = None

            def advance(n: int, note: str) -> None:
                nonlocal began
                if n > 0 and began is None:
                    began = time.monotonic()
                    bar.last_print_t = time.time()  # what came before is not the step's speed
                    note = note or " "  # takes the place of what the beginning said
                if began is not None and time.monotonic() - began >= ESTIMATE_S:
                    bar.bar_format = None
                if note:
                    bar.set_postfix_str(note.strip(), refresh=False)
                if n or not note:
                    bar.update(n)
                else:
                    bar.refresh()

            yield advance

    def say(self, text: str) -> None:
        """See `gaitforge.flows.progress.Reporter.say`."""
        tqdm.write(text, file=sys.stderr)


class _Lines:
    """A line every few seconds, for log files."""

    def __init__(self, name: str, total: int, unit: str, done: int):
        self._name = name
        self._total = total
        self._unit = unit
        self._first = self._done = done
        self._note = ""
        self._said = ""
        self._started = self._shown = time.monotonic()
        self._began: tuple[float, int] | None = None
        """When the first units were done, and how many."""

    def advance(self, n: int, note: str) -> None:
        self._done += n
        if n > 0 and self._began is None:
            self._began = time.monotonic(), self._done
            self._note = "" if self._note == COMPILING else self._note
        self._note = note or self._note
        if time.monotonic() - self._shown >= LINE_PERIOD_S:
            self._show()

    def close(self) -> None:
        if self._done > self._first:
            self._show(finished=True)

    def _show(self, finished: bool = False) -> None:
        self._shown = time.monotonic()
        elapsed = self._shown - self._started
        if self._began is None:
            line = (
                f"{self._name:<16} {self._done / max(self._total, 1):4.0%}  {self._note}".rstrip()
            )
            if line != self._said:
                print(line, file=sys.stderr, flush=True)
            self._said = line
            return
        rate = (self._done - self._first) / max(elapsed, 1e-9)
        began_at, began_with = self._began
        if self._done > began_with and not finished:  # what came before is not the step's speed
            rate = (self._done - began_with) / max(self._shown - began_at, 1e-9)
        # Episodes that end early leave steps over; the step is finished all the same.
        share = 1.0 if finished else self._done / max(self._total, 1)
        still = max(0, self._total - self._done)
        left = f", {duration(still / rate)} left" if rate > 0 else ""
        if self._shown - began_at < ESTIMATE_S:
            left = ""
        left = f", in {duration(elapsed)}" if finished else left
        note = f", {self._note}" if self._note else ""
        pace = f"{rate:,.0f} {self._unit}s/s" if rate >= 1 else f"{60 * rate:.1f} {self._unit}s/min"
        print(f"{self._name:<16} {share:4.0%}  {pace}{left}{note}", file=sys.stderr, flush=True)


def own_reporter() -> Reporter:
    """Terminal reporter on rank 0; silent on other ranks."""
    return TerminalReporter() if leads() else Silent()
