"""Causal Transformer with one token per step, the size-matched baseline of the FCNet paper.

A linear encoder, GPT-2 blocks with banded attention over the last n steps (for deviations from
GPT-2 see `causal_attention`) and a linear readout. Sizes: the text of Tan et al. 2024 asks for
about as many parameters as FCNet, and the presets follow it. The paper's Table 6 repeats FCNet's
sizes for this model, modes included, so we do not use it.
"""

from dataclasses import dataclass
from typing import ClassVar

from gaitforge.learners.models.causal_attention import (
    CausalNetwork,
    CausalTrunk,
    SingleTokenNetwork,
)
from gaitforge.learners.models.config_checks import NoPrefix, check_counts, check_rotary_heads
from gaitforge.learners.policy.tokens import TokenLayout


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
