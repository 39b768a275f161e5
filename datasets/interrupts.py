"""Signals: noted until the end of a training step, or raised once."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

# SIGTERM comes from `kill` and from schedulers; Slurm sends SIGUSR2 early if a job asks for it.
NOTICES = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
INTERRUPTED = 130
STOPPED = 143
_CLEAN_UP_S = 2.0


class Stopped(KeyboardInterrupt):
    """Any signal stopped the run after a checkpoint; handled like Ctrl-C."""

    def __init__(self, number: int, done: str) -> None:
        """`done` says what was finished, such as "step 7"."""
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name} after {done}")

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

    A block that ends all the same, such as in a last save, raises Stopped, so that nothing follows.
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
    if notices.received:
        raise Stopped(notices.received, "its last step")


@contextmanager
def raised_once(number: int, error: BaseException, exit_code: int) -> Iterator[None]:
    """Within the block the first signal `number` raises `error`.

    What follows is ignored for two seconds, then ends the process at once: an exception that breaks
    into the joining of a thread makes Python end while that thread works (bpo-45274), and a
    simulator's thread crashes then. After the block an interrupted process ignores the signal. An
    exception that was lost is raised at the block's end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first = 0.0

    def handle(_: int, frame: FrameType | None) -> None:
        nonlocal first
        if not first:
            first = time.monotonic()
            raise error
        if time.monotonic() - first > _CLEAN_UP_S:
            os._exit(exit_code)

    previous = signal.signal(number, handle)
    try:
        yield
        if first:  # Python drops what is raised in a destructor or a callback
            raise error
    finally:
        signal.signal(number, signal.SIG_IGN if first else previous)
