"""Graphs from MJCF files: of the shipped robots, and of an arm made here."""

import json
from pathlib import Path

import pytest

from collectors.robots.robot import ASSETS
from learners.models.bot.graphs import quadruped_graph
from learners.models.bot.mjcf_graph import graph_from_mjcf
from tests.learners.making import OBS_SLICES


@pytest.mark.parametrize("robot", ["aliengo", "go1"])
def test_the_graph_of_a_robots_mjcf_is_the_quadrupeds(robot: str) -> None:
    card = json.loads((ASSETS / robot / "robot.json").read_text())
    joints = card["joint_names"]
    quadruped = quadruped_graph(OBS_SLICES, tuple(joints), len(joints))
    graph = graph_from_mjcf(ASSETS / robot / card["mjcf"], OBS_SLICES, joint_names=joints)
    assert graph.nodes[0] == card["trunk_body"]
    places = [0, *(graph.nodes.index(name.removesuffix("_joint")) for name in joints)]
    assert [graph.observations[place] for place in places] == list(quadruped.observations)
    assert [graph.actions[place] for place in places] == list(quadruped.actions)
    assert graph.hop_distances()[places][:, places].equal(quadruped.hop_distances())


ARM = """
<mujoco>
  <worldbody>
    <body name="base">
      <geom size="0.1"/>
      <body name="upper"><joint name="shoulder"/><geom size="0.1"/>
        <body name="lower"><joint name="elbow"/><geom size="0.1"/>
          <body name="tip"><geom size="0.1"/></body>
        </body>
      </body>
      <body name="tail"><joint name="wag"/><geom size="0.1"/></body>
    </body>
    {extra}
  </worldbody>
  <tendon><fixed name="cord"><joint joint="wag" coef="1"/></fixed></tendon>
  <actuator>{actuators}</actuator>
</mujoco>
"""


def write_arm(path: Path, actuators: str = "", extra: str = "") -> Path:
    file = path / "arm.xml"
    file.write_text(ARM.format(actuators=actuators, extra=extra))
    return file


def test_mjcf_graph_follows_actuators_and_given_bodies(tmp_path: Path) -> None:
    file = write_arm(tmp_path, '<motor joint="elbow"/><motor joint="shoulder"/>')
    slices = {"joint_vel": (0, 2), "force": (2, 5), "command": (5, 7)}
    graph = graph_from_mjcf(file, slices, field_bodies={"force": ["tip", "tail", "tip"]})
    assert graph.nodes == ("base", "upper", "lower", "tip", "tail")
    assert graph.edges == ((0, 1), (1, 2), (2, 3), (0, 4))
    assert graph.observations == ((5, 6), (1,), (0,), (2, 4), (3,))
    assert graph.actions == ((), (1,), (0,), (), ())


def test_mjcf_without_actuators_moves_all_joints(tmp_path: Path) -> None:
    graph = graph_from_mjcf(write_arm(tmp_path), {"joint_vel": (0, 3)}, root="base")
    assert graph.actions == ((), (0,), (1,), (), (2,))


def test_a_named_root_leaves_out_what_is_not_below_it(tmp_path: Path) -> None:
    file = write_arm(tmp_path, extra='<body name="ball"><geom size="0.1"/></body>')
    with pytest.raises(ValueError, match="one body attached to the world, found base, ball"):
        graph_from_mjcf(file, {"joint_vel": (0, 3)})
    graph = graph_from_mjcf(file, {"joint_vel": (0, 3)}, root="base")
    assert "ball" not in graph.nodes
    with pytest.raises(ValueError, match=r"joint shoulder, elbow of .* is not below the root"):
        graph_from_mjcf(file, {"joint_vel": (0, 3)}, root="tail")


def test_wrong_mjcf_is_refused_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.xml"
    broken.write_text("<mujoco><worldbody>")
    missing = tmp_path / "missing.xml"
    arm = write_arm(tmp_path, '<motor joint="elbow"/>')
    for call in (
        lambda: graph_from_mjcf(broken, {}),
        lambda: graph_from_mjcf(missing, {}),
        lambda: graph_from_mjcf(arm, {"joint_vel": (0, 3)}),
        lambda: graph_from_mjcf(arm, {"joint_vel": (0, 1)}, joint_names=["knee"]),
        lambda: graph_from_mjcf(arm, {"x": (0, 1)}, field_bodies={"x": ["knee"]}),
        lambda: graph_from_mjcf(arm, {"joint_vel": (0, 1)}, root="knee"),
        lambda: graph_from_mjcf(write_arm(tmp_path, '<motor tendon="cord"/>'), {}),
    ):
        with pytest.raises(ValueError, match=r"\S") as caught:
            call()
        assert "\n" not in str(caught.value)
