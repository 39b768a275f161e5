"""Files in MoCapAct's schema with known content, written with h5py alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

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
