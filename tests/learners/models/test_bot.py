"""Body Transformer: what depends on what, sizes, and the checks of embodiment graphs."""

import json
from collections import Counter
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gaitforge.flows.records.records import digest
from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.models.bodies import (
    BODIES,
    QUADRUPED_JOINTS,
    EmbodimentGraph,
    body_view,
    hops_of,
)
from gaitforge.learners.models.body_attention import AttentionMask
from gaitforge.learners.models.bot import BoT, BoTConfig
from gaitforge.learners.models.registry import ModelSpec, depth_note, spec_from_json
from gaitforge.learners.tokens import Slices, TokenLayout
from tests.learners.making import OBS_SLICES


def consecutive(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Groups of the given sizes over 0, 1, 2, …"""
    groups, start = [], 0
    for size in sizes:
        groups.append(tuple(range(start, start + size)))
        start += size
    return tuple(groups)


def chain_graph(nodes: int) -> EmbodimentGraph:
    """A chain of parts with two observations and one action each."""
    return EmbodimentGraph(
        nodes=tuple(f"part{index}" for index in range(nodes)),
        edges=tuple((index, index + 1) for index in range(nodes - 1)),
        observations=consecutive((2,) * nodes),
        actions=consecutive((1,) * nodes),
    )


def dependence(net: BoT, graph: EmbodimentGraph) -> Tensor:
    """(nodes, nodes) bool: whether any action of node i depends on any observation of node j."""
    token = torch.randn(1, graph.obs_dim)
    jacobian = torch.autograd.functional.jacobian(net, token)
    assert isinstance(jacobian, Tensor)
    jacobian = jacobian[0, :, 0]
    return torch.tensor(
        [
            [
                bool(acts) and bool((jacobian[list(acts)][:, list(seen)] != 0).any())
                for seen in graph.observations
            ]
            for acts in graph.actions
        ]
    )


@settings(max_examples=12)
@given(nodes=st.integers(2, 6), layers=st.integers(1, 5), seed=st.integers(0, 2**20))
def test_a_node_reaches_a_hop_a_layer(nodes: int, layers: int, seed: int) -> None:
    torch.manual_seed(seed)
    graph = chain_graph(nodes)
    net = BoT(BoTConfig(embed_dim=8, n_layers=layers, feedforward_dim=16), graph).double()
    token = torch.randn(1, graph.obs_dim, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(net, token)
    assert isinstance(jacobian, Tensor)
    reached = jacobian[0, :, 0].reshape(nodes, nodes, 2).abs().amax(-1) > 0
    assert torch.equal(reached, graph.hop_distances() <= layers)


def quadruped_graph(slices: Slices = OBS_SLICES) -> EmbodimentGraph:
    return body_view("quadruped", slices, 12)[0]


def test_quadruped_graph_is_the_papers_body() -> None:
    graph = quadruped_graph()
    assert len(graph.nodes) == 13
    assert len(graph.edges) == 12
    assert int(graph.hop_distances().max()) == 6
    assert graph.hop_distances()[0].tolist() == [0, *([1, 2, 3] * 4)]
    root = [*range(0, 3), *range(39, 42), *range(54, 70)]
    assert sorted(graph.observations[0]) == root
    rear_left_calf = 1 + QUADRUPED_JOINTS.index("RL_calf")
    assert graph.observations[rear_left_calf] == (3 + 8, 15 + 8, 27 + 8, 42 + 8)
    assert graph.actions[rear_left_calf] == (8,)


def test_the_published_a1_observation_has_its_places() -> None:
    widths = {"base_lin_vel_body": 3, "base_ang_vel_body": 3, "projected_gravity": 3, "command": 3}
    widths |= {"joint_pos": 12, "joint_vel": 12, "last_action": 12}
    ends = [0, *accumulate(widths.values())]
    graph = quadruped_graph(dict(zip(widths, pairwise(ends), strict=True)))
    assert graph.observations[0] == tuple(range(12))
    assert graph.observations[1:] == tuple((12 + i, 24 + i, 36 + i) for i in range(12))


def test_graphs_do_not_depend_on_the_default_precision() -> None:
    hops = quadruped_graph().hop_distances()
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.equal(quadruped_graph().hop_distances(), hops)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_return_is_told_to_all_parts_and_carries_nothing_between_them(layers: int) -> None:
    torch.manual_seed(0)
    layout = TokenLayout("return", OBS_SLICES)
    net = BoTConfig(embed_dim=8, n_layers=layers, feedforward_dim=8).build(layout, act_dim=12)
    assert net.graph.nodes[-1] == "condition"
    assert net.graph.observations[-1] == (12,)
    assert net.graph.hop_distances()[-1, 0] == 1
    expected = net.graph.hop_distances() <= layers
    expected[:, -1] = True
    expected[[0, -1]] = False  # trunk and return have no action
    assert torch.equal(dependence(net, net.graph), expected)


@pytest.mark.parametrize(
    ("masking", "n_masked"),
    [("hard", 5), ("mix", 3), ("soft", 0), ("none", 0), ("random", 5), ("mix-random", 3)],
)
def test_layers_attend_as_the_masking_says(masking: str, n_masked: int) -> None:
    torch.manual_seed(0)
    net = BoT(
        BoTConfig(embed_dim=8, n_layers=5, feedforward_dim=8, masking=masking), chain_graph(6)
    )
    masks = net.layer_masks()
    masked = [isinstance(mask, AttentionMask) for mask in masks]
    assert sum(masked) == n_masked
    assert masked[0] == (masking in ("hard", "mix", "random", "mix-random"))
    if masking.startswith("mix"):
        assert masked == [True, False, True, False, True]
    assert net(torch.randn(2, 3, 12)).shape == (2, 3, 6)


def test_the_first_hard_layer_of_a_mix_decides_what_is_seen_first() -> None:
    graph, small = chain_graph(6), {"embed_dim": 8, "feedforward_dim": 8, "masking": "mix"}
    for first in (0, 1):
        torch.manual_seed(0)
        one = BoT(BoTConfig(n_layers=1, first_hard_layer=first, **small), graph)
        assert torch.equal(dependence(one, graph), graph.hop_distances() <= (5 if first else 1))
        deep = BoT(BoTConfig(n_layers=5, first_hard_layer=first, **small), graph)
        masked = [isinstance(mask, AttentionMask) for mask in deep.layer_masks()]
        assert masked == [layer % 2 == first for layer in range(5)]
    with pytest.raises(ValueError, match="first_hard_layer must be 0 or 1"):
        BoTConfig(first_hard_layer=2)


def test_positions_start_as_in_the_published_imitation_code() -> None:
    torch.manual_seed(0)
    position = BoT(BoTConfig(positional_embedding=True), chain_graph(64)).position
    assert position is not None  # 4,096 numbers from N(0, 1): the std's own error is 0.011
    std, mean = torch.std_mean(position.detach())
    assert (float(std), float(mean)) == pytest.approx((1.0, 0.0), abs=0.06)


def test_soft_bias_is_one_number_a_hop_and_equal_ones_are_the_plain_transformer() -> None:
    graph, tokens = chain_graph(5), torch.randn(2, 3, 10)
    torch.manual_seed(0)
    plain = BoT(BoTConfig(embed_dim=8, n_layers=2, masking="none"), graph)
    torch.manual_seed(0)
    soft = BoT(BoTConfig(embed_dim=8, n_layers=2, masking="soft"), graph)
    assert soft.hop_bias is not None
    assert soft.hop_bias.shape == (5,)
    with torch.no_grad():
        soft.hop_bias.fill_(0.7)
    torch.testing.assert_close(soft(tokens), plain(tokens))
    soft(tokens).square().sum().backward()
    assert soft.hop_bias.grad is not None
    assert (soft.hop_bias.grad != 0).all()
    with torch.no_grad():
        soft.hop_bias[:2] = 0.0
        soft.hop_bias[2:] = -1e9  # only neighbours left: the hard mask
    torch.manual_seed(0)
    hard = BoT(BoTConfig(embed_dim=8, n_layers=2), graph)
    torch.testing.assert_close(soft(tokens), hard(tokens))


def test_soft_biases_start_as_the_published_embedding() -> None:
    torch.manual_seed(0)
    biases = BoT(BoTConfig(embed_dim=8, n_layers=1, masking="soft"), chain_graph(400)).hop_bias
    assert biases is not None  # 400 numbers from N(0, 1): the std's own error is 0.035
    std, mean = torch.std_mean(biases.detach())
    assert (float(std), float(mean)) == pytest.approx((1.0, 0.0), abs=0.2)


@st.composite
def trees(draw: st.DrawFn, least: int = 2) -> EmbodimentGraph:
    """A body of any shape: each part hangs on an earlier one."""
    nodes = draw(st.integers(least, 20))
    parents = [draw(st.integers(0, index - 1)) for index in range(1, nodes)]
    edges = tuple((parent, index) for index, parent in enumerate(parents, start=1))
    return replace(chain_graph(nodes), edges=edges)


@pytest.mark.parametrize("draw", ["tree", "pairs"])
@settings(max_examples=25)
@given(graph=trees(), seed=st.integers(0, 2**20))
def test_random_mask_has_the_sparsity_of_the_body(
    draw: str, graph: EmbodimentGraph, seed: int
) -> None:
    mask = graph.random_mask(seed, draw)
    assert torch.equal(mask, mask.T)
    assert mask.diagonal().all()
    assert mask.sum() == graph.embodiment_mask().sum()
    assert torch.equal(mask, graph.random_mask(seed, draw))


@settings(max_examples=25)
@given(graph=trees(), seed=st.integers(0, 2**20))
def test_a_random_mask_is_a_connected_tree(graph: EmbodimentGraph, seed: int) -> None:
    mask = graph.random_mask(seed)
    size = len(graph.nodes)
    assert int(mask.sum()) - size == 2 * (size - 1)
    assert (hops_of(mask) >= 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_as_many_layers_of_a_random_mask_join_all_parts_as_of_the_body_s(seed: int) -> None:
    graph = quadruped_graph()
    assert int(hops_of(graph.random_mask(seed)).max()) <= 6
    humanoid = BODIES["humanoid-isaacgym"]
    graph = humanoid.graph(humanoid.slices, humanoid.act_dim)
    assert int(hops_of(graph.random_mask(seed)).max()) <= int(graph.hop_distances().max())


def test_every_tree_is_drawn_as_often() -> None:
    """Of four nodes there are 16: 12 chains and 4 stars; a chain's width is the body's."""
    counts = Counter(chain_graph(4).random_mask(seed).numpy().tobytes() for seed in range(1600))
    assert len(counts) == 16
    assert all(50 <= count <= 160 for count in counts.values())  # 100 ± 10
    star = replace(chain_graph(4), edges=((0, 1), (0, 2), (0, 3)))
    counts = Counter(star.random_mask(seed).numpy().tobytes() for seed in range(400))
    assert len(counts) == 4


def test_a_random_mask_tells_a_condition_to_all() -> None:
    graph = quadruped_graph().with_own_node("condition", (0,))
    mask = graph.random_mask(3)
    assert mask[:, 13].all()
    assert mask[13].tolist() == [False] * 13 + [True]
    assert torch.equal(mask[:13, :13], quadruped_graph().random_mask(3))


def test_a_body_with_loops_keeps_its_number_of_edges() -> None:
    ring = replace(chain_graph(6), edges=tuple((k, (k + 1) % 6) for k in range(6)))
    for seed in range(5):
        mask = ring.random_mask(seed)
        assert mask.sum() == ring.embodiment_mask().sum()
        assert (hops_of(mask) >= 0).all()


@settings(max_examples=25)
@given(nodes=st.integers(3, 20), seed=st.integers(0, 2**20))
def test_random_masks_of_several_seeds_differ(nodes: int, seed: int) -> None:
    """Of three nodes there are three masks: 40 seeds give one alone once in 3 ** 39 times."""
    graph = chain_graph(nodes)
    masks = {graph.random_mask(each).numpy().tobytes() for each in range(seed, seed + 40)}
    assert len(masks) > 1
    if nodes >= 12:  # of at least 10 ** 10 masks
        assert len(masks) == 40


def test_a_network_of_an_earlier_version_has_the_mask_that_it_was_trained_with() -> None:
    config = BoTConfig(embed_dim=8, n_layers=1, masking="random", mask_seed=2)
    tree = ModelSpec("bot", config).to_json()
    assert spec_from_json(tree).config == config
    saved = json.loads(json.dumps(tree))
    del saved["config"]["mask_draw"]
    old = spec_from_json(saved).config
    assert old.mask_draw == "pairs"
    layout = TokenLayout("obs", OBS_SLICES)
    pairs = old.build(layout, 12).mask.bias == 0
    assert (hops_of(pairs) < 0).any()  # of seed 2 all joints' nodes lack something
    assert digest(pairs.nonzero().tolist()) == "a878d101dbb45e74"
    mask = config.build(layout, 12).mask
    assert mask is not None
    assert not torch.equal(pairs, mask.bias == 0)
    for masking in ("hard", "mix", "soft", "none"):
        saved["config"]["masking"] = masking
        new = BoTConfig(embed_dim=8, n_layers=1, masking=masking, mask_seed=2)
        assert spec_from_json(saved).config == new
    with pytest.raises(ValueError, match="no mask_draw 'dice'; allowed: tree, pairs"):
        BoTConfig(mask_draw="dice")


@pytest.mark.parametrize(
    ("masking", "layers", "said"),
    [
        ("hard", 3, "3 masked layers on a body that is 6 edges wide: 43% of the pairs"),
        ("hard", 5, "n_layers=6 joins all, masking=mix in any number"),
        ("random", 1, "1 masked layer"),
        ("mix", 1, "1 masked layer"),
        ("hard", 6, ""),
        ("random", 6, ""),
        ("mix", 2, ""),
        ("soft", 1, ""),
        ("none", 1, ""),
    ],
)
@pytest.mark.parametrize("tokens", ["obs", "return"])
def test_masks_that_do_not_join_the_body_say_so(
    masking: str, layers: int, said: str, tokens: str
) -> None:
    config = BoTConfig(embed_dim=8, n_layers=layers, feedforward_dim=8, masking=masking)
    network = config.build(TokenLayout(tokens, OBS_SLICES), 12)
    note = depth_note(BoundedNetwork(network))
    assert said in note
    assert bool(note) == bool(said)
    assert "\n" not in note


def test_masks_are_not_part_of_the_weights() -> None:
    first, second = BoT(BoTConfig(n_layers=2), chain_graph(3)).layers
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs), "layers start out different"
    names = {
        masking: set(BoT(BoTConfig(n_layers=1, masking=masking), chain_graph(3)).state_dict())
        for masking in ("hard", "mix", "none", "random", "soft")
    }
    assert names["hard"] == names["mix"] == names["none"] == names["random"]
    assert names["soft"] - names["hard"] == {"hop_bias"}


@pytest.mark.parametrize("shared", [False, True])
def test_tokenizer_and_detokenizer_are_linear_maps_of_each_node(shared: bool) -> None:
    """Its own ones, or the same for all: of a node's first number, its second, and so on."""
    torch.manual_seed(0)
    graph = quadruped_graph()
    net = BoT(BoTConfig(embed_dim=8, n_layers=1, shared_tokenizer=shared), graph)
    first, last = net.tokenizer, net.detokenizer
    assert len(last.weight) == (1 if shared else 12)
    token, features = torch.randn(4, 70), torch.randn(4, 13, 8)
    embedded, action = net.tokenizer(token), net.detokenizer(features)
    for node, (seen, acts) in enumerate(zip(graph.observations, graph.actions, strict=True)):
        rows = list(range(len(seen)) if shared else seen)
        own = token[:, list(seen)] @ first.weight[rows] + first.bias[0 if shared else node]
        torch.testing.assert_close(embedded[:, node], own)
        for k, index in enumerate(acts):
            row = k if shared else index
            read = features[:, node] @ last.weight[row] + last.bias[row]
            torch.testing.assert_close(action[:, index], read)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": ((0, 1),)}, "no path from part0 to part2"),
        ({"edges": ((0, 1), (1, 2), (2, 3))}, "must join two different nodes"),
        ({"edges": ((0, 0), (0, 1), (1, 2))}, "must join two different nodes"),
        ({"observations": ((0, 1), (1, 2), (3,))}, r"observation indices \[1\].* more than one"),
        ({"observations": ((0, 1), (2,), (4,))}, r"observation indices \[3\] are assigned to no"),
        ({"actions": ((0,), (), (2,))}, r"action indices \[1\] are assigned to no"),
        ({"actions": ((0,), (1,))}, "3 nodes need as many action groups"),
        ({"actions": ((), (), ())}, "no action is assigned"),
        ({"nodes": ("a", "b", "a")}, "distinct names"),
    ],
)
def test_wrong_graphs_are_refused(change: dict, message: str) -> None:
    right = vars(chain_graph(3))
    with pytest.raises(ValueError, match=message):
        EmbodimentGraph(**{**right, **change})


def test_wrong_quadrupeds_are_refused() -> None:
    with pytest.raises(ValueError, match="no node of the body has the field tail_pos"):
        body_view("quadruped", {"tail_pos": (0, 3)}, 12)
    with pytest.raises(ValueError, match="joint_vel must have size 12"):
        body_view("quadruped", {"joint_vel": (0, 11)}, 12)
    with pytest.raises(ValueError, match="actions have size 12, got 11"):
        body_view("quadruped", OBS_SLICES, 11)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of n_heads"):
        BoTConfig(embed_dim=10, n_heads=4)
    with pytest.raises(ValueError, match="no masking 'firm'; allowed: hard, mix"):
        BoTConfig(masking="firm")
    with pytest.raises(ValueError, match="no body 'snake'; allowed: quadruped"):
        BoTConfig(body="snake")
    with pytest.raises(ValueError, match="fixed_std must be above 0"):
        BoTConfig(fixed_std=0.0)
