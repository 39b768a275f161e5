"""Progress of long steps, reported through a callback."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

Advance = Callable[[int, str], None]
"""advance(n, note): n more units are done; the note is a few words to show beside them."""


COMPILING = "compiling, once"
"""The note beside a step that has not begun, as its machine code is made."""


class Reporter(Protocol):
    """Shows the progress of long steps, one at a time."""

    def step(
        self, name: str, total: int, unit: str, done: int = 0
    ) -> AbstractContextManager[Advance]:
        """Open a step of `total` units of which `done` were done before."""
        ...

    def say(self, text: str) -> None:
        """Show one line."""
        ...


def leads() -> bool:
    """Whether this is the first, or only, of the processes that torchrun may have started."""
    return os.environ.get("RANK", "0") == "0"


def no_progress(n: int, note: str) -> None:
    """An `Advance` that does nothing."""


def from_totals(advance: Advance, done: int = 0) -> Advance:
    """A callback that takes the units done so far, and advances by the difference."""

    def report(total: int, note: str) -> None:
        nonlocal done
        advance(total - done, note)
        done = total

    return report


@contextmanager
def begun_later(reporter: Reporter, name: str) -> Iterator[Callable[[int], Callable[[int], None]]]:
    """Yields a function that opens a step of so many steps, and returns what counts them."""
    with ExitStack() as stack:

        def begin(total: int) -> Callable[[int], None]:
            advance = stack.enter_context(reporter.step(name, total, "step"))
            return lambda steps: advance(steps, "")

        yield begin


class Silent:
    """A reporter that shows nothing."""

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `Reporter.step`."""
        yield no_progress

    def say(self, text: str) -> None:
        """See `Reporter.say`."""


@dataclass(frozen=True)
class StageReporter:
    """A reporter whose lines begin with `prefix`, and whose steps end once `stop` raises."""

    reporter: Reporter
    stop: Advance
    prefix: str = ""

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `Reporter.step`."""
        with self.reporter.step(f"{self.prefix}{name}", total, unit, done) as advance:

            def report(n: int, note: str) -> None:
                self.stop(n, note)
                advance(n, note)

            yield report

    def say(self, text: str) -> None:
        """See `Reporter.say`."""
        self.reporter.say(f"{self.prefix}{text}")
