"""The Body Transformer paper's timing of masked attention (Section 5.4, Appendix H).

One sequence, one head, random masks with ones on the diagonal and 90.8 % zeros, new queries, keys,
values and mask every time. The baseline is plain attention over all pairs in NumPy, without a mask,
as the paper counts it. The paper does not say the width or the precision: here they are the 64
numbers a head of its models and float32. What depends on the mask alone is prepared outside the
timing, for a body's mask is known beforehand.
"""

import math
from collections.abc import Callable
from time import perf_counter

import numpy as np

# Share of zeros in the mask of MoCapAct's humanoid (paper, Section 5.4).
PAPER_SPARSITY = 0.908
PAPER_NODES = (16, 32, 64, 128)
HEAD_DIM = 64

Array = np.ndarray


def random_mask(nodes: int, rng: np.random.Generator, sparsity: float = PAPER_SPARSITY) -> Array:
    """(V, V) bool with a true diagonal and `sparsity` of all entries false (at most the rest)."""
    mask = np.eye(nodes, dtype=bool)
    further = max(0, round((1.0 - sparsity) * nodes * nodes) - nodes)
    mask.ravel()[rng.choice(np.flatnonzero(~mask), further, replace=False)] = True
    return mask


def numpy_dense(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    """softmax(Q K^T / sqrt(d)) V over all pairs, or with the forbidden ones masked out; (V, d)."""
    scores = query @ key.T
    scores *= query.dtype.type(1.0 / math.sqrt(query.shape[1]))
    if mask is not None:
        scores[~mask] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores @ value


def numpy_sparse(query: Array, key: Array, value: Array, mask: Array) -> Callable[[], Array]:
    """A function without arguments: the softmax over allowed pairs only, in NumPy; (V, d).

    The products are dense: up to 128 nodes they cost less than picking out the allowed pairs does.
    """
    allowed = np.flatnonzero(mask)
    degrees = mask.sum(axis=1)
    starts = np.concatenate([[0], degrees.cumsum()[:-1]])
    scale = query.dtype.type(1.0 / math.sqrt(query.shape[1]))

    def attend() -> Array:
        scores = (query @ key.T).ravel()[allowed]
        scores *= scale
        scores -= np.repeat(np.maximum.reduceat(scores, starts), degrees)
        np.exp(scores, out=scores)
        scores /= np.repeat(np.add.reduceat(scores, starts), degrees)
        weights = np.zeros(mask.shape, scores.dtype)
        weights.ravel()[allowed] = scores
        return weights @ value

    return attend


def single_sequence(
    nodes: int, rng: np.random.Generator, head_dim: int = HEAD_DIM
) -> dict[str, Callable[[], Array]]:
    """One draw of the setting: name -> a function without arguments that returns (V, d)."""
    from learners.models.bot.compiled_attention import attend_once

    query, key, value = rng.standard_normal((3, nodes, head_dim), dtype=np.float32)
    mask = random_mask(nodes, rng)
    return {
        "numpy dense": lambda: numpy_dense(query, key, value),
        "numpy dense masked": lambda: numpy_dense(query, key, value, mask),
        "numpy sparse": numpy_sparse(query, key, value, mask),
        "compiled": attend_once(query, key, value, mask),
    }


def compare_single_sequence(nodes: int, masks: int = 1000, seed: int = 0) -> dict[str, float]:
    """Median seconds a call over `masks` random masks, every way once a mask, in turns.

    Each call is timed after one that is not, so that none pays for fetching the arrays.
    """
    rng = np.random.default_rng(seed)
    seconds: dict[str, list[float]] = {}
    for _ in range(masks):
        for name, attend in single_sequence(nodes, rng).items():
            attend()
            start = perf_counter()
            attend()
            seconds.setdefault(name, []).append(perf_counter() - start)
    return {name: float(np.median(times)) for name, times in seconds.items()}
