"""Experts: a kinematic gait corrected by an MLP that reads privileged observations.

An expert is a safetensors file and a JSON card. Beside ours there are those of other projects:
folders that plug-ins read (`expert_formats`).

The MLP of an expert's file is evaluated in NumPy: collecting needs no torch.

Several experts are averaged by the mean of their weights.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from gaitforge.collectors.experts.expert_formats import folders_allowed, format_of, why_unread
from gaitforge.collectors.legged.observations import POLICY_SLICES, PRIVILEGED_DIM
from gaitforge.collectors.policy import Memoryless, Observation, RobotPolicy
from gaitforge.collectors.robots.kinematics import GaitReference, RobotBatch
from gaitforge.collectors.robots.robot import (
    BODY_DIM,
    N_JOINTS,
    RobotCard,
    body_vector,
    list_robots,
    load_robot,
    load_robots,
    own_files,
)
from gaitforge.common.errors import failures, names_allowed


# The network of an expert's file.
def read_weights(path: Path, owner: str) -> tuple[dict[str, np.ndarray], str]:
    """Tensors of a safetensors file, and its hash; ValueError names the owner of a damaged file."""
    with failures(f"{owner} cannot be read", SafetensorError, error=ValueError):
        return load_file(path), hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Mlp:
    """Linear layers on normalised inputs, ELU between them; ValueError if they do not fit.

    Args:
        weights: "mean", "std" (inputs,), "layer{i}.weight" (out, in), "layer{i}.bias" (out,).
        owner: name for errors.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], inputs: int, outputs: int, owner: str):
        count = sum(name.endswith(".weight") for name in weights)
        try:
            self._mean, self._std = weights["mean"].ravel(), weights["std"].ravel()
            self._layers = [
                (weights[f"layer{i}.weight"].T.copy(), weights[f"layer{i}.bias"])
                for i in range(count)
            ]
        except KeyError as missing:
            raise ValueError(f"{owner} lacks the tensor {missing}") from None
        if self._mean.size != inputs:
            raise ValueError(
                f"{owner} reads {self._mean.size} features, this version makes {inputs}"
            )
        sizes = [inputs, *(bias.size for _, bias in self._layers)]
        shapes = [weight.shape for weight, _ in self._layers]
        if shapes != list(pairwise(sizes)) or self._std.size != inputs or sizes[-1] != outputs:
            raise ValueError(
                f"{owner}: its tensors do not fit together as layers from {inputs} to {outputs}"
            )

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """(N, inputs) -> (N, outputs), float32."""
        x = inputs - self._mean
        x /= self._std
        for weight, bias in self._layers[:-1]:
            x = x @ weight
            x += bias
            below = np.minimum(x, 0)
            np.maximum(x, 0, out=x)
            x += np.expm1(below, out=below)
        weight, bias = self._layers[-1]
        return x @ weight + bias

    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(weight.size + bias.size for weight, bias in self._layers)


# Experts.
class UnknownExpertError(ValueError):
    """No expert has that name."""


EXPERTS = Path(__file__).parent.parent / "assets" / "experts"
DEFAULT_EXPERT = "aliengo-locomotion"
_KNOWN = slice(POLICY_SLICES["last_action"][0], POLICY_SLICES["command"][1])
FEATURE_DIM = (_KNOWN.stop - _KNOWN.start) + PRIVILEGED_DIM + N_JOINTS


def expert_features(
    observation: Observation,
    robots: RobotBatch,
    gait: GaitReference,
    bodies: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (N, FEATURE_DIM) of an expert's network, and the gait's action (N, 12), float32.

    Inputs: last action and command, privileged block, the gait's action; the observation's noisy
    measurements are left out.

    Args:
        bodies: (N, BODY_DIM) body vectors, the last inputs where an expert drives a family.
    """
    targets = gait.joint_targets(observation.command, observation.clock)
    reference = (targets - robots.default_joint_pos_rad) / robots.action_scale_rad
    reference = reference.astype(np.float32)
    parts = [observation.policy[:, _KNOWN], observation.privileged, reference]
    return np.concatenate(parts if bodies is None else [*parts, bodies], axis=1), reference


class ExpertPolicy(Memoryless):
    """A trained expert as a policy; ValueError for weights that do not fit the features.

    Args:
        weights: the tensors of an `Mlp` from FEATURE_DIM to 12, or from FEATURE_DIM +
            BODY_DIM where the expert drives a family of robots.
    """

    def __init__(self, name: str, robot: RobotCard, weights: dict[str, np.ndarray]):
        self.name = name
        self.robot = robot
        self._robots = RobotBatch(robot)
        self._gait = GaitReference(robot)
        self._body = body_vector(robot)[None] if drives_a_family(weights) else None
        inputs = FEATURE_DIM + (0 if self._body is None else BODY_DIM)
        self._residual = Mlp(weights, inputs, N_JOINTS, f"expert '{name}'")

    def act(self, observation: Observation) -> np.ndarray:
        """(N, 12) float32 actions."""
        body = self._body
        if body is not None:
            body = np.broadcast_to(body, (len(observation.policy), BODY_DIM))
        features, reference = expert_features(observation, self._robots, self._gait, body)
        return reference + self._residual(features)

    def parameters(self) -> int:
        """Number of trained parameters."""
        return self._residual.parameters()


def drives_a_family(weights: Mapping[str, np.ndarray]) -> bool:
    """Whether an expert's network reads a robot's descriptor beside the features."""
    return "mean" in weights and weights["mean"].size == FEATURE_DIM + BODY_DIM


def reading_the_body(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same expert with a family's inputs: zero weights for the body vector."""
    added = dict(weights)
    for name, value in {"mean": 0.0, "std": 1.0}.items():
        old = weights[name].ravel()
        added[name] = np.concatenate([old, np.full(BODY_DIM, value, old.dtype)])
    added["layer0.weight"] = np.pad(weights["layer0.weight"], ((0, 0), (0, BODY_DIM)))
    return added


@dataclass(frozen=True)
class Expert:
    """An expert's policy, card, weights (the tensors of its `Mlp`) and hash.

    The hash is of the weights, and of the robots' cards and MJCFs unless they are shipped. An
    expert of an `ExpertFormat` has no such weights.
    """

    policy: RobotPolicy
    card: dict[str, Any]
    hash: str
    weights: dict[str, np.ndarray]


def list_experts() -> list[str]:
    """Names of the shipped experts."""
    return sorted(path.stem for path in EXPERTS.glob("*.safetensors"))


def shipped_experts(robots: Iterable[str]) -> list[str]:
    """Names of the shipped experts of these robots, by name; robots without one are left out.

    Experts for families are left out, too: their cards have a table of bodies. So are half-trained
    ones: their cards have a quality.
    """
    cards = {name: _files(name)[1] for name in list_experts()}
    whole = {name: card for name, card in cards.items() if not {"bodies", "quality"} & card.keys()}
    driven = {card["robot"]: name for name, card in whole.items()}
    return [driven[robot] for robot in robots if robot in driven]


def robots_of_expert(name: str) -> list[RobotCard]:
    """The robots that an expert was trained on; ValueError as `load_expert`."""
    path, card = _files(name)
    return _robots_of(card["robot"], path)


def absolute_robot_of(name: str) -> str:
    """The robot that an expert's card names, a path made absolute; ValueError as `load_expert`."""
    path, card = _files(name)
    robot = card["robot"]
    return robot if robot in list_robots() else str((path.resolve().parent / robot).resolve())


def load_expert(name: str = DEFAULT_EXPERT, robot: str = "") -> Expert:
    """Load a shipped expert by name, one from its `.safetensors` file, or a folder of a plug-in's.

    Args:
        robot: the robot that an expert for a family drives, by default the first that it was
            trained on; ignored for other experts, which drive their own.

    Raises:
        ValueError: no such expert or robot, no card, or weights that do not fit.
    """
    path, card = _files(name)
    trained_on = _robots_of(card["robot"], path)
    if path.suffix != ".safetensors" and (kind := format_of(path.parent)):
        read_policy = kind.load()
        policy, digest = read_policy(path, card, trained_on[0])
        return Expert(policy, card, digest, {})
    weights, digest = read_weights(path, f"expert {path.name}")
    if files := own_files(trained_on):
        digest = hashlib.sha256(digest.encode() + b"".join(files)).hexdigest()[:16]
    member = robot if robot and drives_a_family(weights) else ""
    driven = load_robot(member) if member else trained_on[0]
    policy = ExpertPolicy(path.stem, driven, weights)
    return Expert(policy, card, digest, weights)


def load_trained(name: str) -> Expert:
    """An expert of ours, whose weights can be trained on; ValueError for an imported one."""
    expert = load_expert(name)
    if not expert.weights:
        raise ValueError(f"expert {name} is imported; its network cannot be trained or averaged")
    return expert


def absolute_expert(names: str) -> str:
    """Names with commas, those of files and folders of experts as absolute paths."""
    paths = {name: Path(name) for name in names.split(",")}
    return ",".join(
        str(path.absolute()) if path.is_file() or (name and format_of(path)) else name
        for name, path in paths.items()
    )


def _files(name: str) -> tuple[Path, dict[str, Any]]:
    """Path of an expert's weights, or of a folder's card, and its card."""
    path = Path(name) if name.endswith(".safetensors") else EXPERTS / f"{name}.safetensors"
    if name and not path.is_file() and (kind := format_of(Path(name))):
        path = Path(name).absolute() / kind.card
    if not path.is_file():
        raise UnknownExpertError(
            f"no expert '{name}'; {names_allowed(name, list_experts(), 'a .safetensors file')}"
            f"{folders_allowed()}{why_unread(Path(name)) if name else ''}"
        )
    card_path = path.with_suffix(".json")
    if not card_path.is_file():
        raise ValueError(f"expert {path.name} has no card {card_path.name} beside it")
    with failures(f"expert {path.name} cannot be read", ValueError, error=ValueError):
        card = json.loads(card_path.read_text())
    if not isinstance(card, dict) or not isinstance(card.get("robot"), str) or not card["robot"]:
        raise ValueError(f"expert {path.name}: its card {card_path.name} names no robot")
    return path, card


def _robots_of(robot: str, expert: Path) -> list[RobotCard]:
    """The robots of an expert's card, which names a shipped robot, or the path of one or a family.

    A path is relative to the expert's folder. That folder and the one above it are searched for
    the robot's name, too, so that expert and robot can be moved together.
    """
    if robot in list_robots():
        return [load_robot(robot)]
    folder = expert.resolve().parent
    path = folder / robot
    name = Path(path.parent.name, path.name) if path.suffix == ".json" else Path(path.name)
    places = (path, folder / name, folder.parent / name)
    for candidate in places:
        if candidate.exists():
            return load_robots(str(candidate))
    tried = ", ".join(dict.fromkeys(map(str, places)))
    raise ValueError(
        f"expert {expert.name}: its robot '{robot}' is neither shipped "
        f"({', '.join(list_robots())}) nor at {tried}"
    )


def average_experts(
    names: Sequence[str], shares: Sequence[float]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Weights and card of the mean of experts that come from one training, or from each other.

    The mean of such networks acts as well as any of them, and often better ("model soups",
    Wortsman et al., 2022, https://arxiv.org/abs/2203.05482). Inputs are normalised as the first
    expert's.

    Args:
        shares: weight of each expert, above 0; divided by their sum.

    Raises:
        ValueError: fewer than two experts, as `load_expert`, for other robots or networks, or
            shares that are not one number above 0 for each.
    """
    if len(names) < 2:
        raise ValueError("give at least two experts")
    if len(shares) != len(names) or not all(np.isfinite(shares)) or min(shares) <= 0:
        raise ValueError(f"give a share above 0 for each of {len(names)} experts")
    experts = [load_trained(name) for name in names]
    first = experts[0]
    shapes = {name: value.shape for name, value in first.weights.items()}
    for name, expert in zip(names, experts, strict=True):
        if expert.card["robot"] != first.card["robot"]:
            raise ValueError(
                f"{name} drives {expert.card['robot']}, and {names[0]} {first.card['robot']}"
            )
        if {key: value.shape for key, value in expert.weights.items()} != shapes:
            raise ValueError(f"{name} has another network than {names[0]}")
    parts = np.array(shares, np.float64) / sum(shares)
    mine = [_with_inputs_of(expert.weights, first.weights) for expert in experts]
    mean = {
        key: np.average([arrays[key] for arrays in mine], axis=0, weights=parts).astype(np.float32)
        for key in shapes
    }
    sources = [
        {"share": float(part), "hash": expert.hash, "steps": expert.card.get("steps")}
        for part, expert in zip(parts, experts, strict=True)
    ]
    coverage = {key: first.card[key] for key in ("skills", "terrains") if key in first.card}
    return mean, {"robot": absolute_robot_of(names[0])} | coverage | {"average_of": sources}


def _with_inputs_of(
    weights: dict[str, np.ndarray], reference: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The same network, float64, for inputs normalised like the reference's.

    W (x - m) / s + b = W (r / s) (x - n) / r + b + W (n - m) / s, with the reference's n and r.
    """
    wide = {key: value.astype(np.float64) for key, value in weights.items()}
    mean = wide["mean"].ravel()
    std = wide["std"].ravel()
    other_mean, other_std = (reference[key].astype(np.float64).ravel() for key in ("mean", "std"))
    first = wide["layer0.weight"]
    return wide | {
        "layer0.weight": first * (other_std / std),
        "layer0.bias": wide["layer0.bias"] + first @ ((other_mean - mean) / std),
        "mean": reference["mean"].astype(np.float64),
        "std": reference["std"].astype(np.float64),
    }
