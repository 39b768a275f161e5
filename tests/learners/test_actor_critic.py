"""Networks of the registry in PPO: the saved policy is the actor, values are the nodes' means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from gaitforge.collectors.legged.observations import OBS_DIM, POLICY_SLICES, PRIVILEGED_SLICES
from gaitforge.collectors.robots.robot import ASSETS
from gaitforge.datasets.schema import consecutive_slices
from gaitforge.learners.actor_critic import RegistryModel, RegistryNetworks
from gaitforge.learners.checkpoint import load_policy

BATCH = 6
STATE = {name: stop - start for name, (start, stop) in PRIVILEGED_SLICES.items()}
CRITIC = consecutive_slices({**STATE, "foot_force": 4})
CRITIC_DIM = max(stop for _, stop in CRITIC.values())
GROUPS = {"actor": ["features"], "critic": ["features", "critic"]}
SPREAD = {"class_name": "GaussianDistribution", "init_std": 0.6}
SMALL: dict[str, dict[str, Any]] = {
    "bot": {"n_layers": 2, "embed_dim": 8, "feedforward_dim": 8},
    "bot-mix": {"n_layers": 2, "embed_dim": 8, "feedforward_dim": 8, "positional_embedding": True},
    "bot-hard": {"n_layers": 2, "embed_dim": 8, "feedforward_dim": 8, "masking": "random"},
    "body-mlp": {"embed_dim": 8, "feedforward_dim": 8},
    "mlp": {"hidden_dim": 8, "n_layers": 2},
}


def observations() -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    parts = {"features": OBS_DIM, "critic": CRITIC_DIM}
    tensors = {
        name: torch.randn(BATCH, width, generator=generator) for name, width in parts.items()
    }
    return TensorDict(tensors, batch_size=[BATCH])


def networks(
    model: str, action_filter: float = 1.0, weights: str = "normal", **overrides: Any
) -> RegistryNetworks:
    slices: Mapping[str, Any] = {"features": POLICY_SLICES, "critic": CRITIC}
    settings: dict[str, Any] = {"action_filter": action_filter, "initial_weights": weights}
    return RegistryNetworks(model, SMALL.get(model, {}) | overrides, slices, **settings)


def actor_of(made: RegistryNetworks) -> RegistryModel:
    return made.actor(observations(), GROUPS, "actor", 12, distribution_cfg=SPREAD)


def critic_of(made: RegistryNetworks) -> RegistryModel:
    return made.critic(observations(), GROUPS, "critic", 1)


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("model", SMALL)
def test_the_saved_policy_is_the_actor_filtered(model: str, share: float, tmp_path: Path) -> None:
    torch.manual_seed(1)
    made, seen = networks(model, share, "torch"), observations()
    actor = actor_of(made)
    actor.update_normalization(seen)
    expected, features = actor(seen), seen["features"]
    policy = load_policy(made.save(actor, tmp_path / "policy", {"steps": 1}), POLICY_SLICES)
    action, _ = policy.step(features, policy.init_state(BATCH))
    last = features[:, slice(*POLICY_SLICES["last_action"])]
    filtered = last + share * (expected - last)
    torch.testing.assert_close(action, filtered, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(policy.action_std(), torch.full((12,), share * 0.6))
    assert expected.std() > 0.01


@pytest.mark.parametrize("model", SMALL)
def test_values_learn_from_all_that_the_critic_sees(model: str) -> None:
    torch.manual_seed(2)
    critic, seen = critic_of(networks(model)), observations()
    groups = [seen[name].requires_grad_() for name in GROUPS["critic"]]
    value = critic(seen)
    assert value.shape == (BATCH, 1)
    gradients = torch.autograd.grad(value.sum(), groups)
    assert all((each.abs().sum(dim=0) > 0).all() for each in gradients)
    assert critic.distribution is None


@pytest.mark.parametrize(
    ("body", "field", "index", "node"),
    [
        ("quadruped", "joint_vel", 4, "FR_thigh"),
        ("quadruped", "foot_force", 2, "RL_calf"),
        ("quadruped", "height_scan", 3, "trunk"),
        (str(ASSETS / "anymal_c"), "joint_vel", 4, "RF_THIGH"),
        (str(ASSETS / "anymal_c"), "foot_force", 2, "LH_SHANK"),
    ],
)
def test_what_is_measured_at_a_limb_belongs_to_its_node(
    body: str, field: str, index: int, node: str
) -> None:
    """With one masked layer a measurement reaches its node and that node's neighbours alone."""
    torch.manual_seed(3)
    critic, seen = critic_of(networks("bot", n_layers=1, body=body)), observations()
    nodes = critic.mlp.network
    before = nodes(critic.get_latent(seen))
    seen["critic"][:, CRITIC[field][0] + index] += 1.0
    moved = (nodes(critic.get_latent(seen)) - before).abs().amax(dim=0) > 0
    graph = nodes.graph
    reached = graph.embodiment_mask()[:, graph.nodes.index(node)]
    assert moved.tolist() == reached.tolist()


def test_networks_that_see_more_than_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fcnet does not act on single steps.*bot, body-mlp, mlp"):
        networks("fcnet")
    with pytest.raises(ValueError, match="set its history to 1"):
        networks("bot", history=4)
    with pytest.raises(ValueError, match="no setting 'depth'"):
        networks("bot", depth=4)
    assert networks("bot").spec.config.history == 1


SIZES: dict[str, dict[str, Any]] = {
    "small": {"n_layers": 3, "embed_dim": 32, "feedforward_dim": 64, "n_heads": 2},
    "paper": {"n_layers": 10, "embed_dim": 64, "feedforward_dim": 128, "n_heads": 2},
}


@pytest.mark.parametrize("masking", ["mix", "hard", "soft", "none"])
@pytest.mark.parametrize("size", SIZES)
def test_the_first_actions_are_small_beside_the_exploration(size: str, masking: str) -> None:
    """The published code's weights; with PyTorch's own the rms is that of the exploration, 0.6."""
    for seed in range(3):
        rms = {}
        for weights in ("normal", "torch"):
            torch.manual_seed(seed)
            settings = SIZES[size] | {"masking": masking, "positional_embedding": True}
            actor = actor_of(networks("bot", weights=weights, **settings))
            inputs = torch.randn(256, OBS_DIM, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                rms[weights] = float(actor.mlp(inputs).square().mean().sqrt())
        assert rms["normal"] <= 0.2
        assert rms["torch"] >= 0.4


@pytest.mark.parametrize("model", ["bot-mix", "bot-hard", "body-mlp"])
def test_networks_over_body_parts_start_normal_with_biases_of_zero(model: str) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"embed_dim": 64, "feedforward_dim": 128}
    actor = actor_of(networks(model, **sizes))
    critic = critic_of(networks(model, **sizes))
    for network in (actor.mlp, critic.mlp.network):
        for name, value in network.named_parameters():
            if name.endswith("bias"):
                assert not value.any(), name
            elif "norm" in name:
                assert (value == 1).all(), name
            elif "qkv" in name:  # Xavier's, uniform
                assert value.abs().max() <= (6 / sum(value.shape)) ** 0.5
            else:
                assert float(value.detach().std()) == pytest.approx(0.02, rel=0.1), name


def test_weights_of_other_networks_stay_as_they_are() -> None:
    weights = []
    for how in ("normal", "torch"):
        torch.manual_seed(0)
        weights.append(actor_of(networks("mlp", weights=how)).mlp.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_body_mlp_s_critic_has_one_value_but_in_earlier_trainings() -> None:
    def readout(weights: str) -> torch.Tensor:
        return critic_of(networks("body-mlp", weights=weights)).mlp.network.readout.weight

    assert readout("normal").shape[0] == 1
    assert readout("torch").shape[0] == 13
