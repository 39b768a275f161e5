"""Signals that take effect at the end of a training step: Ctrl-C and a scheduler's notice."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

# SIGTERM comes from `kill` and from schedulers; Slurm sends SIGUSR2 early if a job asks for it.
NOTICES = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
INTERRUPTED = 130
STOPPED = 143


class Stopped(KeyboardInterrupt):
    """A signal stopped the run after a checkpoint.

    A KeyboardInterrupt for every signal, so that it is handled like Ctrl-C.
    """

    def __init__(self, number: int, step: int) -> None:
        self.signal = signal.Signals(number)
        self.step = step
        super().__init__(f"stopped by {self.signal.name} after step {step}")

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, else 143."""
        return INTERRUPTED if self.signal == signal.SIGINT else STOPPED


@dataclass
class Notices:
    """The number of the last signal, 0 for none."""

    received: int = 0


@contextmanager
def deferred_signals() -> Iterator[Notices]:
    """Within the block the signals of NOTICES are only noted.

    Outside the main thread signals cannot be handled, and nothing is noted.
    """
    notices = Notices()
    if threading.current_thread() is not threading.main_thread():
        yield notices
        return

    def note(number: int, _: FrameType | None) -> None:
        notices.received = number

    previous = {number: signal.signal(number, note) for number in NOTICES}
    try:
        yield notices
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
