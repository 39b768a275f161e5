"""Masked attention over body parts, dense or by compiled loops.

Both compute softmax(Q K^T / sqrt(d) + B) V with B = 0 where the mask allows a pair and -inf
elsewhere (Sferrazza et al. 2024, Section 3), for queries, keys and values packed as one tensor
(B, V, 3, H, d), and return (B, V, H, d).

Legend: B sequences, V nodes, H heads, d numbers a head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from learners.models.bot.compiled_attention import compiled_attention

# With fewer sequences the call into the compiled loops costs more than they save.
_LEAST_ROWS = 32
# Up to this mean degree the loops are faster than dense products at every size, on one thread and
# on two; body masks have about 3.
_COMPILED_DEGREE = 6.0


class AttentionMask(nn.Module):
    """Which nodes attend to which: allowed (V, V) bool, row i for node i, at least one a row."""

    bias: Tensor
    starts: Tensor
    columns: Tensor

    def __init__(self, allowed: Tensor) -> None:
        super().__init__()
        allowed = allowed.cpu()
        if allowed.ndim != 2 or not bool(allowed.any(dim=1).all()):
            raise ValueError("every node needs at least one node that it attends to")
        self.nodes = len(allowed)
        degrees = allowed.sum(dim=1)
        self.degree = float(degrees.float().mean())
        bias = torch.zeros(allowed.shape, device="cpu").masked_fill_(~allowed, -math.inf)
        starts = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        self.register_buffer("bias", bias, persistent=False)
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("columns", allowed.nonzero()[:, 1].contiguous(), persistent=False)

    @property
    def allowed(self) -> Tensor:
        """(V, V) bool."""
        return self.bias == 0


def dense_attention(qkv: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attention over all pairs, with an additive bias (V, V) or none."""
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    if bias is not None:
        bias = bias.to(qkv.dtype)
    pooled = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return pooled.transpose(1, 2)


def dense_masked(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """All pairs, with forbidden ones masked out."""
    return dense_attention(qkv, mask.bias)


def compiled(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """Allowed pairs only, by compiled loops; CPU, float32 or float64."""
    return compiled_attention(qkv, mask.starts, mask.columns)


def prefers_compiled(mask: AttentionMask) -> bool:
    """Whether the compiled loops are the faster way to train with this mask on a CPU.

    Measured forward and backward in float32 on one thread of a Xeon with AVX-512, dense / compiled
    in ms, for d = 16 with 2 heads and (d = 64 with 5 heads); about 13,000 (1,700) nodes in all:

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
    """Masked attention by the faster way for this mask; (B, V, 3, H, d) -> (B, V, H, d).

    A program that is being exported gets the dense form, which every format can express.
    """
    tracing = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    exporting = tracing or torch.compiler.is_exporting()
    loops = qkv.device.type == "cpu" and qkv.dtype in (torch.float32, torch.float64)
    if exporting or not loops or len(qkv) < _LEAST_ROWS or not prefers_compiled(mask):
        return dense_masked(qkv, mask)
    return compiled(qkv, mask)
