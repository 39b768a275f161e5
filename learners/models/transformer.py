"""Causal Transformers: with one token per step, and the Decision Transformer, on one trunk.

The Transformer with one token per step is the size-matched baseline of the FCNet paper: a linear
encoder, GPT-2 blocks with banded attention over the last n steps and a linear readout. Sizes: the
text of Tan et al. 2024 asks for about as many parameters as FCNet, and the presets follow it. The
paper's Table 6 repeats FCNet's sizes for this model, modes included, so we do not use it.

Its defaults are a stronger baseline than the paper's: rotary positions and no dropout. The presets
"transformer-published" follow the paper's code instead (github.com/thkkk/FCNet,
FCNet/DT/models/decision_transformer_trimmed.py and decision_offline_model.py): no positions at all,
a LayerNorm on the embedding, dropout of 0.1, which is that of GPT-2's config, and 8 heads.
Deviations of these presets: attention is banded, as below, where the paper's control clears its
cache every n steps (`LearnedPolicy`'s `reset_every` does so, too); GELU is exact, GPT-2's is its
approximation by tanh.

Decision Transformer (DT), Chen et al. 2021, Section 3: return-to-go, state and action are separate
tokens, each with its own linear embedding. The sequence is R_1, s_1, a_1, R_2, s_2, a_2, ... The
action is read out at the state's token, which attends to all returns and states up to its own and
to all earlier actions. Here the tokens of step t are a_(t-1), R_t, s_t: the paper's sequence with
one action added before the first step.

As in the DT paper, the tokens of a step share one position, embeddings pass a LayerNorm, and the
context is counted in steps (n steps, 3 n tokens). Deviations: rotary positions and no dropout by
default, as in the trunk below; no tanh on the action, since actions are normalised by mean and std,
not to [-1, 1]; every layer attends to the last n steps, not to one window of n steps. The layers
are the config's `trunk`: other networks over the same tokens bring their own.

`CausalTrunk` is the causal attention trunk of both, with a key-value cache. Its blocks are GPT-2's
(Radford et al. 2019): pre-norm, biases, GELU, a feed-forward layer of four times the width, a final
LayerNorm, weights drawn from N(0, 0.02) and residual projections scaled by 1/sqrt(2 L). Dropout is
where GPT-2 has it: on the embedding, on the attention's weights and on what each half of a block
adds; it acts in training mode alone, and never in `step`.

Deviations of the trunk from GPT-2 and the Decision Transformer:
- Positions are rotary or none, not learned embeddings of absolute time: an episode may be longer
  than any table of positions, and cached keys would change their positions whenever the oldest step
  leaves the window. With rotary positions attention depends on the lag only. Without positions the
  causal mask alone tells the order.
- Attention is banded: in every layer a step attends to that layer's inputs of the last n steps,
  its own included. The cache holds exactly these, so `step` equals `forward` at any time.
- No dropout by default, as in every other network here.

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

from gaitforge.common.errors import names_allowed
from gaitforge.learners.models.base import NoPrefix, check_counts, check_heads
from gaitforge.learners.tokens import CONDITION, TokenLayout

# Positions.
ROTARY = "rotary"
NO_POSITIONS = "none"
POSITIONS = (ROTARY, NO_POSITIONS)
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
    since only lags matter. frequencies (w,): rad per step; (0,) without positions.
    """

    keys: list[Tensor]
    values: list[Tensor]
    penalty: Tensor
    clock: Tensor
    frequencies: Tensor


class CausalBlock(nn.Module):
    """x + attention(LN(x)), then x + feed-forward(LN(x)), with dropout on both sums."""

    def __init__(self, hidden_dim: int, n_heads: int, n_layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.dropout = nn.Dropout(dropout)
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

    def forward(self, x: Tensor, turn: Rotation | None, mask: Tensor | None) -> Tensor:
        """(B, S, d) -> (B, S, d); mask None: plain causal attention, turn None: no positions."""
        query, key, value = self._heads(x, turn)
        pooled = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout.p if self.training else 0.0,
            is_causal=mask is None,
        )
        x = x + self.dropout(self._projected(pooled))
        return x + self.dropout(self._fed_forward(x))

    def step(
        self,
        x: Tensor,
        turn: Rotation | None,
        cache: tuple[Tensor, Tensor],
        slots: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """(B, K, d) -> (B, K, d); writes the new keys and values to `slots` of the cache."""
        query, key, value = self._heads(x, turn)
        keys, values = cache
        keys.index_copy_(2, slots, key)
        values.index_copy_(2, slots, value)
        pooled = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        x = x + self._projected(pooled)
        return x + self._fed_forward(x)

    def _heads(self, x: Tensor, turn: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.n_heads, -1)
        qkv = qkv.permute(2, 0, 3, 1, 4)
        query, key = (qkv[:2] if turn is None else turn(qkv[:2])).unbind(0)
        return query, key, qkv[2]

    def _projected(self, pooled: Tensor) -> Tensor:
        return self.out(pooled.transpose(1, 2).flatten(2))

    def _fed_forward(self, x: Tensor) -> Tensor:
        return self.narrow(functional.gelu(self.widen(self.feedforward_norm(x))))


class CausalTrunk(nn.Module):
    """L blocks and a final LayerNorm, for sequences of K tokens per step."""

    def __init__(self, config: "AttentionConfig", tokens_per_step: int) -> None:
        super().__init__()
        sizes = (config.hidden_dim, config.n_heads, config.n_layers)
        self.head_dim = config.hidden_dim // config.n_heads
        self.context_len = config.context_len
        self.tokens_per_step = tokens_per_step
        self.rotary = config.positions == ROTARY
        self.dropout = nn.Dropout(config.dropout)
        self.blocks: Any = nn.ModuleList(
            CausalBlock(*sizes, config.dropout) for _ in range(config.n_layers)
        )
        self.last_norm = nn.LayerNorm(config.hidden_dim)

    def frequencies(self, device: torch.device) -> Tensor:
        """(w,) rad per step, as `rotary_frequencies`; (0,) without positions."""
        if self.rotary:
            return rotary_frequencies(self.head_dim, device)
        return torch.zeros(0, dtype=torch.float64, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T * K, d) -> (B, T * K, d); the K tokens of a step are adjacent."""
        tokens = torch.arange(x.shape[1], device=x.device)
        steps = tokens // self.tokens_per_step
        turn = rotation(steps, self.frequencies(x.device), x.dtype) if self.rotary else None
        x = self.dropout(x)
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
            frequencies=self.frequencies(like.device),
        )

    def step(self, x: Tensor, state: AttentionState) -> Tensor:
        """The K tokens (B, K, d) of one step -> (B, K, d); updates `state` in place."""
        within = torch.arange(self.tokens_per_step, device=x.device)
        slots = state.clock % self.context_len * self.tokens_per_step + within
        later = x.new_full((len(within), len(within)), -math.inf).triu(1)
        state.penalty.index_copy_(3, slots, later.expand(len(x), 1, -1, -1))
        turn = rotation(state.clock, state.frequencies, x.dtype) if self.rotary else None
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

    def __init__(
        self, config: Any, token_dim: int, act_dim: int, embedding_norm: bool = False
    ) -> None:
        """`config` has `hidden_dim` and `trunk(tokens_per_step)`.

        embedding_norm: whether a LayerNorm follows the encoder.
        """
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(token_dim, config.hidden_dim)
        self.embedding_norm = nn.LayerNorm(config.hidden_dim) if embedding_norm else nn.Identity()
        self.trunk = config.trunk(tokens_per_step=1)
        self.decoder = nn.Linear(config.hidden_dim, act_dim)

    def embed(self, token: Tensor) -> Tensor:
        """(..., D) -> (..., 1, d)."""
        return self.embedding_norm(self.encoder(token))[..., None, :]


@dataclass(frozen=True)
class AttentionConfig(NoPrefix):
    """Settings of a `CausalTrunk`; the sizes have about as many parameters as the legged FCNet.

    positions: "rotary" or "none". dropout: in training, on the embedding, the attention's weights
    and what each half of a block adds.

    Raises:
        ValueError: a size below 1, a width that the heads do not divide, unknown positions, or a
            dropout outside [0, 1).
    """

    title: ClassVar[str] = "Transformer"
    hidden_dim: int = 128
    n_heads: int = 4
    n_layers: int = 4
    context_len: int = 64
    positions: str = ROTARY
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self.title, self, "hidden_dim", "n_heads", "n_layers", "context_len")
        if self.positions not in POSITIONS:
            choices = names_allowed(str(self.positions), POSITIONS)
            raise ValueError(f"{self.title} has no positions {self.positions!r}; {choices}")
        check_heads(self.title, self.hidden_dim, self.n_heads, self.positions == ROTARY)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"{self.title} dropout must be in [0, 1), got {self.dropout}")

    @property
    def receptive_field(self) -> int:
        """Steps before the current one that can change its action: n - 1 more with each layer."""
        return self.n_layers * (self.context_len - 1)

    def trunk(self, tokens_per_step: int) -> CausalTrunk:
        """The layers for sequences of so many tokens per step."""
        return CausalTrunk(self, tokens_per_step)


# The Transformer with one token per step.
@dataclass(frozen=True)
class TransformerConfig(AttentionConfig):
    """The trunk's settings, and whether a LayerNorm follows the encoder."""

    embedding_norm: bool = False

    def build(self, layout: TokenLayout, act_dim: int) -> CausalNetwork:
        """The network for tokens of `layout`."""
        return SingleTokenNetwork(self, layout.dim, act_dim, self.embedding_norm)


# The Decision Transformer.
TOKENS_PER_STEP = 3


@dataclass(frozen=True)
class DecisionTransformerConfig(AttentionConfig):
    """The trunk's settings."""

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
