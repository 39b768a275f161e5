"""Masked attention over body parts, dense or as compiled loops.

Both compute softmax(Q K^T / sqrt(d) + M) V with M = 0 where the mask allows a pair and -inf
elsewhere (Sferrazza et al. 2024, Section 3), for queries, keys and values packed into one tensor
(B, V, 3, H, d), and return (B, V, H, d).

Legend: B sequences, V nodes, H heads, d channels per head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.bot.compiled_attention import compiled_attention

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


def compiled(qkv: Tensor, mask: AttentionMask) -> Tensor:
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
    return compiled(qkv, mask)
