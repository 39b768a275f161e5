"""The bodies of the Body Transformer paper (Sferrazza et al. 2024) by name.

A body assigns each channel of its observation fields, and each action, to a node. With it
`Body.graph` makes the embodiment graph for a token layout. Rules of the paper (Appendix D): sensors
of a limb and actions of its joints belong to the limb's node; global and environment observations
belong to the root.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from gaitforge.datasets.formats.d4rl_tasks import TASKS
from gaitforge.datasets.schema import consecutive_slices
from gaitforge.learners.models.bot.graphs import EmbodimentGraph
from gaitforge.learners.models.bot.trees import robot_tree
from gaitforge.learners.models.registry import PRESETS
from gaitforge.learners.policy.tokens import LAST_ACTION, Slices

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
            raise ValueError(f"this body's actions have size {self.act_dim}, got {act_dim}")
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


def _repeat(names: Iterable[str], times: int) -> tuple[str, ...]:
    return tuple(name for name in names for _ in range(times))


def _chain(first: str, *descendants: str, after: str) -> dict[str, str]:
    """A chain of nodes below `after`, as node -> parent."""
    names = (after, first, *descendants)
    return {name: parent for parent, name in pairwise(names)}


def _quadruped() -> Body:
    """The paper's graph of the Unitree A1: the trunk, and a chain of hip, thigh and calf per leg.

    13 nodes, joints in the order of `QUADRUPED_JOINTS`.
    """
    parents = {"trunk": ""}
    for hip in range(0, len(QUADRUPED_JOINTS), 3):
        parents |= _chain(*QUADRUPED_JOINTS[hip : hip + 3], after="trunk")
    return _of_tree(parents, QUADRUPED_JOINTS)


def _of_tree(parents: Mapping[str, str], actions: Iterable[str]) -> Body:
    """A body with observations of joints, in the order of the actions, and of the whole."""
    joints = tuple(actions)
    fields: dict[str, tuple[str, ...]] = dict.fromkeys(JOINT_FIELDS, joints)
    return Body(parents, fields, joints, complete=False)


def _cmu_humanoid() -> Body:
    """dm_control's CMU humanoid of 2020 with the observation of BoT's MoCapAct task.

    32 nodes in the order of the paper's table. The observation has 1,294 of MoCapAct's 2,868
    channels: 13 of its 35 fields, in alphabetical order as in the data files. Names are those of
    dm_control's model (Apache-2.0): joints and actuators in alphabetical order, references as
    (5 steps, 31 bodies, 3 or 4), bodies in node order without the root. The number of channels at
    each node equals the published one.
    """
    parents = {"root": ""}
    for side in "lr":
        leg = (f"{side}{part}" for part in ("hipjoint", "femur", "tibia", "foot", "toes"))
        parents |= _chain(*leg, after="root")
    spine = ("lowerback", "upperback", "thorax", "lowerneck", "upperneck", "head", "face")
    parents |= _chain(*spine, after="root")
    for side in "lr":
        arm = (f"{side}{part}" for part in ("clavicle", "humerus", "radius", "wrist", "hand"))
        parents |= _chain(*arm, after="thorax")
        parents |= {f"{side}fingers": f"{side}hand", f"{side}thumb": f"{side}hand"}

    limb_axes = {
        "femur": "xyz", "tibia": "x", "foot": "xz", "toes": "x", "clavicle": "yz",
        "humerus": "xyz", "radius": "x", "wrist": "y", "hand": "xz", "fingers": "x", "thumb": "xz",
    }  # fmt: skip
    axes = {f"{side}{part}": letters for side in "lr" for part, letters in limb_axes.items()}
    axes |= dict.fromkeys(spine[:-1], "xyz")
    joints = tuple(node for node in sorted(axes) for _ in axes[node])

    touch = ("lhand", "lfingers", "lthumb", "rhand", "rfingers", "rthumb")
    touch += ("ltoes", "rtoes", "rfoot", "lfoot")
    referenced = tuple(parents)[1:]
    reference_steps = 5
    fields = {
        "actuator_activation": joints,
        "body_height": ("root",),
        "end_effectors_pos": _repeat(("rradius", "lradius", "rfoot", "lfoot"), 3),
        "gyro_control": _repeat(("root",), 3),
        "joints_pos": joints,
        "joints_vel": joints,
        "reference_rel_bodies_pos_local": _repeat(referenced, 3) * reference_steps,
        "reference_rel_bodies_quats": _repeat(referenced, 4) * reference_steps,
        "sensors_gyro": _repeat(("root",), 3),
        "sensors_torque": _repeat(("lhumerus", "rhumerus"), 3),
        "sensors_touch": touch,
        "sensors_velocimeter": _repeat(("root",), 3),
        "world_zaxis": _repeat(("root",), 3),
    }
    return Body(parents, fields, joints)


def _isaacgym_humanoid() -> Body:
    """Isaac Gym's humanoid with the paper's observation (Appendix A): 16 nodes, 21 actions.

    Its 100 channels: 10 of the torso (height, root coordinates, angular velocity), positions and
    velocities of 21 joints at the limbs that they move, and a contact force (3) at every limb.
    """
    parents = {"torso": "", "head": "torso"}
    parents |= _chain("lower_waist", "pelvis", after="torso")
    joints = ["lower_waist", "lower_waist", "pelvis"]
    for side in ("right", "left"):
        thigh, shin, foot = (f"{side}_{part}" for part in ("thigh", "shin", "foot"))
        parents |= _chain(thigh, shin, foot, after="pelvis")
        joints += [thigh, thigh, thigh, shin, foot, foot]
    for side in ("right", "left"):
        upper, lower, hand = (f"{side}_{part}" for part in ("upper_arm", "lower_arm", "hand"))
        parents |= _chain(upper, lower, hand, after="torso")
        joints += [upper, upper, lower]
    fields = {
        "root_state": _repeat(("torso",), 10),
        "joint_pos": tuple(joints),
        "joint_vel": tuple(joints),
        "contact_force": _repeat(parents, 3),
    }
    return Body(parents, fields, tuple(joints))


# The segments of each finger, one per joint, in the observation's order (joints in D4RL and
# Gymnasium-Robotics: WRJ1, WRJ0, FFJ3 … FFJ0, MFJ3 …, RFJ3 …, LFJ4 … LFJ0, THJ4 … THJ0).
_FINGER = ("knuckle", "proximal", "middle", "distal")
_FINGERS = {
    "ff": _FINGER,
    "mf": _FINGER,
    "rf": _FINGER,
    "lf": ("metacarpal", *_FINGER),
    "th": ("base", "proximal", "hub", "middle", "distal"),
}


def _adroit(task: str, arm_actions: int) -> Body:
    """The Adroit hand: 25 nodes, namely forearm (root), wrist, palm and five fingers.

    Each of the 24 hand joints moves one node; the arm's joints belong to the forearm. Tasks are the
    paper's (Appendix E) with the observations of D4RL and Gymnasium-Robotics: fields that involve
    the palm belong to the palm, fields of objects alone to the root.
    """
    parents = {"forearm": ""} | _chain("wrist", "palm", after="forearm")
    for finger, segments in _FINGERS.items():
        parents |= _chain(*(finger + segment for segment in segments), after="palm")
    moved = tuple(parents)[1:]
    widths = TASKS[task].obs_widths
    fields = {
        name: ("palm" if "palm" in name else "forearm",) * width for name, width in widths.items()
    }
    fields["joint_pos"] = ("forearm",) * (widths["joint_pos"] - len(moved)) + moved
    return Body(parents, fields, ("forearm",) * arm_actions + moved)


BODIES: Mapping[str, Body] = {
    "humanoid-isaacgym": _isaacgym_humanoid(),
    "cmu-humanoid": _cmu_humanoid(),
    "adroit-door": _adroit("door", 4),
    "adroit-hammer": _adroit("hammer", 2),
    "adroit-relocate": _adroit("relocate", 6),
}
QUADRUPED = "quadruped"
_NAMED = {QUADRUPED: _quadruped(), **BODIES}
OWN = "own"
"""In place of a body's name: the one that the data are of, see `body_of`."""
BODY_NAMES = (*_NAMED, OWN)


def known_body(body: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """A body's name, or a tree as `trees.robot_tree` makes it, read from a robot's file or folder.

    Raises ValueError for an unknown body.
    """
    if isinstance(body, str) and body not in BODY_NAMES:
        if not Path(body).exists():
            raise ValueError(
                f"no body {body!r}; allowed: {', '.join(BODY_NAMES)}, or an MJCF or robot's folder"
            )
        return robot_tree(Path(body))
    if not isinstance(body, str) and {*body} != {"parents", "actions"}:
        raise ValueError(f"a body's tree has parents and actions, not {', '.join(body)}")
    return body


def _models_of(body: str) -> str:
    """The presets for a body, for an error message; "" if there are none."""
    presets = [name for name, preset in PRESETS.items() if preset.values.get("body") == body]
    return f"use --model {', '.join(presets[:-1])} or {presets[-1]}, or " if presets else ""


def body_of(slices: Slices, act_dim: int) -> str:
    """The body that has these fields, among others, and this size of action; else the quadruped."""
    for name, body in BODIES.items():
        if body.act_dim == act_dim and body.fields.keys() <= slices.keys():
            return name
    return QUADRUPED


def body_view(
    name: str | Mapping[str, Any], slices: Slices, act_dim: int
) -> tuple[EmbodimentGraph, tuple[int, ...] | None]:
    """A known body's graph for tokens with `slices`, and the token's channels that it reads.

    Args:
        name: one of `BODY_NAMES`, or a tree, see `known_body`.

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
    body = _NAMED[name]
    placed = {*body.fields, *ROOT_FIELDS, LAST_ACTION}
    kept = {field: range(*bounds) for field, bounds in slices.items() if field in placed}
    every = len(kept) == len(slices) or not body.complete
    if every or not body.fields.keys() <= kept.keys():
        return body.graph(slices, act_dim), None
    narrowed = consecutive_slices({field: len(channels) for field, channels in kept.items()})
    return body.graph(narrowed, act_dim), tuple(chain.from_iterable(kept.values()))
