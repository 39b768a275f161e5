"""Causal Transformers: with one token per step, and the Decision Transformer, on one trunk.

The Transformer with one token per step is the size-matched baseline of the FCNet paper: a linear
encoder, GPT-2 blocks with banded attention over the last n steps and a linear readout. Sizes: the
text of Tan et al. 2024 asks for about as many parameters as FCNet, and the presets follow it. The
paper's Table 6 repeats FCNet's sizes for this model, modes included, so we do not use it.

Decision Transformer (DT), Chen et al. 2021, Section 3: return-to-go, state and action are separate
tokens, each with its own linear embedding. The sequence is R_1, s_1, a_1, R_2, s_2, a_2, ... The
action is read out at the state's token, which attends to all returns and states up to its own and
to all earlier actions. Here the tokens of step t are a_(t-1), R_t, s_t: the paper's sequence with
one action added before the first step.

As in the DT paper, the tokens of a step share one position, embeddings pass a LayerNorm, and the
context is counted in steps (n steps, 3 n tokens). Deviations: rotary positions and no dropout, as
in the trunk below; no tanh on the action, since actions are normalised by mean and std, not to
[-1, 1]; every layer attends to the last n steps, not to one window of n steps. The layers are the
config's `trunk`: other networks over the same tokens bring their own.

`CausalTrunk` is the causal attention trunk of both, with a key-value cache. Its blocks are GPT-2's
(Radford et al. 2019): pre-norm, biases, GELU, a feed-forward layer of four times the width, a final
LayerNorm, weights drawn from N(0, 0.02) and residual projections scaled by 1/sqrt(2 L).

Deviations of the trunk from GPT-2 and the Decision Transformer:
- Positions are rotary, not learned embeddings of absolute time: an episode may be longer than any
  table of positions, and cached keys would change their positions whenever the oldest step leaves
  the window. With rotary positions attention depends on the lag only.
- Attention is banded: in every layer a step attends to that layer's inputs of the last n steps,
  its own included. The cache holds exactly these, so `step` equals `forward` at any time.
- No dropout, as in every network here.

Rotary positions: queries and keys are rotated by their time, so scores depend on the lag only.
Source: Su et al. 2021, "RoFormer", Section 3.2; Sun et al. 2023, "Retentive Network", use the same
rotation with a decay. Channel pair i (channels i and i + w/2) of a head of width w is rotated by
t * 10000^(-2i/w) rad at step t. Angles are computed in float64: in float32 their error would exceed
1e-3 rad after 10^4 steps, and control may run for longer.

Legend: B batch, T steps, K tokens per step, S = T * K tokens, D token of the layout, A action, d
hidden channels, H heads, w = d / H channels per head, n context length in steps.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.base import NoPrefix, check_counts, check_rotary_heads
from gaitforge.learners.tokens import CONDITION, TokenLayout

# Rotary positions.
ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Rotation:
    """cos and signed sin of the angles, each (T, w), in the network's dtype."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate x (..., T, w)."""
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cos, swapped, self.sin)


def rotary_frequencies(width: int, device: torch.device) -> Tensor:
    """(w,) float64 rad per step; negative in the first half, where the rotation subtracts."""
    half = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    return torch.cat([-half, half])


def rotation(times: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Rotation:
    """The rotation at the steps `times` (T,) int."""
    angles = times[:, None] * frequencies
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


# The causal attention trunk, with a key-value cache.
FEEDFORWARD_FACTOR = 4
INIT_STD = 0.02


@dataclass
class AttentionState:
    """Key-value cache of B robots: a ring buffer of n steps.

    keys, values: (B, H, n * K, w) for each layer, keys already rotated. penalty (B, 1, K, n * K):
    added to the scores, -inf for empty slots. clock (1,) int64: steps so far, shared by all robots,
    since only lags matter. frequencies (w,): rad per step.
    """

    keys: list[Tensor]
    values: list[Tensor]
    penalty: Tensor
    clock: Tensor
    frequencies: Tensor


class CausalBlock(nn.Module):
    """x + attention(LN(x)), then x + feed-forward(LN(x))."""

    def __init__(self, hidden_dim: int, n_heads: int, n_layers: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(hidden_dim)
        self.qkv = nn.Linear(hidden_dim, 3 * hidden_dim)
        self.out = nn.Linear(hidden_dim, hidden_dim)
        self.feedforward_norm = nn.LayerNorm(hidden_dim)
        self.widen = nn.Linear(hidden_dim, FEEDFORWARD_FACTOR * hidden_dim)
        self.narrow = nn.Linear(FEEDFORWARD_FACTOR * hidden_dim, hidden_dim)
        residual_std = INIT_STD / math.sqrt(2 * n_layers)
        for linear in (self.qkv, self.out, self.widen, self.narrow):
            std = residual_std if linear in (self.out, self.narrow) else INIT_STD
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None) -> Tensor:
        """(B, S, d) -> (B, S, d); with mask None, plain causal attention."""
        query, key, value = self._heads(x, turn)
        pooled = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        return self._finish(x, pooled)

    def step(
        self, x: Tensor, turn: Rotation, cache: tuple[Tensor, Tensor], slots: Tensor, mask: Tensor
    ) -> Tensor:
        """(B, K, d) -> (B, K, d); writes the new keys and values to `slots` of the cache."""
        query, key, value = self._heads(x, turn)
        keys, values = cache
        keys.index_copy_(2, slots, key)
        values.index_copy_(2, slots, value)
        pooled = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return self._finish(x, pooled)

    def _heads(self, x: Tensor, turn: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.n_heads, -1)
        qkv = qkv.permute(2, 0, 3, 1, 4)
        query, key = turn(qkv[:2]).unbind(0)
        return query, key, qkv[2]

    def _finish(self, x: Tensor, pooled: Tensor) -> Tensor:
        x = x + self.out(pooled.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.feedforward_norm(x))))


class CausalTrunk(nn.Module):
    """L blocks and a final LayerNorm, for sequences of K tokens per step."""

    def __init__(
        self, hidden_dim: int, n_heads: int, n_layers: int, context_len: int, tokens_per_step: int
    ) -> None:
        super().__init__()
        self.head_dim = hidden_dim // n_heads
        self.context_len = context_len
        self.tokens_per_step = tokens_per_step
        self.blocks: Any = nn.ModuleList(
            CausalBlock(hidden_dim, n_heads, n_layers) for _ in range(n_layers)
        )
        self.last_norm = nn.LayerNorm(hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T * K, d) -> (B, T * K, d); the K tokens of a step are adjacent."""
        tokens = torch.arange(x.shape[1], device=x.device)
        steps = tokens // self.tokens_per_step
        turn = rotation(steps, rotary_frequencies(self.head_dim, x.device), x.dtype)
        mask = None
        if x.shape[1] > self.context_len * self.tokens_per_step:
            recent = steps[:, None] - steps < self.context_len
            mask = (tokens[:, None] >= tokens) & recent
        for block in self.blocks:
            x = block(x, turn, mask)
        return self.last_norm(x)

    def init_state(self, batch_size: int) -> AttentionState:
        """An empty cache with the weights' dtype and device."""
        like = self.last_norm.weight
        n_slots = self.context_len * self.tokens_per_step
        n_heads = like.numel() // self.head_dim
        shape = (batch_size, n_heads, n_slots, self.head_dim)
        return AttentionState(
            keys=[like.new_zeros(shape) for _ in self.blocks],
            values=[like.new_zeros(shape) for _ in self.blocks],
            penalty=like.new_full((batch_size, 1, self.tokens_per_step, n_slots), -math.inf),
            clock=torch.zeros(1, dtype=torch.int64, device=like.device),
            frequencies=rotary_frequencies(self.head_dim, like.device),
        )

    def step(self, x: Tensor, state: AttentionState) -> Tensor:
        """The K tokens (B, K, d) of one step -> (B, K, d); updates `state` in place."""
        within = torch.arange(self.tokens_per_step, device=x.device)
        slots = state.clock % self.context_len * self.tokens_per_step + within
        later = x.new_full((len(within), len(within)), -math.inf).triu(1)
        state.penalty.index_copy_(3, slots, later.expand(len(x), 1, -1, -1))
        turn = rotation(state.clock, state.frequencies, x.dtype)
        for block, *cache in zip(self.blocks, state.keys, state.values, strict=True):
            x = block.step(x, turn, (cache[0], cache[1]), slots, state.penalty)
        state.penalty.index_fill_(3, slots, 0.0)
        state.clock += 1
        return self.last_norm(x)

    def reset_state(self, state: AttentionState, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place; also clears NaN."""
        for cache in (*state.keys, *state.values):
            cache[rows] = 0.0
        state.penalty[rows] = -math.inf


class CausalNetwork(nn.Module, ABC):
    """Maps a sequence of tokens to a sequence of actions.

    The action is read out at the last of a step's K tokens, at the index `readout`.
    """

    readout: ClassVar[int] = -1
    trunk: Any
    """A `CausalTrunk`, or one of its interface."""
    decoder: nn.Linear

    @abstractmethod
    def embed(self, token: Tensor) -> Tensor:
        """(..., D) -> (..., K, d)."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T."""
        hidden = self.trunk(self.embed(tokens).flatten(1, 2))
        stride = self.trunk.tokens_per_step
        return self.decoder(hidden[:, stride - 1 :: stride])

    def init_state(self, batch_size: int) -> Any:
        """The trunk's state of `batch_size` robots before an episode."""
        return self.trunk.init_state(batch_size)

    @torch.no_grad()
    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One control step: token (B, D) -> action (B, A) as in `forward`; updates `state`."""
        hidden = self.trunk.step(self.embed(token), state)
        return self.decoder(hidden[:, self.readout]), state

    def reset_state(self, state: Any, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        self.trunk.reset_state(state, rows)


class SingleTokenNetwork(CausalNetwork):
    """One token a step: a linear encoder, the config's trunk and a linear readout."""

    readout = 0  # its one token; exported files have this index

    def __init__(self, config: Any, token_dim: int, act_dim: int) -> None:
        """`config` has `hidden_dim` and `trunk(tokens_per_step)`."""
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(token_dim, config.hidden_dim)
        self.trunk = config.trunk(tokens_per_step=1)
        self.decoder = nn.Linear(config.hidden_dim, act_dim)

    def embed(self, token: Tensor) -> Tensor:
        """(..., D) -> (..., 1, d)."""
        return self.encoder(token)[..., None, :]


# The Transformer with one token per step.
@dataclass(frozen=True)
class TransformerConfig(NoPrefix):
    """Sizes; the defaults have about as many parameters as the legged FCNet."""

    title: ClassVar[str] = "Transformer"
    hidden_dim: int = 128
    n_heads: int = 4
    n_layers: int = 4
    context_len: int = 64

    def __post_init__(self) -> None:
        check_counts(self.title, self, "hidden_dim", "n_heads", "n_layers", "context_len")
        check_rotary_heads(self.title, self.hidden_dim, self.n_heads)

    def trunk(self, tokens_per_step: int) -> CausalTrunk:
        """The layers for sequences of so many tokens per step."""
        sizes = (self.hidden_dim, self.n_heads, self.n_layers, self.context_len)
        return CausalTrunk(*sizes, tokens_per_step)

    def build(self, layout: TokenLayout, act_dim: int) -> CausalNetwork:
        """The network for tokens of `layout`."""
        return SingleTokenNetwork(self, layout.dim, act_dim)


# The Decision Transformer.
TOKENS_PER_STEP = 3


@dataclass(frozen=True)
class DecisionTransformerConfig(TransformerConfig):
    """The Transformer's sizes."""

    title: ClassVar[str] = "DT"

    def build(self, layout: TokenLayout, act_dim: int) -> CausalNetwork:
        """The network for return tokens: last action, return-to-go, state.

        Raises ValueError for tokens of another kind.
        """
        return DecisionTransformer(self, layout, act_dim)


class DecisionTransformer(CausalNetwork):
    """Maps a sequence of (last action, return-to-go, state) tokens to a sequence of actions."""

    def __init__(self, config: Any, layout: TokenLayout, act_dim: int) -> None:
        """`config` has `title`, `hidden_dim` and `trunk(tokens_per_step)`.

        Raises ValueError for tokens that are not return tokens with an observation.
        """
        super().__init__()
        self.config = config
        self.widths = _token_widths(config.title, layout)
        embeddings = (nn.Linear(width, config.hidden_dim) for width in self.widths)
        self.embed_action, self.embed_return, self.embed_state = embeddings
        self.embedding_norm = nn.LayerNorm(config.hidden_dim)
        self.trunk = config.trunk(TOKENS_PER_STEP)
        self.decoder = nn.Linear(config.hidden_dim, act_dim)

    def embed(self, token: Tensor) -> Tensor:
        """(..., D) -> (..., 3, d): embedded action, return-to-go and state."""
        embeddings = (self.embed_action, self.embed_return, self.embed_state)
        parts = token.split(self.widths, dim=-1)
        embedded = [embed(part) for embed, part in zip(embeddings, parts, strict=True)]
        return self.embedding_norm(torch.stack(embedded, dim=-2))


def _token_widths(model: str, layout: TokenLayout) -> tuple[int, int, int]:
    """The widths of last action, condition and state; ValueError for other tokens."""
    if layout.kind != "return":
        raise ValueError(
            f"the model {model} needs tokens of kind 'return', not {layout.kind!r}; train it with "
            "the return objective"
        )
    last_action_dim, condition_stop = layout.slices[CONDITION]
    state_dim = layout.dim - condition_stop
    if state_dim < 1:
        raise ValueError(f"the model {model} needs observation fields besides the last action")
    return last_action_dim, layout.condition_dim, state_dim
