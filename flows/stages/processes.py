"""Work shared by processes of this machine, which do not wait for each other's interpreter lock."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from threading import Thread

from gaitforge.common.interrupts import Interrupted, stop_signals, stop_when
from gaitforge.flows.progress import Advance

POLL_S = 0.5
END_S = 10.0
"""How long a process may take to end after SIGTERM."""

Work = Callable[[Sequence[str], Advance], object]


def run_in_processes(work: Work, shares: Sequence[Sequence[str]], look: Callable[[], None]) -> bool:
    """Do each share of the work in a process of its own; True if all succeed.

    If one fails, or this process is interrupted or killed, the others end.

    Args:
        work: `work(share, advance)`, at the top of a module; `advance` stops it by raising.
        look: called about twice a second, and after the last process has ended.
    """
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_run, args=(work, share), daemon=True) for share in shares]
    # Processes start with Ctrl-C blocked: it interrupts this one, which ends them. Starting the
    # resource tracker would unblock it.
    resource_tracker.ensure_running()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            for worker in workers:
                worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        running = list(workers)
        while running:
            wait([worker.sentinel for worker in running], POLL_S)
            # Before `look`: what a process that has ended left behind is seen by it.
            ended = {worker: worker.exitcode for worker in running if worker.exitcode is not None}
            look()
            if any(ended.values()):
                return False
            running = [worker for worker in running if worker not in ended]
        return True
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
        for worker in workers:
            if worker.pid is not None:
                worker.join(END_S)


def _run(work: Work, share: Sequence[str]) -> None:
    # The work ends at its next step: an exception in the midst of a commit or of what removes a
    # part's files would leave them behind.
    try:
        with stop_signals(signal.SIGTERM) as notices:
            Thread(target=_end_with_parent, daemon=True).start()
            work(share, stop_when(lambda: notices.received))
    except (ValueError, OSError, Interrupted, KeyboardInterrupt):
        sys.exit(1)  # the parent reports it in one line


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
