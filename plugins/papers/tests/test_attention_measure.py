"""Masked attention: the paper's two ways and ours agree, and cost what the paper's formulas say."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.plugins.papers.measures.attention import (
    COMPILED,
    NUMPY_DENSE,
    NUMPY_MASKED,
    PAPER_SPARSITY,
    forward_passes,
    numpy_dense,
    numpy_masked,
    operations,
    random_mask,
)


class Counted:
    """A number that counts what the paper counts: no difference and no maximum (appendix H)."""

    done: ClassVar[Counter[str]] = Counter()

    def __init__(self, value: float):
        self.value = value

    def _counted(self, what: str, value: float) -> Counted:
        self.done[what] += 1
        return Counted(value)

    def __add__(self, other: Any) -> Counted:
        return self._counted("add", self.value + _value(other))

    def __radd__(self, other: Any) -> Counted:
        assert other == 0, "a sum's start"
        return self

    def __rmul__(self, other: Any) -> Counted:
        return self * other

    def __mul__(self, other: Any) -> Counted:
        return self._counted("multiply", self.value * _value(other))

    def __truediv__(self, other: Any) -> Counted:
        return self._counted("divide", self.value / _value(other))

    def __sub__(self, other: Any) -> Counted:
        return Counted(self.value - _value(other))

    def __gt__(self, other: Any) -> bool:
        return self.value > _value(other)

    def __ge__(self, other: Any) -> bool:
        return self.value >= _value(other)

    def __lt__(self, other: Any) -> bool:
        return self.value < _value(other)

    def exp(self) -> Counted:
        return self._counted("exponential", math.exp(self.value))


def _value(number: Any) -> float:
    return number.value if isinstance(number, Counted) else float(number)


SHAPES = st.tuples(st.integers(2, 9), st.integers(1, 4), st.floats(0.0, 0.95), st.integers(0, 99))


@given(SHAPES)
def test_every_implementation_gives_the_same(shape: tuple[int, int, float, int]) -> None:
    nodes, width, sparsity, seed = shape
    rng = np.random.default_rng(seed)
    mask = random_mask(nodes, rng, sparsity)
    qkv = rng.standard_normal((3, nodes, width), dtype=np.float32)
    first, *others = (np.asarray(work()).reshape(nodes, width)
                      for work in forward_passes(qkv, mask).values())  # fmt: skip
    assert first.dtype == np.float32
    for other in others:
        assert other.dtype == np.float32
        np.testing.assert_allclose(other, first, atol=1e-5)


@given(SHAPES)
def test_operations_are_those_that_numpy_does(shape: tuple[int, int, float, int]) -> None:
    nodes, width, sparsity, seed = shape
    rng = np.random.default_rng(seed)
    mask = random_mask(nodes, rng, sparsity)
    pairs = int(mask.sum())
    qkv = np.vectorize(Counted, otypes=[object])(rng.standard_normal((3, nodes, width)))
    Counted.done = Counter()
    q, k, v = qkv
    rows, columns = np.nonzero(mask)
    numpy_masked(q, k, v, (rows, columns))
    root = 1
    assert root + Counted.done.total() == operations(NUMPY_MASKED, nodes, pairs, width)
    Counted.done = Counter()
    numpy_dense(q, k, v, np.zeros((nodes, nodes)))
    with_bias = Counted.done.total() - nodes**2
    assert root + with_bias == operations(NUMPY_DENSE, nodes, pairs, width)
    beta = pairs / nodes**2
    closed = 4 * nodes**2 * width + 3 * nodes**2 - nodes * width - nodes + 1
    assert operations(NUMPY_DENSE, nodes, pairs, width) == closed
    closed_masked = (2 * beta + 2) * nodes**2 * width + 3 * beta * nodes**2
    closed_masked += 1 - nodes * width - nodes
    assert operations(NUMPY_MASKED, nodes, pairs, width) == pytest.approx(closed_masked)
    assert operations(COMPILED, nodes, pairs, width) <= operations(
        NUMPY_MASKED, nodes, pairs, width
    )


@pytest.mark.parametrize("nodes", [1, 5, 32, 128])
def test_random_masks_are_the_papers(nodes: int) -> None:
    mask = random_mask(nodes, np.random.default_rng(0))
    assert mask.diagonal().all()
    assert mask.sum() == max(nodes, round((1 - PAPER_SPARSITY) * nodes**2))
