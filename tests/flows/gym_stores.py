"""Small stores in the form of an imported D4RL file, of episodes that no one simulated."""

from pathlib import Path

import numpy as np

from gaitforge.datasets import Field, Schema, Store, create_store
from gaitforge.datasets.formats.sources import catalog_columns
from gaitforge.datasets.schema import TASK_AND_QUALITY
from gaitforge.learners.training.config import TrainConfig

RETURNS = {"random": -5.0, "expert": 300.0}
NAMES = {
    "HalfCheetah-v5": "halfcheetah",
    "Hopper-v5": "hopper",
    "Walker2d-v5": "walker2d",
    "AdroitHandDoor-v1": "door",
}
"""An environment's id -> D4RL's name."""


def planar_slices(joints: int) -> dict[str, tuple[int, int]]:
    """The observation of a robot in a plane with this many joints, as Gymnasium has it."""
    ends = (2, 2 + joints, 5 + joints, 5 + 2 * joints)
    names = ("root_pos", "joint_pos", "root_vel", "joint_vel")
    return dict(zip(names, zip((0, *ends), ends, strict=False), strict=True))


SLICES = {
    "halfcheetah": planar_slices(6),
    "hopper": planar_slices(3),
    "walker2d": planar_slices(6),
    "door": {
        "joint_pos": (0, 27),
        "latch_pos": (27, 28),
        "door_hinge_pos": (28, 29),
        "palm_pos": (29, 32),
        "handle_pos": (32, 35),
        "palm_to_handle": (35, 38),
        "door_open": (38, 39),
    },
}
CONTROL_DT_S = {"halfcheetah": 0.05, "hopper": 0.008, "walker2d": 0.008, "door": 0.01}
QUALITIES = ("medium", "medium-replay", "expert")
ACT_DIM = 3

TINY = TrainConfig(
    model_overrides={"hidden_dim": 8, "decoder_dim": 8, "n_layers": 1, "n_modes": 2},
    objective="return",
    steps=2,
    batch_size=4,
    window_len=8,
    held_out_fraction=0.0,
    history_every=1,
    threads=1,
)
"""A training of such a store that takes a moment."""


def make_gym_store(
    path: Path,
    env: str = "Hopper-v5",
    qualities: tuple[str, ...] = QUALITIES,
    episodes: int = 12,
    references: bool = True,
) -> Path:
    """A part per quality; the last episode of medium-replay is cut off, the others terminated."""
    name = NAMES[env]
    slices = SLICES[name]
    obs_dim = max(stop for _, stop in slices.values())
    attributes = {"task": name, "format": "gymnasium"}
    schema = Schema(
        fields=(
            Field("obs", (obs_dim,), slices=slices),
            Field("action", (ACT_DIM,)),
            Field("reward"),
        ),
        control_dt_s=CONTROL_DT_S[name],
        robot=name,
        attributes=attributes | ({"reference_returns": RETURNS} if references else {}),
        group_by=TASK_AND_QUALITY,
    )
    store = create_store(path, schema)
    for number, quality in enumerate(qualities):
        _write_part(store, name, quality, number, episodes)
    return path


def _write_part(store: Store, name: str, quality: str, number: int, episodes: int) -> None:
    rng = np.random.default_rng(number)
    lengths = rng.integers(5, 20, episodes)
    steps = int(lengths.sum())
    (obs_dim,) = store.schema.field("obs").shape
    obs = rng.normal(size=(steps, obs_dim)).astype(np.float32)
    action = np.tanh(obs[:, :ACT_DIM]).astype(np.float32)
    reward = rng.uniform(0, 2 + number, steps).astype(np.float32)
    terminated = np.ones(episodes, bool)
    terminated[-1] = quality != "medium-replay"
    returns = [float(part.sum()) for part in np.split(reward, np.cumsum(lengths)[:-1])]
    columns = catalog_columns(
        0,
        lengths,
        f"{number:07x}",
        TASK_AND_QUALITY,
        task=name,
        quality=quality,
        robot=name,
        simulator="mujoco",
        expert=quality,
        success=~terminated,
        terminated=terminated,
        truncated=np.zeros(episodes, bool),
        **{"return": np.array(returns)},
    )
    store.write_part(f"{quality}-0000", {"obs": obs, "action": action, "reward": reward}, columns)
