"""Checkpoints of an expert's training: the policy to ship, and the state to resume from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.modules.normalization import EmpiricalNormalization
from safetensors.torch import load_file

from gaitforge.collectors.training_folder import TRAINING, check_setting, write_checkpoint
from gaitforge.common.optimiser_state import (
    load_optimiser_tensors,
    optimiser_tensors,
    tensors_below,
)

_STARTED_COUNT = 2_000_000
"""Observations that the normaliser of a loaded actor counts as seen."""


@dataclass
class Progress:
    """Progress of a training."""

    iteration: int = 0
    steps: int = 0
    wall_s: float = 0.0


def linear_layers(network: Any) -> list[torch.nn.Linear]:
    """The layers of an actor or critic, input first."""
    return [layer for layer in network.mlp if isinstance(layer, torch.nn.Linear)]


def trained_steps(out: Path) -> int:
    """Environment steps of the checkpoint in a folder; 0 without one."""
    path = out / TRAINING
    return int(json.loads(path.read_text())["steps"]) if path.exists() else 0


def network_weights(network: Any) -> dict[str, np.ndarray]:
    """Shipped weights: "mean", "std", and "layer{i}.weight" (out, in), "layer{i}.bias"."""
    normaliser = network.obs_normalizer
    assert isinstance(normaliser, EmpiricalNormalization), "experts are trained with one"
    weights = {"mean": normaliser.mean, "std": normaliser.std + normaliser.eps}
    for i, linear in enumerate(linear_layers(network)):
        weights[f"layer{i}.weight"] = linear.weight.detach()
        weights[f"layer{i}.bias"] = linear.bias.detach()
    return {name: tensor.cpu().numpy() for name, tensor in weights.items()}


def set_actor(algorithm: PPO, weights: Mapping[str, np.ndarray]) -> None:
    """Load weights (see `network_weights`) into the actor; ValueError if they do not fit.

    Its normaliser continues as after `_STARTED_COUNT` observations.
    """
    network = algorithm.get_policy()
    normaliser = network.obs_normalizer
    layers = linear_layers(network)
    assert isinstance(normaliser, EmpiricalNormalization), "experts are trained with one"
    std = torch.from_numpy(weights["std"]).reshape(1, -1) - normaliser.eps
    places = {"mean": normaliser._mean}
    for i, linear in enumerate(layers):
        places |= {f"layer{i}.weight": linear.weight, f"layer{i}.bias": linear.bias}
    mine = {name: tensor.numel() for name, tensor in places.items()} | {
        "std": normaliser._std.numel()
    }
    if {name: value.size for name, value in weights.items()} != mine:
        raise ValueError("the expert to start from has other inputs or layers (hidden)")
    with torch.no_grad():
        for name, tensor in places.items():
            tensor.copy_(torch.from_numpy(weights[name]).reshape(tensor.shape))
        buffers = dict(normaliser.named_buffers())
        buffers["_std"].copy_(std)
        buffers["_var"].copy_(std.square())
        buffers["count"].fill_(_STARTED_COUNT)


def save_training(
    out: Path,
    config: dict[str, object],
    algorithm: PPO,
    progress: Progress,
    extra: dict[str, torch.Tensor],
) -> None:
    """Write the state to resume from: weights, optimiser, and `extra` of the task."""
    modules = {"actor": algorithm.get_policy(), "critic": algorithm._raw_critic}
    tensors = {
        f"{part}.{key}": value
        for part, module in modules.items()
        for key, value in module.state_dict().items()
    }
    tensors |= optimiser_tensors(algorithm.optimizer, "optimizer") | extra
    record = asdict(progress) | {"config": config, "learning_rate": algorithm.learning_rate}
    write_checkpoint(out, progress.iteration, tensors, record)


def load_training(
    out: Path, config: dict[str, object], fixed: Sequence[str], algorithm: PPO
) -> tuple[Progress, dict[str, torch.Tensor]]:
    """Restore an algorithm from `save_training`; returns the progress and the extra tensors.

    Seeds torch anew if there is a checkpoint.
    ValueError for a checkpoint that differs in one of the `fixed` settings, or in its inputs.
    """
    path = out / TRAINING
    if not path.exists():
        return Progress(), {}
    record = json.loads(path.read_text())
    mine = json.loads(json.dumps(config))
    for key in fixed:
        check_setting(out, key, record["config"].get(key, mine[key]), mine[key])
    tensors = load_file(out / record["tensors"])
    extra = {name: value for name, value in tensors.items() if "." not in name}
    try:
        algorithm.get_policy().load_state_dict(tensors_below("actor", tensors))
        algorithm._raw_critic.load_state_dict(tensors_below("critic", tensors))
    except RuntimeError:
        raise ValueError(
            f"{out} holds a training with other network inputs (another set of trained terrains "
            "or skills?); choose another folder"
        ) from None
    load_optimiser_tensors(algorithm.optimizer, tensors, "optimizer")
    algorithm.learning_rate = record["learning_rate"]
    # With the iteration, so that a resumed training does not repeat the noise of its start.
    seeds = np.random.SeedSequence([mine["seed"], record["iteration"]])
    torch.manual_seed(int(seeds.generate_state(1)[0]))
    return Progress(record["iteration"], record["steps"], record["wall_s"]), extra
