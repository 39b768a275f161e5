"""Base class of policies over body parts, with the linear maps of each node.

Source: Sferrazza et al. 2024, "Body Transformer", Section 4 (tokenizer and detokenizer).

Legend: D observation, A action, V nodes, E embedding, N steps.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.bot.graphs import EmbodimentGraph
from gaitforge.learners.models.memory import SpectralMemory, StackedMemory
from gaitforge.learners.models.observation_history import HistoryNetwork


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
