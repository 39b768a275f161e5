"""Masked attention over body parts in several ways, and the choice between them.

All compute softmax(Q K^T / sqrt(d) + B) V with B = 0 where the mask allows a pair and -inf
elsewhere (Sferrazza et al. 2024, Section 3). They take queries, keys and values packed as one
tensor (B, V, 3, H, d) and return (B, V, H, d).

Legend: B sequences, V nodes, H heads, d numbers a head.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from learners.models.bot.compiled_attention import compiled_attention


class AttentionMask(nn.Module):
    """Who may attend to whom, in the forms that the implementations need; nothing is trained.

    Args: allowed, (V, V) bool, row i the nodes that node i attends to. Raises ValueError where a
    node attends to none.
    """

    bias: Tensor
    neighbours: Tensor
    padding: Tensor
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
        most = int(degrees.max())
        columns = allowed.nonzero()[:, 1].contiguous()
        starts = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        # Allowed nodes first, in their order; the rest of the row is padding.
        neighbours = allowed.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        padding = torch.arange(most, device="cpu") >= degrees[:, None]
        for name, value in {
            "bias": _additive(~allowed),
            "neighbours": neighbours.contiguous(),
            "padding": _additive(padding),
            "starts": starts,
            "columns": columns,
        }.items():
            self.register_buffer(name, value, persistent=False)

    @property
    def allowed(self) -> Tensor:
        """(V, V) bool."""
        return self.bias == 0


def _additive(forbidden: Tensor) -> Tensor:
    return torch.zeros(forbidden.shape, device="cpu").masked_fill_(forbidden, -math.inf)


def dense_attention(qkv: Tensor, bias: Tensor | None = None) -> Tensor:
    """All pairs, with an additive bias (V, V) that may be learned, or none."""
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    if bias is not None:
        bias = bias.to(qkv.dtype)
    pooled = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return pooled.transpose(1, 2)


def dense_masked(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """All pairs, the forbidden ones masked out afterwards."""
    return dense_attention(qkv, mask.bias)


def gathered(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """Allowed pairs only: each node's keys and values gathered from its padded neighbour list."""
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    near_key, near_value = key[:, :, mask.neighbours], value[:, :, mask.neighbours]
    scores = (query[..., None, :] * near_key).sum(-1) / math.sqrt(qkv.shape[-1])
    weights = (scores + mask.padding.to(qkv.dtype)).softmax(-1)
    return (weights[..., None] * near_value).sum(-2).transpose(1, 2)


def compiled(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """Allowed pairs only, as compiled loops over neighbour lists; CPU, float32 or float64."""
    return compiled_attention(qkv, mask.starts, mask.columns)


def flex(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """PyTorch's flex_attention with the mask as its block mask.

    It has no gradient on a CPU (PyTorch 2.13), and it skips whole blocks of 128 nodes only.
    """
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    allowed, size = mask.allowed, mask.nodes

    def same_limb(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return allowed[row, column]

    blocks = create_block_mask(same_limb, None, None, size, size, device=qkv.device.type)
    pooled = flex_attention(query, key, value, block_mask=blocks)
    assert isinstance(pooled, Tensor)
    return pooled.transpose(1, 2)


ATTENTION: Mapping[str, Callable[[Tensor, AttentionMask], Tensor]] = {
    "dense": dense_masked,
    "gathered": gathered,
    "compiled": compiled,
    "flex": flex,
}
WITHOUT_CPU_GRADIENT = frozenset({"flex"})


# Sequences from which the compiled loops repay the call into them.
_LEAST_ROWS = 32
# Nodes attended to, on average, up to which they beat dense products at every size, on one thread
# and on two; limbs have about 3.
_COMPILED_DEGREE = 6.0


def fastest_attention(nodes: int, degree: float) -> str:
    """The fastest entry of ATTENTION for training on a CPU.

    Args: nodes V; degree, how many nodes a node attends to on average, itself included.

    Measured forward and backward in float32 on one thread of a Xeon with AVX-512, dense / compiled
    in ms, for d = 16 with 2 heads and (d = 64 with 5 heads); about 13,000 (1,700) nodes in all:

        mask                13 nodes    25 nodes    32 nodes    64 nodes     128 nodes
        tree, degree 3      15.1/5.6    9.9/5.6     7.4/5.6     11.9/5.4     14.3/5.3
                           (10.4/4.9)  (8.0/4.8)   (7.1/4.1)   (9.5/5.2)    (14.2/5.1)
        9.2 % allowed       13.0/3.9    10.8/5.1    6.5/5.0     11.6/8.7     15.3/14.5
                           (8.6/2.9)   (7.7/4.3)   (6.8/4.8)   (10.0/6.9)   (13.7/9.2)
        25 % allowed        15.2/6.0    10.1/9.6    6.3/10.8    10.5/18.4    16.2/33.6
                           (8.8/5.0)   (8.7/7.0)   (7.1/7.4)   (10.6/11.6)  (17.7/24.4)

    Gathered neighbours took 30 to 60 ms throughout, for the copies that they make.
    """
    return "compiled" if degree <= _COMPILED_DEGREE else "dense"


def masked_attention(qkv: Tensor, mask: AttentionMask) -> Tensor:
    """Masked attention by the fastest way for this size; (B, V, 3, H, d) -> (B, V, H, d).

    A program that is being exported gets the dense form, which every format can express.
    """
    tracing = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    leaving = tracing or torch.compiler.is_exporting()
    loops = qkv.device.type == "cpu" and qkv.dtype in (torch.float32, torch.float64)
    if leaving or not loops or len(qkv) < _LEAST_ROWS:
        return dense_masked(qkv, mask)
    return ATTENTION[fastest_attention(mask.nodes, mask.degree)](qkv, mask)
