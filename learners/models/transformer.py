"""Causal Transformer with one token per step, the size-matched baseline of the FCNet paper.

A linear encoder, GPT-2 blocks with banded attention over the last n steps (for deviations from
GPT-2 see `causal_attention`) and a linear readout. Sizes: the text of Tan et al. 2024 asks for
about as many parameters as FCNet, and the presets follow it. The paper's Table 6 repeats FCNet's
sizes for this model, modes included, so we do not use it.

Legend: B batch, T time, D token, A action.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from gaitforge.learners.models.causal_attention import CausalNetwork, CausalTrunk
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

    def build(self, layout: TokenLayout, act_dim: int) -> nn.Module:
        """The network for tokens of `layout`."""
        return Transformer(self, layout.dim, act_dim)


class Transformer(CausalNetwork):
    """Maps a sequence of tokens to a sequence of actions; each layer reads the last n steps."""

    readout = 0  # its one token; exported files have this index

    def __init__(self, config: TransformerConfig, token_dim: int, act_dim: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(token_dim, config.hidden_dim)
        sizes = (config.hidden_dim, config.n_heads, config.n_layers, config.context_len)
        self.trunk = CausalTrunk(*sizes, tokens_per_step=1)
        self.decoder = nn.Linear(config.hidden_dim, act_dim)

    def embed(self, token: Tensor) -> Tensor:
        """(..., D) -> (..., 1, d)."""
        return self.encoder(token)[..., None, :]
