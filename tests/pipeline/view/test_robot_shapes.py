"""What of a robot's MJCF is drawn, and where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.robots.robot import RobotCard, load_robot
from gaitforge.collectors.rotations import rotate
from gaitforge.pipeline.view import robot_shapes as module
from gaitforge.pipeline.view.blocks import decoded
from gaitforge.pipeline.view.robot_shapes import robot_shapes

CORNERS = np.array([[0.0, 0.0, 0.0], [0.2, 0.0, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 0.4]])


@pytest.fixture
def dressed(tmp_path: Path) -> RobotCard:
    """Aliengo with a mesh that is only to be looked at on its trunk."""
    source = load_robot("aliengo")
    text = source.mjcf_path.read_text()
    numbers = " ".join(map(str, CORNERS.ravel()))
    mesh = f'<asset><mesh name="shell" vertex="{numbers}"/></asset><worldbody>'
    geom = '<geom type="mesh" mesh="shell" contype="0" conaffinity="0" rgba="1 0 0.2 1" mass="0"/>'
    text = text.replace("<worldbody>", mesh, 1).replace("<inertial", f"{geom}<inertial", 1)
    (tmp_path / "robot.xml").write_text(text)
    card = json.loads(source.path.read_text()) | {"mjcf": "robot.xml", "name": "dressed"}
    (tmp_path / "robot.json").write_text(json.dumps(card))
    return load_robot(str(tmp_path))


def test_a_body_with_a_shell_is_drawn_as_its_shell(dressed: RobotCard) -> None:
    bodies = robot_shapes(dressed)["bodies"]
    (shell,) = bodies[0]["shapes"]
    triangles = rotate(np.array(shell["quat"]), decoded(shell["triangles"])) + shell["pos"]
    distances = np.linalg.norm(triangles[:, None] - CORNERS, axis=2)
    assert distances.min(axis=1).max() < 1e-3
    assert set(distances.argmin(axis=1)) == {0, 1, 2, 3}
    assert [shape["kind"] for shape in bodies[2]["shapes"]] == ["box", "sphere"]


def test_shells_of_many_faces(dressed: RobotCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FACES", 3)
    shapes = robot_shapes(dressed)["bodies"][0]["shapes"]
    assert [(shape["kind"], shape["size"]) for shape in shapes] == [("box", [0.3235, 0.075, 0.056])]
