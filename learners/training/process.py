"""Process settings of a training: torch's threads, and memory that it keeps."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3  # M_... of glibc's malloc.h
_MOST_KEPT = 1 << 30
_LARGEST = 32 << 20  # the most that glibc takes for M_MMAP_THRESHOLD on 64 bits


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """PyTorch on so many threads within the block; None leaves their number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Let this process keep up to 1 GiB of freed memory, where its C library is glibc.

    By default freed large arrays go back to the system, and each page of the next one is faulted in
    and cleared: a quarter of the time of CQL, whose batches are 30 times as large.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
