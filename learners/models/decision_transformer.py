"""Decision Transformer (DT), Chen et al. 2021, Section 3.

Return-to-go, state and action are separate tokens, each with its own linear embedding. The sequence
is R_1, s_1, a_1, R_2, s_2, a_2, ... The action is read out at the state's token, which attends to
all returns and states up to its own and to all earlier actions. Here the tokens of step t are
a_(t-1), R_t, s_t: the paper's sequence with one action added before the first step.

As in the paper, the tokens of a step share one position, embeddings pass a LayerNorm, and the
context is counted in steps (n steps, 3 n tokens). Deviations: rotary positions and no dropout, see
`causal_attention`; no tanh on the action, since actions are normalised by mean and std, not to
[-1, 1]; every layer attends to the last n steps, not to one window of n steps.

The layers are the config's `trunk`: other networks over the same tokens bring their own.

Legend: B batch, T time, D token of the layout, A action, d hidden channels.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gaitforge.learners.models.causal_attention import CausalNetwork
from gaitforge.learners.models.transformer import TransformerConfig
from gaitforge.learners.policy.tokens import CONDITION, TokenLayout

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
