"""Progress on the terminal: a bar with rate and time left, or a line every few seconds where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from flows.progress import Advance

LINE_PERIOD_S = 5.0
BAR_PERIOD_S = 0.2


class TerminalReporter:
    """Shows steps on standard error, so that standard output stays for results."""

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `flows.progress.Reporter.step`."""
        interactive = sys.stderr.isatty()
        with tqdm(
            total=total,
            initial=min(done, total),
            desc=f"{name:<18}",
            unit=f" {unit}s",
            unit_scale=True,
            dynamic_ncols=interactive,
            mininterval=BAR_PERIOD_S if interactive else LINE_PERIOD_S,
            bar_format=None
            if interactive
            else "{desc} {percentage:3.0f} % {rate_fmt}, {remaining} left{postfix}\n",
            file=sys.stderr,
        ) as bar:

            def advance(n: int, note: str) -> None:
                if note:
                    bar.set_postfix_str(note, refresh=False)
                bar.update(n)

            yield advance

    def say(self, text: str) -> None:
        """See `flows.progress.Reporter.say`."""
        tqdm.write(text, file=sys.stderr)
