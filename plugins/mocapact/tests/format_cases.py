"""What the MoCapAct format is tried with beside all others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.datasets import Field, Schema, Store
from tests.datasets.formats.format_stores import (
    Case,
    Episode,
    halved,
    make_store,
    spoil_hdf5,
    without,
)

ROLLOUT_FIELDS = (
    *("obs", "further_obs", "action", "mean_action", "value", "advantage", "reward"),
    *("final_obs", "final_further_obs"),
)


def rollout_store(path: Path, episodes: Sequence[Episode], parts: int = 2) -> Store:
    """Rollouts of a clip a part, as a file of MoCapAct has them."""
    final = (("obs", 5), ("further_obs", 3))
    fields = (
        Field("obs", (5,), slices={"joints_pos": (0, 3), "sensors_gyro": (3, 5)}),
        Field("further_obs", (3,), slices={"appendages_pos": (0, 2), "time_in_clip": (2, 3)}),
        *(Field(name, (2,)) for name in ("action", "mean_action")),
        *(Field(name) for name in ("value", "advantage", "reward")),
        *(Field(f"final_{name}", (width,), per="episode") for name, width in final),
    )

    def clips(number: int, count: int) -> dict[str, Any]:
        fixed = {"skill": "walk", "clip": f"CMU_00{number}", "snippet_start": 0, "snippet_end": 99}
        rollouts = np.arange(count)
        return {name: [value] * count for name, value in fixed.items()} | {
            "rollout": rollouts,
            "random_start": rollouts >= count // 3,
        }

    schema = Schema(fields, 0.03, "cmu-humanoid", {"kept": [1, "two"]})
    return make_store(path, schema, episodes, parts, further=clips)


def spoil_rollout(path: Path) -> None:
    import h5py

    path = path if path.is_file() else next(path.glob("*.hdf5"))
    with h5py.File(path) as file:
        name = next(name for name in file if "0" in file[name])  # pyright: ignore
    spoil_hdf5(path, f"{name}/0/actions")


def all_halved(source: Path) -> None:
    """Take the second half off every file of a folder."""
    for path in source.iterdir():
        halved()(path)


MOCAPACT = Case(
    rollout_store,
    ROLLOUT_FIELDS,
    spoil=spoil_rollout,
    damages={
        "every file is half": all_halved,
        "the first file is half": halved("*.hdf5"),
        "no rewards in the first file": without("/rewards"),
        "no actions in the first file": without("/actions"),
    },
    required=r".*/(actions|rewards|proprioceptive|episode_lengths|episode_returns|early_.*)",
    notes="gaitforge/episodes",
)
CASES = {"mocapact": MOCAPACT}
