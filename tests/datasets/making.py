"""Small stores with known content, the same for the same arguments."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.datasets import Field, PartRecord, Schema, Store
from gaitforge.datasets.catalog.catalog import Manifest
from gaitforge.datasets.catalog.episodes import episode_table
from gaitforge.datasets.layout import MERGED_PREFIX
from gaitforge.datasets.storage.parts import check_arrays
from gaitforge.datasets.storage.store import commit_part

OBS, ACTION = 5, 2
TWO_PARTS = ((5, 1, 9), (130, 64))
STREAMED_PARTS = [(5, 1, 9, 40), (130, 64), (17, 17, 3), (1,), (80, 2)]
"""Episode lengths of a store for streams, part by part: units of 55, 194, 37, 1 and 82 steps."""


def small_schema(**changes: Any) -> Schema:
    """Observation, action and reward per step, the final observation per episode."""
    fields = (
        Field("obs", (OBS,), unit="rad", slices={"gravity": (0, 3), "command": (3, 5)}),
        Field("action", (ACTION,)),
        Field("reward"),
        Field("final_obs", (OBS,), per="episode"),
    )
    values: dict[str, Any] = {"fields": fields, "control_dt_s": 0.02, "robot": "aliengo"}
    return Schema(**(values | changes))


def part_input(
    lengths: Sequence[int],
    first_episode: int = 0,
    terrain: Sequence[str] = ("flat", "rough"),
    skill: Sequence[str] = ("stand", "run", "crawl"),
) -> dict[str, Any]:
    """Arguments of `Store.write_part` for episodes of the given lengths."""
    rng = np.random.default_rng(first_episode)
    count, total = len(lengths), int(sum(lengths))
    rewards = rng.normal(size=total).astype(np.float32)
    ends = np.cumsum(lengths)
    returns = [float(part.sum()) for part in np.split(rewards, ends[:-1])]
    ids = first_episode + np.arange(count)
    failed = ids % 4 == 0
    return {
        "steps": {
            "obs": rng.normal(size=(total, OBS)).astype(np.float32),
            "action": rng.normal(size=(total, ACTION)).astype(np.float32),
            "reward": rewards,
        },
        "episodes": {
            "episode": ids,
            "length": np.asarray(lengths),
            "seed": ids * 7,
            "terrain": [terrain[i % len(terrain)] for i in range(count)],
            "level": ids % 3,
            "skill": [skill[i % len(skill)] for i in range(count)],
            "robot": ["aliengo"] * count,
            "simulator": ["mujoco"] * count,
            "simulator_version": ["3.17.0"] * count,
            "expert": ["ppo"] * count,
            "expert_hash": ["0" * 8] * count,
            "return": returns,
            "success": ids % 2 == 0,
            "terminated": failed,
            "truncated": ~failed,
            "friction": rng.uniform(0.4, 1.2, count),
        },
        "per_episode": {"final_obs": rng.normal(size=(count, OBS)).astype(np.float32)},
    }


def small_store(path: Path, parts: Sequence[Sequence[int]] = TWO_PARTS) -> Store:
    """A store with one part for each list of episode lengths."""
    store = Store.create(path, small_schema())
    fill_store(store, parts)
    return store


def fill_store(store: Store, parts: Sequence[Sequence[int]]) -> None:
    """Write one part for each list of episode lengths, with consecutive episode ids."""
    first = 0
    for number, lengths in enumerate(parts):
        write_small_part(store, f"part-{number:03d}", lengths, first)
        first += len(lengths)


def write_small_part(
    store: Store, part_id: str, lengths: Sequence[int], first_episode: int = 0
) -> PartRecord:
    """Write `part_input` under a part id."""
    return store.write_part(part_id, **part_input(lengths, first_episode))


def write_unchecked(store: Store, part_id: str, given: dict[str, Any]) -> None:
    """Commit a part as `Store.write_part` does, whatever columns the other parts have."""
    table = episode_table(given["episodes"], part_id, store.schema.group_by)
    arrays = check_arrays(store.schema, given["steps"], given["per_episode"], table.num_rows)
    commit_part(store.path, store.schema, part_id, table, arrays)


def store_of_many_parts(path: Path, names: Sequence[str]) -> Store:
    """A store of parts of one episode of two steps each, merged into one as `compact` does."""
    store = Store.create(path, small_schema())
    given = part_input([2] * len(names))
    table = episode_table(given["episodes"], "", store.schema.group_by)
    columns = {"part": pa.array(names), "start": pa.array([0] * len(names))}
    for place, (name, values) in enumerate(columns.items()):
        table = table.set_column(place, name, values)
    one = Manifest("", store.schema.hash, 2, 1, "", {}, {})
    members = tuple(replace(one, part_id=name) for name in names)
    arrays = check_arrays(store.schema, given["steps"], given["per_episode"], len(names))
    commit_part(store.path, store.schema, f"{MERGED_PREFIX}0", table, arrays, members)
    return store
