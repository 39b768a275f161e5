"""The embodiment graph of a robot, from its MJCF file."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco

from learners.models.bot.graphs import JOINT_FIELDS, EmbodimentGraph, graph_of_fields
from learners.policy.tokens import Slices


def graph_from_mjcf(
    path: str | Path,
    slices: Slices,
    field_bodies: Mapping[str, Sequence[str]] | None = None,
    joint_names: Sequence[str] | None = None,
    root: str | None = None,
) -> EmbodimentGraph:
    """The graph of an MJCF file: its bodies are the nodes, each connected to its parent.

    Actions, and the channels of JOINT_FIELDS, belong to the bodies that their joints move.
    ROOT_FIELDS belong to the root.

    Args:
        path: the MJCF file.
        slices: field -> (start, stop) in the token.
        field_bodies: for other fields, the name of each channel's body.
        joint_names: the joints in the order of actions and joint fields. Default: the actuators'
            joints in the model's order; without actuators, all hinge and slide joints.
        root: the name of the root body. Default: the body that is attached to the world, if there
            is only one.

    Raises:
        ValueError: the file cannot be parsed, a named body or joint is missing, an actuator drives
            no joint, or the fields do not fit (see `graph_of_fields`).
    """
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
            raise ValueError(f"{path} has no body {', '.join(unknown)} for the field {field}")
        fields[field] = [names.index(body) for body in bodies]
    return graph_of_fields(names, edges, fields, joint_nodes, slices)


def _root_body(model: Any, root: str | None, path: str | Path) -> int:
    candidates = [body for body in range(1, model.nbody) if model.body_parentid[body] == 0]
    if root is not None:
        candidates = [body for body in range(1, model.nbody) if model.body(body).name == root]
    if len(candidates) != 1:
        found = ", ".join(model.body(body).name for body in candidates) or "none"
        wanted = "one body attached to the world" if root is None else f"one body {root}"
        raise ValueError(f"{path} needs {wanted}, found {found}; give root=NAME")
    return candidates[0]


def _is_below(model: Any, body: int, top: int) -> bool:
    while body not in (0, top):
        body = int(model.body_parentid[body])
    return body == top


def _joint_nodes(
    model: Any, joint_names: Sequence[str] | None, node_of: Mapping[int, int], path: str | Path
) -> list[int]:
    """The node of each action: the body that its joint moves."""
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
