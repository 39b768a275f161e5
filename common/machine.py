"""What the machine gives this process: processor cores, and why torch sees no GPU."""

import os
import re
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


def usable_cores() -> int:
    """Cores that this process may use: of its affinity mask, where the system has such."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """OMP_NUM_THREADS, as jobs and stages beside others have it, or else one a core."""
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(limit) if limit.isdecimal() and int(limit) > 0 else usable_cores()


def why_no_gpu(torch: Any) -> str:
    """The reason and its remedy, for a message, where `torch.cuda.is_available()` is False.

    Args:
        torch: the package, which this floor does not import.
    """
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return (
            f"torch {torch.__version__} was built without CUDA: install a build with CUDA from "
            "pytorch.org, or use device=cpu"
        )
    try:
        torch.cuda.init()
        text = ""
    except (RuntimeError, AssertionError) as error:
        text = " ".join(str(error).split())
    if "no NVIDIA driver" in text:
        return (
            "this machine has no NVIDIA driver, or the container was started without its GPUs: "
            "use device=cpu, or go where there is one"
        )
    if "too old" in text:
        version = re.search(r"found version (\d+)", text)
        numbers = divmod(int(version[1]), 1000) if version else None
        supports = f" (it supports CUDA {numbers[0]}.{numbers[1] // 10})" if numbers else ""
        return (
            f"the NVIDIA driver{supports} is older than torch's CUDA {torch.version.cuda}: update "
            "the driver, install a torch for the older CUDA, or use device=cpu"
        )
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return (
            f"{VISIBLE}={visible!r} hides the GPUs of this machine, or names none of them: unset "
            "it, or use device=cpu"
        )
    reason = text.partition(". ")[0] or "torch sees no GPU"
    return f"{reason}; use device=cpu"
