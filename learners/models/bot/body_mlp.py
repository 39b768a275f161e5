"""The MLP baseline of the Body Transformer paper (Sferrazza et al. 2024, Section 5).

As in the published code: a linear map for each node without activation, the embeddings of all nodes
concatenated, two hidden layers with ReLU, a linear map back to the width of the embeddings, and one
linear map to all actions. With embeddings of 64 and hidden layers of 2,500 it has the published
16,696,656 (MoCapAct) and 14,305,524 (Adroit door) parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gaitforge.learners.models.bot.bodies import QUADRUPED, body_view, known_body
from gaitforge.learners.models.bot.body_policy import BodyPolicy, Tokenizer
from gaitforge.learners.models.bot.graphs import EmbodimentGraph
from gaitforge.learners.models.config_checks import check_counts
from gaitforge.learners.models.memory import STACKED, check_memory, make_memory
from gaitforge.learners.policy.tokens import TokenLayout


@dataclass(frozen=True)
class BodyMLPConfig:
    """Sizes; the defaults are the paper's for imitation (Figures 12a and 12b).

    embed_dim: size of each node's embedding. history: steps of observation in the input; the paper
    has 1. history_kind, n_modes: see `memory`. body: as `BoTConfig.body`.
    """

    embed_dim: int = 64
    feedforward_dim: int = 2500
    history: int = 1
    history_kind: str = STACKED
    n_modes: int = 8
    body: str | Mapping[str, Any] = QUADRUPED

    def __post_init__(self) -> None:
        check_counts("body MLP", self, "embed_dim", "feedforward_dim", "history")
        object.__setattr__(self, "body", known_body(self.body))
        check_memory("body MLP", self.history_kind, self.history, self.n_modes)

    @property
    def prefix_len(self) -> int:
        """Steps before a training window that the network reads."""
        return self.history - 1

    def build(self, layout: TokenLayout, act_dim: int) -> "BodyMLP":
        """The network for tokens of `layout`."""
        return BodyMLP(self, *body_view(self.body, layout.slices, act_dim))


class BodyMLP(BodyPolicy):
    """MLP over the embeddings of all body parts, (B, T, D) -> (B, T, A)."""

    def __init__(
        self, config: BodyMLPConfig, graph: EmbodimentGraph, chosen: tuple[int, ...] | None = None
    ) -> None:
        memory = make_memory(config.history_kind, config.history, config.n_modes)
        super().__init__(graph, memory, chosen)
        self.config = config
        self.tokenizer = Tokenizer(graph.with_history(memory.numbers), config.embed_dim)
        width = len(graph.nodes) * config.embed_dim
        hidden = config.feedforward_dim
        self.hidden = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, width),
        )
        self.readout = nn.Linear(width, graph.act_dim)

    def encode(self, tokens: Tensor) -> Tensor:
        """(..., F x D) -> (..., A)."""
        actions = self.readout(self.hidden(self.tokenizer(tokens).flatten(1)))
        return actions.view(*tokens.shape[:-1], -1)
