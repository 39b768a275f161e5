"""MoCapAct's own experts as a policy, through the user's installed package `mocapact`.

The package needs NumPy below 2 and gym, so an environment of its own; gaitforge's tests do not run
it. Its files are pickles, which can run any code: a plan that names them needs the user's trust,
see `common.trust`.
"""

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.policy import Memoryless, StoredObservation
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.observation import OBSERVATION_SLICES
from gaitforge.plugins.mocapact.humanoid.walker import PREFIX

MOCAPACT = "mocapact:"
"""Prefix of an expert's name, before the folder of MoCapAct's experts."""

_MODEL = Path("eval_rsi", "model")
"""Path of the model that MoCapAct rolled out, in an expert's folder."""


class MocapactExpert(Memoryless):
    """One of MoCapAct's clip experts, deterministic; ValueError without the package or the file.

    Args:
        folder: the expert zoo, with a folder `<snippet>/eval_rsi/model` for every snippet.
    """

    name = "mocapact"
    has_value = False  # its critic's values are of rewards normalised by pickled statistics

    def __init__(self, folder: Path, snippet: Snippet):
        utils = _package("sb3.utils")
        observables = _package("observables")
        model = folder / snippet.name / _MODEL
        weights = model / "best_model.zip"
        if not weights.is_file():
            raise ValueError(f"MoCapAct's experts in {folder} have none of snippet {snippet.name}")
        self.hash = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
        self._model = utils.load_policy(
            str(model), observables.TIME_INDEX_OBSERVABLES, device="cpu"
        )

    def act(self, observation: StoredObservation) -> np.ndarray:
        """(N, 56) float32, the mean action."""
        seen = {
            PREFIX + name: observation.policy[:, start:stop]
            for name, (start, stop) in OBSERVATION_SLICES.items()
        }
        action, _ = self._model.predict(seen, deterministic=True)
        return np.asarray(action, dtype=np.float32)

    def value(self, observation: StoredObservation) -> None:
        """Unknown."""


def _package(module: str) -> Any:
    try:
        return import_module(f"mocapact.{module}")
    except ImportError as error:
        raise ValueError(
            f"MoCapAct's experts need its package ({error}): clone microsoft/MoCapAct and run "
            "`pip install -e .` there"
        ) from None
