"""Loops compiled by numba: an edit of what a kernel calls is seen in spite of the cache."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

NAMES = ("inner_loop", "middle_loop", "outer_loop")
INNER = (
    "from gaitforge.common.kernels import compiled_fast\n\n\n@compiled_fast()\ndef inner_loop(x):\n"
)
CALLER = """from gaitforge.common.kernels import compiled_fast
from {called} import {called}


@compiled_fast()
def {name}(x):
    return {called}(x) + 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, each with a function that calls the one before."""
    monkeypatch.syspath_prepend(tmp_path)
    for called, name in pairwise(NAMES):
        (tmp_path / f"{name}.py").write_text(CALLER.format(called=called, name=name))
    yield tmp_path
    _forget()


def _forget() -> None:
    for name in NAMES:
        sys.modules.pop(name, None)


def test_a_kernel_is_compiled_again_after_an_edit_of_what_it_calls(folder: Path) -> None:
    results = []
    for factor in (10, 1000, 1000):
        (folder / "inner_loop.py").write_text(f"{INNER}    return {factor} * x\n")
        _forget()
        outer = __import__("outer_loop").outer_loop
        results.append((outer(3), sum(outer.stats.cache_hits.values())))
    assert results == [(32, 0), (3002, 0), (3002, 1)]
