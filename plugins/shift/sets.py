"""The three collections of legged-shift-v1, which never change: a test pins their hashes.

Each is a preset of `gaitforge collect`. They differ in their randomisation alone: seeds, cells,
commands, tiles, noise and starts are the same, episode by episode. Parts are made by three policies
in turn: the Aliengo's expert, and two earlier checkpoints of a similar training.
"""

from collections.abc import Mapping

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT
from gaitforge.collectors.legged.data import MIXED_EXPERTS, CollectionGrid
from gaitforge.collectors.scenarios.randomisation import Written
from gaitforge.flows.tasks.legged import LeggedPlan

NAME = "legged-shift-v1"
EXPERT = DEFAULT_EXPERT
_, MEDIUM, WEAK = MIXED_EXPERTS
NOMINAL_DRAWS = "nominal"
DRAWS: Mapping[str, Written] = {
    NOMINAL_DRAWS: {},
    "low-friction": {"friction": "0.1:0.3"},
    "payload": {
        "payload_kg": "4:8",
        "payload_x_m": "-0.1:0.1",
        "payload_y_m": "-0.05:0.05",
        "payload_z_m": "0.08",
    },
}
"""Draws -> what differs from the default randomisation, as `Randomisation.parsed` takes it.

Friction begins below the least that the expert was trained on (0.3). The payload is 16 to 32 % of
the robot's 24.6 kg, on its back.
"""
MIXED = "mixed"
QUALITIES: Mapping[str, str] = {
    "by-expert": f"expert = '{EXPERT}'",
    "by-medium": f"expert = '{MEDIUM}'",
    MIXED: "",
}
"""Quality -> condition on a collection's episodes: who acted; "mixed" has those of all three."""

_GRID = CollectionGrid(parts=12, episodes_per_part=720, seed=1)
"""At most 12 x 720 x 192 = 1,658,880 steps."""


def _collection(draws: str) -> LeggedPlan:
    experts = ",".join(MIXED_EXPERTS)
    return LeggedPlan(grid=_GRID, expert=experts, randomisation=DRAWS[draws])


NOMINAL = _collection(NOMINAL_DRAWS)
LOW_FRICTION = _collection("low-friction")
PAYLOAD = _collection("payload")
COLLECTIONS: Mapping[str, LeggedPlan] = {
    f"{NAME}-{draws}": plan
    for draws, plan in zip(DRAWS, (NOMINAL, LOW_FRICTION, PAYLOAD), strict=True)
}
"""Preset of `gaitforge collect` -> its plan."""
