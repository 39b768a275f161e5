"""Why torch does not see a GPU that was asked for."""

import os
import re
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


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
