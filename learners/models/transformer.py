"""Causal Transformer over one token a step, the size-matched rival of the FCNet paper (Table 6).

A linear encoder, GPT-2 blocks with banded attention over the last n steps (`causal_attention` says
where they deviate from GPT-2 and why) and a linear read-out. The paper's table repeats FCNet's
sizes for it, modes included, and does not say which of them hold; its text asks for about the same
number of parameters, so the presets are sized by `sizes.match_parameters`.

Legend: B batch, T time, D token, A action.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from learners.models.causal_attention import AttentionState, CausalTrunk
from learners.models.config_checks import check_counts, check_rotary_heads
from learners.policy.tokens import TokenLayout


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes; the defaults have about as many parameters as the legged FCNet."""

    hidden_dim: int = 128
    n_heads: int = 4
    n_layers: int = 4
    context_len: int = 64

    def __post_init__(self) -> None:
        check_counts("Transformer", self, "hidden_dim", "n_heads", "n_layers", "context_len")
        check_rotary_heads("Transformer", self.hidden_dim, self.n_heads)


class Transformer(nn.Module):
    """Maps a sequence of tokens to a sequence of actions; each layer looks n steps back."""

    def __init__(self, config: TransformerConfig, token_dim: int, act_dim: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(token_dim, config.hidden_dim)
        self.trunk = CausalTrunk(
            config.hidden_dim, config.n_heads, config.n_layers, config.context_len
        )
        self.decoder = nn.Linear(config.hidden_dim, act_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T."""
        return self.decoder(self.trunk(self.encoder(tokens)))

    def init_state(self, batch_size: int) -> AttentionState:
        """The empty cache of `batch_size` robots; its size never changes."""
        return self.trunk.init_state(batch_size)

    @torch.no_grad()
    def step(self, token: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        """One control step: token (B, D) -> action (B, A). The given state is updated in place.

        Equal to `forward` at the last of the tokens so far. For control only: no gradients.
        """
        hidden = self.trunk.step(self.encoder(token)[:, None], state)
        return self.decoder(hidden[:, 0]), state

    def reset_state(self, state: AttentionState, rows: Tensor) -> None:
        """Forget everything about the robots `rows` (indices), in place."""
        self.trunk.reset_state(state, rows)


def build_transformer(config: TransformerConfig, layout: TokenLayout, act_dim: int) -> Transformer:
    """A Transformer of these sizes for the tokens of `layout`."""
    return Transformer(config, layout.dim, act_dim)
