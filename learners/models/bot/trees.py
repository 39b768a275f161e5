"""The tree of a robot's bodies from its MJCF, for embodiment graphs of any robot."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mujoco

CARD_FILE = "robot.json"
WORLD = "world"


def robot_tree(robot: Path) -> dict[str, Any]:
    """The tree of a robot: a folder with a card and its MJCF, a card, or any MJCF.

    Actions are in the order of the card's joints, or of the MJCF's actuators. See `joint_tree`.

    Raises:
        ValueError: no such file, one that cannot be read, or actions that are not of joints.
    """
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
    while (body := body.parent) is not None:
        if body.joints:
            line.append(body.name)
    return line


def _below(body: Any) -> Iterator[Any]:
    for child in body.bodies:
        yield child
        yield from _below(child)
