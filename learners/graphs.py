"""Embodiment graphs: which body part holds which observations and actions, and what is joined.

Source: Sferrazza et al. 2024, "Body Transformer", Section 4 (tokenizer and embodiment mask).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

# Observation fields with one number a joint, and those of the body as a whole.
JOINT_FIELDS = ("joint_vel", "sin_joint_pos", "cos_joint_pos", "last_action")
ROOT_FIELDS = ("projected_gravity", "base_ang_vel_body", "command", "return_to_go")

_LEGS = ("FL", "FR", "RL", "RR")
_SEGMENTS = ("hip", "thigh", "calf")
QUADRUPED_JOINTS = tuple(f"{leg}_{segment}" for leg in _LEGS for segment in _SEGMENTS)


@dataclass(frozen=True)
class EmbodimentGraph:
    """A connected, undirected graph over body parts, with the indices that live at each of them.

    nodes: names, the root first. edges: pairs of node indices. observations and actions: for each
    node the indices into the token and into the action; together they cover 0 .. dim-1 exactly
    once. Raises ValueError where any of that does not hold.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    observations: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("an embodiment graph needs at least one node")
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError("the nodes of an embodiment graph need distinct names")
        for a, b in self.edges:
            if a == b or not (0 <= a < len(self.nodes) and 0 <= b < len(self.nodes)):
                raise ValueError(
                    f"edge ({a}, {b}) must join two different nodes of 0..{len(self.nodes) - 1}"
                )
        self._check_cover("observation", self.observations)
        self._check_cover("action", self.actions)
        unreached = (self.hop_distances()[0] < 0).nonzero().flatten().tolist()
        if unreached:
            names = ", ".join(self.nodes[index] for index in unreached)
            raise ValueError(f"the graph is not connected: no path from {self.nodes[0]} to {names}")

    def with_history(self, steps: int) -> "EmbodimentGraph":
        """The same body with `steps` tokens side by side, each number at the node it was before."""
        width = sum(len(group) for group in self.observations)
        observations = tuple(
            tuple(step * width + index for step in range(steps) for index in group)
            for group in self.observations
        )
        return replace(self, observations=observations)

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
        return sum(map(len, self.observations))

    @property
    def act_dim(self) -> int:
        return sum(map(len, self.actions))

    def adjacency(self) -> Tensor:
        """(nodes, nodes) bool, symmetric, false on the diagonal."""
        matrix = torch.zeros(len(self.nodes), len(self.nodes), dtype=torch.bool)
        for a, b in self.edges:
            matrix[a, b] = matrix[b, a] = True
        return matrix

    def hop_distances(self) -> Tensor:
        """(nodes, nodes) int: edges on the shortest path, -1 where there is none."""
        size = len(self.nodes)
        step = (self.adjacency() | torch.eye(size, dtype=torch.bool)).float()
        distances = torch.full((size, size), -1)
        reached = torch.eye(size)
        for hops in range(size):
            distances[(reached > 0) & (distances < 0)] = hops
            reached = (reached @ step > 0).float()
        return distances


def quadruped_graph(
    obs_slices: Mapping[str, tuple[int, int]],
    joint_names: Sequence[str] = QUADRUPED_JOINTS,
    action_dim: int = 12,
) -> EmbodimentGraph:
    """13 nodes: the trunk and, for each leg, hip, thigh and calf in a chain (paper: Unitree A1).

    Args: obs_slices, name -> (start, stop) in the token, fields of JOINT_FIELDS and ROOT_FIELDS;
    joint_names, in the order of the joint fields and of the actions, "<leg>_<segment>".
    Raises ValueError for an unknown field, a wrong width, or joints that make no quadruped.
    """
    if action_dim != len(joint_names):
        raise ValueError(f"{len(joint_names)} joints need as many actions, got {action_dim}")
    node_of = {tuple(name.split("_")[:2]): 1 + index for index, name in enumerate(joint_names)}
    legs = dict.fromkeys(leg for leg, _ in node_of)
    wanted = {(leg, segment) for leg in legs for segment in _SEGMENTS}
    if len(legs) != len(_LEGS) or set(node_of) != wanted:
        raise ValueError(
            f"a quadruped has 4 legs with joints named <leg>_{{{','.join(_SEGMENTS)}}}, "
            f"got {', '.join(joint_names)}"
        )
    edges = []
    for leg in legs:
        chain = [0, *(node_of[leg, segment] for segment in _SEGMENTS)]
        edges.extend(pairwise(chain))

    observations: list[list[int]] = [[] for _ in range(1 + len(joint_names))]
    for name, (start, stop) in obs_slices.items():
        if name in ROOT_FIELDS:
            observations[0].extend(range(start, stop))
        elif name not in JOINT_FIELDS:
            allowed = ", ".join((*JOINT_FIELDS, *ROOT_FIELDS))
            raise ValueError(f"no place on the body for observation {name}; known are {allowed}")
        elif stop - start != len(joint_names):
            raise ValueError(f"{name} must hold {len(joint_names)} numbers, got {stop - start}")
        else:
            for joint in range(len(joint_names)):
                observations[1 + joint].append(start + joint)
    return EmbodimentGraph(
        nodes=("trunk", *joint_names),
        edges=tuple(edges),
        observations=tuple(map(tuple, observations)),
        actions=((), *((joint,) for joint in range(action_dim))),
    )
