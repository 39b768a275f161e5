"""Memory that a training has freed and needs again at the next update."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_... of glibc's malloc.h
_MOST_KEPT = 1 << 30
_LARGEST = 32 << 20  # the most that glibc takes for M_MMAP_THRESHOLD on 64 bits


def keep_freed_memory() -> None:
    """Let this process keep up to 1 GiB of freed memory, where its C library is glibc.

    By default large arrays go back to the system when they are freed, and each page of the next
    one costs a fault and is cleared: a quarter of CQL's time, whose batches are 30 times as large.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
