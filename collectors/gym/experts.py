"""Policies that were trained on a task, evaluated in NumPy: what collections and evaluations run.

A folder holds `medium` and `expert`, each a safetensors file with a JSON card beside it, and the
measured returns in `recipe.json`; the folder of a training that has finished is one, and so is each
that ships (`collectors/assets/gym`), without the replay buffer.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from collectors.gym.batch import TaskObservation
from collectors.gym.tasks import GymTask, find_task
from datasets.errors import listed

SHIPPED = Path(__file__).parent.parent / "assets" / "gym"
RECIPE = "recipe.json"
QUALITIES = ("medium", "expert")
LOG_STD_RANGE = (-20.0, 2.0)
"""Of the Gaussian before the squashing, as in the authors' code (rail-berkeley/softlearning)."""

_HIDDEN = ("layer0", "layer1")

Returns = TypeVar("Returns", float, np.ndarray)


@dataclass(frozen=True)
class Recipe:
    """What a finished training knows of its task.

    Attributes:
        env: id of the task.
        random_return, medium_return, expert_return: mean returns, measured over `episodes` each;
            of the two policies with their mean action.
        medium_step: environment steps after which the medium policy was kept; replay_rows: the
            transitions until then, which are the set medium-replay.
        episodes: of each measurement.
    """

    env: str
    random_return: float
    medium_return: float
    expert_return: float
    medium_step: int
    replay_rows: int
    episodes: int

    def normalised(self, returns: Returns) -> Returns:
        """100 (return - random) / (expert - random): D4RL's score, by what was measured here."""
        span = self.expert_return - self.random_return
        return 100.0 * (returns - self.random_return) / span


def policies_folder(env_id: str, given: str = "") -> Path:
    """Where a task's policies are: the given folder, else that of those that ship.

    Raises:
        ValueError: no such task.
    """
    return Path(given) if given else SHIPPED / find_task(env_id).name


def read_recipe(source: Path | str) -> Recipe:
    """The recipe in a folder of policies.

    Raises:
        ValueError: there is none, for the training has not finished, or it is not one.
    """
    path = Path(source) / RECIPE
    if not path.is_file():
        raise ValueError(f"no finished training in {source}: {RECIPE} is missing")
    try:
        tree = json.loads(path.read_text())
        returns = tree["returns"]
        return Recipe(
            env=tree["env"],
            random_return=float(returns["random"]),
            medium_return=float(returns["medium"]),
            expert_return=float(returns["expert"]),
            medium_step=int(tree["medium_step"]),
            replay_rows=int(tree["replay_rows"]),
            episodes=int(tree["episodes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a recipe: {error}") from None


class GymExpert:
    """A tanh-squashed Gaussian policy behind the protocol of policies.

    Args:
        weights: `layer0`, `layer1` (ReLU after each), `mean` and `log_std`, each `.weight`
            (out, in) and `.bias` (out,).

    Raises:
        ValueError: weights that are incomplete or do not fit together.
    """

    def __init__(self, name: str, task: GymTask, weights: dict[str, np.ndarray], digest: str):
        self.name, self.task, self.hash = name, task, digest
        try:
            self._layers = {
                layer: (weights[f"{layer}.weight"].T.copy(), weights[f"{layer}.bias"])
                for layer in (*_HIDDEN, "mean", "log_std")
            }
        except KeyError as missing:
            raise ValueError(f"policy {name} lacks the tensor {missing}") from None
        shapes = {layer: weight.shape for layer, (weight, _) in self._layers.items()}
        first, second, mean, log_std = shapes.values()
        if not (first[1] == second[0] and second[1] == mean[0] and mean == log_std):
            raise ValueError(f"policy {name}: its tensors do not fit together, {shapes}")
        self.obs_dim, self.act_dim = first[0], mean[1]

    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(weight.size + bias.size for weight, bias in self._layers.values())

    def reset(self, ids: np.ndarray) -> None:
        """Nothing to forget."""

    def act(self, observation: TaskObservation) -> np.ndarray:
        """(N, A) float32 mean actions."""
        return self.mean(observation.policy)

    def mean(self, obs: np.ndarray) -> np.ndarray:
        """The mean action (n, A) float32 in [-1, 1] for observations (n, Do) float32."""
        return np.tanh(self._apply("mean", self._trunk(obs)))

    def sample(self, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Actions for standard normal noise, and their log-densities.

        Args:
            obs: (n, Do) float32; noise: (n, A) float32.

        Returns:
            (n, A) float32 in [-1, 1], and (n,) float32 in nats: Haarnoja et al. 2018a, Eq. 21, with
            log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
        """
        hidden = self._trunk(obs)
        log_std = np.clip(self._apply("log_std", hidden), *LOG_STD_RANGE)
        before = self._apply("mean", hidden) + np.exp(log_std) * noise
        gaussian = -0.5 * np.square(noise) - log_std - 0.5 * np.log(2 * np.pi)
        squashing = 2.0 * (np.log(2.0) - before - np.logaddexp(0.0, -2.0 * before))
        return np.tanh(before), (gaussian - squashing).sum(axis=-1).astype(np.float32)

    def _trunk(self, obs: np.ndarray) -> np.ndarray:
        for layer in _HIDDEN:
            obs = np.maximum(self._apply(layer, obs), 0.0)
        return obs

    def _apply(self, layer: str, inputs: np.ndarray) -> np.ndarray:
        weight, bias = self._layers[layer]
        return inputs @ weight + bias


class RandomPolicy:
    """Every action in [-1, 1] is as likely as any; environments draw independently."""

    name = "random"

    def __init__(self, act_dim: int, seed: int = 0) -> None:
        self._act_dim = act_dim
        self._rng = np.random.default_rng([0x4A4D, seed])

    def reset(self, ids: np.ndarray) -> None:
        """Nothing to forget."""

    def act(self, observation: TaskObservation) -> np.ndarray:
        """(N, A) float32."""
        shape = (len(observation.policy), self._act_dim)
        return self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)


def load_gym_expert(source: Path | str, quality: str) -> GymExpert:
    """A policy from a folder.

    Args:
        quality: "medium" or "expert".

    Raises:
        ValueError: no such policy, or one that cannot be read.
    """
    if quality not in QUALITIES:
        raise ValueError(f"no policy {quality!r}; a folder has {listed(QUALITIES)}")
    path = Path(source) / f"{quality}.safetensors"
    if not path.is_file():
        raise ValueError(f"no policy at {path}")
    return GymExpert(quality, find_task(_card(path)["env"]), *_weights(path))


def load_actor(path: Path, name: str, task: GymTask) -> GymExpert:
    """An actor that has no card, such as a snapshot of a training."""
    return GymExpert(name, task, *_weights(path))


def _weights(path: Path) -> tuple[dict[str, np.ndarray], str]:
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as a policy: {error}") from None
    return weights, hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _card(path: Path) -> dict[str, Any]:
    card = path.with_suffix(".json")
    try:
        tree = json.loads(card.read_text())
        return {"env": tree["env"]}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{card} is not the card of a policy: {error}") from None
