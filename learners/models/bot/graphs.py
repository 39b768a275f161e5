"""Embodiment graphs: the parts of a body, their connections, observations and actions.

Source: Sferrazza et al. 2024, "Body Transformer", Section 4 (tokenizer and embodiment mask) and
Appendix D (observations and actions of each node).
"""

from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class EmbodimentGraph:
    """A connected, undirected graph of body parts.

    nodes: names, the root first. edges: pairs of node indices. observations, actions: for each node
    its indices in the token and in the action, which must cover 0 .. dim-1 exactly once.
    told_to_all: nodes that every node attends to and that attend to themselves alone, so that they
    pass nothing between the body's parts. Raises ValueError for a graph that breaks these rules.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    observations: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[int, ...], ...]
    told_to_all: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("an embodiment graph needs at least one node")
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError("the nodes of an embodiment graph need distinct names")
        for a, b in self.edges:
            if a == b or not (0 <= a < len(self.nodes) and 0 <= b < len(self.nodes)):
                raise ValueError(
                    f"edge ({a}, {b}) must join two different nodes in 0..{len(self.nodes) - 1}"
                )
        self._check_cover("observation", self.observations)
        self._check_cover("action", self.actions)
        unreached = (self.hop_distances()[0] < 0).nonzero().flatten().tolist()
        if unreached:
            names = ", ".join(self.nodes[index] for index in unreached)
            raise ValueError(f"the graph is not connected: no path from {self.nodes[0]} to {names}")

    def with_history(self, steps: int) -> "EmbodimentGraph":
        """The same graph for `steps` concatenated tokens."""
        width = self.obs_dim
        observations = tuple(
            tuple(step * width + index for step in range(steps) for index in group)
            for group in self.observations
        )
        return replace(self, observations=observations)

    def with_own_node(self, name: str, indices: tuple[int, ...]) -> "EmbodimentGraph":
        """The same graph with a node of its own for some root indices, see `told_to_all`."""
        root = tuple(index for index in self.observations[0] if index not in indices)
        if len(root) + len(indices) != len(self.observations[0]):
            raise ValueError(f"indices {indices} are not the root's")
        new = len(self.nodes)
        return replace(
            self,
            nodes=(*self.nodes, name),
            edges=(*self.edges, (0, new)),
            observations=(root, *self.observations[1:], indices),
            actions=(*self.actions, ()),
            told_to_all=(*self.told_to_all, new),
        )

    def _check_cover(self, kind: str, groups: tuple[tuple[int, ...], ...]) -> None:
        if len(groups) != len(self.nodes):
            raise ValueError(
                f"{len(self.nodes)} nodes need as many {kind} groups, got {len(groups)}"
            )
        indices = sorted(index for group in groups for index in group)
        if not indices:
            raise ValueError(f"no {kind} is assigned to any node")
        repeated = sorted({a for a, b in pairwise(indices) if a == b})
        if repeated:
            raise ValueError(f"{kind} indices {repeated} are assigned to more than one node")
        if indices != list(range(len(indices))):
            missing = sorted(set(range(max(indices) + 1)) - set(indices))
            raise ValueError(f"{kind} indices {missing} are assigned to no node")

    @property
    def obs_dim(self) -> int:
        """Size of a token."""
        return sum(map(len, self.observations))

    @property
    def act_dim(self) -> int:
        """Size of an action."""
        return sum(map(len, self.actions))

    def adjacency(self) -> Tensor:
        """(nodes, nodes) bool, symmetric, false on the diagonal; on the CPU."""
        size = len(self.nodes)
        matrix = torch.zeros(size, size, dtype=torch.bool, device="cpu")
        for a, b in self.edges:
            matrix[a, b] = matrix[b, a] = True
        return matrix

    def embodiment_mask(self) -> Tensor:
        """(nodes, nodes) bool, M = I + A: each node and its neighbours (paper, Section 4).

        Row i has the nodes that node i attends to. Extension: the nodes of `told_to_all`.
        """
        return self._telling_all(self.adjacency())

    def random_mask(self, seed: int) -> Tensor:
        """(nodes, nodes) bool: as many allowed pairs as the body's mask, drawn at random.

        Symmetric, with a true diagonal (paper, Appendices E and F.1); a function of the seed. This
        follows the paper's text. Its published code differs: the mask is asymmetric and inverted,
        and allows about 95 % of the pairs where the body allows 9 %.
        """
        size = len(self.nodes)
        pairs = torch.tensor(list(combinations(range(size), 2)), device="cpu").view(-1, 2)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(pairs), generator=generator, device="cpu")
        picked = pairs[order[: int(self.adjacency().sum()) // 2]]
        mask = torch.eye(size, dtype=torch.bool, device="cpu")
        mask[picked[:, 0], picked[:, 1]] = True
        return self._telling_all(mask | mask.T)

    def _telling_all(self, mask: Tensor) -> Tensor:
        for node in self.told_to_all:
            mask[node] = False
            mask[:, node] = True
        return mask.fill_diagonal_(True)

    def hop_distances(self) -> Tensor:
        """(nodes, nodes) int: edges on the shortest path, -1 without a path; on the CPU."""
        size = len(self.nodes)
        step = self.adjacency().fill_diagonal_(True).float()
        distances = torch.full((size, size), -1, device="cpu")
        reached = torch.eye(size, dtype=step.dtype, device="cpu")
        for hops in range(size):
            distances[(reached > 0) & (distances < 0)] = hops
            reached = (reached @ step > 0).float()
        return distances
