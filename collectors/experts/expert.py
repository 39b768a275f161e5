"""Experts: a kinematic gait corrected by an MLP that reads privileged observations.

An expert is a safetensors file and a JSON card. The MLP runs in NumPy: collecting needs no torch.
Beside ours there are those of other projects: folders that plug-ins read (`expert_formats`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.experts.expert_formats import folders_allowed, format_of, why_unread
from gaitforge.collectors.experts.network import Mlp, read_weights
from gaitforge.collectors.legged.observations import POLICY_SLICES, PRIVILEGED_DIM
from gaitforge.collectors.policy import Memoryless, Observation, RobotPolicy
from gaitforge.collectors.robots.batch import RobotBatch
from gaitforge.collectors.robots.descriptor import BODY_DIM, body_vector
from gaitforge.collectors.robots.gait import GaitReference
from gaitforge.collectors.robots.robot import (
    N_JOINTS,
    RobotCard,
    list_robots,
    load_robot,
    load_robots,
    own_files,
)
from gaitforge.common.errors import failures

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
        raise ValueError(
            f"no expert '{name}'; allowed: {', '.join(list_experts())}, a .safetensors file"
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
