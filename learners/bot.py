"""Body Transformer, hard-masked (BoT-Hard), Sferrazza et al. 2024, Section 4.

Every node of the embodiment graph is one token. Its own linear map embeds what is measured there,
a transformer encoder lets a node attend to itself and its neighbours only (mask I + A in every
layer), and its own linear map reads out the actions of that node. As in the published code the
encoder is post-norm with ReLU and without dropout. Deviation: the published layers are copies of
one and start out identical; these start independently.

The paper's policy has no memory: every step of a sequence is treated on its own. Extension: with
`history` above 1 each node's token holds what was measured there in the last steps as well, which
a robot with noisy sensors and an unobserved gait phase needs; 1 is the paper's.

Legend: B batch, T time, D observation, H history, A action, V nodes, E embedding.
"""

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional

from learners.graphs import EmbodimentGraph, quadruped_graph
from learners.tokens import TokenLayout


@dataclass(frozen=True)
class BoTConfig:
    """Sizes; the defaults are the paper's for its Isaac Gym robots, with the A1 (Figure 12)."""

    embed_dim: int = 64
    n_heads: int = 2
    n_layers: int = 10
    feedforward_dim: int = 128
    positional_embedding: bool = False
    history: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "positional_embedding" and value < 1:
                raise ValueError(f"BoT {field.name} must be at least 1, got {value}")
        if self.embed_dim % self.n_heads:
            raise ValueError(
                f"BoT embed_dim must be a multiple of n_heads ({self.n_heads}), "
                f"got {self.embed_dim}"
            )


def _node_of_index(groups: tuple[tuple[int, ...], ...]) -> Tensor:
    """For each observation or action index the node that holds it."""
    pairs = sorted((index, node) for node, group in enumerate(groups) for index in group)
    return torch.tensor([node for _, node in pairs])


def _linear_init(parameter: Tensor, fan_in: Tensor) -> None:
    """The initial distribution of nn.Linear, with the fan-in of each row's own node."""
    bound = fan_in.clamp(min=1).float().rsqrt()
    with torch.no_grad():
        parameter.copy_(torch.empty_like(parameter).uniform_(-1, 1) * bound[:, None])


class Tokenizer(nn.Module):
    """One linear map a node, (..., D) -> (..., V, E).

    An observation belongs to one node, so its weights are one row (E); placed in that node's
    columns, all maps are a single matrix product.
    """

    placement: Tensor

    def __init__(self, graph: EmbodimentGraph, embed_dim: int) -> None:
        super().__init__()
        node = _node_of_index(graph.observations)
        sizes = torch.tensor([len(group) for group in graph.observations])
        self.weight = nn.Parameter(torch.empty(len(node), embed_dim))
        self.bias = nn.Parameter(torch.empty(len(sizes), embed_dim))
        _linear_init(self.weight, sizes[node])
        _linear_init(self.bias, sizes)
        placement = functional.one_hot(node, len(sizes)).float()[:, :, None]
        self.register_buffer("placement", placement, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        matrix = (self.placement * self.weight[:, None]).flatten(1)
        embedded = torch.addmm(self.bias.flatten(), tokens.flatten(0, -2), matrix)
        return embedded.view(*tokens.shape[:-1], *self.bias.shape)


class Detokenizer(nn.Module):
    """One linear map a node, (..., V, E) -> (..., A); the mirror image of the tokenizer."""

    placement: Tensor

    def __init__(self, graph: EmbodimentGraph, embed_dim: int) -> None:
        super().__init__()
        node = _node_of_index(graph.actions)
        self.weight = nn.Parameter(torch.empty(len(node), embed_dim))
        self.bias = nn.Parameter(torch.empty(len(node)))
        fan_in = torch.full((len(node),), embed_dim)
        _linear_init(self.weight, fan_in)
        _linear_init(self.bias[:, None], fan_in)
        placement = functional.one_hot(node, len(graph.nodes)).float()[:, :, None]
        self.register_buffer("placement", placement, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        matrix = (self.placement * self.weight[:, None]).flatten(1)
        return functional.linear(features.flatten(-2), matrix, self.bias)


class EncoderLayer(nn.Module):
    """Post-norm transformer layer with ReLU and an additive attention mask (V, V)."""

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

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, nodes, width = x.shape
        query, key, value = (
            part.view(rows, nodes, self.n_heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        pooled = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(pooled.transpose(1, 2).reshape(rows, nodes, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attend(x, mask))
        hidden = functional.relu(self.widen(x), inplace=True)
        return self.feedforward_norm(x + self.narrow(hidden))


class BoT(nn.Module):
    """Body Transformer policy for one embodiment graph."""

    mask: Tensor

    def __init__(self, config: BoTConfig, graph: EmbodimentGraph) -> None:
        super().__init__()
        self.config = config
        self.graph = graph
        self.tokenizer = Tokenizer(graph.with_history(config.history), config.embed_dim)
        self.layers = nn.ModuleList(
            EncoderLayer(config.embed_dim, config.n_heads, config.feedforward_dim)
            for _ in range(config.n_layers)
        )
        self.detokenizer = Detokenizer(graph, config.embed_dim)
        self.position = None
        if config.positional_embedding:
            self.position = nn.Parameter(torch.randn(len(graph.nodes), config.embed_dim) * 0.02)
        allowed = graph.adjacency() | torch.eye(len(graph.nodes), dtype=torch.bool)
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, A); steps before the sequence count as zero."""
        past = self.config.history - 1
        if past:
            padded = functional.pad(tokens, (0, 0, past, 0))
            # (B, T, D, H), oldest first, to (B, T, H x D)
            tokens = padded.unfold(1, past + 1, 1).transpose(2, 3).flatten(2)
        return self._encode(tokens)

    def _encode(self, tokens: Tensor) -> Tensor:
        """(..., H x D) -> (..., A)."""
        x = self.tokenizer(tokens.flatten(0, -2))
        if self.position is not None:
            x = x + self.position
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.detokenizer(x).view(*tokens.shape[:-1], -1)

    def init_state(self, batch_size: int) -> Tensor:
        """(B, H - 1, D) the last tokens, oldest first; zeros before an episode."""
        width = sum(len(group) for group in self.graph.observations)
        return torch.zeros(batch_size, self.config.history - 1, width)

    @torch.no_grad()
    def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One control step: token (B, D) -> action (B, A); the state is a new tensor."""
        recent = torch.cat([state, token[:, None]], dim=1)
        return self._encode(recent.flatten(1)), recent[:, 1:]

    def reset_state(self, state: Tensor, rows: Tensor) -> None:
        """Forget the history of some robots, in place."""
        state[rows] = 0.0


def build_bot(config: BoTConfig, layout: TokenLayout, act_dim: int) -> BoT:
    """A BoT of these sizes for a quadruped with the tokens of `layout`."""
    return BoT(config, quadruped_graph(layout.slices, action_dim=act_dim))
