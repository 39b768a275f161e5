"""Offline reinforcement learning here and in d3rlpy 2.8.1: losses, returns and speed.

python -m tests.learners.training.values.beside_d3rlpy returns STORE PYTHON RESULT.json
python -m tests.learners.training.values.beside_d3rlpy speed STORE PYTHON RESULT.json [TORCHRL]

PYTHON is an interpreter that has d3rlpy, TORCHRL one that has TorchRL; one thread each. Both
train on all steps of a store of a Gymnasium task, with the same normalisers, networks and settings.
Returns are measured here for both: d3rlpy's weights are loaded into our policy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.evaluation import evaluate, evaluation_seeds
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.datasets import Selection, open_store
from gaitforge.datasets.networks import Ensemble
from gaitforge.learners.checkpoint import load_policy
from gaitforge.learners.deploy.control import LearnedPolicy
from gaitforge.learners.policy.policy_network import PolicyNetwork
from gaitforge.learners.training.batches import TrainingBatches
from gaitforge.learners.training.building import build_policy, build_values
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.memory import keep_freed_memory
from gaitforge.learners.training.train import train
from gaitforge.learners.training.update import Updater
from tests.datasets.formats.peer_environment import run_peer

PROGRAM = Path(__file__).with_name("d3rlpy_program.py")
TORCHRL_PROGRAM = Path(__file__).with_name("torchrl_program.py")
TORCHRL = ("td3-bc", "iql", "cql")
_POLICY = {"hidden_dim": 256, "n_layers": 2}
SEEDS = (0, 1, 2)
EPISODES = 20


@dataclass(frozen=True)
class Peer:
    """d3rlpy's counterpart of an objective.

    Attributes:
        algorithm: its class; settings: its name of a setting -> ours, of the objective.
        fixed: settings that we have no name for.
        values: settings here that differ from our own defaults, so that both are the same.
        updates: of the comparison of returns.
    """

    algorithm: str
    settings: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    updates: int = 5000


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
    # Two hidden layers and batches of 256, for as many updates as the others in a similar time.
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
        updates=600,
    ),
    # Another algorithm, see `AWR`: the nearest that d3rlpy has.
    "awr": Peer("AWAC", {}),
}


def config_of(objective: str, seed: int = 0, **given: Any) -> TrainConfig:
    """Our settings: batches of 256 single steps, all episodes, an MLP of two layers of 256."""
    batches = {} if objective == "awr" else {"window_len": 1, "batch_size": 256}
    settings: dict[str, Any] = {
        "model_overrides": _POLICY,
        "values": dict(PEERS[objective].values),
        "held_out_fraction": 0.0,
        "threads": 1,
        "seed": seed,
        **batches,
    }
    return TrainConfig.recommended("mlp", objective=objective, **settings | given).settled(None)


def new_updater(config: TrainConfig, selection: Selection) -> Updater:
    """A policy with critics, untrained."""
    policy, _ = build_policy(config, selection)
    return Updater(policy, config, Ranks(), build_values(config, policy, selection))


def request(config: TrainConfig, updater: Updater, **rest: Any) -> dict[str, Any]:
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
        **rest,
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


def stored_steps(selection: Selection) -> dict[str, np.ndarray]:
    """The steps as d3rlpy's `MDPDataset` takes them: a time-out is no terminal."""
    lengths, table = selection.lengths, selection.episodes()
    failed = table.column("terminated").to_numpy()
    ends = np.zeros((2, selection.steps), np.float32)
    last = np.cumsum(lengths) - 1
    ends[0, last], ends[1, last] = failed, ~failed
    return {
        "observations": selection.read("obs"),
        "actions": selection.read("action"),
        "rewards": selection.read("reward"),
        "terminals": ends[0],
        "timeouts": ends[1],
    }


def ask(
    python: Path, mode: str, given: Mapping[str, Any], folder: Path
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What d3rlpy's program gives: its arrays, and its numbers."""
    np.savez(folder / "request.npz", **given)
    said = run_peer(
        python, PROGRAM, mode, folder / "request.npz", folder / "result.npz", folder=folder
    )
    with np.load(folder / "result.npz") as archive:
        return dict(archive), json.loads(said) if said.startswith("{") else {}


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


def mean_return(policy: PolicyNetwork, env: str) -> float:
    """Of the evaluation's episodes, by the mean action."""
    batch = TaskBatch(find_task(env), EPISODES)
    try:
        controlled = LearnedPolicy(policy, len(batch), action_limit=1.0)
        episodes = evaluate(controlled, batch, evaluation_seeds(EPISODES))
    finally:
        batch.close()
    return statistics.fmean(each.episode_return for each in episodes)


def trained_here(config: TrainConfig, selection: Selection, env: str) -> dict[str, Any]:
    """Train the whole run here."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, selection, folder)
        policy = load_policy(folder)
    return {
        "updates_per_s": config.steps / result.train_s,
        "return": mean_return(policy, env),
        "updates": config.steps,
    }


def trained_there(
    config: TrainConfig, selection: Selection, env: str, python: Path
) -> dict[str, Any]:
    """Train with d3rlpy; our policy with its weights is what is measured."""
    updater = new_updater(config, selection)
    given = request(config, updater, updates=config.steps) | stored_steps(selection)
    with tempfile.TemporaryDirectory() as folder:
        found, said = ask(python, "train", given, Path(folder))
    vector_to_parameters(torch.from_numpy(found["policy"]), updater.policy.network.parameters())
    return said | {"return": mean_return(updater.policy, env)}


def updates_a_second(config: TrainConfig, selection: Selection, updates: int) -> float:
    """Of our `Updater` on batches that lie ready, in this process's threads."""
    updater, batches = new_updater(config, selection), TrainingBatches(config, selection, Ranks())
    ready = [batch for _, batch in islice(batches, 20)]
    batches.stream.close()
    warm = updates // 10 + 1
    started = 0.0
    for number in range(warm + updates):
        if number == warm:
            started = time.perf_counter()
        updater.step(ready[number % len(ready)], number, config.peak_lr)
    return updates / (time.perf_counter() - started)


def torchrl_speed(config: TrainConfig, selection: Selection, updates: int, python: Path) -> float:
    """Updates a second of TorchRL's loss of the same name, on one of our batches."""
    updater, batches = new_updater(config, selection), TrainingBatches(config, selection, Ranks())
    _, batch = next(iter(batches))
    batches.stream.close()
    assert updater.values is not None
    step = updater.values.transitions(updater.policy, batch)
    names = ("obs", "action", "reward", "next_obs")
    arrays = {name: getattr(step, name).numpy() for name in names}
    arrays["terminal"] = 1.0 - step.going_on.numpy()
    settings = json.dumps({"objective": config.objective, "updates": updates})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "request.npz", settings=settings, **arrays)
        files = folder / "request.npz", folder / "result.npz"
        said = run_peer(python, TORCHRL_PROGRAM, *files, folder=folder)
    return json.loads(said)["updates_per_s"]


def measure_speed(
    selection: Selection, python: Path, torchrl: Path | None, rounds: int = 3
) -> dict[str, Any]:
    """Updates a second of all by turns, on batches that lie ready: the median of the rounds."""
    found: dict[str, Any] = {}
    for objective in PEERS:
        updates = 30 if objective == "cql" else 300
        config = config_of(objective)
        given = request(config, new_updater(config, selection), updates=updates)
        given |= stored_steps(selection)
        rates: dict[str, list[float]] = {"ours": [], "d3rlpy": []}
        for _ in range(rounds):
            rates["ours"].append(updates_a_second(config, selection, updates))
            with tempfile.TemporaryDirectory() as folder:
                said = ask(python, "speed", given, Path(folder))[1]
            rates["d3rlpy"].append(said["updates_per_s"])
            if torchrl is not None and objective in TORCHRL:
                rate = torchrl_speed(config, selection, updates, torchrl)
                rates.setdefault("torchrl", []).append(rate)
        found[objective] = {who: statistics.median(each) for who, each in rates.items()}
        print(objective, *(f"{who} {rate:.1f}" for who, rate in found[objective].items()))
    return found


def measure_returns(selection: Selection, env: str, python: Path, out: Path) -> dict[str, Any]:
    """Three seeds of every algorithm; what `out` has already is kept."""
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for seed in SEEDS:
        for objective, peer in PEERS.items():
            config = config_of(objective, seed, steps=peer.updates, checkpoint_every=peer.updates)
            for who in ("ours", "d3rlpy"):
                if (name := f"{objective}/{who}/{seed}") in found:
                    continue
                if who == "ours":
                    found[name] = trained_here(config, selection, env)
                else:
                    found[name] = trained_there(config, selection, env, python)
                print(name, found[name], flush=True)
                out.write_text(json.dumps(found, indent=1))
    return found


def difference(ours: list[float], theirs: list[float]) -> float:
    """The difference of two means in pooled standard errors, sqrt(s1^2 / n1 + s2^2 / n2)."""
    errors = [statistics.variance(each) / len(each) for each in (ours, theirs)]
    return (statistics.fmean(ours) - statistics.fmean(theirs)) / max(sum(errors) ** 0.5, 1e-9)


def table(found: Mapping[str, Any]) -> str:
    """The returns as lines of Markdown."""
    lines = []
    for objective, peer in PEERS.items():
        runs = {
            who: [found[f"{objective}/{who}/{seed}"] for seed in SEEDS]
            for who in ("ours", "d3rlpy")
        }
        returns = {who: [each["return"] for each in runs[who]] for who in runs}
        cells = [f"`{objective}`", f"{peer.updates:,}"]
        for values in returns.values():
            error = statistics.stdev(values) / len(values) ** 0.5
            cells.append(f"{statistics.fmean(values):.0f} ± {error:.0f}")
        cells.append(f"{difference(*returns.values()):+.1f}")
        for who in runs:
            cells.append(f"{statistics.median(each['updates_per_s'] for each in runs[who]):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("returns", "speed"))
    parser.add_argument("store", type=Path)
    parser.add_argument("python", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument(
        "torchrl", type=Path, nargs="?", help="an interpreter that has TorchRL 0.14"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    store = open_store(given.store)
    selection = store.select()
    python = given.python.absolute()
    if given.what == "speed":
        torchrl = given.torchrl.absolute() if given.torchrl else None
        found = measure_speed(selection, python, torchrl)
        given.result.write_text(json.dumps(found, indent=1))
    else:
        print(table(measure_returns(selection, "Hopper-v5", python, given.result)))


if __name__ == "__main__":
    sys.exit(main())
