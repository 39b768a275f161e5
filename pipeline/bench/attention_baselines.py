"""Masked attention over body parts in the ways that the benchmark compares.

`implementations` are batched and in PyTorch: the networks' own two, gathered neighbours and
flex_attention. `single_sequence` is the Body Transformer paper's timing (Section 5.4, Appendix H):
one sequence, one head, random masks with ones on the diagonal and 90.8 % zeros; the baseline is
dense attention in NumPy. The paper gives neither width nor precision: here 64 channels per head, as
in its models, and float32. What depends on the mask alone is prepared outside the timing.

Legend: B sequences, V nodes, H heads, d channels per head.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gaitforge.learners.models.bot.body_attention import AttentionMask, compiled, dense_masked
from gaitforge.learners.models.bot.compiled_attention import forward_loops
from gaitforge.pipeline.bench.harness import median, seconds_of

# Share of zeros in the mask of MoCapAct's humanoid (paper, Section 5.4).
PAPER_SPARSITY = 0.908
PAPER_NODES = (16, 32, 64, 128)
HEAD_DIM = 64
WITHOUT_CPU_GRADIENT = frozenset({"flex"})  # PyTorch 2.13

Array = np.ndarray


def implementations(mask: AttentionMask) -> dict[str, Callable[[Tensor], Tensor]]:
    """Name -> attention along a mask, (B, V, 3, H, d) -> (B, V, H, d)."""
    return {
        "dense": partial(dense_masked, mask=mask),
        "gathered": gathered_attention(mask.allowed),
        "compiled": partial(compiled, mask=mask),
        "flex": partial(_flex, mask=mask),
    }


def gathered_attention(allowed: Tensor) -> Callable[[Tensor], Tensor]:
    """Allowed pairs only: each node's keys and values gathered from its padded neighbour list."""
    degrees = allowed.sum(dim=1)
    most = int(degrees.max())
    # Allowed nodes first, in their order; the rest of the row is padding.
    neighbours = allowed.byte().argsort(dim=1, descending=True, stable=True)[:, :most].contiguous()
    padding = torch.arange(most) >= degrees[:, None]

    def attend(qkv: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        scores = (query[..., None, :] * key[:, :, neighbours]).sum(-1) / math.sqrt(qkv.shape[-1])
        weights = scores.masked_fill(padding, -math.inf).softmax(-1)
        return (weights[..., None] * value[:, :, neighbours]).sum(-2).transpose(1, 2)

    return attend


def _flex(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """PyTorch's flex_attention, which skips whole blocks of 128 nodes only."""
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    allowed, size = mask.allowed, mask.nodes

    def same_limb(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return allowed[row, column]

    blocks = create_block_mask(same_limb, None, None, size, size, device=qkv.device.type)
    pooled = flex_attention(query, key, value, block_mask=blocks)
    assert isinstance(pooled, Tensor)
    return pooled.transpose(1, 2)


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


def compiled_once(query: Array, key: Array, value: Array, mask: Array) -> Callable[[], Array]:
    """A function without arguments: the networks' compiled loops on one sequence; (V, d)."""
    starts = np.concatenate([[0], mask.sum(axis=1).cumsum()])
    columns = np.nonzero(mask)[1]
    packed = np.stack([query, key, value], axis=1).reshape(1, -1, query.shape[1])
    pooled = np.empty((1, *query.shape), query.dtype)
    weights = np.empty((1, len(columns)), query.dtype)

    def attend() -> Array:
        forward_loops(packed, starts, columns, pooled, weights, 0, 1)
        return pooled[0]

    return attend


def single_sequence(nodes: int, rng: np.random.Generator) -> dict[str, Callable[[], Array]]:
    """One draw of the paper's setting: name -> a function without arguments that returns (V, d)."""
    query, key, value = rng.standard_normal((3, nodes, HEAD_DIM), dtype=np.float32)
    mask = random_mask(nodes, rng)
    return {
        "numpy dense": lambda: numpy_dense(query, key, value),
        "numpy dense masked": lambda: numpy_dense(query, key, value, mask),
        "compiled": compiled_once(query, key, value, mask),
    }


def compare_single_sequence(nodes: int, masks: int = 1000, seed: int = 0) -> dict[str, float]:
    """Median seconds a call over `masks` random masks, each implementation once a mask, in turns.

    Each timed call follows an untimed one, so that the arrays are in the cache.
    """
    rng = np.random.default_rng(seed)
    seconds: dict[str, list[float]] = {}
    for _ in range(masks):
        for name, attend in single_sequence(nodes, rng).items():
            attend()
            seconds.setdefault(name, []).append(seconds_of(attend))
    return {name: median(times) for name, times in seconds.items()}
