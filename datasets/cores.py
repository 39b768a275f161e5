"""Processor cores of this process."""

import os


def usable_cores() -> int:
    """Cores that this process may use: of its affinity mask, where the system has such."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """OMP_NUM_THREADS, as jobs and stages beside others have it, or else one a core."""
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(limit) if limit.isdecimal() and int(limit) > 0 else usable_cores()
