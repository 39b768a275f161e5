"""A small real store of random walks with a learnable action, and policies made from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaitforge.common.extensions import extension_names
from gaitforge.datasets import Field, Schema, Selection, Store
from gaitforge.datasets.selection import Unit
from gaitforge.learners.models.registry import PRESETS, build_network, preset
from gaitforge.learners.policy_network import GaussianSpread, Normaliser, PolicyNetwork
from gaitforge.learners.tokens import Condition, TokenLayout
from gaitforge.learners.training.config import TrainConfig
from tests.datasets.making import part_input

OBS_SLICES = {
    "projected_gravity": (0, 3),
    "joint_vel": (3, 15),
    "sin_joint_pos": (15, 27),
    "cos_joint_pos": (27, 39),
    "base_ang_vel_body": (39, 42),
    "last_action": (42, 54),
    "command": (54, 70),
}
SMALL = {
    "fcnet": {"hidden_dim": 16, "decoder_dim": 8, "n_layers": 2, "n_modes": 3, "context_len": 8},
    "bot": {"embed_dim": 8, "n_layers": 1, "feedforward_dim": 8},
    "flow": {"hidden_dim": 32, "n_layers": 2, "context_len": 4},
}
KINDS = tuple(dict.fromkeys(entry.kind for entry in PRESETS.values()))
"""Every kind that has a preset, also those of plug-ins."""
CONTEXT = 6
RETURN_KINDS = ("dt", "dt-retnet")
"""Kinds that need return tokens."""
OF_VALUES = [name for name in ("td3-bc", "iql") if name in extension_names("objective")]
"""Objectives of plug-ins that are here, which learn values."""
_ATTENTION: dict[str, Any] = {"hidden_dim": 16, "n_heads": 2, "n_layers": 2}
KIND_SETTINGS: dict[str, dict[str, Any]] = {
    "fcnet": {"hidden_dim": 16, "decoder_dim": 8, "n_layers": 2, "n_modes": 3},
    "bot": {"embed_dim": 8, "n_layers": 2, "feedforward_dim": 8, "history": CONTEXT},
    "body-mlp": {"embed_dim": 4, "feedforward_dim": 16, "history": CONTEXT},
    "transformer": _ATTENTION,
    "dt": _ATTENTION,
    "retnet": _ATTENTION,
    "dt-retnet": _ATTENTION,
    "history-mlp": {"hidden_dim": 16, "n_layers": 2},
    "mlp": {"hidden_dim": 16, "n_layers": 2},
    "flow": {"hidden_dim": 16, "n_layers": 2, "temperature": 0.5},
    "gru": {"hidden_dim": 16, "n_layers": 2},
    "lstm": {"hidden_dim": 16, "n_layers": 2},
}
"""Small networks of every kind; those with a context see `CONTEXT` steps."""
for _kind in ("fcnet", "transformer", "dt", "history-mlp", "flow"):
    KIND_SETTINGS[_kind] = KIND_SETTINGS[_kind] | {"context_len": CONTEXT}
KIND_SETTINGS["transformer-published"] = KIND_SETTINGS["transformer"]
NETWORKS = (*KINDS, "transformer-published")
"""Presets of every kind, and one whose options make it another network."""


@dataclass(frozen=True)
class Seen:
    """What a policy is shown in control.

    Attributes:
        policy: (N, D) observations; reward: (N,) of the step before.
    """

    policy: np.ndarray
    reward: np.ndarray


SHORT = TrainConfig(
    model="fcnet",
    model_overrides=SMALL["fcnet"],
    steps=24,
    batch_size=8,
    window_len=8,
    held_out_fraction=0.2,
    history_every=1,
    validation_every=9,
    checkpoint_every=7,
    threads=1,
)


class SpoiledSelection(Selection):
    """A selection that reads one NaN, which our own store would have refused to write."""

    spoiled_field: str

    def read_unit(self, field: str, unit: Unit, out: np.ndarray | None = None) -> np.ndarray:
        rows = super().read_unit(field, unit, out)
        if field == self.spoiled_field:
            rows[7] = np.nan
        return rows


def make_selection(
    path: Path,
    episodes: int = 24,
    spoil: str | None = None,
    seed: int = 3,
    expert_std: float | None = None,
    final_obs: bool = False,
    failing: bool = False,
) -> Selection:
    """All episodes of a new store.

    `spoil` names a field that is read with a NaN. With `expert_std` the action is the mean of an
    expert's Gaussian, which is stored as well. `failing`: every second episode terminates.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 40, episodes)
    steps = int(lengths.sum())
    walk = np.cumsum(rng.normal(size=(steps, 70)) * 0.1, axis=0).astype(np.float32)
    action = np.tanh(walk[:, 3:15] + walk[:, 15:27]).astype(np.float32)
    reward = rng.uniform(0, 1, steps).astype(np.float32)
    fields = {"obs": walk, "action": action, "reward": reward}
    described = [Field("obs", (70,), slices=OBS_SLICES), Field("action", (12,)), Field("reward")]
    if expert_std is not None:
        fields |= {"action_mean": action, "action_std": np.full_like(action, expert_std)}
        described += [Field("action_mean", (12,)), Field("action_std", (12,))]
    finals = {}
    if final_obs:
        finals["final_obs"] = rng.normal(size=(episodes, 70)).astype(np.float32)
        described.append(Field("final_obs", (70,), slices=OBS_SLICES, per="episode"))
    failed = np.arange(episodes) % 2 == 1 if failing else np.zeros(episodes, bool)
    ends = np.cumsum(lengths)
    store = Store.create(path, Schema(tuple(described), control_dt_s=0.02, robot="aliengo"))
    columns = part_input(lengths.tolist())["episodes"] | {
        "return": np.add.reduceat(reward.astype(np.float64), ends - lengths),
        "terminated": failed,
        "truncated": ~failed,
    }
    store.write_part("walks", fields, columns, finals)
    everything = store.select()
    if spoil is None:
        return everything
    spoiled = SpoiledSelection(store, everything.catalog, everything.rows)
    spoiled.spoiled_field = spoil
    return spoiled


def make_policy(
    model: str = "fcnet",
    tokens: str = "obs",
    return_scale: float = 1.0,
    gaussian: GaussianSpread | None = None,
    return_zero: float = 0.0,
    settings: Mapping[str, Any] | None = None,
    layout: TokenLayout | None = None,
    condition: Condition | None = None,
) -> PolicyNetwork:
    """A small untrained policy with uneven normalisers."""
    condition = condition or Condition()
    layout = layout or TokenLayout(tokens, OBS_SLICES, condition_dim=condition.width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(preset(model, settings or SMALL[model]), layout, act_dim=12)
    ramp = np.linspace(0.5, 2.0, 70)
    return PolicyNetwork(
        network,
        layout,
        Normaliser(ramp - 1.0, ramp),
        Normaliser(ramp[:12], ramp[:12]),
        return_scale,
        gaussian,
        return_zero,
        condition,
    )
