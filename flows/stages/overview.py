"""A dataset's overview: counts, returns, randomisation and energy by frequency."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from gaitforge.collectors.scenarios.randomisation import DRAW_INDEX, DRAWS
from gaitforge.datasets import Selection, open_store
from gaitforge.datasets.analysis.spectrum import block_spectra

SPECTRUM_WINDOW = 64
"""Steps of a spectrum's window: the paper's context length on legged data (its Figure 1 takes 256,
longer than our episodes)."""

_SPECTRA = (
    ("projected_gravity", "projected gravity", "1"),
    ("joint_vel", "joint velocity", "rad/s"),
    ("sin_joint_pos", "sine of joint position", "1"),
    ("base_ang_vel_body", "body angular velocity", "rad/s"),
    ("last_action", "last action", "0.25 rad"),
)


def dataset_overview(store_path: Path) -> dict[str, object]:
    """The record behind the report's dataset section, to be written as JSON."""
    store = open_store(store_path)
    selection = store.select()
    episodes = selection.episodes()
    return {
        "info": store.info(),
        "control_dt_s": store.schema.control_dt_s,
        "groups": selection.describe(),
        "levels": selection.describe(("level",)),
        "noise": selection.describe(("action_noise",)),
        "episode_lengths": _histogram(episodes, "length", 24),
        "randomisation": [
            _drawn(episodes, name, draw["unit"])
            for name, draw in store.schema.attributes.get("randomisation", {}).items()
            if not name.startswith(("joint_offset", "joint_strength"))
        ],
        "spectra": _spectra(selection),
    }


def _drawn(episodes: pa.Table, name: str, unit: str) -> dict[str, object]:
    whole = name in DRAW_INDEX and DRAWS[DRAW_INDEX[name]].quantity.whole
    return {"name": name, "unit": unit, **_histogram(episodes, name, 4 if whole else 20)}


def _histogram(episodes: pa.Table, column: str, bins: int) -> dict[str, list[float]]:
    values = episodes.column(column).to_numpy()
    counts, edges = np.histogram(values, bins=bins)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _spectra(selection: Selection) -> list[dict[str, object]]:
    """Energy shares of the observation's blocks, averaged over a block's channels."""
    kept = ("frequency_hz", "energy_share", "channels")
    spectra = {
        spectrum["block"]: spectrum for spectrum in block_spectra(selection, "obs", SPECTRUM_WINDOW)
    }
    return [
        {"signal": title, "unit": unit, **{key: spectra[name][key] for key in kept}}
        for name, title, unit in _SPECTRA
    ]
