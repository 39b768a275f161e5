"""Masked attention over body parts, dense or as compiled loops.

Both compute softmax(Q K^T / sqrt(d) + M) V with M = 0 where the mask allows a pair and -inf
elsewhere (Sferrazza et al. 2024, Section 3), for queries, keys and values packed into one tensor
(B, V, 3, H, d), and return (B, V, H, d).

The compiled loops compute attention over neighbour lists, and its gradient, on CPUs. They visit
allowed pairs only and do not copy queries, keys or values. They are registered as a PyTorch
operator, so that autograd and `torch.compile` work.

Legend: B sequences, V nodes, H heads, d channels per head, P allowed pairs.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.common.kernels import compiled_fast

# Compiled loops over neighbour lists, with their gradient.
Array = np.ndarray

# With fewer sequences per thread, starting the thread costs more than it saves.
_ROWS_PER_THREAD = 64

# nogil: `in_threads` runs the loops in threads.
_loops = compiled_fast(nogil=True, error_model="numpy")


@_loops
def forward_loops(
    qkv: Array,
    starts: Array,
    columns: Array,
    biases: Array,
    pooled: Array,
    weights: Array,
    first: int,
    last: int,
) -> None:
    """(B, V x 3 x H, d) -> pooled (B, V x H, d) and weights (B, H x P), rows first..last.

    biases: (P,) added to the scores of each pair, or (0,) for none.
    """
    width = qkv.shape[2]
    nodes = len(starts) - 1
    pairs = len(columns)
    heads = pooled.shape[1] // nodes
    scores = np.empty(nodes, qkv.dtype)
    scores[0] = 1.0 / math.sqrt(width)
    scale = scores[0]  # in the precision of the data
    for row in range(first, last):
        for node in range(nodes):
            begin = starts[node]
            count = starts[node + 1] - begin
            for head in range(heads):
                query = 3 * heads * node + head
                largest = np.float32(-np.inf)
                for pair in range(count):
                    key = 3 * heads * columns[begin + pair] + heads + head
                    score = np.float32(0)
                    for e in range(width):
                        score += qkv[row, query, e] * qkv[row, key, e]
                    score *= scale
                    if len(biases) > 0:
                        score += biases[begin + pair]
                    scores[pair] = score
                    largest = max(largest, score)
                total = np.float32(0)
                for pair in range(count):
                    part = math.exp(scores[pair] - largest)
                    scores[pair] = part
                    total += part
                inverse = np.float32(1) / total
                out = heads * node + head
                for e in range(width):
                    pooled[row, out, e] = 0
                for pair in range(count):
                    weight = scores[pair] * inverse
                    weights[row, pairs * head + begin + pair] = weight
                    value = 3 * heads * columns[begin + pair] + 2 * heads + head
                    for e in range(width):
                        pooled[row, out, e] += weight * qkv[row, value, e]


@_loops
def _backward_loops(
    qkv: Array,
    starts: Array,
    columns: Array,
    weights: Array,
    grad_pooled: Array,
    grad_qkv: Array,
    first: int,
    last: int,
) -> None:
    """The gradient of `forward_loops` with respect to qkv, rows first..last.

    One sum per loop: several in one loop do not fit the vector registers and take twice as long.
    """
    width = qkv.shape[2]
    nodes = len(starts) - 1
    pairs = len(columns)
    heads = grad_pooled.shape[1] // nodes
    slopes = np.empty(nodes, qkv.dtype)
    slopes[0] = 1.0 / math.sqrt(width)
    scale = slopes[0]  # in the precision of the data
    for row in range(first, last):
        source = qkv[row]
        grad_out = grad_pooled[row]
        attention = weights[row]
        grad = grad_qkv[row]
        grad[:] = 0
        for node in range(nodes):
            begin = starts[node]
            count = starts[node + 1] - begin
            for head in range(heads):
                out = grad_out[heads * node + head]
                query = source[3 * heads * node + head]
                grad_query = grad[3 * heads * node + head]
                mean = np.float32(0)
                for pair in range(count):
                    value = source[3 * heads * columns[begin + pair] + 2 * heads + head]
                    slope = np.float32(0)
                    for e in range(width):
                        slope += out[e] * value[e]
                    slopes[pair] = slope
                    mean += slope * attention[pairs * head + begin + pair]
                for pair in range(count):
                    weight = attention[pairs * head + begin + pair]
                    slopes[pair] = weight * (slopes[pair] - mean) * scale
                    grad_value = grad[3 * heads * columns[begin + pair] + 2 * heads + head]
                    for e in range(width):
                        grad_value[e] += weight * out[e]
                for pair in range(count):
                    slope = slopes[pair]
                    grad_key = grad[3 * heads * columns[begin + pair] + heads + head]
                    for e in range(width):
                        grad_key[e] += slope * query[e]
                for pair in range(count):
                    slope = slopes[pair]
                    key = source[3 * heads * columns[begin + pair] + heads + head]
                    for e in range(width):
                        grad_query[e] += slope * key[e]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="body-attention")


def in_threads(kernel: Callable[..., None], rows: int, *arrays: Any) -> None:
    """Run a kernel over all rows, on at most as many threads as PyTorch uses."""
    threads = max(1, min(torch.get_num_threads(), rows // _ROWS_PER_THREAD))
    bounds = [rows * part // threads for part in range(threads + 1)]
    if threads == 1:
        kernel(*arrays, 0, rows)
        return
    pool = _pool(threads - 1)
    futures = [pool.submit(kernel, *arrays, bounds[i], bounds[i + 1]) for i in range(1, threads)]
    kernel(*arrays, 0, bounds[1])
    for future in futures:
        future.result()


def _loop_attention(qkv: Tensor, starts: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    rows = len(qkv)
    width = qkv.shape[-1]
    pooled, weights = _outputs(qkv, starts, columns)
    in_threads(
        forward_loops,
        rows,
        qkv.contiguous().view(rows, -1, width).numpy(),
        starts.numpy(),
        columns.numpy(),
        qkv.new_empty(0).numpy(),
        pooled.view(rows, -1, width).numpy(),
        weights.numpy(),
    )
    return pooled, weights


def _outputs(qkv: Tensor, starts: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    rows, nodes, _, heads, width = qkv.shape
    return qkv.new_empty(rows, nodes, heads, width), qkv.new_empty(rows, heads * columns.shape[0])


def _loop_gradient(
    grad_pooled: Tensor, qkv: Tensor, starts: Tensor, columns: Tensor, weights: Tensor
) -> Tensor:
    rows = qkv.shape[0]
    width = qkv.shape[-1]
    grad_qkv = torch.empty(qkv.shape, dtype=qkv.dtype)
    in_threads(
        _backward_loops,
        rows,
        qkv.contiguous().view(rows, -1, width).numpy(),
        starts.numpy(),
        columns.numpy(),
        weights.numpy(),
        grad_pooled.contiguous().view(rows, -1, width).numpy(),
        grad_qkv.view(rows, -1, width).numpy(),
    )
    return grad_qkv


def _gradient_output(
    grad_pooled: Tensor, qkv: Tensor, starts: Tensor, columns: Tensor, weights: Tensor
) -> Tensor:
    return torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)


_OPERATORS = torch.library.Library("gaitforge", "DEF")


def _operator(schema: str, loops: Callable[..., Any], outputs: Callable[..., Any]) -> Any:
    """An operator of PyTorch by its loops on the CPU, and its empty outputs.

    `torch.library.custom_op` imports torch's compiler at the first call: 5 s of CPU.
    """
    name = _OPERATORS.define(schema, tags=torch.Tag.pt2_compliant_tag)
    _OPERATORS.impl(name, loops, "CPU")
    torch.library.register_fake(f"gaitforge::{name}", outputs, lib=_OPERATORS)
    return getattr(torch.ops.gaitforge, name).default


_attention = _operator(
    "neighbour_attention(Tensor qkv, Tensor starts, Tensor columns) -> (Tensor, Tensor)",
    _loop_attention,
    _outputs,
)
_attention_backward = _operator(
    "neighbour_attention_backward(Tensor grad_pooled, Tensor qkv, Tensor starts, Tensor columns, "
    "Tensor weights) -> Tensor",
    _loop_gradient,
    _gradient_output,
)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _differentiate(ctx: Any, grad_pooled: Tensor, _: Tensor | None) -> tuple[Tensor, None, None]:
    return _attention_backward(grad_pooled, *ctx.saved_tensors), None, None


torch.library.register_autograd(
    "gaitforge::neighbour_attention", _differentiate, setup_context=_keep, lib=_OPERATORS
)


def compiled_attention(qkv: Tensor, starts: Tensor, columns: Tensor) -> Tensor:
    """Masked attention on the CPU: packed (B, V, 3, H, d) -> (B, V, H, d), float32 or float64.

    Node i attends to the nodes columns[starts[i] : starts[i + 1]] (int64, at least one). A process
    compiles the loops, or loads them from the cache, at its first call. Differentiable once.
    """
    return _attention(qkv, starts, columns)[0]


# The mask, dense attention, and the choice between it and the loops.

# With fewer sequences the call overhead of the compiled loops exceeds their gain.
_LEAST_ROWS = 32
# Up to this mean degree the loops are faster than dense products at every measured size, on one and
# on two threads; body masks have about 3.
_COMPILED_DEGREE = 6.0


class AttentionMask(nn.Module):
    """Attention mask: in allowed (V, V) bool, row i has the nodes (at least one) i attends to."""

    bias: Tensor
    starts: Tensor
    columns: Tensor

    def __init__(self, allowed: Tensor) -> None:
        super().__init__()
        allowed = allowed.cpu()
        if allowed.ndim != 2 or not bool(allowed.any(dim=1).all()):
            raise ValueError("every node must attend to at least one node")
        self.nodes = len(allowed)
        degrees = allowed.sum(dim=1)
        self.degree = float(degrees.float().mean())
        bias = torch.zeros(allowed.shape, device="cpu").masked_fill_(~allowed, -math.inf)
        starts = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        self.register_buffer("bias", bias, persistent=False)
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("columns", allowed.nonzero()[:, 1].contiguous(), persistent=False)


def dense_attention(qkv: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attention over all pairs; bias (V, V) is added to the scores."""
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    bias = None if bias is None else bias.to(qkv.dtype)
    pooled = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return pooled.transpose(1, 2)


def dense_masked(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """Masked attention that computes all pairs and masks out forbidden ones."""
    return dense_attention(qkv, mask.bias)


def sparse(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """Masked attention that computes allowed pairs only, as compiled loops (CPU, float32 or 64)."""
    return compiled_attention(qkv, mask.starts, mask.columns)


def prefers_compiled(mask: AttentionMask) -> bool:
    """Whether training on a CPU with this mask is faster with the compiled loops.

    Time of forward and backward in ms, dense / compiled, in float32 on one thread of a Xeon with
    AVX-512, for d = 16 with 2 heads and (d = 64 with 5 heads); about 13,000 (1,700) nodes in all:

        mask                13 nodes    25 nodes    32 nodes    64 nodes     128 nodes
        tree, degree 3      15.1/5.6    9.9/5.6     7.4/5.6     11.9/5.4     14.3/5.3
                           (10.4/4.9)  (8.0/4.8)   (7.1/4.1)   (9.5/5.2)    (14.2/5.1)
        9.2 % allowed       13.0/3.9    10.8/5.1    6.5/5.0     11.6/8.7     15.3/14.5
                           (8.6/2.9)   (7.7/4.3)   (6.8/4.8)   (10.0/6.9)   (13.7/9.2)
        25 % allowed        15.2/6.0    10.1/9.6    6.3/10.8    10.5/18.4    16.2/33.6
                           (8.8/5.0)   (8.7/7.0)   (7.1/7.4)   (10.6/11.6)  (17.7/24.4)
    """
    return mask.degree <= _COMPILED_DEGREE


def masked_attention(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """Masked attention (B, V, 3, H, d) -> (B, V, H, d), by the faster implementation for this mask.

    In an export it is always dense, because every export format has the dense operations.
    """
    tracing = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    exporting = tracing or torch.compiler.is_exporting()
    loops = qkv.device.type == "cpu" and qkv.dtype in (torch.float32, torch.float64)
    if exporting or not loops or len(qkv) < _LEAST_ROWS or not prefers_compiled(mask):
        return dense_masked(qkv, mask)
    return sparse(qkv, mask)
