"""Experts that need no download: PD on the reference, and a trained correction of it.

A trained expert is `<snippet>/expert.safetensors` with a card `expert.json` beside it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.experts.expert import Mlp, read_weights
from gaitforge.collectors.policy import Memoryless, StoredObservation
from gaitforge.common.errors import failures
from gaitforge.common.files import tensors_below
from gaitforge.common.trust import UntrustedCodeError, is_trusted
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.experts.features import (
    FEATURE_DIM,
    feature,
    observed_features,
    reference_velocity,
)
from gaitforge.plugins.mocapact.humanoid.experts.mocapact_expert import MOCAPACT, MocapactExpert
from gaitforge.plugins.mocapact.humanoid.observation import N_JOINTS, REF_STEPS
from gaitforge.plugins.mocapact.humanoid.rollout import ClipExpertPolicy
from gaitforge.plugins.mocapact.humanoid.walker import load_humanoid

PD = "pd"
RESIDUAL = "pd-residual"
"""Names of the expert without a file, and of all trained experts, which differ in their hash."""

WEIGHTS = "expert.safetensors"


@dataclass(frozen=True)
class PDLaw:
    """Joint targets: the reference some steps ahead, plus feedback.

    target = reference(t + look_ahead) + kp (reference(t + 1) - q) + kd (reference' - q'), rad.
    Looking ahead makes up for the 0.03 s lag of the walker's position servos.
    """

    kp: float = 3.0
    kd_s: float = 0.1
    look_ahead: int = 2

    def __post_init__(self) -> None:
        if self.look_ahead not in REF_STEPS:
            raise ValueError(f"look_ahead is {self.look_ahead}; allowed: {str(REF_STEPS)[1:-1]}")

    def action(self, features: np.ndarray) -> np.ndarray:
        """(N, 56) float32, not clipped, from features (N, FEATURE_DIM)."""
        low, high = load_humanoid().joint_range.T
        ahead = feature(features, "reference_rel_joints").reshape(-1, len(REF_STEPS), N_JOINTS)
        too_slow = reference_velocity(features) - feature(features, "joints_vel")
        target = feature(features, "joints_pos") + ahead[:, REF_STEPS.index(self.look_ahead)]
        target = target + self.kp * ahead[:, 0] + self.kd_s * too_slow
        return ((2.0 * target - low - high) / (high - low)).astype(np.float32)


class PDExpert(Memoryless):
    """The PD law as a policy."""

    name = PD
    has_value = False

    def __init__(self, law: PDLaw | None = None):
        self._law = law or PDLaw()
        text = json.dumps({"law": PD, **asdict(self._law)}, sort_keys=True)
        self.hash = hashlib.sha256(text.encode()).hexdigest()[:16]

    def act(self, observation: StoredObservation) -> np.ndarray:
        """(N, 56) float32."""
        return self._law.action(observed_features(observation.policy))

    def value(self, observation: StoredObservation) -> None:
        """Unknown."""


class ResidualExpert(Memoryless):
    """The PD law plus a network's correction; ValueError for unfit weights.

    Args:
        weights: tensors of two `Mlp`s, prefixed "actor." and "critic."; owner: name for errors;
            hash: the file's.
    """

    name = RESIDUAL
    has_value = True

    def __init__(self, law: PDLaw, weights: Mapping[str, np.ndarray], owner: str, hash: str):
        self.hash = hash
        self._law = law
        self._actor = Mlp(tensors_below("actor", weights), FEATURE_DIM, N_JOINTS, owner)
        self._critic = Mlp(tensors_below("critic", weights), FEATURE_DIM, 1, owner)

    def act(self, observation: StoredObservation) -> np.ndarray:
        """(N, 56) float32."""
        features = observed_features(observation.policy)
        return self._law.action(features) + self._actor(features)

    def value(self, observation: StoredObservation) -> np.ndarray:
        """(N,) float32."""
        return self._critic(observed_features(observation.policy))[:, 0]


@dataclass(frozen=True)
class ClipExpert:
    """An expert of one snippet and its card."""

    policy: ClipExpertPolicy
    card: dict[str, Any]


def load_expert(source: str, snippet: Snippet) -> ClipExpert:
    """The expert for a snippet.

    Args:
        source: "pd", a folder with `<snippet>/expert.safetensors`, the path of such a file, or
            "mocapact:FOLDER" (see `mocapact_expert`).

    Raises:
        UntrustedCodeError: "mocapact:FOLDER", which the user's command line does not name.
        ValueError: it is missing, of another snippet or damaged.
    """
    if source == PD:
        return ClipExpert(PDExpert(), {"snippet": snippet.name, "law": asdict(PDLaw())})
    if source.startswith(MOCAPACT):
        if not is_trusted(source):  # its files are pickles, which are programs
            raise UntrustedCodeError(source)
        folder = source.removeprefix(MOCAPACT)
        return ClipExpert(MocapactExpert(Path(folder), snippet), {"snippet": snippet.name})
    path = Path(source)
    if path.suffix != ".safetensors":
        path = path / snippet.name / WEIGHTS
    card_path = path.with_suffix(".json")
    if not path.is_file() or not card_path.is_file():
        raise ValueError(
            f"no expert of snippet {snippet.name} at {source}: use '{PD}', or train one: gaitforge "
            "humanoid train-expert"
        )
    weights, digest = read_weights(path, f"expert {path}")
    kinds = ValueError, KeyError, TypeError
    with failures(f"expert {path} cannot be read", *kinds, error=ValueError):
        card = json.loads(card_path.read_text())
        tracked = card["snippet"]
        law = PDLaw(**card["law"])
    if tracked != snippet.name:
        raise ValueError(f"expert {path} tracks snippet {tracked}, not {snippet.name}")
    return ClipExpert(ResidualExpert(law, weights, f"expert {path}", digest), card)
