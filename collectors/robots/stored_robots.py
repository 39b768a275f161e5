"""Robots inside a store's schema: cards and MJCFs of those that are not shipped."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gaitforge.collectors.robots.robot import (
    CARD_FILE,
    RobotCard,
    RobotError,
    list_robots,
    load_robot,
)
from gaitforge.common.files import fsync_tree

ROBOTS = "robots"
"""Attribute of a schema: name -> card and MJCF, both empty for a shipped robot."""
SEVERAL = "several"
"""`Schema.robot` of a store with several robots; the column `robot` says which one."""


def robots_attribute(robots: Sequence[RobotCard]) -> dict[str, dict[str, Any]]:
    """The attribute's value for these robots."""
    records: dict[str, dict[str, Any]] = {}
    for robot in robots:
        if robot.name in list_robots():
            records[robot.name] = {}
            continue
        card = json.loads(robot.path.read_text(encoding="utf-8"))
        records[robot.name] = {"card": card, "mjcf": robot.mjcf_path.read_text(encoding="utf-8")}
    return records


def stored_robot(attributes: Mapping[str, Any], name: str) -> RobotCard:
    """The robot of a store by name: shipped, or from the schema's attributes.

    The MJCF of the latter is written to a temporary folder whose name depends on the content alone.
    RobotError if it is neither.
    """
    record = attributes.get(ROBOTS, {}).get(name)
    if not record:
        return load_robot(name)
    try:
        card = {**record["card"], "name": name, "mjcf": "robot.xml"}
        mjcf = str(record["mjcf"])
    except (TypeError, KeyError):
        raise RobotError(f"the store's robot '{name}' lacks its card or MJCF") from None
    text = json.dumps(card, sort_keys=True)
    digest = hashlib.sha256(f"{text}\n{mjcf}".encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"gaitforge-robot-{digest[:32]}"
    if not folder.exists():
        making = Path(tempfile.mkdtemp(prefix="gaitforge-robot-"))
        try:
            (making / CARD_FILE).write_text(text, encoding="utf-8")
            (making / card["mjcf"]).write_text(mjcf, encoding="utf-8")
            fsync_tree(making)
            making.rename(folder)
        except OSError:  # another process was first
            if not folder.exists():
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return load_robot(str(folder))
