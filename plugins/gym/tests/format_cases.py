"""What the formats of D4RL and of FCNet are tried with beside all others."""

from gaitforge.plugins.gym.tests.fcnet_cases import FCNET
from tests.datasets.formats.format_stores import (
    PLAIN_FIELDS,
    Case,
    halved,
    plain_store,
    spoil_hdf5,
    without,
)

D4RL = Case(
    plain_store,
    PLAIN_FIELDS,
    variants={
        "without notes": Case(
            plain_store, PLAIN_FIELDS, ("length", "terminated", "return"), False, {"notes": False}
        )
    },
    spoil=lambda path: spoil_hdf5(path, "rewards", 5),
    damages={
        "half": halved(),
        "no actions": without("actions"),
        "rewards alone gone": without("rewards"),
        "notes without episodes": without("metadata/gaitforge/episodes"),
    },
    required=r"observations|actions|rewards|terminals",
    notes="metadata/gaitforge/episodes",
)
CASES = {"d4rl": D4RL, "fcnet": FCNET}
