"""Why a GPU is not there: each reason is told from the others."""

import re
from types import SimpleNamespace

import pytest

from gaitforge.common.machine import VISIBLE, why_no_gpu

NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040). Please update"
NO_GPUS = "No CUDA GPUs are available"


@pytest.mark.parametrize(
    ("cuda", "error", "visible", "reason"),
    [
        (None, AssertionError("Torch not compiled with CUDA enabled"), "", "built without CUDA"),
        ("12.8", RuntimeError(NO_DRIVER), None, "no NVIDIA driver"),
        ("12.8", RuntimeError(NO_DRIVER), "0", "no NVIDIA driver"),
        ("12.8", RuntimeError(OLD_DRIVER), None, r"supports CUDA 11.4\) is older than .* 12.8"),
        ("12.8", RuntimeError(NO_GPUS), "", "CUDA_VISIBLE_DEVICES='' hides"),
        ("12.8", RuntimeError(NO_GPUS), "-1", "CUDA_VISIBLE_DEVICES='-1' hides"),
        ("12.8", RuntimeError(NO_GPUS), None, NO_GPUS),
    ],
)
def test_the_reason_is_told(
    cuda: str | None,
    error: Exception,
    visible: str | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init() -> None:
        raise error

    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    version = SimpleNamespace(cuda=cuda, hip=None)
    torch = SimpleNamespace(__version__="2.9.0", version=version, cuda=SimpleNamespace(init=init))
    text = why_no_gpu(torch)
    assert re.search(reason, text), text
    assert "device=cpu" in text
    assert "\n" not in text
