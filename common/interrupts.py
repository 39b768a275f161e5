"""The one way to stop work: at its next step, or by an exception at once.

Signals stop it (`stop_signals`), or a condition (`stop_when`): a cancelled task, a thread's flag.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

# SIGTERM comes from `kill` and from schedulers; Slurm sends SIGUSR2 early if a job asks for it.
NOTICES = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
INTERRUPTED = 130
STOPPED = 143
_CLEAN_UP_S = 2.0


class Interrupted(Exception):
    """Raised by a callback to stop the work; the part in work is not committed."""


class Stopped(KeyboardInterrupt):
    """Any signal stopped the run after a checkpoint; handled like Ctrl-C."""

    def __init__(self, number: int, done: str) -> None:
        """`done` says what was finished, such as "step 7"."""
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name} after {done}")

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, else 143."""
        return _exit_code(self.signal)


@dataclass
class Notices:
    """The number of the last signal, 0 for none."""

    received: int = 0


@contextmanager
def stop_signals(
    *numbers: int, error: Callable[[int], BaseException] | None = None
) -> Iterator[Notices]:
    """Within the block signals (none named: those of NOTICES) are noted, or raised as `error`.

    Noted: the work asks at each of its steps. A block that ends all the same, such as in a last
    save, raises Stopped, so that nothing follows.

    Raised: what follows the first signal is ignored for two seconds, then ends the process at once:
    an exception that breaks into the joining of a thread makes Python end while that thread works
    (bpo-45274), and a simulator's thread crashes then. After the block an interrupted process
    ignores the signals. If the exception was lost, or replaced by another (a C module whose import
    it breaks raises an ImportError), it is raised at the block's end.

    Outside the main thread signals cannot be handled, and nothing is noted.
    """
    notices = Notices()
    first = 0.0
    if threading.current_thread() is not threading.main_thread():
        yield notices
        return

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if error is None or not first:
            notices.received, first = number, time.monotonic()
            if error is not None:
                raise error(number)
        elif time.monotonic() - first > _CLEAN_UP_S:
            os._exit(_exit_code(number))

    previous = {number: signal.signal(number, handle) for number in numbers or NOTICES}
    try:
        yield notices
    except Exception as failure:
        if error is None or not first:
            raise
        raise error(notices.received) from failure
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if error and first else handler)
    if notices.received:  # Python drops what is raised in a destructor or a callback
        stop = Stopped(notices.received, "its last step")
        raise stop if error is None else error(notices.received)


def stop_when(asked: Callable[[], object]) -> Callable[..., None]:
    """A callback of the work's steps that raises `Interrupted` once `asked()` holds."""

    def step(*_: object) -> None:
        if asked():
            raise Interrupted

    return step


def _exit_code(number: int) -> int:
    return INTERRUPTED if number == signal.SIGINT else STOPPED
