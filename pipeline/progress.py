"""Progress on the terminal: a bar with rate and time left, or a line now and then without one."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tqdm import tqdm

from gaitforge.flows.progress import Advance, Reporter, Silent, leads
from gaitforge.pipeline.tables import duration

LINE_PERIOD_S = 5.0
BAR_PERIOD_S = 0.2


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
        ) as bar:

            def advance(n: int, note: str) -> None:
                if note:
                    bar.set_postfix_str(note, refresh=False)
                bar.update(n)

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
        self._started = self._shown = time.monotonic()

    def advance(self, n: int, note: str) -> None:
        self._done += n
        self._note = note or self._note
        if time.monotonic() - self._shown >= LINE_PERIOD_S:
            self._show()

    def close(self) -> None:
        if self._done > self._first:
            self._show(finished=True)

    def _show(self, finished: bool = False) -> None:
        self._shown = time.monotonic()
        elapsed = self._shown - self._started
        rate = (self._done - self._first) / max(elapsed, 1e-9)
        # Episodes that end early leave steps over; the step is finished all the same.
        share = 1.0 if finished else self._done / max(self._total, 1)
        still = max(0, self._total - self._done)
        left = f"{duration(still / rate)} left" if rate else "time left unknown"
        left = f"in {duration(elapsed)}" if finished else left
        note = f", {self._note}" if self._note else ""
        pace = f"{rate:,.0f} {self._unit}s/s" if rate >= 1 else f"{60 * rate:.1f} {self._unit}s/min"
        print(f"{self._name:<16} {share:4.0%}  {pace}, {left}{note}", file=sys.stderr, flush=True)


def own_reporter() -> Reporter:
    """Terminal reporter on rank 0; silent on other ranks."""
    return TerminalReporter() if leads() else Silent()
