"""Losses and gradients of given batches by d3rlpy; run by an interpreter that has it.

python d3rlpy_program.py NAME.npz [NAME.npz ...]

A request is a .npz file with arrays and, as "settings", JSON, which `test_beside_d3rlpy` writes;
its answer is NAME.result.npz.
Everything runs on one thread.
"""

# Run by another interpreter, which has d3rlpy.
# pyright: reportMissingImports=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.preprocessing import (
    MinMaxActionScaler,
    MultiplyRewardScaler,
    StandardObservationScaler,
)
from d3rlpy.torch_utility import TorchMiniBatch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Arrays = Mapping[str, np.ndarray]


def algorithm(given: Arrays, settings: dict[str, Any]) -> Any:
    """The algorithm with our networks' shapes and our normalisers, not yet built."""
    rest = dict(settings["config"])
    if "value_encoder" in settings:
        rest["value_encoder_factory"] = VectorEncoderFactory(**settings["value_encoder"])
    return getattr(d3rlpy.algos, f"{settings['algorithm']}Config")(
        actor_encoder_factory=VectorEncoderFactory(**settings["actor_encoder"]),
        critic_encoder_factory=VectorEncoderFactory(**settings["critic_encoder"]),
        observation_scaler=StandardObservationScaler(given["mean"], given["std"], eps=0.0),
        action_scaler=MinMaxActionScaler(given["low"], given["high"]),
        reward_scaler=MultiplyRewardScaler(settings["reward_scale"]),
        **rest,
    ).create(device="cpu")


def losses(given: Arrays, settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Losses of one batch with given weights, and the gradients of every network."""
    algo = algorithm(given, settings)
    algo.create_impl(given["obs"].shape[1:], given["action"].shape[1])
    impl = algo.impl
    modules = impl.modules
    networks = {"policy": modules.policy, "target_policy": getattr(modules, "targ_policy", None)}
    networks["v"] = getattr(modules, "value_func", None)
    for number in range(2):
        networks[f"q{number}"] = modules.q_funcs[number]
        networks[f"target_q{number}"] = modules.targ_q_funcs[number]
    for name, network in networks.items():
        if network is not None:
            vector_to_parameters(torch.from_numpy(given[name]), shared(network))
    if isinstance(spread := getattr(modules.policy, "_logstd", None), nn.Linear):
        nn.init.zeros_(spread.weight)
        spread.bias.data.copy_(torch.from_numpy(given["log_std"]))
    column = {name: torch.from_numpy(given[name])[:, None] for name in ("reward", "terminal")}
    batch = TorchMiniBatch(
        observations=torch.from_numpy(given["obs"]),
        actions=torch.from_numpy(given["action"]),
        rewards=column["reward"],
        next_observations=torch.from_numpy(given["next_obs"]),
        next_actions=torch.from_numpy(given["next_action"]),
        returns_to_go=torch.zeros_like(column["reward"]),
        terminals=column["terminal"],
        intervals=torch.ones_like(column["reward"]),
        device="cpu",
    )
    if "noise" in given:
        same_noise(torch.from_numpy(given["noise"]), torch.from_numpy(given["uniform"]))
    torch.manual_seed(settings["seed"])
    found = {"critic": float(impl.compute_critic_grad(batch).critic_loss.detach())}
    critics = {
        name: gradient(network)
        for name, network in networks.items()
        if network is not None and name in ("v", "q0", "q1")
    }
    actor = impl.compute_actor_grad(batch)
    found["actor"] = float(actor.actor_loss.detach())
    if isinstance(spread, nn.Linear):
        critics["log_std"] = spread.bias.grad.numpy()
        found["temperature"] = float(actor.temp_loss.detach())
    return {**critics, "policy": gradient(modules.policy), **as_arrays(found)}


def shared(network: nn.Module) -> list[nn.Parameter]:
    """The parameters in order, but for the spread of a policy, which we lay out otherwise."""
    return [each for name, each in network.named_parameters() if "_logstd" not in name]


def gradient(network: nn.Module) -> np.ndarray:
    """Those of `shared`, as one vector."""
    return parameters_to_vector([each.grad for each in shared(network)]).numpy().copy()


def as_arrays(found: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Numbers, named as losses."""
    return {f"loss_{name}": np.array(value) for name, value in found.items()}


def same_noise(noise: Tensor, uniform: Tensor) -> None:
    """Let draws be given ones: noise (n, A) of a policy's n actions, uniform (n, A) of others."""

    def rsample(normal: Any, shape: tuple[int, ...] = ()) -> Tensor:
        table = noise[: shape[0], None] if shape else noise[0]
        return normal.loc + normal.scale * table

    def fill(tensor: Tensor, *_: float) -> Tensor:
        return tensor.copy_(uniform.repeat(len(tensor) // len(uniform), 1))

    d3rlpy.models.torch.distributions.Normal.rsample = rsample
    torch.Tensor.uniform_ = fill


if __name__ == "__main__":
    torch.set_num_threads(1)
    for request in map(Path, sys.argv[1:]):
        with np.load(request) as archive:
            arrays = dict(archive)
        result = losses(arrays, json.loads(str(arrays.pop("settings"))))
        np.savez(request.with_suffix(".result.npz"), **result)
