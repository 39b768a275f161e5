"""The bodies of the Body Transformer paper by name, the trees of other robots, and their graphs.

Source: Sferrazza et al. 2024, "Body Transformer", Section 4 (tokenizer and embodiment mask) and
Appendix D (observations and actions of each node).

A body assigns each channel of its observation fields, and each action, to a node. With it
`Body.graph` makes the embodiment graph for a token layout. Rules of the paper (Appendix D): sensors
of a limb and actions of its joints belong to the limb's node; global and environment observations
belong to the root.

An `EmbodimentGraph` holds the parts of a body, their connections, observations and actions.

`robot_tree` reads the tree of a robot's bodies from its MJCF, for embodiment graphs of any robot.

`SPACES` has named token layouts and action sizes, to count the parameters of presets.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import Registered
from gaitforge.datasets.schema import consecutive_slices
from gaitforge.learners.models.registry import PRESETS
from gaitforge.learners.tokens import LAST_ACTION, Slices, TokenLayout

TREE = "tree"
PAIRS = "pairs"
MASK_DRAWS = (TREE, PAIRS)
"""How random masks are drawn, see `EmbodimentGraph.random_mask`."""


# Embodiment graphs: body parts, connections, observations and actions.
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

    def random_mask(self, seed: int, draw: str = TREE) -> Tensor:
        """(nodes, nodes) bool: as many allowed pairs as the body's mask, drawn at random.

        Symmetric, with a true diagonal (paper, Appendices E and F.1); a function of the seed and
        the draw. This follows the paper's text. Its published code differs: the mask is asymmetric
        and inverted, and allows about 95 % of the pairs where the body allows 9 %.

        Args:
            draw: "tree": connected, a tree drawn uniformly among those of the nodes that are no
                wider than the body, so that as many layers join all nodes; and further pairs
                where the body has more edges than a tree. "pairs": any pairs, which often leave
                nodes apart that no layer joins.
        """
        if draw == TREE:
            return self._telling_all(self._random_tree_mask(seed))
        size = len(self.nodes)
        pairs = torch.tensor(list(combinations(range(size), 2)), device="cpu").view(-1, 2)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(pairs), generator=generator, device="cpu")
        picked = pairs[order[: int(self.adjacency().sum()) // 2]]
        mask = torch.eye(size, dtype=torch.bool, device="cpu")
        mask[picked[:, 0], picked[:, 1]] = True
        return self._telling_all(mask | mask.T)

    def _random_tree_mask(self, seed: int) -> Tensor:
        """(nodes, nodes) bool: a random connected mask of the nodes that see each other."""
        parts = [k for k in range(len(self.nodes)) if k not in self.told_to_all]
        rng = np.random.default_rng([_RANDOM_MASK, seed])
        body = self.adjacency()[parts][:, parts]
        drawn = _random_tree(len(parts), int(hops_of(body).max()), rng)
        further = [pair for pair in combinations(range(len(parts)), 2) if not drawn[pair]]
        count = int(body.sum() - drawn.sum()) // 2
        for index in rng.permutation(len(further))[:count].tolist():
            a, b = further[index]
            drawn[a, b] = drawn[b, a] = True
        mask = torch.eye(len(self.nodes), dtype=torch.bool, device="cpu")
        places = torch.tensor(parts, device="cpu")
        mask[places[:, None], places] = drawn.fill_diagonal_(True)
        return mask

    def _telling_all(self, mask: Tensor) -> Tensor:
        for node in self.told_to_all:
            mask[node] = False
            mask[:, node] = True
        return mask.fill_diagonal_(True)

    def hop_distances(self) -> Tensor:
        """(nodes, nodes) int: edges on the shortest path, -1 without a path; on the CPU."""
        return hops_of(self.adjacency())


def hops_of(mask: Tensor) -> Tensor:
    """(nodes, nodes) int: layers of a mask (nodes, nodes) by which row i sees column j; -1 never.

    On the CPU.
    """
    size = len(mask)
    step = mask.cpu().clone().fill_diagonal_(True).float()
    distances = torch.full((size, size), -1, device="cpu")
    reached = torch.eye(size, dtype=step.dtype, device="cpu")
    for hops in range(size):
        distances[(reached > 0) & (distances < 0)] = hops
        reached = (reached @ step > 0).float()
    return distances


_MOST_DRAWS = 1000
_RANDOM_MASK = 0xB07


def _random_tree(size: int, widest: int, rng: np.random.Generator) -> Tensor:
    """(size, size) bool: the edges of a random tree, symmetric.

    Every tree of these nodes whose diameter is at most `widest` is as probable as any other. Where
    1,000 trees are all wider, it is the narrowest of them.
    """
    best = _prufer_tree(rng.integers(size, size=max(0, size - 2)), size)
    for _ in range(_MOST_DRAWS):
        if int(hops_of(best).max()) <= widest:
            break
        tree = _prufer_tree(rng.integers(size, size=max(0, size - 2)), size)
        best = min(best, tree, key=lambda each: int(hops_of(each).max()))
    return best


def _prufer_tree(sequence: np.ndarray, size: int) -> Tensor:
    """(size, size) bool: the edges of the tree that a sequence of size - 2 nodes stands for.

    Every tree has one sequence (Prüfer 1918), so uniform sequences give uniform trees.
    """
    edges = torch.zeros(size, size, dtype=torch.bool, device="cpu")
    degrees = 1 + np.bincount(sequence, minlength=size)
    for node in sequence.tolist():
        leaf = int(np.flatnonzero(degrees == 1)[0])
        edges[leaf, node] = edges[node, leaf] = True
        degrees[[leaf, node]] -= 1
    if size > 1:
        a, b = np.flatnonzero(degrees == 1).tolist()
        edges[a, b] = edges[b, a] = True
    return edges


# Trees of robots' bodies, from their MJCF.
CARD_FILE = "robot.json"
WORLD = "world"


def robot_tree(robot: Path) -> dict[str, Any]:
    """The tree of a robot: a folder with a card and its MJCF, a card, or any MJCF.

    Actions are in the order of the card's joints, or of the MJCF's actuators. See `joint_tree`.

    Raises:
        ValueError: no such file, one that cannot be read, or actions that are not of joints.
    """
    import mujoco

    path = robot / CARD_FILE if robot.is_dir() else robot
    try:
        joints = []
        if path.suffix == ".json":
            card = json.loads(path.read_text(encoding="utf-8"))
            path = path.parent / card["mjcf"]
            joints = card["joint_names"]
        spec = mujoco.MjSpec.from_file(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no robot can be read at {robot}: {error}") from None
    return joint_tree(spec, joints or [actuator.target for actuator in spec.actuators], str(robot))


def joint_tree(spec: Any, joints: Sequence[str], name: str = "MJCF") -> dict[str, Any]:
    """The bodies that joints move, and those on the way to them that move, as JSON values.

    A body without a joint is part of the one that it is fixed to. Where several bodies hang on none
    that moves, the world is their root.

    Args:
        spec: a `mujoco.MjSpec`; joints: the joint of each action.

    Returns:
        "parents": body -> its parent, root first, with ""; "actions": the body of each action.

    Raises:
        ValueError: no joints, or one that the MJCF lacks.
    """
    spec_joints = [spec.joint(joint) for joint in joints]
    if not joints or None in spec_joints:
        lost = [
            joint
            for joint, spec_joint in zip(joints, spec_joints, strict=True)
            if spec_joint is None
        ]
        raise ValueError(f"{name}: its actions are not of joints: {', '.join(lost) or 'none'}")
    actions = tuple(joint.parent.name for joint in spec_joints)
    above = {moved: _moved_above(spec.body(moved)) for moved in actions}
    needed = {*above, *(body for line in above.values() for body in line)}
    order = [body.name for body in _below(spec.worldbody) if body.name in needed]
    parents = {body: next(iter(_moved_above(spec.body(body))), "") for body in order}
    if list(parents.values()).count("") > 1:
        parents = {WORLD: "", **{body: parent or WORLD for body, parent in parents.items()}}
    return {"parents": parents, "actions": actions}


def _moved_above(body: Any) -> list[str]:
    """The bodies above one that have joints, nearest first."""
    line = []
    # By its name: the world's own parent is no body before MuJoCo 3.14, and crashes when asked.
    while body.name != WORLD:
        body = body.parent
        if body.joints:
            line.append(body.name)
    return line


def _below(body: Any) -> Iterator[Any]:
    for child in body.bodies:
        yield child
        yield from _below(child)


# Bodies by name.

# Observation fields with one channel per joint, and fields of the whole body. joint_pos and
# base_lin_vel_body are those of the published A1 policy that are not in our own observation
# (github.com/carlosferrazza/BodyTransformer, a1_walk/rsl_rl/rsl_rl/utils/mappings.py).
JOINT_FIELDS = ("joint_pos", "joint_vel", "sin_joint_pos", "cos_joint_pos", "last_action")
JOINT_FIELDS += ("body_stiffness", "body_damping", "body_torque")
JOINT_FIELDS += ("body_link", "body_pose", "body_sign")
ROOT_FIELDS = ("base_lin_vel_body", "base_ang_vel_body", "projected_gravity", "command")
ROOT_FIELDS += ("condition", "body_trunk")
# Of the humanoids' tasks: "environment observations belong to the root" (Appendix D).
ROOT_FIELDS += ("target", "board", "roller")

QUADRUPED_JOINTS = tuple(
    f"{leg}_{part}" for leg in ("FL", "FR", "RL", "RR") for part in ("hip", "thigh", "calf")
)


@dataclass(frozen=True)
class Body:
    """A tree of body parts with the nodes of its observations and actions.

    parents: node -> its parent; the root comes first, with "". fields: observation field -> the
    node of each channel, in the order of the observation. actions: the node of each action.
    complete: whether an observation has all of these fields; if not, it has any of them.
    """

    parents: Mapping[str, str]
    fields: Mapping[str, tuple[str, ...]]
    actions: tuple[str, ...]
    complete: bool = True

    @property
    def slices(self) -> dict[str, tuple[int, int]]:
        """Field -> (start, stop) in an observation of exactly this body's fields."""
        return consecutive_slices({name: len(nodes) for name, nodes in self.fields.items()})

    @property
    def act_dim(self) -> int:
        """Size of an action."""
        return len(self.actions)

    def graph(self, slices: Slices, act_dim: int) -> EmbodimentGraph:
        """The embodiment graph for tokens with the fields `slices`.

        ROOT_FIELDS belong to the root, last_action to the nodes of the actions. A single field with
        an unknown name is taken as the whole observation of a `complete` body. Raises ValueError
        for an unknown field, or a wrong width of a field or of the action.
        """
        if act_dim != self.act_dim:
            raise ValueError(
                f"this body's actions have size {self.act_dim}, got {act_dim} from the data; "
                "gaitforge models says which data a model is for"
            )
        nodes = list(self.parents)
        fields = {LAST_ACTION: self.actions, **self.fields}
        unknown = [name for name in slices if name not in (*fields, *ROOT_FIELDS)]
        if self.complete and len(unknown) == 1 and not self.fields.keys() & slices.keys():
            fields[unknown[0]] = tuple(chain.from_iterable(self.fields.values()))
        owners: list[tuple[int, str]] = []
        for name, (start, stop) in slices.items():
            places = nodes[:1] * (stop - start) if name in ROOT_FIELDS else fields.get(name)
            if places is None:
                allowed = ", ".join((*fields, *ROOT_FIELDS))
                raise ValueError(f"no node of the body has the field {name}; allowed: {allowed}")
            if stop - start != len(places):
                raise ValueError(f"{name} must have size {len(places)}, got {stop - start}")
            owners += zip(range(start, stop), places, strict=True)
        parents = enumerate(self.parents.values())
        return EmbodimentGraph(
            nodes=tuple(nodes),
            edges=tuple((nodes.index(parent), index) for index, parent in parents if parent),
            observations=_groups(nodes, owners),
            actions=_groups(nodes, enumerate(self.actions)),
        )


def _groups(nodes: Iterable[str], owners: Iterable[tuple[int, str]]) -> tuple[tuple[int, ...], ...]:
    """Indices by node, from pairs (index, node)."""
    groups: dict[str, list[int]] = {node: [] for node in nodes}
    for index, node in owners:
        groups[node].append(index)
    return tuple(map(tuple, groups.values()))


def repeated(names: Iterable[str], times: int) -> tuple[str, ...]:
    """Every name `times` times, one after the other."""
    return tuple(name for name in names for _ in range(times))


def chain_below(first: str, *descendants: str, after: str) -> dict[str, str]:
    """A chain of nodes below `after`, as node -> parent."""
    names = (after, first, *descendants)
    return {name: parent for parent, name in pairwise(names)}


def _quadruped() -> Body:
    """The paper's graph of the Unitree A1: the trunk, and a chain of hip, thigh and calf per leg.

    13 nodes, joints in the order of `QUADRUPED_JOINTS`.
    """
    parents = {"trunk": ""}
    for hip in range(0, len(QUADRUPED_JOINTS), 3):
        parents |= chain_below(*QUADRUPED_JOINTS[hip : hip + 3], after="trunk")
    return _of_tree(parents, QUADRUPED_JOINTS)


def _of_tree(parents: Mapping[str, str], actions: Iterable[str]) -> Body:
    """A body with observations of joints, in the order of the actions, and of the whole."""
    joints = tuple(actions)
    fields: dict[str, tuple[str, ...]] = dict.fromkeys(JOINT_FIELDS, joints)
    return Body(parents, fields, joints, complete=False)


BODIES = Registered("embodiment", Body, {})
"""Name -> body, of plug-ins and other packages, by the entry points `gaitforge.embodiments`."""
QUADRUPED = "quadruped"
_QUADRUPED = _quadruped()
OWN = "own"
"""In place of a body's name: the one that the data are of, see `body_of`."""


def body_names() -> tuple[str, ...]:
    """The names that stand for a body."""
    return QUADRUPED, *BODIES, OWN


def known_body(body: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """A body's name, or a tree as `robot_tree` makes it, read from a robot's file or folder.

    Raises ValueError for an unknown body.
    """
    if isinstance(body, str) and body not in body_names():
        if not Path(body).exists():
            choices = names_allowed(body, body_names(), "or an MJCF or robot's folder")
            raise ValueError(f"no body {body!r}; {choices}")
        return robot_tree(Path(body))
    if not isinstance(body, str) and {*body} != {"parents", "actions"}:
        raise ValueError(f"a body's tree has parents and actions, not {', '.join(body)}")
    return body


def _models_of(body: str) -> str:
    """The presets for a body, for an error message; "" if there are none."""
    presets = [
        name for name, preset in PRESETS.usable().items() if preset.values.get("body") == body
    ]
    return f"use --model {', '.join(presets[:-1])} or {presets[-1]}, or " if presets else ""


def body_of(slices: Slices, act_dim: int) -> str:
    """The body that has these fields, among others, and this size of action; else the quadruped."""
    for name, body in BODIES.usable().items():
        if body.act_dim == act_dim and body.fields.keys() <= slices.keys():
            return name
    return QUADRUPED


def body_view(
    name: str | Mapping[str, Any], slices: Slices, act_dim: int
) -> tuple[EmbodimentGraph, tuple[int, ...] | None]:
    """A known body's graph for tokens with `slices`, and the token's channels that it reads.

    Args:
        name: one of `body_names`, or a tree, see `known_body`.

    None stands for all channels. If the token has all fields of the body, other fields are left out
    (of MoCapAct's 35 fields the paper's policy reads 13). Raises ValueError as `Body.graph`, and
    for "quadruped" if the data come from another known body.
    """
    if not isinstance(name, str):
        return _of_tree(**name).graph(slices, act_dim), None
    data_body = body_of(slices, act_dim)
    name = data_body if name == OWN else name
    if name == QUADRUPED != data_body:
        raise ValueError(
            f"these data are of the body {data_body}, not {name}; "
            f"{_models_of(data_body)}set the model's body to {data_body}"
        )
    body = _QUADRUPED if name == QUADRUPED else BODIES[name]
    placed = {*body.fields, *ROOT_FIELDS, LAST_ACTION}
    kept = {field: range(*bounds) for field, bounds in slices.items() if field in placed}
    every = len(kept) == len(slices) or not body.complete
    if every or not body.fields.keys() <= kept.keys():
        return body.graph(slices, act_dim), None
    narrowed = consecutive_slices({field: len(channels) for field, channels in kept.items()})
    return body.graph(narrowed, act_dim), tuple(chain.from_iterable(kept.values()))


OBS_SLICES = consecutive_slices(
    {
        "projected_gravity": 3,
        "joint_vel": 12,
        "sin_joint_pos": 12,
        "cos_joint_pos": 12,
        "base_ang_vel_body": 3,
        "last_action": 12,
        "command": 16,
    }
)
"""Name -> (start, stop) in the observation of the legged task, in the order of FCNet's paper."""


@dataclass(frozen=True)
class Space:
    """A token layout and the size of an action."""

    layout: TokenLayout
    act_dim: int


def _d4rl(state_dim: int, act_dim: int) -> Space:
    """The space of a D4RL-MuJoCo task (Fu et al. 2020), with return tokens (a, R, s)."""
    slices = {"state": (0, state_dim), "last_action": (state_dim, state_dim + act_dim)}
    return Space(TokenLayout("return", slices), act_dim)


def _body(name: str) -> Space:
    """The space of a body of the Body Transformer's imitation tasks, with that body's fields."""
    return Space(TokenLayout("obs", BODIES[name].slices), BODIES[name].act_dim)


_SPACE_OF = {"cmu-humanoid": "mocapact"}
SPACES: dict[str, Space] = {
    "legged": Space(TokenLayout("obs", OBS_SLICES), act_dim=12),
    "legged-return": Space(TokenLayout("return", OBS_SLICES), act_dim=12),
    "d4rl-hopper": _d4rl(11, 3),
    "d4rl-halfcheetah": _d4rl(17, 6),
    "d4rl-walker2d": _d4rl(17, 6),
    **{_SPACE_OF.get(body, body): _body(body) for body in BODIES},
}
