"""Embodiment graphs: which body part holds which observations and actions, and what is joined.

Source: Sferrazza et al. 2024, "Body Transformer", Section 4 (tokenizer and embodiment mask) and
Appendix D (what belongs to which node).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learners.policy.tokens import Slices

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
        width = self.obs_dim
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
        """Numbers in the token."""
        return sum(map(len, self.observations))

    @property
    def act_dim(self) -> int:
        """Numbers in the action."""
        return sum(map(len, self.actions))

    def adjacency(self) -> Tensor:
        """(nodes, nodes) bool, symmetric, false on the diagonal; always on the CPU."""
        size = len(self.nodes)
        matrix = torch.zeros(size, size, dtype=torch.bool, device="cpu")
        for a, b in self.edges:
            matrix[a, b] = matrix[b, a] = True
        return matrix

    def embodiment_mask(self) -> Tensor:
        """(nodes, nodes) bool, M = I + A (paper, Section 4): every node, itself and neighbours."""
        return self.adjacency().fill_diagonal_(True)

    def random_mask(self, seed: int) -> Tensor:
        """(nodes, nodes) bool: as many allowed pairs as the body's mask, but drawn at random.

        Symmetric, with every node allowed to itself (paper, Appendices E and F.1); a pure function
        of the seed. Deviation: the published code's random mask is not symmetric and inverted, it
        allows about 95 % of the pairs where the body allows 9 %; this is the one that is described.
        """
        size = len(self.nodes)
        pairs = torch.tensor(list(combinations(range(size), 2)), device="cpu").view(-1, 2)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(pairs), generator=generator, device="cpu")
        chosen = pairs[order[: int(self.adjacency().sum()) // 2]]
        mask = torch.eye(size, dtype=torch.bool, device="cpu")
        mask[chosen[:, 0], chosen[:, 1]] = True
        return mask | mask.T

    def hop_distances(self) -> Tensor:
        """(nodes, nodes) int: edges on the shortest path, -1 where there is none; on the CPU."""
        size = len(self.nodes)
        step = self.embodiment_mask().float()
        distances = torch.full((size, size), -1, device="cpu")
        reached = torch.eye(size, device="cpu")
        for hops in range(size):
            distances[(reached > 0) & (distances < 0)] = hops
            reached = (reached @ step > 0).float()
        return distances


def graph_of_fields(
    nodes: Sequence[str],
    edges: Sequence[tuple[int, int]],
    field_nodes: Mapping[str, Sequence[int]],
    action_nodes: Sequence[int],
    slices: Slices,
) -> EmbodimentGraph:
    """The graph of a body for tokens with these named fields.

    Args:
        field_nodes: for each field the node of each of its numbers. Besides these, the fields of
            ROOT_FIELDS live at node 0 and last_action where the actions do.
        action_nodes: the node of each action.
        slices: name -> (start, stop) in the token.

    Raises:
        ValueError: a field without a place on the body, or of another width than its table.
    """
    places = {"last_action": action_nodes} | dict(field_nodes)
    observations: list[list[int]] = [[] for _ in nodes]
    for name, (start, stop) in slices.items():
        if name in ROOT_FIELDS:
            observations[0].extend(range(start, stop))
            continue
        if name not in places:
            allowed = ", ".join((*places, *ROOT_FIELDS))
            raise ValueError(f"no place on the body for observation {name}; known are {allowed}")
        if stop - start != len(places[name]):
            raise ValueError(f"{name} must hold {len(places[name])} numbers, got {stop - start}")
        for index, node in zip(range(start, stop), places[name], strict=True):
            observations[node].append(index)
    actions: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(action_nodes):
        actions[node].append(index)
    return EmbodimentGraph(
        tuple(nodes), tuple(edges), tuple(map(tuple, observations)), tuple(map(tuple, actions))
    )


def quadruped_graph(
    obs_slices: Slices,
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
    legs = dict.fromkeys(leg for leg, *_ in node_of)
    wanted = {(leg, segment) for leg in legs for segment in _SEGMENTS}
    if len(legs) != len(_LEGS) or set(node_of) != wanted:
        raise ValueError(
            f"a quadruped has 4 legs with joints named <leg>_{{{','.join(_SEGMENTS)}}}, "
            f"got {', '.join(joint_names)}"
        )
    edges = []
    for leg in legs:
        edges.extend(pairwise([0, *(node_of[leg, segment] for segment in _SEGMENTS)]))
    joint_nodes = range(1, 1 + len(joint_names))
    return graph_of_fields(
        ("trunk", *joint_names),
        edges,
        dict.fromkeys(JOINT_FIELDS, joint_nodes),
        joint_nodes,
        obs_slices,
    )


def graph_from_card(card: Mapping[str, Any], obs_slices: Slices) -> EmbodimentGraph:
    """The graph of a robot card, the plain mapping that a robot.json holds.

    Its `joint_names` say which joint is whose, in the order of joint fields and actions. Raises
    ValueError where the card names no joints or they make no quadruped.
    """
    names = card.get("joint_names")
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise ValueError("the robot card has no list joint_names, the joints in the actions' order")
    return quadruped_graph(obs_slices, tuple(map(str, names)), len(names))


def graph_from_mjcf(
    path: str | Path,
    slices: Slices,
    field_bodies: Mapping[str, Sequence[str]] | None = None,
    joint_names: Sequence[str] | None = None,
    root: str | None = None,
) -> EmbodimentGraph:
    """The graph of an MJCF: its bodies are the nodes, parent and child are joined.

    An action, and each number of the fields in JOINT_FIELDS, belongs to the body that its joint
    moves; the fields of ROOT_FIELDS belong to the root.

    Args:
        slices: name -> (start, stop) in the token.
        field_bodies: for further fields the body of each number.
        joint_names: the joints in the order of actions and joint fields; otherwise those of the
            actuators in the model's order or, in a model without actuators, all hinges and slides.
        root: the body to start from; otherwise the one body that is attached to the world.

    Raises:
        ValueError: the file cannot be parsed, a name is not in it, an actuator drives no joint, or
            the fields do not fit (see `graph_of_fields`).
    """
    mujoco: Any = import_module("mujoco")
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read as MJCF: {reason}") from error
    top = _root_body(model, root, path)
    kept = [body for body in range(1, model.nbody) if _is_below(model, body, top)]
    node_of = {body: node for node, body in enumerate(kept)}
    names = [model.body(body).name or f"body{body}" for body in kept]
    edges = [(node_of[int(model.body_parentid[body])], node_of[body]) for body in kept[1:]]
    joint_nodes = _joint_nodes(model, joint_names, node_of, path)
    fields: dict[str, Sequence[int]] = dict.fromkeys(JOINT_FIELDS, joint_nodes)
    for field, bodies in (field_bodies or {}).items():
        unknown = sorted(set(bodies) - set(names))
        if unknown:
            raise ValueError(f"{path} has no body {', '.join(unknown)} to hold {field}")
        fields[field] = [names.index(body) for body in bodies]
    return graph_of_fields(names, edges, fields, joint_nodes, slices)


def _root_body(model: Any, root: str | None, path: str | Path) -> int:
    candidates = [body for body in range(1, model.nbody) if model.body_parentid[body] == 0]
    if root is not None:
        candidates = [body for body in range(1, model.nbody) if model.body(body).name == root]
    if len(candidates) != 1:
        found = ", ".join(model.body(body).name for body in candidates) or "none"
        wanted = "one body attached to the world" if root is None else f"one body {root}"
        raise ValueError(f"{path} needs {wanted}, found {found}; name the root body")
    return candidates[0]


def _is_below(model: Any, body: int, top: int) -> bool:
    while body not in (0, top):
        body = int(model.body_parentid[body])
    return body == top


def _joint_nodes(
    model: Any, joint_names: Sequence[str] | None, node_of: Mapping[int, int], path: str | Path
) -> list[int]:
    """The node of each action: the body moved by its joint."""
    mujoco: Any = import_module("mujoco")
    if joint_names is not None:
        known = {model.joint(joint).name: joint for joint in range(model.njnt)}
        unknown = [name for name in joint_names if name not in known]
        if unknown:
            raise ValueError(f"{path} has no joint {', '.join(unknown)}")
        joints = [known[name] for name in joint_names]
    elif model.nu:
        kinds = mujoco.mjtTrn
        on_joint = (int(kinds.mjTRN_JOINT), int(kinds.mjTRN_JOINTINPARENT))
        for actuator in range(model.nu):
            if int(model.actuator_trntype[actuator]) not in on_joint:
                name = model.actuator(actuator).name or actuator
                raise ValueError(f"actuator {name} of {path} drives no joint; give joint_names")
        joints = model.actuator_trnid[:, 0].tolist()
    else:
        single = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
        joints = [joint for joint in range(model.njnt) if int(model.jnt_type[joint]) in single]
    bodies = [int(model.jnt_bodyid[joint]) for joint in joints]
    outside = [
        model.joint(joint).name
        for joint, body in zip(joints, bodies, strict=True)
        if body not in node_of
    ]
    if outside:
        raise ValueError(f"joint {', '.join(outside)} of {path} is not below the root body")
    return [node_of[body] for body in bodies]
