"""Body Transformer (BoT), its paper's MLP baseline, and the base class of policies over body parts.

Source: Sferrazza et al. 2024, "Body Transformer", Section 4 (tokenizer and detokenizer, which have
a linear map for each node; BoT-Hard, -Mix, -Soft and ablations) and Section 5 (MLP baseline).

`BoT`: each node of the embodiment graph is a token, made by a linear map from its observations. A
transformer encoder, masked by the body's connections, mixes the tokens; a linear map for each node
gives its actions. As in the published code, the encoder is post-norm with ReLU, without dropout and
without a final norm. Deviation: the published layers start as copies of one layer; ours are
initialised independently.

Extension of BoT: the paper's policy has no memory. With `history` above 1 each node's token also
holds the observations of the last steps, stacked or as FCNet's sliding modes (`memory`), for robots
with noisy sensors and an unobserved gait phase.

Extension of BoT: a condition, such as a return-to-go, is a token of its own, joined to the root.
Every node attends to it, since few masked layers would not bring it from the root to the limbs'
ends.

`BodyMLP`, the MLP baseline, as in the published code: a linear map for each node without
activation, the embeddings of all nodes concatenated, two hidden layers with ReLU, a linear map back
to the width of the embeddings, and one linear map to all actions. With embeddings of 64 and hidden
layers of 2,500 it has the published 16,696,656 (MoCapAct) and 14,305,524 (Adroit door) parameters.

Legend: B batch, T time, D observation, F numbers of a channel, A action, V nodes, E embedding,
N = B x T steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.common.errors import amount, names_allowed
from gaitforge.learners.models.base import (
    STACKED,
    HistoryNetwork,
    SpectralMemory,
    StackedMemory,
    check_counts,
    check_memory,
    make_memory,
)
from gaitforge.learners.models.bodies import (
    MASK_DRAWS,
    PAIRS,
    QUADRUPED,
    TREE,
    EmbodimentGraph,
    body_view,
    hops_of,
    known_body,
)
from gaitforge.learners.models.body_attention import (
    AttentionMask,
    dense_attention,
    masked_attention,
)
from gaitforge.learners.tokens import CONDITION, TokenLayout


# Base class of policies over body parts: linear maps of each node.
def node_of_index(groups: tuple[tuple[int, ...], ...]) -> Tensor:
    """(indices,): the node of each observation or action index."""
    pairs = sorted((index, node) for node, group in enumerate(groups) for index in group)
    return torch.tensor([node for _, node in pairs])


def _linear_init(parameter: Tensor, fan_in: Tensor) -> None:
    """Initialise as nn.Linear does, with a fan-in for each row: fan_in (rows,)."""
    bound = fan_in.clamp(min=1).float().rsqrt()
    with torch.no_grad():
        parameter.copy_(torch.empty_like(parameter).uniform_(-1, 1) * bound[:, None])


def _padded(groups: tuple[tuple[int, ...], ...], filler: int) -> Tensor:
    """(nodes, largest group): the groups' indices, short groups padded with `filler`."""
    width = max(1, *map(len, groups)) if groups else 1
    return torch.tensor([[*group, *[filler] * (width - len(group))] for group in groups])


def _row_in_node(groups: tuple[tuple[int, ...], ...]) -> Tensor:
    """(indices,): each observation's or action's place among those of its node."""
    return torch.tensor([k for _, k in sorted((i, k) for g in groups for k, i in enumerate(g))])


class Tokenizer(nn.Module):
    """A linear map from each node's observations to its embedding.

    Each observation belongs to one node and has one row of weights (E). The maps of all limbs are
    one batched product, padded to the widest limb; the root, which is much wider, is a second
    product. With `shared` all nodes have one map, as wide as the widest node's (Appendix F.2).
    """

    root: Tensor
    limbs: Tensor
    row: Tensor | None

    def __init__(self, graph: EmbodimentGraph, embed_dim: int, shared: bool = False) -> None:
        super().__init__()
        node = node_of_index(graph.observations)
        filler = len(node)
        sizes = torch.tensor([len(group) for group in graph.observations])
        self._nodes, row = len(sizes), _row_in_node(graph.observations) if shared else None
        self.register_buffer("row", row, persistent=False)
        if shared:
            node = torch.zeros(int(sizes.max()), dtype=torch.int64)
            sizes = sizes.max()[None]
        self.weight = nn.Parameter(torch.empty(len(node), embed_dim))
        self.bias = nn.Parameter(torch.empty(len(sizes), embed_dim))
        _linear_init(self.weight, sizes[node])
        _linear_init(self.bias, sizes)
        root = graph.observations[:1]
        limbs = graph.observations[1:]
        self.register_buffer("root", _padded(root, filler), persistent=False)
        self.register_buffer("limbs", _padded(limbs, filler), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(..., D) -> (N, V, E)."""
        weight, bias = self.maps()
        # The zero row at the end is the padding's weight.
        weight = functional.pad(weight, (0, 0, 0, 1))
        parts = [self._embed(tokens, weight, self.root, bias[:1])]
        if len(self.limbs):
            parts.append(self._embed(tokens, weight, self.limbs, bias[1:]))
        return torch.cat(parts, dim=1)

    def maps(self) -> tuple[Tensor, Tensor]:
        """The weights (D, E) of each observation and the bias (V, E) of each node."""
        if self.row is None:
            return self.weight, self.bias
        return self.weight[self.row], self.bias.expand(self._nodes, -1)

    @staticmethod
    def _embed(tokens: Tensor, weight: Tensor, indices: Tensor, bias: Tensor) -> Tensor:
        nodes, width = indices.shape
        places = indices.flatten().clamp(max=tokens.shape[-1] - 1)
        local = tokens.index_select(-1, places).view(-1, nodes, width).transpose(0, 1)
        return torch.baddbmm(bias[:, None], local, weight[indices]).transpose(0, 1)


class Detokenizer(nn.Module):
    """A linear map from each node's embedding to its actions, as one matrix product.

    `shared`: see `Tokenizer`.
    """

    placement: Tensor
    row: Tensor | None

    def __init__(self, graph: EmbodimentGraph, embed_dim: int, shared: bool = False) -> None:
        super().__init__()
        node = node_of_index(graph.actions)
        row = _row_in_node(graph.actions) if shared else None
        self.register_buffer("row", row, persistent=False)
        count = len(node) if row is None else int(row.max()) + 1
        self.weight = nn.Parameter(torch.empty(count, embed_dim))
        self.bias = nn.Parameter(torch.empty(count))
        fan_in = torch.full((count,), embed_dim)
        _linear_init(self.weight, fan_in)
        _linear_init(self.bias[:, None], fan_in)
        placement = functional.one_hot(node, len(graph.nodes)).float()[:, :, None]
        self.register_buffer("placement", placement, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """(N, V, E) -> (N, A)."""
        weight, bias = self.maps()
        matrix = (self.placement * weight[:, None]).flatten(1)
        return functional.linear(features.flatten(-2), matrix, bias)

    def maps(self) -> tuple[Tensor, Tensor]:
        """The weights (A, E) and biases (A,) of the actions."""
        if self.row is None:
            return self.weight, self.bias
        return self.weight[self.row], self.bias[self.row]


class BodyPolicy(HistoryNetwork):
    """A policy over body parts; subclasses implement `encode`.

    memory: of the last steps. chosen: indices of the token's channels that
    the policy reads, None for all.
    """

    chosen: Tensor | None

    def __init__(
        self,
        graph: EmbodimentGraph,
        memory: StackedMemory | SpectralMemory,
        chosen: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(memory, graph.obs_dim)
        self.graph = graph
        indices = None if chosen is None else torch.tensor(chosen)
        self.register_buffer("chosen", indices, persistent=False)

    def narrowed(self, tokens: Tensor) -> Tensor:
        """The chosen channels of the tokens (..., D)."""
        return tokens if self.chosen is None else tokens.index_select(-1, self.chosen)


# Body Transformer.
MASKINGS = ("hard", "mix", "soft", "none", "random", "mix-random")
RANDOM = ("random", "mix-random")


@dataclass(frozen=True)
class BoTConfig:
    """Sizes and masking; the defaults are the paper's for its Isaac Gym robots (Figure 12).

    Attributes:
        history, history_kind, n_modes: the memory, see `memory`.
        body: one of `bodies.body_names`, or an MJCF or robot's folder, read once: the config
            keeps its tree, see `bodies.robot_tree`.
        masking: "hard" (BoT-Hard), nodes attend to themselves and their neighbours, M = I + A;
            "mix" (BoT-Mix), every other layer is masked so, the others attend to all nodes;
            "soft" (BoT-Soft), all layers attend to all nodes with a learned bias for each hop
            distance, shared by heads and layers; "none", the plain Transformer; "random"
            (BoT-Hard/Random), as "hard" with a random mask of the same sparsity from mask_seed;
            "mix-random" (BoT-Mix/Random), as "mix" with that mask.
        mask_draw: how a random mask is drawn, see `EmbodimentGraph.random_mask`: "tree", connected;
            "pairs", as in networks of earlier versions, whose masks were not stored.
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
    mask_draw: str = TREE
    first_hard_layer: int = 0
    shared_tokenizer: bool = False
    fixed_std: float | None = None

    earlier: ClassVar[Mapping[str, Any]] = {"mask_draw": PAIRS}

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
            raise ValueError(
                f"no masking {self.masking!r}; {names_allowed(self.masking, MASKINGS)}"
            )
        if self.mask_draw not in MASK_DRAWS:
            raise ValueError(
                f"no mask_draw {self.mask_draw!r}; {names_allowed(self.mask_draw, MASK_DRAWS)}"
            )
        if self.masking not in RANDOM:  # no difference: equal networks have equal configs
            object.__setattr__(self, "mask_draw", TREE)
        if self.first_hard_layer not in (0, 1):
            raise ValueError(f"BoT first_hard_layer must be 0 or 1, got {self.first_hard_layer}")
        if self.fixed_std is not None and not self.fixed_std > 0:
            raise ValueError(f"BoT fixed_std must be above 0 or none, got {self.fixed_std}")

    @property
    def receptive_field(self) -> int:
        """Steps before the current one that can change its action."""
        return self.history - 1

    prefix_len = receptive_field

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
        elif config.masking in RANDOM:
            self.mask = AttentionMask(graph.random_mask(config.mask_seed, config.mask_draw))
        self.hop_bias = None
        if config.masking == "soft":
            hops = graph.hop_distances()
            # N(0, 1), nn.Embedding's, as in the published code (the class SoftBiasTransformer).
            self.hop_bias = nn.Parameter(torch.randn(int(hops.max()) + 1))
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

    def depth_note(self) -> str:
        """A line on masks that do not join all parts of the body; empty if all layers do.

        A masked layer passes on what it sees by one edge; a layer without a mask joins all parts.
        """
        masks = self.layer_masks()
        hard = [mask for mask in masks if isinstance(mask, AttentionMask)]
        if self.mask is None or len(hard) < len(masks):
            return ""
        parts = [k for k in range(len(self.graph.nodes)) if k not in self.graph.told_to_all]
        distances = hops_of(self.mask.bias == 0)[parts][:, parts]
        apart = (distances < 0) | (distances > len(masks))
        if not apart.any():
            return ""
        advice = ""
        if (distances >= 0).all():
            advice = f"; n_layers={int(distances.max())} joins all, masking=mix in any number"
        return (
            f"{amount(len(masks), 'masked layer')} on a body that is "
            f"{int(distances.max())} edges wide: {apart.float().mean():.0%} of the pairs of its "
            f"parts never tell each other anything{advice}"
        )

    def encode(self, tokens: Tensor) -> Tensor:
        """Actions (..., A) for tokens' inputs (..., F x D)."""
        x = self.tokenizer(tokens)
        if self.position is not None:
            x = x + self.position
        for layer, mask in zip(self.layers, self.layer_masks(), strict=True):
            x = layer(x, mask)
        return self.detokenizer(x).view(*tokens.shape[:-1], -1)


# The MLP baseline of the paper.
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
    def receptive_field(self) -> int:
        """Steps before the current one that can change its action."""
        return self.history - 1

    prefix_len = receptive_field

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
