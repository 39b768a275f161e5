"""Retentive Network (RetNet), Sun et al. 2023, "A Successor to Transformer", Section 2; DT-RetNet.

Retention replaces attention's softmax by a fixed exponential decay with one rate per head, on
rotated queries and keys; each head's output is normalised and gated by swish. It is computed in
parallel within a chunk, and recurrently from chunk to chunk or from step to step. The recurrent
state has a constant size and covers the whole episode, with weights that decay with the lag: there
is no context length. Positions and decay count tokens, of which a step may have several.

As in the paper, values, gate and feed-forward have twice the model's width; a layer then has as
many parameters as a Transformer's. Deviation: the paper rescales scores for low precision; we do
not, because the factor cancels in each head's normalisation. Initial weights as in the authors'
published code: Xavier uniform, gain 2^-2.5 into the heads and 2^-1 out of them.

DT-RetNet of Tan et al. 2024, Section 4.1, "replaces the Transformer architecture in DT into
RetNet": DT's tokens in these layers, which count positions and decay in tokens, as published. The
paper tells nothing more. Deviation from DT: the memory covers the whole episode, with weights that
decay, where DT sees n steps.

Legend: B batch, T tokens, K tokens per step, d hidden channels, H heads, w = d / H channels of a
query or key, 2w of a value.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.base import NoPrefix, check_counts, check_heads
from gaitforge.learners.models.transformer import (
    CausalNetwork,
    DecisionTransformer,
    Rotation,
    SingleTokenNetwork,
    rotary_frequencies,
    rotation,
)
from gaitforge.learners.tokens import TokenLayout

VALUE_FACTOR = 2
FEEDFORWARD_FACTOR = 2
CHUNK_LEN = 128  # steps computed in parallel; longer sequences are computed chunk by chunk


@dataclass(frozen=True)
class RetNetConfig(NoPrefix):
    """Sizes; the defaults have about as many parameters as the legged FCNet."""

    title: ClassVar[str] = "RetNet"
    hidden_dim: int = 128
    n_heads: int = 4
    n_layers: int = 4

    def __post_init__(self) -> None:
        check_counts(self.title, self, "hidden_dim", "n_heads", "n_layers")
        check_heads(self.title, self.hidden_dim, self.n_heads)

    def trunk(self, tokens_per_step: int) -> "RetentionTrunk":
        """The layers for sequences of so many tokens per step."""
        return RetentionTrunk(self, tokens_per_step)

    def build(self, layout: TokenLayout, act_dim: int) -> CausalNetwork:
        """The network for tokens of `layout`."""
        return SingleTokenNetwork(self, layout.dim, act_dim)


@dataclass(frozen=True)
class DTRetNetConfig(RetNetConfig):
    """RetNet's sizes."""

    title: ClassVar[str] = "DT-RetNet"

    def build(self, layout: TokenLayout, act_dim: int) -> CausalNetwork:
        """As `DecisionTransformerConfig.build`."""
        return DecisionTransformer(self, layout, act_dim)


@dataclass
class RetNetState:
    """Recurrent state of B robots.

    memories: (B, H, w, 2w) for each layer, the decayed sum of key-value products. clock (1,) int64:
    tokens so far, shared by all robots. decay (H, 1, 1), frequencies (w,) in rad: per token.
    """

    memories: list[Tensor]
    clock: Tensor
    decay: Tensor
    frequencies: Tensor


@dataclass(frozen=True)
class ChunkDecay:
    """Powers of each head's decay within a chunk of C steps.

    between (H, C, C): from a step to a later one, and 0 to an earlier one. since_start (H, C, 1):
    from the previous chunk's last step. to_end (H, C, 1): to this chunk's last step. whole
    (H, 1, 1): over the chunk.
    """

    between: Tensor
    since_start: Tensor
    to_end: Tensor
    whole: Tensor


def head_decay(n_heads: int, device: torch.device) -> Tensor:
    """(H, 1, 1) float64: 1 - 2^(-5-h), the paper's; time constants of 32, 64, 128, ... steps."""
    head = torch.arange(n_heads, dtype=torch.float64, device=device)
    return (1.0 - 2.0 ** (-5.0 - head))[:, None, None]


def chunk_decay(n_heads: int, length: int, like: Tensor) -> ChunkDecay:
    """The powers for a chunk of `length` steps, with the dtype and device of `like`."""
    decay = head_decay(n_heads, like.device)
    index = torch.arange(length, dtype=torch.float64, device=like.device)
    lag = index[:, None] - index
    return ChunkDecay(
        between=(decay ** lag.clamp(min=0.0)).tril().to(like.dtype),
        since_start=(decay ** (index + 1.0)[:, None]).to(like.dtype),
        to_end=(decay ** (length - 1.0 - index)[:, None]).to(like.dtype),
        whole=(decay**length).to(like.dtype),
    )


class RetentionLayer(nn.Module):
    """x + retention(LN(x)), then x + feed-forward(LN(x))."""

    def __init__(self, hidden_dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.value_dim = VALUE_FACTOR * hidden_dim
        self.retention_norm = nn.LayerNorm(hidden_dim)
        self.query_key = nn.Linear(hidden_dim, 2 * hidden_dim, bias=False)
        self.value_gate = nn.Linear(hidden_dim, 2 * self.value_dim, bias=False)
        self.out = nn.Linear(self.value_dim, hidden_dim, bias=False)
        self.feedforward_norm = nn.LayerNorm(hidden_dim)
        self.widen = nn.Linear(hidden_dim, FEEDFORWARD_FACTOR * hidden_dim)
        self.narrow = nn.Linear(FEEDFORWARD_FACTOR * hidden_dim, hidden_dim)
        for part in (*self.query_key.weight.chunk(2), *self.value_gate.weight.chunk(2)):
            nn.init.xavier_uniform_(part, gain=2**-2.5)
        nn.init.xavier_uniform_(self.out.weight, gain=2**-1)

    def forward(
        self, x: Tensor, turn: Rotation, decay: ChunkDecay, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One chunk (B, C, d) -> (B, C, d), and the memory after it; memory None means empty."""
        query, key, value, gate = self._heads(x, turn)
        retained = (query @ key.transpose(-1, -2) * decay.between) @ value
        added = (key * decay.to_end).transpose(-1, -2) @ value
        if memory is not None:
            retained = retained + (query * decay.since_start) @ memory
            added = added + memory * decay.whole
        return self._finish(x, retained, gate), added

    def step(self, x: Tensor, turn: Rotation, decay: Tensor, memory: Tensor) -> Tensor:
        """(B, K, d) -> (B, K, d), token by token; updates `memory` in place."""
        query, key, value, gate = self._heads(x, turn)
        retained = []
        for q, k, v in zip(
            *(tensor.split(1, dim=2) for tensor in (query, key, value)), strict=True
        ):
            memory.mul_(decay).addcmul_(k.transpose(-1, -2), v)
            retained.append(q @ memory)
        return self._finish(x, torch.cat(retained, dim=2), gate)

    def _heads(self, x: Tensor, turn: Rotation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rotated queries and keys (B, H, T, w), values (B, H, T, 2w), gate (B, T, 2d)."""
        normed = self.retention_norm(x)
        batch, length, _ = x.shape
        query_key = self.query_key(normed).view(batch, length, 2, self.n_heads, -1)
        query, key = turn(query_key.permute(2, 0, 3, 1, 4)).unbind(0)
        value, gate = self.value_gate(normed).chunk(2, dim=-1)
        value = value.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        return query, key * key.shape[-1] ** -0.5, value, gate

    def _finish(self, x: Tensor, retained: Tensor, gate: Tensor) -> Tensor:
        """Normalise each head, gate, project, and apply the feed-forward layer."""
        normed = functional.layer_norm(retained, retained.shape[-1:])
        x = x + self.out(functional.silu(gate) * normed.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.feedforward_norm(x))))


class RetentionTrunk(nn.Module):
    """L layers and a final LayerNorm; the interface of `CausalTrunk`."""

    def __init__(self, config: RetNetConfig, tokens_per_step: int) -> None:
        super().__init__()
        self.tokens_per_step = tokens_per_step
        self.n_heads = config.n_heads
        self.head_dim = config.hidden_dim // config.n_heads
        self.layers: Any = nn.ModuleList(
            RetentionLayer(config.hidden_dim, config.n_heads) for _ in range(config.n_layers)
        )
        self.last_norm = nn.LayerNorm(config.hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, d) for any T; each token depends on all tokens so far."""
        times = torch.arange(x.shape[1], device=x.device)
        frequencies = rotary_frequencies(self.head_dim, x.device)
        chunks = []
        start = 0
        memories: list[Tensor | None] = [None] * len(self.layers)
        for chunk in x.split(CHUNK_LEN, dim=1):
            stop = start + chunk.shape[1]
            turn = rotation(times[start:stop], frequencies, x.dtype)
            decay = chunk_decay(self.n_heads, stop - start, x)
            for index, layer in enumerate(self.layers):
                chunk, memories[index] = layer(chunk, turn, decay, memories[index])
            chunks.append(chunk)
            start = stop
        return self.last_norm(torch.cat(chunks, dim=1))

    def init_state(self, batch_size: int) -> RetNetState:
        """Empty memories for `batch_size` robots."""
        like = self.last_norm.weight
        width = self.head_dim
        shape = (batch_size, self.n_heads, width, VALUE_FACTOR * width)
        return RetNetState(
            memories=[like.new_zeros(shape) for _ in self.layers],
            clock=torch.zeros(1, dtype=torch.int64, device=like.device),
            decay=head_decay(self.n_heads, like.device).to(like.dtype),
            frequencies=rotary_frequencies(width, like.device),
        )

    def step(self, x: Tensor, state: RetNetState) -> Tensor:
        """The K tokens (B, K, d) of one step -> (B, K, d); updates `state` in place."""
        times = state.clock + torch.arange(x.shape[1], device=x.device)
        turn = rotation(times, state.frequencies, x.dtype)
        for layer, memory in zip(self.layers, state.memories, strict=True):
            x = layer.step(x, turn, state.decay, memory)
        state.clock += self.tokens_per_step
        return self.last_norm(x)

    def reset_state(self, state: RetNetState, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        for memory in state.memories:
            memory[rows] = 0.0
