"""What FCNet's memory maps are tried with beside all other formats."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gaitforge.collectors.legged.data import legged_schema
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.datasets import Store
from gaitforge.plugins.gym.fcnet.fcnet_schema import previous_actions
from tests.datasets.formats.format_stores import (
    Case,
    Episode,
    Values,
    gone,
    halved,
    make_store,
)


def legged_store(path: Path, episodes: Sequence[Episode], parts: int = 2) -> Store:
    """Our robots' schema, whose last action is the action of the step before."""

    def with_last_action(values: Values, lengths: np.ndarray) -> Values:
        obs = values["obs"]
        obs[:, slice(*POLICY_SLICES["last_action"])] = previous_actions(values["action"], lengths)
        return {"obs": obs}

    schema = legged_schema(load_robot("aliengo"))
    return make_store(path, schema, episodes, parts, with_last_action)


def spoil_map(path: Path) -> None:
    [file] = path.glob("tgt_*.dat")
    values = np.fromfile(file, "<f4")
    values[12 * 3] = np.inf
    values.tofile(file)


FCNET = Case(
    legged_store,
    ("obs", "action"),
    ("length",),
    schema=False,
    spoil=spoil_map,
    damages={
        "no targets": gone("tgt_*.dat"),
        "no ends": gone("meta_*.dat"),
        "half of the states": halved("src_*.dat"),
    },
    links=("src_*", "meta_*"),
    has_notes=False,
)
