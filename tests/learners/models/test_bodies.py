"""Bodies: their graphs against the published totals and the robots' MJCF, and sizes."""

from itertools import pairwise

import pytest
import torch

from gaitforge.learners.models.bodies import BODIES, Body, EmbodimentGraph, body_view
from gaitforge.learners.models.bot import BodyMLPConfig, BoTConfig
from gaitforge.learners.models.registry import count_parameters
from gaitforge.learners.tokens import TokenLayout
from tests.learners.making import OBS_SLICES

# Observations and actions of each body part of the CMU humanoid, as the published code has them:
# trunk, two legs, spine and head, two arms.
LEG_OBS, ARM_OBS = (35, 44, 38, 45, 39), (41, 47, 41, 38, 42, 39, 42)
CMU_OBS = (13, *LEG_OBS, *LEG_OBS, *[44] * 6, 35, *ARM_OBS, *ARM_OBS)
LEG_ACTIONS, ARM_ACTIONS = (0, 3, 1, 2, 1), (2, 3, 1, 1, 2, 1, 2)
CMU_ACTIONS = (0, *LEG_ACTIONS, *LEG_ACTIONS, *[3] * 6, 0, *ARM_ACTIONS, *ARM_ACTIONS)


def own_graph(body: str) -> EmbodimentGraph:
    return BODIES[body].graph(BODIES[body].slices, BODIES[body].act_dim)


def width_of(body: Body) -> int:
    return sum(map(len, body.fields.values()))


def layout_of(body: str) -> TokenLayout:
    return TokenLayout("obs", BODIES[body].slices)


@pytest.mark.parametrize(
    ("body", "nodes", "diameter", "allowed", "obs_dim", "act_dim"),
    [
        ("humanoid-isaacgym", 16, 8, 46, 100, 21),
        ("cmu-humanoid", 32, 14, 94, 1294, 56),
        ("adroit-door", 25, 10, 73, 39, 28),
        ("adroit-hammer", 25, 10, 73, 46, 26),
        ("adroit-relocate", 25, 10, 73, 39, 30),
    ],
)
def test_published_totals(
    body: str, nodes: int, diameter: int, allowed: int, obs_dim: int, act_dim: int
) -> None:
    graph = own_graph(body)
    assert (len(graph.nodes), len(graph.edges)) == (nodes, nodes - 1)
    assert int(graph.hop_distances().max()) == diameter
    assert int(graph.embodiment_mask().sum()) == allowed
    assert (graph.obs_dim, graph.act_dim) == (obs_dim, act_dim)


def test_published_sparsities() -> None:
    zeros = {body: float((~own_graph(body).embodiment_mask()).float().mean()) for body in BODIES}
    assert round(zeros["cmu-humanoid"], 3) == 0.908
    assert round(zeros["humanoid-isaacgym"], 2) == 0.82
    assert round(zeros["adroit-door"], 4) == 0.8832


def test_cmu_humanoid_has_the_published_width_at_every_node() -> None:
    graph = own_graph("cmu-humanoid")
    assert tuple(map(len, graph.observations)) == CMU_OBS
    assert tuple(map(len, graph.actions)) == CMU_ACTIONS
    branches = {
        name: sorted(graph.nodes[b] for a, b in graph.edges if graph.nodes[a] == name)
        for name in graph.nodes
    }
    assert {name: below for name, below in branches.items() if len(below) > 1} == {
        "root": ["lhipjoint", "lowerback", "rhipjoint"],
        "thorax": ["lclavicle", "lowerneck", "rclavicle"],
        "lhand": ["lfingers", "lthumb"],
        "rhand": ["rfingers", "rthumb"],
    }


def test_cmu_numbers_are_where_the_simulator_puts_them() -> None:
    body, graph = BODIES["cmu-humanoid"], own_graph("cmu-humanoid")
    holder = {index: node for node, own in zip(graph.nodes, graph.observations, strict=True)
              for index in own}  # fmt: skip
    start = {name: begin for name, (begin, _) in body.slices.items()}
    assert holder[start["joints_pos"]] == "head"  # actuators stand in alphabetical order
    assert holder[start["joints_pos"] + 55] == "upperneck"
    assert [holder[start["sensors_touch"] + i] for i in (0, 6, 9)] == ["lhand", "ltoes", "lfoot"]
    assert [holder[start["end_effectors_pos"] + 3 * i] for i in range(4)] == [
        "rradius", "lradius", "rfoot", "lfoot",
    ]  # fmt: skip
    positions = start["reference_rel_bodies_pos_local"]
    second_step = positions + 31 * 3
    assert holder[positions] == holder[second_step] == "lhipjoint"
    assert holder[second_step - 1] == "rthumb"


def test_isaacgym_humanoid_has_the_papers_parameter_count() -> None:
    # Figure 12c counts an actor, a critic with one value a node, and the noise of 21 actions.
    body = "humanoid-isaacgym"
    config = BoTConfig(positional_embedding=True, body=body)
    actor = count_parameters(config.build(layout_of(body), act_dim=21))
    critic = actor - 21 * (64 + 1) + 16 * (64 + 1)
    assert actor + critic + 21 == 688_762


def test_fields_without_a_place_are_not_read() -> None:
    body = BODIES["adroit-door"]
    slices = {"clock": (0, 2), **{n: (a + 2, b + 2) for n, (a, b) in body.slices.items()}}
    layout = TokenLayout("obs", {**slices, "camera": (41, 45)})
    config = BoTConfig(embed_dim=8, n_layers=2, feedforward_dim=8, body="adroit-door", history=2)
    torch.manual_seed(0)
    wide = config.build(layout, body.act_dim)
    plain = config.build(layout_of("adroit-door"), body.act_dim)
    plain.load_state_dict(wide.state_dict())
    tokens = torch.randn(3, 4, layout.dim)
    with torch.no_grad():
        expected = plain(tokens[..., 2:41])
        torch.testing.assert_close(wide(tokens), expected)
        state = wide.init_state(3)
        for step in range(4):
            action, state = wide.step(tokens[:, step], state)
            torch.testing.assert_close(action, expected[:, step])


def test_data_of_another_body_are_named() -> None:
    body = BODIES["cmu-humanoid"]
    with pytest.raises(
        ValueError, match="cmu-humanoid, not quadruped; use --model bot-mocapact, bot-mix"
    ):
        body_view("quadruped", body.slices, body.act_dim)


def test_a_body_without_further_fields_is_read_whole() -> None:
    for name, body in BODIES.items():
        assert body_view(name, body.slices, body.act_dim)[1] is None
        assert body_view("own", body.slices, body.act_dim) == body_view(
            name, body.slices, body.act_dim
        )
        end = width_of(body)
        acted = {**body.slices, "last_action": (end, end + body.act_dim)}
        assert body_view(name, acted, body.act_dim)[1] is None
        wider = {**acted, "clock": (end + body.act_dim, end + body.act_dim + 1)}
        graph, chosen = body_view(name, wider, body.act_dim)
        assert chosen == tuple(range(end + body.act_dim))
        assert graph == body.graph(acted, body.act_dim)


def test_an_observation_under_one_name_is_taken_in_the_bodys_order() -> None:
    for name, body in BODIES.items():
        whole = body.graph({"everything": (0, width_of(body))}, body.act_dim)
        assert whole == own_graph(name)


def test_return_tokens_put_the_return_at_the_root() -> None:
    body = BODIES["adroit-door"]
    end = width_of(body)
    slices = {**body.slices, "last_action": (end, end + 28), "condition": (end + 28, end + 29)}
    graph = BODIES["adroit-door"].graph(slices, 28)
    assert end + 28 in graph.observations[0]
    assert graph.obs_dim == 39 + 29
    acting = [len(own) for own in graph.actions]
    before = [len(own) for own in own_graph("adroit-door").observations]
    after = [len(own) for own in graph.observations]
    assert after == [
        b + a + (node == 0) for node, (b, a) in enumerate(zip(before, acting, strict=True))
    ]


def test_wrong_fields_and_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="have size 28, got 12"):
        BODIES["adroit-door"].graph(BODIES["adroit-door"].slices, 12)
    with pytest.raises(ValueError, match="no node of the body has the field tail"):
        BODIES["adroit-door"].graph({**BODIES["adroit-door"].slices, "tail": (39, 40)}, 28)
    with pytest.raises(ValueError, match="must have size 39, got 38"):
        BODIES["adroit-door"].graph({"everything": (0, 38)}, 28)


def test_slices_of_a_body_tile_its_observation() -> None:
    for body in BODIES.values():
        spans = list(body.slices.values())
        assert spans[0][0] == 0
        assert all(a[1] == b[0] for a, b in pairwise(spans))
        assert spans[-1][1] == width_of(body)


def test_every_action_of_the_body_mlp_depends_on_every_observation() -> None:
    torch.manual_seed(0)
    config = BodyMLPConfig(embed_dim=4, feedforward_dim=16)
    net = config.build(TokenLayout("obs", OBS_SLICES), act_dim=12).double()
    token = torch.randn(1, 1, 70, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(net, token)
    assert isinstance(jacobian, torch.Tensor)
    assert (jacobian[0, 0, :, 0, 0] != 0).all()
