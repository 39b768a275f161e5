"""Embodiment graphs from MJCFs: the fixed bodies' own, and those of robots with a card."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from gaitforge.collectors.robots.robot import ASSETS, list_robots
from gaitforge.learners.models.bodies import BODIES, Body, body_view, known_body, robot_tree
from gaitforge.learners.models.bot import BoTConfig
from gaitforge.learners.models.registry import ModelSpec, spec_from_json
from gaitforge.learners.tokens import TokenLayout
from tests.collectors.robots.robot_folders import collection_style_folder
from tests.learners.making import OBS_SLICES

FILES = {
    "humanoid-isaacgym": ("dm_control", "suite/humanoid.xml"),
    "cmu-humanoid": ("dm_control", "locomotion/walkers/assets/humanoid_CMU_V2020.xml"),
    **{
        f"adroit-{task}": ("gymnasium_robotics", f"envs/assets/adroit_hand/adroit_{task}.xml")
        for task in ("door", "hammer", "relocate")
    },
}


def moved(body: Body) -> dict[str, str]:
    """A fixed body's tree of the parts that an action moves, without the others, by its root."""
    root, kept = next(iter(body.parents)), set(body.actions)
    parents = {root: ""}
    for name in (name for name in body.parents if name in kept - {root}):
        parent = body.parents[name]
        while parent not in kept | {root}:
            parent = body.parents[parent]
        parents[name] = parent
    return parents


@pytest.mark.parametrize("name", BODIES)
def test_a_fixed_bodys_tree_follows_from_its_mjcf(name: str) -> None:
    package, file = FILES[name]
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    tree = robot_tree(Path(found.submodule_search_locations[0]) / file)
    body = BODIES[name]
    assert tree["actions"] == body.actions
    root = next(iter(body.parents))
    # The CMU humanoid's root has no joint in its own file: there the world stands in its place.
    parents = {root if k == "world" else k: root if v == "world" else v
               for k, v in tree["parents"].items()}  # fmt: skip
    assert list(parents.items()) == list(moved(body).items())


def test_a_robot_with_a_card_has_the_quadrupeds_graph(tmp_path: Path) -> None:
    collection_style_folder(tmp_path / "robot")
    expected, _ = body_view("quadruped", OBS_SLICES, 12)
    for folder in (tmp_path / "robot", *(ASSETS / name for name in list_robots())):
        tree = known_body(str(folder))
        graph, chosen = body_view(tree, OBS_SLICES, 12)
        assert chosen is None
        found = {node: (graph.observations[i], graph.actions[i])
                 for i, node in enumerate(graph.nodes)}  # fmt: skip
        # Nodes are in the file's order, which may begin with another leg.
        assert sorted(found.values()) == sorted(
            zip(expected.observations, expected.actions, strict=True)
        )
        by_action = {own: node for node, own in enumerate(graph.actions)}
        place = [by_action[own] for own in expected.actions]
        edges = {frozenset((place[a], place[b])) for a, b in expected.edges}
        assert {frozenset(edge) for edge in graph.edges} == edges


def test_a_config_keeps_the_tree_of_the_file_that_it_read(tmp_path: Path) -> None:
    path = tmp_path / "crawler.xml"
    legs = "".join(
        f'<body name="leg{i}" pos="{i} 0 0"><joint name="knee{i}" type="hinge"/>'
        f'<body name="shin{i}"><geom size="0.1"/></body><geom size="0.1"/></body>'
        for i in range(6)
    )
    motors = "".join(f'<motor joint="knee{i}"/>' for i in (5, 4, 3, 2, 1, 0))
    path.write_text(
        f'<mujoco><worldbody><body name="trunk"><freejoint/><geom size="1"/>{legs}</body>'
        f"</worldbody><actuator>{motors}</actuator></mujoco>"
    )
    config = BoTConfig(embed_dim=8, n_layers=1, feedforward_dim=8, body=str(path))
    path.unlink()
    spec = spec_from_json(json.loads(json.dumps(ModelSpec("bot", config).to_json())))
    layout = TokenLayout("obs", {"joint_vel": (0, 6), "command": (6, 9)})
    network = spec.config.build(layout, 6)
    assert network.graph == config.build(layout, 6).graph
    assert network.graph.nodes == ("trunk", *(f"leg{i}" for i in range(6)))
    assert network.graph.observations == ((6, 7, 8), (5,), (4,), (3,), (2,), (1,), (0,))
    assert network(torch.zeros(2, 3, 9)).shape == (2, 3, 6)
    with pytest.raises(ValueError, match="actions have size 6, got 12"):
        config.build(TokenLayout("obs", OBS_SLICES), 12)


def test_what_is_no_robot_is_refused(tmp_path: Path) -> None:
    still = tmp_path / "still.xml"
    still.write_text(
        '<mujoco><worldbody><body name="a"><joint name="b"/></body></worldbody></mujoco>'
    )
    with pytest.raises(ValueError, match="its actions are not of joints: none"):
        BoTConfig(body=str(still))
    (tmp_path / "robot.json").write_text('{"mjcf": "still.xml", "joint_names": ["b", "c"]}')
    with pytest.raises(ValueError, match="its actions are not of joints: c"):
        BoTConfig(body=str(tmp_path))
    (tmp_path / "robot.json").write_text('{"name": "mine"}')
    with pytest.raises(ValueError, match="no robot can be read at"):
        BoTConfig(body=str(tmp_path))
    with pytest.raises(ValueError, match="no body 'horse'; allowed: quadruped, "):
        BoTConfig(body="horse")
    with pytest.raises(ValueError, match="a body's tree has parents and actions, not nodes"):
        BoTConfig(body={"nodes": 3})
