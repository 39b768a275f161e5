"""Trained policies of a task, evaluated in NumPy, for collection and evaluation.

A folder holds `medium` and `expert`, each a safetensors file with a JSON card beside it, and the
measured returns in `recipe.json`. The folder of a finished training is one; others ship in
`plugins/gym/assets`, without a replay buffer.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from gaitforge.collectors.experts.expert import read_weights
from gaitforge.collectors.policy import Memoryless, StoredObservation
from gaitforge.common.errors import failures, names_allowed
from gaitforge.plugins.gym.environments.tasks import GymTask, find_task

SHIPPED = Path(__file__).parent / "assets"
RECIPE = "recipe.json"
QUALITIES = ("medium", "expert")
LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of the log std before tanh, as in the authors' code (rail-berkeley/softlearning)."""

_MALFORMED = KeyError, TypeError, ValueError
_HIDDEN = ("layer0", "layer1")

Returns = TypeVar("Returns", float, np.ndarray)


@dataclass(frozen=True)
class Recipe:
    """Measured facts of a finished training.

    Attributes:
        random_return, medium_return, expert_return: mean returns of mean actions, over `episodes`.
        medium_step: environment steps of the medium policy.
        replay_rows: transitions until that step, the set medium-replay.
    """

    env: str
    random_return: float
    medium_return: float
    expert_return: float
    medium_step: int
    replay_rows: int
    episodes: int

    def normalised(self, returns: Returns) -> Returns:
        """D4RL's score by measured returns: 100 (return - random) / (expert - random)."""
        span = self.expert_return - self.random_return
        return 100.0 * (returns - self.random_return) / span


def policies_folder(env_id: str, folder: str = "") -> Path:
    """`folder`, or by default that of the task's shipped policies; ValueError if none ship."""
    path = Path(folder) if folder else SHIPPED / find_task(env_id).name
    if not folder and not path.is_dir():
        raise ValueError(
            f"no policies of {env_id} ship with gaitforge: give RUN|module:Class|FILE.onnx, to an "
            "experiment as --expert, or train some with gaitforge expert train --env"
        )
    return path


def known_recipe(env_id: str, folder: str = "") -> Recipe | None:
    """The recipe in `folder`, or by default of the shipped policies; None where none ship.

    Raises:
        ValueError: as `read_recipe`, or it is another task's.
    """
    if not folder and not (SHIPPED / find_task(env_id).name).is_dir():
        return None
    path = policies_folder(env_id, folder)
    recipe = read_recipe(path)
    if recipe.env != env_id:
        raise ValueError(f"{path} holds policies of {recipe.env}, not of {env_id}")
    return recipe


def read_recipe(source: Path | str) -> Recipe:
    """The recipe in a folder; ValueError if it is damaged or the training has not finished."""
    path = Path(source) / RECIPE
    if not path.is_file():
        raise ValueError(f"no finished training in {source}: {RECIPE} is missing")
    with failures(f"{path} is not a recipe", *_MALFORMED, error=ValueError):
        tree = json.loads(path.read_text())
        return Recipe(
            tree["env"],
            *(float(tree["returns"][name]) for name in ("random", "medium", "expert")),
            medium_step=int(tree["medium_step"]),
            replay_rows=int(tree["replay_rows"]),
            episodes=int(tree["episodes"]),
        )


class GymExpert(Memoryless):
    """A tanh-squashed Gaussian policy; ValueError for missing or misshapen weights.

    Args:
        weights: `layer0`, `layer1` (ReLU after each), `mean` and `log_std`, each `.weight`
            (out, in) and `.bias` (out,).
    """

    def __init__(self, name: str, task: GymTask, weights: dict[str, np.ndarray], digest: str):
        self.name = name
        self.task = task
        self.hash = digest
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
        self.obs_dim = first[0]
        self.act_dim = mean[1]

    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(weight.size + bias.size for weight, bias in self._layers.values())

    def act(self, observation: StoredObservation) -> np.ndarray:
        """(N, A) float32 mean actions."""
        return self.mean(observation.policy)

    def mean(self, obs: np.ndarray) -> np.ndarray:
        """The mean action (n, A) float32 in [-1, 1] for observations (n, Do) float32."""
        return np.tanh(self._apply("mean", self._trunk(obs)))

    def sample(self, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Actions (n, A) and their log-densities (n,) in nats for standard normal noise (n, A).

        Haarnoja et al. 2018a, Eq. 21, with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
        """
        hidden = self._trunk(obs)
        log_std = np.clip(self._apply("log_std", hidden), *LOG_STD_RANGE)
        pre_tanh_action = self._apply("mean", hidden) + np.exp(log_std) * noise
        gaussian = -0.5 * np.square(noise) - log_std - 0.5 * np.log(2 * np.pi)
        softplus = np.logaddexp(0.0, -2.0 * pre_tanh_action)
        squashing = 2.0 * (np.log(2.0) - pre_tanh_action - softplus)
        log_prob = (gaussian - squashing).sum(axis=-1).astype(np.float32)
        return np.tanh(pre_tanh_action), log_prob

    def draw(
        self, observation: StoredObservation, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """See `DrawingPolicy.draw`."""
        noise = rng.standard_normal((1, self.act_dim), dtype=np.float32)
        action, log_prob = self.sample(observation.policy, noise)
        return action[0], float(log_prob[0])

    def _trunk(self, obs: np.ndarray) -> np.ndarray:
        for layer in _HIDDEN:
            obs = np.maximum(self._apply(layer, obs), 0.0)
        return obs

    def _apply(self, layer: str, inputs: np.ndarray) -> np.ndarray:
        weight, bias = self._layers[layer]
        return inputs @ weight + bias


class RandomPolicy(Memoryless):
    """Uniform actions in [-1, 1], D4RL's random policy; the seed is that of `act`."""

    name = "random"
    hash = ""

    def __init__(self, act_dim: int, seed: int = 0) -> None:
        self._act_dim = act_dim
        self._rng = np.random.default_rng([0x4A4D, seed])

    def act(self, observation: StoredObservation) -> np.ndarray:
        """(N, A) float32."""
        shape = (len(observation.policy), self._act_dim)
        return self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)

    def draw(
        self, observation: StoredObservation, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """See `DrawingPolicy.draw`."""
        action = rng.uniform(-1.0, 1.0, self._act_dim).astype(np.float32)
        return action, -self._act_dim * math.log(2.0)


def load_gym_expert(source: Path | str, quality: str) -> GymExpert:
    """The policy "medium" or "expert" of a folder; ValueError if it cannot be read."""
    if quality not in QUALITIES:
        raise ValueError(f"no policy {quality!r}; {names_allowed(quality, QUALITIES)}")
    path = Path(source) / f"{quality}.safetensors"
    if not path.is_file():
        raise ValueError(f"no policy at {path}")
    card = path.with_suffix(".json")
    with failures(f"{card} is not the card of a policy", OSError, *_MALFORMED, error=ValueError):
        env_id = json.loads(card.read_text())["env"]
    return load_actor(path, quality, find_task(env_id))


def load_actor(path: Path, name: str, task: GymTask) -> GymExpert:
    """An actor without a card, such as a snapshot of a training."""
    return GymExpert(name, task, *read_weights(path, f"policy {path}"))
