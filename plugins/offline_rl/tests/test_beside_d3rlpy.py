"""Our value-based losses beside d3rlpy 2.8.1's, with the same weights on the same transitions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from gaitforge.common.networks import Ensemble
from gaitforge.datasets import Selection, open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.learners.policy_network import MIN_LOG_STD
from gaitforge.learners.training.batches import TrainingBatches
from gaitforge.learners.training.building import build_policy, build_values
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.update import Updater
from gaitforge.plugins.gym.task import GymPlan
from gaitforge.plugins.offline_rl.value_learner import Transitions
from tests.datasets.formats.peer_environment import peer_python, run_peer

pytest.importorskip("gymnasium")
pytestmark = [pytest.mark.slow, pytest.mark.long]

PROGRAM = Path(__file__).with_name("d3rlpy_program.py")
SAMPLES = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "td3-bc": {"policy_noise": 0.0},
    "iql": {},
    "rebrac": {"policy_noise": 0.0, "policy_weight": 0.3, "value_weight": 0.2},
    "cql": {"samples": SAMPLES},
}


@dataclass(frozen=True)
class Peer:
    """d3rlpy's counterpart of an objective.

    Attributes:
        algorithm: its class; settings: its name of a setting -> ours, of the objective.
        fixed: settings that we have no name for.
        values: settings here that differ from our own defaults, so that both are the same.
    """

    algorithm: str
    settings: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


_TD3 = {
    "target_smoothing_sigma": "policy_noise",
    "target_smoothing_clip": "noise_clip",
    "update_actor_interval": "policy_every",
}
PEERS = {
    "td3-bc": Peer("TD3PlusBC", _TD3 | {"alpha": "alpha"}),
    "iql": Peer(
        "IQL", {"expectile": "expectile", "weight_temp": "beta", "max_weight": "largest_weight"}
    ),
    "rebrac": Peer(
        "ReBRAC",
        _TD3 | {"actor_beta": "policy_weight", "critic_beta": "value_weight"},
        values={"hidden": (256, 256)},
    ),
    "cql": Peer(
        "CQL",
        {"conservative_weight": "conservative", "n_action_samples": "samples"},
        # A fixed weight, which no threshold changes.
        {"alpha_learning_rate": 0.0, "alpha_threshold": 0.0},
    ),
}


def config_of(objective: str) -> TrainConfig:
    """Batches of 256 single steps of all episodes, an MLP of two layers, and values as d3rlpy's."""
    settings: dict[str, Any] = {
        "model_overrides": {"hidden_dim": 256, "n_layers": 2},
        "values": {**PEERS[objective].values, **SETTINGS[objective]},
        "held_out_fraction": 0.0,
        "threads": 1,
        "window_len": 1,
        "batch_size": 256,
    }
    return TrainConfig.recommended("mlp", objective=objective, **settings).settled(None)


def new_updater(config: TrainConfig, selection: Selection) -> Updater:
    """A policy with critics, untrained."""
    policy, _ = build_policy(config, selection)
    return Updater(policy, config, Ranks(), build_values(config, policy, selection))


def request(config: TrainConfig, updater: Updater) -> dict[str, Any]:
    """The settings and normalisers that give d3rlpy the same problem."""
    peer, learner = PEERS[config.objective], updater.values
    assert learner is not None
    ours = learner.settings
    rate = config.peak_lr
    given: dict[str, Any] = {
        "batch_size": 256,
        "gamma": ours.gamma,
        "tau": ours.tau,
        "actor_learning_rate": rate * learner.policy_rate,
        "critic_learning_rate": rate,
        **{theirs: getattr(ours, name) for theirs, name in peer.settings.items()},
        **peer.fixed,
    }
    if config.objective == "cql":
        given["temp_learning_rate"] = rate * learner.policy_rate
    critic = {"hidden_units": list(ours.hidden), "activation": "relu"}
    settings = {
        "algorithm": peer.algorithm,
        "config": given,
        "actor_encoder": {
            "hidden_units": [config.model_overrides["hidden_dim"]]
            * config.model_overrides["n_layers"],
            "activation": "gelu",
        },
        "critic_encoder": critic | {"use_layer_norm": config.objective == "rebrac"},
        "reward_scale": learner.reward_scale,
        "seed": config.seed,
    }
    if config.objective == "iql":
        settings["value_encoder"] = critic
    obs, action = updater.policy.obs_normaliser, updater.policy.action_normaliser
    return {
        "settings": json.dumps(settings),
        "mean": obs.mean.numpy(),
        "std": obs.std.numpy(),
        "low": (action.mean - action.std).numpy(),
        "high": (action.mean + action.std).numpy(),
    }


def member_vector(critics: Ensemble, member: int, gradient: bool = False) -> np.ndarray:
    """A member's weights or their gradients in the order of a `nn.Sequential` of layers."""
    parts = []
    for layer, weight in enumerate(critics.weights):
        groups = [weight, critics.biases[layer]]
        if layer < len(critics.scales):
            groups += [critics.scales[layer], critics.shifts[layer]]
        for each in groups:
            tensor = each.grad if gradient else each.detach()
            assert tensor is not None
            parts.append(tensor[member].T.flatten() if each is weight else tensor[member].flatten())
    return torch.cat(parts).numpy()


def network_vector(network: nn.Module) -> np.ndarray:
    """A policy network's weights."""
    return parameters_to_vector(network.parameters()).detach().numpy()


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter that has d3rlpy."""
    return peer_python("d3rlpy")


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    """Hopper's episodes: of random actions, which end in falls, and of the expert, in time-outs."""
    path = tmp_path_factory.mktemp("d3rlpy") / "hopper.zarr"
    plan = GymPlan("Hopper-v5", qualities=("random", "expert"), steps=1000)
    collect(plan, path, Silent())
    return open_store(path).select()


@dataclass(frozen=True)
class Problem:
    """An objective's networks, a batch and its transitions, and the arrays that describe them."""

    updater: Updater
    batch: dict[str, Tensor]
    step: Transitions
    arrays: dict[str, Any]


@pytest.fixture(scope="module")
def problems(selection: Selection) -> dict[str, Problem]:
    """Objective -> what both programs compute."""
    return {objective: problem_of(objective, selection) for objective in SETTINGS}


@pytest.fixture(scope="module")
def theirs(
    problems: dict[str, Problem], python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, np.ndarray]]:
    """Objective -> the arrays that d3rlpy's program gives, from one process: it starts slowly."""
    folder = tmp_path_factory.mktemp("asked")
    for objective, problem in problems.items():
        np.savez(folder / f"{objective}.npz", **problem.arrays)
    requests = [folder / f"{objective}.npz" for objective in problems]
    run_peer(python, PROGRAM, *requests, folder=folder)
    results = {}
    for path in requests:
        with np.load(path.with_suffix(".result.npz")) as archive:
            results[path.stem] = dict(archive)
    return results


def problem_of(objective: str, selection: Selection) -> Problem:
    """Networks of an objective, and transitions of which some end an episode."""
    config = config_of(objective)
    updater = new_updater(config, selection)
    batch = _mixed_batch(selection, config)
    learner: Any = updater.values
    _move_targets(learner)
    step = learner.transitions(updater.policy, batch)
    assert 0 < int(step.going_on.sum()) < len(step.going_on)
    arrays = _problem(updater, step)
    if objective == "cql":
        arrays |= _given_draws(learner, step.action.shape[1])
    if objective == "iql":  # d3rlpy's parameter of 0 is a log std of -1.5
        gaussian = updater.policy.gaussian
        assert gaussian is not None
        gaussian.unbounded.data.fill_(MIN_LOG_STD + np.log(np.expm1(-1.5 - MIN_LOG_STD)))
    ready = {name: np.asarray(value, np.float32) for name, value in arrays.items()}
    return Problem(updater, batch, step, request(config, updater) | ready)


@pytest.mark.parametrize("objective", SETTINGS)
def test_losses_have_the_gradients_of_d3rlpys(
    objective: str,
    problems: dict[str, Problem],
    theirs: dict[str, dict[str, np.ndarray]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problems[objective]
    updater = problem.updater
    if objective == "cql":
        noise, uniform = (torch.tensor(problem.arrays[name]) for name in ("noise", "uniform"))
        _same_draws(monkeypatch, noise, uniform)
    learner: Any = updater.values
    loss = learner.summed_loss(updater.policy, problem.batch, 0) / len(problem.step.obs)
    loss.backward()
    for name, gradient in _gradients(updater).items():
        wanted = theirs[objective][name]
        scale = np.abs(wanted).max()
        assert scale > 0, name
        np.testing.assert_allclose(gradient, wanted, atol=2e-4 * scale, err_msg=name)


def _problem(updater: Updater, step: Transitions) -> dict[str, Any]:
    """The transitions and the weights of all networks, as d3rlpy's program takes them."""
    learner: Any = updater.values
    arrays: dict[str, Any] = {
        "obs": step.obs,
        "action": step.action,
        "reward": step.reward,
        "next_obs": step.next_obs,
        "next_action": step.next_action.masked_fill(step.last[:, None], 0.0),
        "terminal": 1.0 - step.going_on,
        "policy": network_vector(updater.policy.network),
        **{f"q{k}": member_vector(learner.q, k) for k in range(2)},
        **{f"target_q{k}": member_vector(learner.target_q, k) for k in range(2)},
    }
    if hasattr(learner, "v"):
        arrays["v"] = member_vector(learner.v, 0)
    if hasattr(learner, "target_policy"):
        arrays["target_policy"] = network_vector(learner.target_policy.network)
    return arrays


def _given_draws(learner: Any, act_dim: int) -> dict[str, torch.Tensor]:
    """Draws and a spread for both programs; ours takes the spread from now on."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(SAMPLES, act_dim, generator=generator)
    noise[0] = 0.0  # d3rlpy's target has the policy's mean, ours, as the authors' code, a draw
    uniform = 2 * torch.rand(SAMPLES, act_dim, generator=generator) - 1
    log_std = torch.linspace(-1.0, 0.2, act_dim)
    _fixed_spread(learner.spread, log_std)
    return {"noise": noise, "uniform": uniform, "log_std": log_std}


def _gradients(updater: Updater) -> dict[str, np.ndarray]:
    """Those of the critics and of the policy's network, each as one vector."""
    learner: Any = updater.values
    found = {f"q{k}": member_vector(learner.q, k, gradient=True) for k in range(2)}
    if hasattr(learner, "v"):
        found["v"] = member_vector(learner.v, 0, gradient=True)
    known = [each.grad for each in updater.policy.network.parameters() if each.grad is not None]
    return {**found, "policy": parameters_to_vector(known).numpy()}


def _mixed_batch(selection: Selection, config: Any) -> dict[str, Tensor]:
    """The first batch that has an episode's last step and ends of failed episodes."""
    batches = TrainingBatches(config, selection, Ranks())
    for _, batch in islice(batches, 50):
        if batch["terminal"].any() and not batch["terminal"].all():
            batches.stream.close()
            return batch
    raise AssertionError("no batch has a failure")


def _move_targets(learner: Any) -> None:
    """Let targets differ from what they follow."""
    torch.manual_seed(1)
    for name, module in learner.named_children():
        if name.startswith("target"):
            for each in module.parameters():
                each.data += 0.01 * torch.randn_like(each)


def _fixed_spread(spread: Any, log_std: Tensor) -> None:
    """The same log std of every action, so that d3rlpy's layout of its head does not matter."""
    with torch.no_grad():
        spread.log_std.weights[-1].zero_()
        spread.log_std.biases[-1].copy_(log_std.expand_as(spread.log_std.biases[-1]))


def _same_draws(monkeypatch: pytest.MonkeyPatch, noise: Tensor, uniform: Tensor) -> None:
    """Let a policy's n actions have noise[:n], and n uniform ones be given."""

    def randn(count: int, *shape: int, device: Any = None) -> Tensor:
        return noise[:count, None].expand(count, *shape)

    monkeypatch.setattr("gaitforge.plugins.offline_rl.squashed.torch.randn", randn)
    monkeypatch.setattr(Tensor, "uniform_", lambda self, *_: self.copy_(uniform[:, None]))
