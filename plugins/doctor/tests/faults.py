"""A store without faults, and faults to put into it, one kind at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.datasets import Field, Schema, Store

EPISODES, STEPS = 48, 60
"""Episodes, and steps of the longest."""

Arrays = dict[str, np.ndarray]
Columns = dict[str, Any]

SLICES = {
    "projected_gravity": (0, 3),
    "joint_pos": (3, 9),
    "joint_vel": (9, 15),
    "command": (15, 18),
}
SCHEMA = Schema(
    (
        Field("obs", (18,), slices=SLICES),
        Field("action", (6,)),
        Field("reward"),
        Field("state_pos", (3,), unit="m"),
        Field("time_s", unit="s"),
    ),
    control_dt_s=0.02,
    robot="aliengo",
)


def clean(seed: int = 0) -> tuple[Arrays, Columns]:
    """Walking-like motion with noise; commands, and a code of the skill, are constant."""
    rng = np.random.default_rng(seed)
    lengths = np.where(np.arange(EPISODES) % 5 == 1, rng.integers(20, 40, EPISODES), STEPS)
    parts = [_episode(rng, int(length)) for length in lengths]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count = np.arange(EPISODES)
    fell = lengths < STEPS
    columns: Columns = {
        "episode": (0xA293CB << 32) + count,
        "length": lengths,
        "seed": 1000 + count,
        "terrain": np.where(count % 2, "flat", "rough"),
        "skill": "walk",
        "level": count % 3,
        "robot": "aliengo",
        "simulator": "mujoco",
        "simulator_version": "3.17.0",
        "expert": "ppo",
        "expert_hash": "00",
        "return": _returns(arrays["reward"], lengths),
        "success": ~fell,
        "terminated": fell,
        "truncated": ~fell,
        "action_noise": np.array([0.0, 0.25, 0.5])[count // 2 % 3],
    }
    return arrays, {
        name: np.repeat(values, EPISODES) if np.ndim(values) == 0 else np.asarray(values)
        for name, values in columns.items()
    }


def _episode(rng: np.random.Generator, length: int) -> Arrays:
    time = np.arange(length) * 0.02
    phase = 2 * np.pi * (1.5 * time[:, None] + rng.uniform(size=6))
    command = np.tile([rng.uniform(0.3, 1.0), 0.0, 1.0], (length, 1))
    joints = 0.5 * np.sin(phase) * command[:, :1] + rng.normal(0, 0.01, (length, 6))
    speeds = 5 * np.cos(phase) * command[:, :1] + rng.normal(0, 0.5, (length, 6))
    gravity = np.array([0.0, 0.0, -1.0]) + rng.normal(0, 0.03, (length, 3))
    place = np.cumsum(command[:, :1] * [0.02, 0.0, 0.0] + rng.normal(0, 1e-3, (length, 3)), axis=0)
    action = np.cos(phase + 0.3) * command[:, :1] + rng.normal(0, 0.05, (length, 6))
    reward = 0.06 + rng.normal(0, 0.01, length)
    arrays = {"obs": np.concatenate([gravity, joints, speeds, command], axis=1), "action": action}
    arrays |= {"reward": reward, "state_pos": place, "time_s": time}
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def _returns(reward: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.add.reduceat(reward, np.cumsum(lengths) - lengths, dtype=np.float64)


def _spans(columns: Columns) -> list[slice]:
    stops = np.cumsum(columns["length"])
    return [slice(int(b - n), int(b)) for b, n in zip(stops, columns["length"], strict=True)]


def _add(arrays: Arrays, columns: Columns, source: int, length: int = 0) -> slice:
    """Append an episode's first steps (default: all) again, under another id and seed."""
    span = _spans(columns)[source]
    length = length or span.stop - span.start
    for name, values in arrays.items():
        arrays[name] = np.concatenate([values, values[span.start : span.start + length]])
    last = int(columns["episode"].max())
    for name, values in columns.items():
        columns[name] = np.append(values, values[source])
    columns["length"][-1], columns["episode"][-1], columns["seed"][-1] = length, last + 1, last
    columns["return"] = _returns(arrays["reward"], columns["length"])
    return _spans(columns)[-1]


def constant_channel(arrays: Arrays, columns: Columns) -> None:
    """A dead joint velocity."""
    arrays["obs"][:, 10] = 0.0


def rarely_changing(arrays: Arrays, columns: Columns) -> None:
    """A switch among the joint velocities that is pressed in two steps of two episodes."""
    arrays["obs"][:, 10] = 0.0
    for span in _spans(columns)[3:5]:
        arrays["obs"][span.start + 9, 10] = 1.0


def barely_changing(arrays: Arrays, columns: Columns) -> None:
    """A joint that does not move, whose angle has the sensor's rounding."""
    noise = np.random.default_rng(1).normal(0, 2e-5, len(arrays["obs"]))
    arrays["obs"][:, 4] = 0.8 + np.clip(noise, -3e-5, 3e-5)


def unit(arrays: Arrays, columns: Columns) -> None:
    """Joint angles in degrees."""
    arrays["obs"][:, 3:9] = np.degrees(arrays["obs"][:, 3:9])


def unit_of_some(arrays: Arrays, columns: Columns) -> None:
    """Joint velocities in degrees per second, in one episode."""
    span = _spans(columns)[5]
    arrays["obs"][span, 9:15] = np.degrees(arrays["obs"][span, 9:15])


def action_limit(arrays: Arrays, columns: Columns) -> None:
    """Actions that are cut off."""
    arrays["action"] = np.clip(arrays["action"], -0.2, 0.2)


def frozen_sensor(arrays: Arrays, columns: Columns) -> None:
    """A gyroscope that hangs for 18 steps."""
    span = _spans(columns)[2]
    arrays["obs"][span.start + 6 : span.start + 25, 2] = -0.97


def jump(arrays: Arrays, columns: Columns) -> None:
    """A base that is somewhere else at once."""
    span = _spans(columns)[4]
    arrays["state_pos"][span.start + 11 : span.stop, 0] += 3.0


def time_jump(arrays: Arrays, columns: Columns) -> None:
    """A clock that goes back."""
    span = _spans(columns)[4]
    arrays["time_s"][span.start + 11 : span.stop] -= 0.1


def one_step(arrays: Arrays, columns: Columns) -> None:
    """An episode of one step."""
    _add(arrays, columns, 0, 1)


def copy(arrays: Arrays, columns: Columns) -> None:
    """An episode that is there twice."""
    _add(arrays, columns, 6)


def near_copy(arrays: Arrays, columns: Columns) -> None:
    """An episode that is there twice, once rounded."""
    span = _add(arrays, columns, 6)
    arrays["obs"][span] *= np.float32(1.001)
    arrays["action"][span] *= np.float32(1.0 + 1e-6)


def seed_in_both(arrays: Arrays, columns: Columns) -> None:
    """A seed on both sides of a split."""
    columns["split"] = np.where(np.arange(len(columns["seed"])) % 8 == 3, "val", "train")
    columns["seed"][3] = columns["seed"][5]


def time_limit_as_terminal(arrays: Arrays, columns: Columns) -> None:
    """Ends by the time limit that count as terminal."""
    columns["terminated"] |= columns["truncated"]
    columns["truncated"] = ~columns["terminated"]


def success_without_reward(arrays: Arrays, columns: Columns) -> None:
    """A sparse reward that is missing in one successful episode."""
    arrays["reward"][:] = 0
    ends = np.cumsum(columns["length"]) - 1
    arrays["reward"][ends[columns["success"]][1:]] = 1
    columns["return"] = _returns(arrays["reward"], columns["length"])


def returns(arrays: Arrays, columns: Columns) -> None:
    """A return that is not the sum of the rewards."""
    columns["return"] = columns["return"] + np.eye(len(columns["return"]))[7]


def unbalanced(arrays: Arrays, columns: Columns) -> None:
    """A terrain with a single episode."""
    columns["terrain"] = np.where(np.arange(len(columns["seed"])) == 7, "stairs", "flat")


def noise_mix(arrays: Arrays, columns: Columns) -> None:
    """A terrain without any noise."""
    columns["action_noise"] = np.where(columns["terrain"] == "flat", 0.0, columns["action_noise"])


def rough(arrays: Arrays, columns: Columns) -> None:
    """Actions that shake."""
    span = _spans(columns)[10]
    arrays["action"][span] = np.where(np.arange(span.stop - span.start) % 2, 0.9, -0.9)[:, None]


def idle(arrays: Arrays, columns: Columns) -> None:
    """A robot that is not driven."""
    span = _spans(columns)[10]
    arrays["action"][span] *= np.float32(1e-3)


def conflicting_labels(arrays: Arrays, columns: Columns) -> None:
    """Episodes driven again, in the opposite way."""
    for source in range(12):
        span = _add(arrays, columns, source)
        arrays["obs"][span] *= np.float32(1.0001)
        arrays["action"][span] *= -1


FAULTS: dict[str, tuple[Callable[[Arrays, Columns], None], ...]] = {
    "constant-channel": (constant_channel,),
    "near-constant": (rarely_changing, barely_changing),
    "unit": (unit, unit_of_some),
    "action-limit": (action_limit,),
    "frozen-sensor": (frozen_sensor,),
    "jump": (jump,),
    "time-jump": (time_jump,),
    "one-step": (one_step,),
    "copy": (copy,),
    "near-copy": (near_copy,),
    "seed-in-both": (seed_in_both,),
    "time-limit-as-terminal": (time_limit_as_terminal,),
    "success-without-reward": (success_without_reward,),
    "return": (returns,),
    "unbalanced": (unbalanced,),
    "noise-mix": (noise_mix,),
    "rough": (rough,),
    "idle": (idle,),
    "conflicting-labels": (conflicting_labels,),
}
"""Name of a finding -> what causes it."""


def write_store(path: Path, arrays: Arrays, columns: Columns, schema: Schema = SCHEMA) -> Store:
    """A store of two parts."""
    store = Store.create(path, schema)
    half = len(columns["length"]) // 2
    middle = int(columns["length"][:half].sum())
    for name, rows, steps in (
        ("a", slice(0, half), slice(0, middle)),
        ("b", slice(half, None), slice(middle, None)),
    ):
        own = {key: values[rows].tolist() for key, values in columns.items()}
        store.write_part(name, {key: values[steps] for key, values in arrays.items()}, own)
    return store


_KEYS = {
    "d4rl": {"action": "actions", "reward": "rewards"},
    "minari": {"action": "episode_0/actions", "reward": "episode_0/rewards"},
    "lerobot": {"action": "action", "reward": "next.reward"},
    "robomimic": {"action": "data/demo_0/actions", "reward": "data/demo_0/rewards"},
}
_KEYS["isaaclab"] = _KEYS["robomimic"]


def put(path: Path, name: str, field: str, step: int, value: float) -> None:
    """Change a value of an export's first episode: what no store or export would let pass."""
    key = _KEYS[name][field]
    if name == "lerobot":
        [file] = path.glob("data/*/*.parquet")
        table = pq.read_table(file)
        kind = table.schema.field(key)
        rows = table.column(key).to_pylist()
        if field == "action":
            rows[step][2] = value
        else:
            rows[step] = value
        column = pa.array(rows, kind.type)
        pq.write_table(table.set_column(table.schema.get_field_index(key), kind, column), file)
        return
    import h5py  # of the extra hdf5

    file = path / "data" / "main_data.hdf5" if name == "minari" else path
    with h5py.File(file, "r+") as opened:
        rows: Any = opened[key]
        rows[(step, 2) if field == "action" else step] = value
