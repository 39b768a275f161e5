"""The arrays of a collected part, from its episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gaitforge.datasets import Schema


def joined_arrays(
    episodes: Sequence[Any], schema: Schema, renamed: Mapping[str, str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Fields {name: (T, ...)} of a part's steps and {name: (E, ...)} of its episodes.

    Args:
        episodes: objects whose attributes are the arrays; renamed: field -> name of its attribute.
    """
    steps = {}
    for name in schema.names("step"):
        attribute = (renamed or {}).get(name, name)
        steps[name] = np.concatenate([getattr(episode, attribute) for episode in episodes])
    return steps, {"final_obs": np.stack([episode.final_obs for episode in episodes])}
