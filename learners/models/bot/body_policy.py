"""Base of the policies over body parts: linear maps for each node, history, and control.

Source: Sferrazza et al. 2024, "Body Transformer", Section 4 (tokenizer and detokenizer).

Legend: B batch, T time, D observation, H history, A action, V nodes, E embedding, N = B x T.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from learners.models.bot.graphs import EmbodimentGraph


def _node_of_index(groups: tuple[tuple[int, ...], ...]) -> Tensor:
    """The node of each observation or action index."""
    pairs = sorted((index, node) for node, group in enumerate(groups) for index in group)
    return torch.tensor([node for _, node in pairs])


def _linear_init(parameter: Tensor, fan_in: Tensor) -> None:
    """Initialise like nn.Linear, with the fan-in (rows,) of each row's node."""
    bound = fan_in.clamp(min=1).float().rsqrt()
    with torch.no_grad():
        parameter.copy_(torch.empty_like(parameter).uniform_(-1, 1) * bound[:, None])


def _padded(groups: tuple[tuple[int, ...], ...], filler: int) -> Tensor:
    """(nodes, largest group): the groups' indices, short groups padded."""
    width = max(1, *map(len, groups)) if groups else 1
    return torch.tensor([[*group, *[filler] * (width - len(group))] for group in groups])


class Tokenizer(nn.Module):
    """A linear map for each node.

    Each observation belongs to one node and has one row of weights (E). The maps of all limbs are
    one batched product, padded to the widest limb; the root, which is much wider, is a second one.
    """

    root: Tensor
    limbs: Tensor

    def __init__(self, graph: EmbodimentGraph, embed_dim: int) -> None:
        super().__init__()
        node = _node_of_index(graph.observations)
        sizes = torch.tensor([len(group) for group in graph.observations])
        self.weight = nn.Parameter(torch.empty(len(node), embed_dim))
        self.bias = nn.Parameter(torch.empty(len(sizes), embed_dim))
        _linear_init(self.weight, sizes[node])
        _linear_init(self.bias, sizes)
        filler = len(node)
        root, limbs = graph.observations[:1], graph.observations[1:]
        self.register_buffer("root", _padded(root, filler), persistent=False)
        self.register_buffer("limbs", _padded(limbs, filler), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(..., D) -> (N, V, E)."""
        # The zero row at the end is the weight of the padding.
        weight = functional.pad(self.weight, (0, 0, 0, 1))
        parts = [self._embed(tokens, weight, self.root, self.bias[:1])]
        if len(self.limbs):
            parts.append(self._embed(tokens, weight, self.limbs, self.bias[1:]))
        return torch.cat(parts, dim=1)

    @staticmethod
    def _embed(tokens: Tensor, weight: Tensor, indices: Tensor, bias: Tensor) -> Tensor:
        nodes, width = indices.shape
        places = indices.flatten().clamp(max=tokens.shape[-1] - 1)
        local = tokens.index_select(-1, places).view(-1, nodes, width).transpose(0, 1)
        return torch.baddbmm(bias[:, None], local, weight[indices]).transpose(0, 1)


class Detokenizer(nn.Module):
    """A linear map for each node, as one matrix product."""

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
        """(N, V, E) -> (N, A)."""
        matrix = (self.placement * self.weight[:, None]).flatten(1)
        return functional.linear(features.flatten(-2), matrix, self.bias)


class BodyPolicy(nn.Module, ABC):
    """A policy over body parts; subclasses implement `encode`.

    history: steps H that the policy sees. chosen: indices of the token that it reads, None for all.
    """

    chosen: Tensor | None

    def __init__(
        self, graph: EmbodimentGraph, history: int, chosen: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        self.graph = graph
        self.history = history
        indices = None if chosen is None else torch.tensor(chosen)
        self.register_buffer("chosen", indices, persistent=False)

    @abstractmethod
    def encode(self, tokens: Tensor) -> Tensor:
        """(..., H x D), oldest step first -> (..., A)."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, A); steps before the sequence count as zero."""
        tokens = self._narrowed(tokens)
        if self.history > 1:
            steps, width = tokens.shape[1:]
            padded = functional.pad(tokens, (0, 0, self.history - 1, 0))
            # The last H tokens are adjacent in memory: a view (B, T, H x D).
            tokens = padded.flatten(1).unfold(1, self.history * width, width)[:, :steps]
        return self.encode(tokens)

    def init_state(self, batch_size: int) -> Tensor:
        """(B, H - 1, D): the last tokens, oldest first; zeros before an episode."""
        return torch.zeros(batch_size, self.history - 1, self.graph.obs_dim)

    @torch.no_grad()
    def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One control step: token (B, D) -> action (B, A) as in `forward`; returns a new state."""
        recent = torch.cat([state, self._narrowed(token)[:, None]], dim=1)
        return self.encode(recent.flatten(1)), recent[:, 1:]

    def _narrowed(self, tokens: Tensor) -> Tensor:
        return tokens if self.chosen is None else tokens.index_select(-1, self.chosen)

    def reset_state(self, state: Tensor, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        state[rows] = 0.0
