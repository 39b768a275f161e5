"""Attention over neighbour lists as compiled loops for CPUs, with its gradient.

The loops visit allowed pairs only and do not copy queries, keys or values. They are registered as a
PyTorch operator, so that autograd and `torch.compile` work.

Legend: B sequences, V nodes, H heads, d channels per head, P allowed pairs.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaitforge.learners.fast_kernels import compiled

Array = np.ndarray

# With fewer sequences per thread, starting the thread costs more than it saves.
_ROWS_PER_THREAD = 64

# nogil: `in_threads` runs the loops in threads.
_loops = compiled(nogil=True, error_model="numpy")


@_loops
def forward_loops(
    qkv: Array, starts: Array, columns: Array, pooled: Array, weights: Array, first: int, last: int
) -> None:
    """(B, V x 3 x H, d) -> pooled (B, V x H, d) and weights (B, H x P), rows first..last."""
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


@torch.library.custom_op("gaitforge::neighbour_attention", mutates_args=())
def _attention(qkv: Tensor, starts: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    rows = len(qkv)
    width = qkv.shape[-1]
    pooled, weights = _outputs(qkv, starts, columns)
    in_threads(
        forward_loops,
        rows,
        qkv.contiguous().view(rows, -1, width).numpy(),
        starts.numpy(),
        columns.numpy(),
        pooled.view(rows, -1, width).numpy(),
        weights.numpy(),
    )
    return pooled, weights


@_attention.register_fake
def _outputs(qkv: Tensor, starts: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    rows, nodes, _, heads, width = qkv.shape
    return qkv.new_empty(rows, nodes, heads, width), qkv.new_empty(rows, heads * columns.shape[0])


@torch.library.custom_op("gaitforge::neighbour_attention_backward", mutates_args=())
def _attention_backward(
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


@_attention_backward.register_fake
def _(grad_pooled: Tensor, qkv: Tensor, starts: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    return torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _differentiate(ctx: Any, grad_pooled: Tensor, _: Tensor | None) -> tuple[Tensor, None, None]:
    return _attention_backward(grad_pooled, *ctx.saved_tensors), None, None


_attention.register_autograd(_differentiate, setup_context=_keep)


def compiled_attention(qkv: Tensor, starts: Tensor, columns: Tensor) -> Tensor:
    """Masked attention on the CPU: packed (B, V, 3, H, d) -> (B, V, H, d), float32 or float64.

    Node i attends to the nodes columns[starts[i] : starts[i + 1]] (int64, at least one). A process
    compiles the loops, or loads them from the cache, at its first call. Differentiable once.
    """
    return _attention(qkv, starts, columns)[0]
