"""rsl-rl's PPO as the experts use it, and checkpoints of an expert's training.

The policy is a residual one that starts at zero, and the learning rate is capped.

A checkpoint holds the policy to ship, and the state to resume from.
"""

import contextlib
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.modules.normalization import EmpiricalNormalization
from safetensors.torch import load_file

from gaitforge.collectors.training_folder import (
    CHECKPOINT_EVERY_S,
    TRAINING,
    Report,
    check_setting,
    training_files,
    write_checkpoint,
)
from gaitforge.common.errors import listed
from gaitforge.common.files import tensors_below
from gaitforge.common.limits import (
    AboveZero,
    NotNegative,
    Positive,
    Range,
    Whole,
    check_ranges,
)
from gaitforge.common.machine import why_no_gpu
from gaitforge.common.networks import load_optimiser_tensors, optimiser_tensors

# Checkpoints.
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


Settings = TypeVar("Settings", bound="PPOSettings")


def as_begun(out: Path, config: Settings) -> Settings:
    """The settings with what a training of an earlier version in the folder began with.

    Its record says nothing of `initial_weights`, which were PyTorch's.
    """
    path = out / TRAINING
    if not path.exists() or "initial_weights" in json.loads(path.read_text())["config"]:
        return config
    return replace(config, initial_weights=TORCH)


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


# PPO.
FEATURES = "features"
CRITIC = "critic"
"""Groups of observations: what the actor sees, and what the critic sees beside it."""
_DEVICES = ("cpu", "cuda")
NORMAL = "normal"
TORCH = "torch"
INITIAL_WEIGHTS = (NORMAL, TORCH)
"""Values of `PPOSettings.initial_weights`."""


class _CappedPPO(PPO):
    """PPO whose adaptive learning rate has a ceiling."""

    ceiling = 1e-3

    @property
    def learning_rate(self) -> float:
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = min(value, self.ceiling)


@dataclass(frozen=True)
class PPOSettings:
    """Settings of every expert's training.

    Attributes:
        steps: environment steps in all; horizon: steps of each robot in a rollout.
        max_learning_rate: ceiling of the adaptive schedule, which else reaches 4e-3;
            falling_steps: the last steps, over which the ceiling falls to 0.
        initial_std: std of the exploration noise, in units of the network's output.
        initial_weights: of networks over body parts: "normal", N(0, 0.02) with biases of zero, as
            the Body Transformer's authors have it in reinforcement learning; "torch", PyTorch's
            own, which trainings of earlier versions began with. See `learners.actor_critic`.
        threads: of the simulator, without effect on the result; 0 for `default_threads`.
        learner_threads: of the networks.
        device: "cpu" or "cuda", of the networks; a simulator's state is on the host.
        checkpoint_every_s: seconds between checkpoints, which wait for an update's end; 0: after
            each.
    """

    steps: Positive = 40_000_000
    horizon: Positive = 24
    epochs: Positive = 4
    mini_batches: Positive = 4
    hidden: tuple[int, ...] = (256, 128, 64)
    learning_rate: AboveZero = 1e-3
    max_learning_rate: AboveZero = 1e-3
    falling_steps: Whole = 0
    target_kl: AboveZero = 0.01
    gamma: Annotated[float, Range(0, 1)] = 0.99
    gae_lambda: Annotated[float, Range(0, 1)] = 0.95
    clip: AboveZero = 0.2
    entropy: NotNegative = 0.002
    initial_std: AboveZero = 0.6
    initial_weights: str = NORMAL
    seed: Whole = 0
    threads: Annotated[int, Range(0, 512)] = 0
    learner_threads: Positive = 1
    device: str = "cpu"
    checkpoint_every_s: NotNegative = CHECKPOINT_EVERY_S

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden must be widths of at least 1, got {list(self.hidden)}")
        if self.device not in _DEVICES:
            raise ValueError(f"unknown device '{self.device}'; allowed: {listed(_DEVICES)}")
        if self.initial_weights not in INITIAL_WEIGHTS:
            raise ValueError(
                f"no initial_weights '{self.initial_weights}'; allowed: {listed(INITIAL_WEIGHTS)}"
            )

    @property
    def processor(self) -> str:
        """Device of the training: "cuda" if any part of it uses a GPU, else "cpu"."""
        return self.device


@dataclass(frozen=True)
class PpoUpdate:
    """One update: episodes that ended, PPO's losses, and the simulation's share of the time."""

    summary: dict[str, Any]
    losses: dict[str, float]
    simulation_share: float

    def row(self, total_steps: int) -> dict[str, Any]:
        """The part of the update's row of the history that every training has."""
        left = total_steps - self.summary["steps"]
        return self.summary | {
            "total_steps": total_steps,
            "remaining_s": left / self.summary["steps_per_s"],
            "simulation_share": self.simulation_share,
            "losses": self.losses,
        }


def _updates(
    algorithm: PPO, task: Any, config: PPOSettings, progress: Progress
) -> Iterator[PpoUpdate]:
    """Roll out and update until `config.steps` environment steps; counts in `progress`."""
    algorithm.train_mode()
    device = torch.device(config.device)
    observations = task.get_observations().to(device)
    while progress.steps < config.steps:
        started = time.perf_counter()
        with torch.inference_mode():
            for _ in range(config.horizon):
                stepped = task.step(algorithm.act(observations).cpu())
                observations, reward, done = (tensor.to(device) for tensor in stepped[:3])
                extras = {name: value.to(device) for name, value in stepped[3].items()}
                algorithm.process_env_step(observations, reward, done, extras)
            simulated = time.perf_counter()
            left = (config.steps - progress.steps) / max(1, config.falling_steps)
            _CappedPPO.ceiling = config.max_learning_rate * min(1.0, left)
            algorithm.learning_rate = algorithm.learning_rate
            algorithm.compute_returns(observations)
        losses = algorithm.update()
        elapsed = time.perf_counter() - started
        progress.iteration += 1
        progress.steps += task.num_envs * config.horizon
        progress.wall_s += elapsed
        summary = {
            "iteration": progress.iteration,
            "steps": progress.steps,
            "steps_per_s": task.num_envs * config.horizon / elapsed,
            "action_std": float(algorithm.get_policy().output_std.mean().detach()),
            "learning_rate": algorithm.learning_rate,
        }
        yield PpoUpdate(summary, losses, (simulated - started) / elapsed)


def run_updates(
    algorithm: PPO,
    task: Any,
    config: PPOSettings,
    progress: Progress,
    out: Path,
    row: Callable[[PpoUpdate], dict[str, Any]],
    write: Callable[[], None],
    report: Report,
) -> None:
    """Train until `config.steps`: the updates' rows go to the history, `write` saves a checkpoint.

    Raises:
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    with training_files(out, asdict(config), progress.steps, report) as files:
        for update in _updates(algorithm, task, config, progress):
            files.append(row(update))
            files.after_step(progress.steps, write, last=progress.steps >= config.steps)


class Networks(Protocol):
    """Actor and critic of another kind than rsl-rl's MLP, and how the actor is saved.

    The two are called as the classes of `rsl_rl.models`, with observations, their groups, the name
    of the set, the size of the output and, for the actor, `distribution_cfg`.
    """

    def actor(self, *arguments: Any, **settings: Any) -> Any:
        """The actor."""

    def critic(self, *arguments: Any, **settings: Any) -> Any:
        """The critic."""

    def save(self, actor: Any, folder: Path, card: dict[str, Any]) -> Path:
        """Write the actor as a policy; returns what other commands take as its place."""
        ...


def make_algorithm(config: PPOSettings, task: Any, networks: Networks | None = None) -> PPO:
    """PPO for a task with observation groups FEATURES (actor and critic) and, if any, CRITIC.

    Without `networks` both are MLPs, and the actor's last layer is scaled by 0.01: training starts
    from the policy that it corrects.

    Raises:
        ValueError: torch sees no GPU for the device "cuda".
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device cuda was asked for, but {why_no_gpu(torch)}")
    network: dict[str, Any] = {
        "class_name": "rsl_rl.models.MLPModel",
        "hidden_dims": list(config.hidden),
        "activation": "elu",
        "obs_normalization": True,
    }
    actor = {**network}
    critic = {**network}
    if networks is not None:
        actor = {"class_name": networks.actor}
        critic = {"class_name": networks.critic}
    distribution = {
        "class_name": "rsl_rl.modules.distribution.GaussianDistribution",
        "init_std": config.initial_std,
    }
    observations = task.get_observations().to(config.device)
    cfg: dict[str, object] = {
        "num_steps_per_env": config.horizon,
        "obs_groups": {"actor": [FEATURES], "critic": list(observations.keys())},
        "actor": {**actor, "distribution_cfg": distribution},
        "critic": critic,
        "algorithm": {
            "class_name": _CappedPPO,
            "num_learning_epochs": config.epochs,
            "num_mini_batches": config.mini_batches,
            "clip_param": config.clip,
            "gamma": config.gamma,
            "lam": config.gae_lambda,
            "entropy_coef": config.entropy,
            "learning_rate": config.learning_rate,
            "desired_kl": config.target_kl,
            "schedule": "adaptive",
        },
        "multi_gpu": None,
    }
    _CappedPPO.ceiling = config.max_learning_rate
    with contextlib.redirect_stdout(io.StringIO()):  # rsl-rl prints its models
        algorithm = _CappedPPO.construct_algorithm(observations, task, cfg, config.device)
    if networks is None:
        last = linear_layers(algorithm.get_policy())[-1]
        with torch.no_grad():
            last.weight.mul_(0.01)
            last.bias.zero_()
    return algorithm
