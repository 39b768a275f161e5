"""Files in MoCapAct's schema with known content, written with h5py alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from gaitforge.datasets import Field, Schema, Store

BODY_WIDTHS = {
    "actuator_activation": 56,
    "body_height": 1,
    "end_effectors_pos": 12,
    "gyro_control": 3,
    "joints_pos": 56,
    "joints_vel": 56,
    "reference_rel_bodies_pos_local": 465,
    "reference_rel_bodies_quats": 620,
    "sensors_gyro": 3,
    "sensors_torque": 6,
    "sensors_touch": 10,
    "sensors_velocimeter": 3,
    "world_zaxis": 3,
}
SMALL_WIDTHS = {"appendages_pos": 2, "joints_pos": 3, "joints_vel": 3, "time_in_clip": 1}
ACTIONS = 4


@dataclass(frozen=True)
class Rollout:
    """One rollout's arrays, as in the file."""

    actions: np.ndarray
    mean_actions: np.ndarray
    rewards: np.ndarray
    values: np.ndarray
    advantages: np.ndarray
    proprioceptive: np.ndarray
    early: bool


def make_rollouts(
    lengths: Sequence[int], seed: int, width: int, actions: int = ACTIONS
) -> list[Rollout]:
    """Random rollouts; every third one ended early."""
    rng = np.random.default_rng(seed)

    def rows(count: int, *shape: int) -> np.ndarray:
        return rng.normal(size=(count, *shape)).astype(np.float32)

    return [
        Rollout(
            rows(length, actions),
            rows(length, actions),
            rows(length),
            rows(length),
            rows(length),
            rows(length + 1, width),
            number % 3 == 2,
        )
        for number, length in enumerate(lengths)
    ]


def write_file(
    path: Path,
    snippets: Mapping[str, tuple[Sequence[Rollout], int]],
    widths: Mapping[str, int] = SMALL_WIDTHS,
) -> Path:
    """Write snippets, each with its rollouts and how many of them start at its start."""
    with h5py.File(path, "w") as file:
        for name, (rollouts, starts) in snippets.items():
            _write_snippet(file.create_group(name), rollouts, starts)
        at = 0
        for name, width in widths.items():
            file[f"observable_indices/walker/{name}"] = np.arange(at, at + width)
            at += width
        file["ref_steps"] = np.arange(1, 6)
        file["n_start_rollouts"] = max(starts for _, starts in snippets.values())
        file["n_rsi_rollouts"] = max(len(each) - starts for each, starts in snippets.values())
        file["stats/count"] = 1
    return path


def _write_snippet(group: h5py.Group, rollouts: Sequence[Rollout], starts: int) -> None:
    for number, rollout in enumerate(rollouts):
        for key in ("actions", "mean_actions", "rewards", "values", "advantages"):
            group[f"{number}/{key}"] = getattr(rollout, key)
        group[f"{number}/observations/proprioceptive"] = rollout.proprioceptive
    group["early_termination"] = np.array([each.early for each in rollouts])
    for where, chosen in (("start_metrics", rollouts[:starts]), ("rsi_metrics", rollouts[starts:])):
        lengths = np.array([len(each.rewards) for each in chosen], np.int64)
        returns = np.array([each.rewards.sum() for each in chosen], np.float32)
        group[f"{where}/episode_lengths"] = lengths
        group[f"{where}/episode_returns"] = returns
        group[f"{where}/norm_episode_lengths"] = lengths / 30.0
        group[f"{where}/norm_episode_returns"] = returns.astype(np.float64) / 30.0


ROLLOUT_FIELDS = (
    *("obs", "further_obs", "action", "mean_action", "value", "advantage", "reward"),
    *("final_obs", "final_further_obs"),
)


def rollout_store(path: Path, episodes: Sequence[tuple[int, str]]) -> Store:
    """A store of rollouts of two clips with the given lengths and endings, one part each."""
    fields = (
        Field("obs", (5,), slices={"joints_pos": (0, 3), "sensors_gyro": (3, 5)}),
        Field("further_obs", (3,), slices={"appendages_pos": (0, 2), "time_in_clip": (2, 3)}),
        Field("action", (2,)),
        Field("mean_action", (2,)),
        Field("value"),
        Field("advantage"),
        Field("reward"),
        Field("final_obs", (5,), per="episode"),
        Field("final_further_obs", (3,), per="episode"),
    )
    store = Store.create(path, Schema(fields, 0.03, "cmu-humanoid", {"kept": [1, "two"]}))
    half = -(-len(episodes) // 2)
    for number, chosen in enumerate((episodes[:half], episodes[half:])):
        if chosen:
            _write_rollouts(store, number, number * half, chosen)
    return store


def _write_rollouts(
    store: Store, number: int, first: int, episodes: Sequence[tuple[int, str]]
) -> None:
    rng = np.random.default_rng(number)

    def rows(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    lengths = np.array([length for length, _ in episodes])
    count, total = len(episodes), int(lengths.sum())
    rewards = rows(total)
    endings = np.array([kind for _, kind in episodes])
    ids = first + np.arange(count)
    store.write_part(
        f"part-{number}",
        {
            "obs": rows(total, 5),
            "further_obs": rows(total, 3),
            "action": rows(total, 2),
            "mean_action": rows(total, 2),
            "value": rows(total),
            "advantage": rows(total),
            "reward": rewards,
        },
        {
            "episode": ids,
            "length": lengths,
            "seed": ids * 7,
            "terrain": [("flat", "rough")[i % 2] for i in ids],
            "level": ids % 3,
            "skill": ["walk"] * count,
            "robot": ["cmu-humanoid"] * count,
            "simulator": ["dm_control"] * count,
            "simulator_version": ["1.0"] * count,
            "expert": ["pd"] * count,
            "expert_hash": ["0"] * count,
            "return": np.add.reduceat(rewards.astype(float), np.cumsum(lengths) - lengths),
            "success": ids % 2 == 0,
            "terminated": np.isin(endings, ("terminated", "both")),
            "truncated": np.isin(endings, ("truncated", "both")),
            "clip": [f"CMU_00{number}"] * count,
            "snippet_start": [0] * count,
            "snippet_end": [99] * count,
            "rollout": np.arange(count),
            "random_start": np.arange(count) >= count // 3,
        },
        {"final_obs": rows(count, 5), "final_further_obs": rows(count, 3)},
    )
