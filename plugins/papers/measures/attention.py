"""Masked attention: Figures 6 and 13 of the Body Transformer paper (Sferrazza et al. 2024).

Legend: V nodes, d channels of a head, P pairs that a mask allows.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from gaitforge.flows.progress import Advance
from gaitforge.learners.models.body_attention import AttentionMask, dense_masked, sparse
from gaitforge.plugins.papers.measures.interface import Measure, Point, Series
from gaitforge.plugins.papers.measures.timing import seconds_of

PAPER_SPARSITY = 0.908
"""Share of zeros in the mask of MoCapAct's humanoid (Section 5.4)."""
NUMPY_DENSE = "dense NumPy"
NUMPY_MASKED = "masked NumPy"
TORCH_DENSE = "dense torch"
COMPILED = "masked compiled"


def random_mask(nodes: int, rng: np.random.Generator, sparsity: float = PAPER_SPARSITY) -> Any:
    """(V, V) bool with a true diagonal and this share of all entries false, or the rest."""
    mask = np.eye(nodes, dtype=bool)
    further = max(0, round((1.0 - sparsity) * nodes * nodes) - nodes)
    mask.ravel()[rng.choice(np.flatnonzero(~mask), further, replace=False)] = True
    return mask


def numpy_dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Equation (1) over all pairs; q, k, v (V, d); bias (V, V): 0 or -inf."""
    scores = q @ k.T / math.sqrt(q.shape[1]) + bias
    parts = np.exp(scores - scores.max(axis=1, keepdims=True))
    return parts / parts.sum(axis=1, keepdims=True) @ v


def numpy_masked(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, pairs: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Section 5.4's: products and softmax of allowed pairs only, the sum over values dense.

    Args:
        pairs: (P,) row, sorted, and column of each allowed pair; every row has one.
    """
    rows, columns = pairs
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    scores = np.einsum("pd,pd->p", q[rows], k[columns]) / math.sqrt(q.shape[1])
    parts = np.exp(scores - np.maximum.reduceat(scores, starts)[rows])
    weights = np.zeros((len(q), len(q)), parts.dtype)
    weights[rows, columns] = parts / np.add.reduceat(parts, starts)[rows]
    return weights @ v


def operations(name: str, nodes: int, pairs: int, width: int) -> int:
    """Floating-point operations of one head, as the paper counts them (appendix H).

    With 1 for an exponential and for the root of d, which the paper leaves open; neither the mask's
    addition nor the softmax's maximum counts. Compiled loops also sum over allowed pairs only.
    """
    scored = nodes * nodes if name in (NUMPY_DENSE, TORCH_DENSE) else pairs
    summed = pairs if name == COMPILED else nodes * nodes
    softmax = 3 * scored - nodes
    return 2 * scored * width + 1 + softmax + 2 * summed * width - nodes * width


@dataclass(frozen=True)
class Attention(Measure):
    """Time of one forward pass of one head on one sample, with random masks.

    A repeat has masks, queries, keys and values of its own; its figure is the median over them.

    Attributes:
        nodes: the axis of Figure 6, at the sparsity of `PAPER_SPARSITY`.
        sparsity: the axis of Figure 13, for each of `sparsity_nodes`.
        masks: random ones, over all repeats.
        width: d; the paper does not tell its own, and has 64 in its networks (Figure 12).
    """

    title: ClassVar[str] = "Forward pass of one head"
    unit: ClassVar[str] = "µs"
    axes: ClassVar[tuple[str, ...]] = ("nodes", "sparsity", "sparsity_nodes")

    nodes: tuple[int, ...] = (8, 16, 32, 64, 128)
    sparsity: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    sparsity_nodes: tuple[int, ...] = (16, 32, 64)
    masks: int = 210
    width: int = 64

    def points(self, stores: Sequence[str]) -> Iterator[Point]:
        """Node counts, and shares of zeros for each of some node counts."""
        if min((*self.nodes, *self.sparsity_nodes, self.masks, self.width), default=0) < 1:
            raise ValueError("nodes, sparsity_nodes, masks and width must be at least 1")
        if not all(0.0 <= share < 1.0 for share in self.sparsity):
            raise ValueError(f"sparsity must lie in [0, 1), got {list(self.sparsity)}")
        yield from (("nodes", value) for value in self.nodes)
        for nodes in self.sparsity_nodes:
            yield from ((f"sparsity of {nodes} nodes", value) for value in self.sparsity)

    def series(
        self, point: Point, repeats: int, stores: Sequence[str], advance: Advance
    ) -> Iterator[Series]:
        """A series for each implementation."""
        axis, value = point
        plain = axis == "nodes"
        nodes = int(value or 0) if plain else int(axis.split()[2])
        sparsity = PAPER_SPARSITY if plain else float(value or 0)
        rng = np.random.default_rng(0)
        drawn = [random_mask(nodes, rng, sparsity) for _ in range(-(-self.masks // repeats))]
        figures: dict[str, list[float]] = {}
        for repeat in range(repeats + 1):
            for name, figure in self._repeat(drawn if repeat else drawn[:1], rng).items():
                figures.setdefault(name, []).extend([figure] if repeat else [])
            drawn = [random_mask(nodes, rng, sparsity) for _ in drawn]
            advance(1, axis)
        pairs = int(drawn[0].sum())
        for name, values in figures.items():
            yield Series(name, values, {"operations": operations(name, nodes, pairs, self.width)})

    @torch.inference_mode()
    def _repeat(self, masks: Sequence[np.ndarray], rng: np.random.Generator) -> dict[str, float]:
        """The median figure of each implementation over masks, which they do in turns."""
        figures: dict[str, list[float]] = {}
        for mask in masks:
            qkv = rng.standard_normal((3, len(mask), self.width), dtype=np.float32)
            for name, work in forward_passes(qkv, mask).items():
                work()
                figures.setdefault(name, []).append(1e6 * seconds_of(work))
        return {name: float(np.median(values)) for name, values in figures.items()}


def forward_passes(qkv: np.ndarray, mask: np.ndarray) -> Mapping[str, Callable[[], Any]]:
    """Each implementation on queries, keys and values (3, V, d); -> (V, d), torch's (1, V, 1, d).

    What follows from the mask alone is made before.
    """
    bias = np.where(mask, np.float32(0), np.float32(-np.inf))
    packed = torch.from_numpy(qkv).transpose(0, 1)[None, :, :, None].contiguous()
    allowed = AttentionMask(torch.from_numpy(mask))
    return {
        NUMPY_DENSE: partial(numpy_dense, *qkv, bias),
        NUMPY_MASKED: partial(numpy_masked, *qkv, np.nonzero(mask)),
        TORCH_DENSE: partial(dense_masked, packed, allowed),
        COMPILED: partial(sparse, packed, allowed),
    }
