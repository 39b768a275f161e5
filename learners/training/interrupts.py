"""Signals that wait for the end of the step in progress: Ctrl-C, and a scheduler's notice."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# SIGTERM is `kill` and a scheduler's last word; SIGUSR2 is what a job asks Slurm to send early.
NOTICES = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
INTERRUPTED = 130
STOPPED = 143


class Stopped(KeyboardInterrupt):
    """A signal ended the work at a point from which it can go on.

    A KeyboardInterrupt whatever the signal was, so that whoever cleans up after Ctrl-C does so.
    """

    def __init__(self, number: int, step: int) -> None:
        self.signal = signal.Signals(number)
        self.step = step
        super().__init__(f"stopped by {self.signal.name} after step {step}")

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, else 143: start the same command again."""
        return INTERRUPTED if self.signal == signal.SIGINT else STOPPED


class Notices:
    """Which signal came, if any."""

    def __init__(self) -> None:
        self.received = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """A handler for `signal.signal`."""
        self.received = number


@contextmanager
def deferred_signals() -> Iterator[Notices]:
    """Within the block the signals of NOTICES are only noted.

    Outside the main thread signals cannot be taken over, and nothing is ever noted.
    """
    notices = Notices()
    if threading.current_thread() is not threading.main_thread():
        yield notices
        return
    previous = {number: signal.signal(number, notices.note) for number in NOTICES}
    try:
        yield notices
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
