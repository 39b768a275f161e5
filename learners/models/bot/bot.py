"""Body Transformer (BoT), Sferrazza et al. 2024, Section 4: BoT-Hard, -Mix, -Soft and ablations.

Each node of the embodiment graph is a token, made by a linear map from its observations. A
transformer encoder, masked by the body's connections, mixes the tokens; a linear map for each node
gives its actions. As in the published code, the encoder is post-norm with ReLU, without dropout and
without a final norm. Deviation: the published layers start as copies of one layer; ours are
initialised independently.

Extension: the paper's policy has no memory. With `history` above 1 each node's token also holds the
observations of the last steps, stacked or as FCNet's sliding modes (`memory`), for robots with
noisy sensors and an unobserved gait phase.

Extension: a condition, such as a return-to-go, is a token of its own, joined to the root. Every
node attends to it, since few masked layers would not bring it from the root to the limbs' ends.

Legend: B batch, T time, D observation, F numbers of a channel, A action, V nodes, E embedding,
N = B x T.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.bot.bodies import QUADRUPED, body_view, known_body
from gaitforge.learners.models.bot.body_attention import (
    AttentionMask,
    dense_attention,
    masked_attention,
)
from gaitforge.learners.models.bot.body_policy import BodyPolicy, Detokenizer, Tokenizer
from gaitforge.learners.models.bot.graphs import EmbodimentGraph
from gaitforge.learners.models.config_checks import check_counts
from gaitforge.learners.models.memory import STACKED, check_memory, make_memory
from gaitforge.learners.policy.tokens import CONDITION, TokenLayout

MASKINGS = ("hard", "mix", "soft", "none", "random", "mix-random")


@dataclass(frozen=True)
class BoTConfig:
    """Sizes and masking; the defaults are the paper's for its Isaac Gym robots (Figure 12).

    Attributes:
        history, history_kind, n_modes: the memory, see `memory`.
        body: one of `bodies.BODY_NAMES`, or an MJCF or robot's folder, read once: the config
            keeps its tree, see `trees`.
        masking: "hard" (BoT-Hard), nodes attend to themselves and their neighbours, M = I + A;
            "mix" (BoT-Mix), every other layer is masked so, the others attend to all nodes;
            "soft" (BoT-Soft), all layers attend to all nodes with a learned bias for each hop
            distance, shared by heads and layers; "none", the plain Transformer; "random"
            (BoT-Hard/Random), as "hard" with a random mask of the same sparsity from mask_seed;
            "mix-random" (BoT-Mix/Random), as "mix" with that mask.
        first_hard_layer: the first masked layer of both mixes, 0 or 1. The paper finds 0 better.
        shared_tokenizer: one map for all nodes' observations, and one for their actions, instead
            of one for each node (Appendix F.2).
        fixed_std: std of a Gaussian policy, in normalised action units; None to learn it. The
            paper's stochastic variant has variance 0.01, which is std 0.1.
    """

    embed_dim: int = 64
    n_heads: int = 2
    n_layers: int = 10
    feedforward_dim: int = 128
    positional_embedding: bool = False
    history: int = 1
    history_kind: str = STACKED
    n_modes: int = 8
    body: str | Mapping[str, Any] = QUADRUPED
    masking: str = "hard"
    mask_seed: int = 0
    first_hard_layer: int = 0
    shared_tokenizer: bool = False
    fixed_std: float | None = None

    def __post_init__(self) -> None:
        sizes = ("embed_dim", "n_heads", "n_layers", "feedforward_dim", "history")
        check_counts("BoT", self, *sizes)
        if self.embed_dim % self.n_heads:
            raise ValueError(
                f"BoT embed_dim must be a multiple of n_heads ({self.n_heads}), "
                f"got {self.embed_dim}"
            )
        object.__setattr__(self, "body", known_body(self.body))
        check_memory("BoT", self.history_kind, self.history, self.n_modes)
        if self.masking not in MASKINGS:
            raise ValueError(f"no masking {self.masking!r}; allowed: {', '.join(MASKINGS)}")
        if self.first_hard_layer not in (0, 1):
            raise ValueError(f"BoT first_hard_layer must be 0 or 1, got {self.first_hard_layer}")
        if self.fixed_std is not None and not self.fixed_std > 0:
            raise ValueError(f"BoT fixed_std must be above 0 or none, got {self.fixed_std}")

    @property
    def prefix_len(self) -> int:
        """Steps before a training window that the network reads."""
        return self.history - 1

    def build(self, layout: TokenLayout, act_dim: int) -> "BoT":
        """The network for tokens of `layout`."""
        graph, chosen = body_view(self.body, layout.slices, act_dim)
        if CONDITION in layout.slices:
            indices = tuple(range(*layout.slices[CONDITION]))
            places = tuple(map(chosen.index, indices)) if chosen else indices
            graph = graph.with_own_node(CONDITION, places)
        return BoT(self, graph, chosen)


class EncoderLayer(nn.Module):
    """Post-norm transformer layer with ReLU.

    mask: an AttentionMask, an additive bias (V, V), or None to attend to all nodes.
    """

    def __init__(self, embed_dim: int, n_heads: int, feedforward_dim: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.widen = nn.Linear(embed_dim, feedforward_dim)
        self.narrow = nn.Linear(feedforward_dim, embed_dim)
        self.feedforward_norm = nn.LayerNorm(embed_dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, mask: AttentionMask | Tensor | None) -> Tensor:
        """(N, V, E) -> (N, V, E)."""
        shape = x.shape
        x = x.flatten(0, 1)
        qkv = self.qkv(x).view(*shape[:2], 3, self.n_heads, -1)
        if isinstance(mask, AttentionMask):
            pooled = masked_attention(qkv, mask)
        else:
            pooled = dense_attention(qkv, mask)
        x = self.attention_norm(_add_linear(x, pooled.reshape(x.shape), self.out))
        hidden = functional.relu(self.widen(x), inplace=True)
        return self.feedforward_norm(_add_linear(x, hidden, self.narrow)).view(shape)


def _add_linear(x: Tensor, features: Tensor, linear: nn.Linear) -> Tensor:
    """The sum x + linear(features), (rows, E), as one matrix product."""
    if torch.is_autocast_enabled(x.device.type):  # in-place products ignore autocast
        return x + linear(features)
    return (x + linear.bias).addmm_(features, linear.weight.t())


class BoT(BodyPolicy):
    """Body Transformer policy for one embodiment graph."""

    hop_index: Tensor

    def __init__(
        self, config: BoTConfig, graph: EmbodimentGraph, chosen: tuple[int, ...] | None = None
    ) -> None:
        memory = make_memory(config.history_kind, config.history, config.n_modes)
        super().__init__(graph, memory, chosen)
        self.config = config
        seen = graph.with_history(memory.numbers)
        shared = config.shared_tokenizer
        self.tokenizer = Tokenizer(seen, config.embed_dim, shared)
        self.layers = nn.ModuleList(
            EncoderLayer(config.embed_dim, config.n_heads, config.feedforward_dim)
            for _ in range(config.n_layers)
        )
        self.detokenizer = Detokenizer(graph, config.embed_dim, shared)
        self.position = None
        if config.positional_embedding:
            # N(0, 1), nn.Embedding's, as in the published code for imitation (github.com/
            # carlosferrazza/BodyTransformer, imitation_learning/models/networks.py). Its code for
            # reinforcement learning has a std of 0.02.
            self.position = nn.Parameter(torch.randn(len(graph.nodes), config.embed_dim))
        self.mask = None
        if config.masking in ("hard", "mix"):
            self.mask = AttentionMask(graph.embodiment_mask())
        elif config.masking in ("random", "mix-random"):
            self.mask = AttentionMask(graph.random_mask(config.mask_seed))
        self.hop_bias = None
        if config.masking == "soft":
            hops = graph.hop_distances()
            self.hop_bias = nn.Parameter(torch.zeros(int(hops.max()) + 1))
            self.register_buffer("hop_index", hops, persistent=False)

    def layer_masks(self) -> list[AttentionMask | Tensor | None]:
        """Each layer's mask: a learned bias (V, V), or None to attend to all nodes."""
        if self.hop_bias is not None:
            return [self.hop_bias[self.hop_index]] * len(self.layers)
        masks: list[AttentionMask | Tensor | None] = [self.mask] * len(self.layers)
        if self.config.masking in ("mix", "mix-random"):
            first_open = 1 - self.config.first_hard_layer
            masks[first_open::2] = [None] * len(masks[first_open::2])
        return masks

    def encode(self, tokens: Tensor) -> Tensor:
        """Actions (..., A) for tokens' inputs (..., F x D)."""
        x = self.tokenizer(tokens)
        if self.position is not None:
            x = x + self.position
        for layer, mask in zip(self.layers, self.layer_masks(), strict=True):
            x = layer(x, mask)
        return self.detokenizer(x).view(*tokens.shape[:-1], -1)
