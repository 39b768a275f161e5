"""Stores that each format can hold, and what of them has to come back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.legged.data import legged_schema
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.datasets import Field, Schema, Selection, Store
from gaitforge.plugins.gym.fcnet.fcnet_schema import previous_actions
from tests.datasets.making import part_input

ENDINGS = {
    "terminated": (True, False),
    "truncated": (False, True),
    "cut off": (False, False),
    "both": (True, True),
}
"""Ways an episode ends: the catalog's (terminated, truncated)."""

Episode = tuple[int, str]
"""Its length, and the name of its ending."""


def random_episodes(count: int, seed: int = 0) -> list[Episode]:
    """Lengths from 1 on, and every kind of ending in the middle and at the end."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(0.2, count)
    return [
        (int(n), str(kind))
        for n, kind in zip(lengths, rng.choice(list(ENDINGS), count), strict=True)
    ]


def _columns(episodes: Sequence[Episode], first: int, rewards: np.ndarray) -> dict[str, Any]:
    lengths = np.array([length for length, _ in episodes])
    ends = np.array([ENDINGS[kind] for _, kind in episodes])
    ids = first + np.arange(len(episodes))
    starts = np.cumsum(lengths) - lengths
    return part_input(lengths.tolist(), first)["episodes"] | {
        "skill": [("stand", "run", "größe")[i % 3] for i in ids],
        "return": np.add.reduceat(rewards.astype(float), starts),
        "terminated": ends[:, 0],
        "truncated": ends[:, 1],
    }


Values = dict[str, np.ndarray]


def _store(
    path: Path,
    schema: Schema,
    episodes: Sequence[Episode],
    parts: int,
    change: Callable[[Values, np.ndarray], Values] = lambda values, lengths: {},
    further: Callable[[int, int], dict[str, Any]] = lambda number, count: {},
) -> Store:
    """Random values in every field, but those that `change` gives, and `further` columns."""
    store, first = Store.create(path, schema), 0
    for number, chosen in enumerate(_shares(episodes, parts)):
        rng, lengths = np.random.default_rng(number), np.array([each for each, _ in chosen])
        rows = {"step": int(lengths.sum()), "episode": len(chosen)}
        values = {each.name: _random(rng, each, rows[each.per]) for each in schema.fields}
        values |= change(values, lengths)
        steps = {name: values.pop(name) for name in schema.names("step")}
        columns = _columns(chosen, first, steps["reward"]) | further(number, len(chosen))
        store.write_part(f"part-{number}", steps, columns, values)
        first += len(episodes)
    return store


def _random(rng: np.random.Generator, field: Field, rows: int) -> np.ndarray:
    shape = (rows, *field.shape)
    if np.dtype(field.dtype).kind == "f":
        return rng.normal(size=shape).astype(field.dtype)
    return rng.integers(0, 2 if field.dtype == "bool" else 100, shape).astype(field.dtype)


def plain_store(
    path: Path, episodes: Sequence[Episode], parts: int = 2, further: Sequence[Field] = ()
) -> Store:
    """Observation, action, reward, integers, float64, the final observation, and further fields."""
    fields = (
        Field("obs", (5,), unit="rad", slices={"gravity": (0, 3), "command": (3, 5)}),
        Field("action", (2,)),
        Field("reward"),
        Field("info_qpos", (3,), "float64"),
        Field("info_contact", (4,), "int8"),
        Field("final_obs", (5,), per="episode"),
        *further,
    )
    schema = Schema(fields, 0.02, "aliengo", {"kept": [1, "two"]})
    return _store(path, schema, episodes, parts)


def legged_store(path: Path, episodes: Sequence[Episode], parts: int = 2) -> Store:
    """Our robots' schema, whose last action is the action of the step before."""

    def with_last_action(values: Values, lengths: np.ndarray) -> Values:
        obs = values["obs"]
        obs[:, slice(*POLICY_SLICES["last_action"])] = previous_actions(values["action"], lengths)
        return {"obs": obs}

    schema = legged_schema(load_robot("aliengo"))
    return _store(path, schema, episodes, parts, with_last_action)


def rollout_store(path: Path, episodes: Sequence[Episode], parts: int = 2) -> Store:
    """Rollouts of a clip a part, as a file of MoCapAct has them."""
    final = (("obs", 5), ("further_obs", 3))
    fields = (
        Field("obs", (5,), slices={"joints_pos": (0, 3), "sensors_gyro": (3, 5)}),
        Field("further_obs", (3,), slices={"appendages_pos": (0, 2), "time_in_clip": (2, 3)}),
        *(Field(name, (2,)) for name in ("action", "mean_action")),
        *(Field(name) for name in ("value", "advantage", "reward")),
        *(Field(f"final_{name}", (width,), per="episode") for name, width in final),
    )

    def clips(number: int, count: int) -> dict[str, Any]:
        fixed = {"skill": "walk", "clip": f"CMU_00{number}", "snippet_start": 0, "snippet_end": 99}
        rollouts = np.arange(count)
        return {name: [value] * count for name, value in fixed.items()} | {
            "rollout": rollouts,
            "random_start": rollouts >= count // 3,
        }

    schema = Schema(fields, 0.03, "cmu-humanoid", {"kept": [1, "two"]})
    return _store(path, schema, episodes, parts, further=clips)


def _shares(episodes: Sequence[Episode], parts: int) -> list[Sequence[Episode]]:
    cuts = np.linspace(0, len(episodes), parts + 1).astype(int)
    return [episodes[a:b] for a, b in pairwise(cuts) if b > a]


@dataclass(frozen=True)
class Case:
    """What a format is tried with.

    Attributes:
        make: a store of the given episodes that the format can hold.
        fields: that come back bit for bit; columns: of the catalog, None for all.
        schema: whether the schema comes back too.
        options: of the export.
    """

    make: Callable[[Path, Sequence[Episode]], Store]
    fields: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    schema: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


ROLLOUT_FIELDS = (
    *("obs", "further_obs", "action", "mean_action", "value", "advantage", "reward"),
    *("final_obs", "final_further_obs"),
)
PLAIN_FIELDS = ("obs", "action", "reward", "info_qpos", "info_contact", "final_obs")

MINARI_FIELDS = (
    Field("info_flag", (), "bool"),
    Field("info_feet", (4,), "bool"),
    Field("info_image", (3, 2, 2), "uint8"),
    Field("info_half", (2, 3), "float16"),
    Field("info_one", (1,), "int64"),
    Field("final_info_flag", (), "bool", per="episode"),
    Field("final_info_image", (3, 2, 2), "uint8", per="episode"),
)
"""Dtypes and shapes that its infos hold beside those of the plain store."""


def minari_store(path: Path, episodes: Sequence[Episode], parts: int = 2) -> Store:
    """The plain store with fields of every kind that a Minari data set holds."""
    return plain_store(path, episodes, parts, MINARI_FIELDS)


LEROBOT_FIELDS = (
    Field("grid", (3, 4)),
    Field("cube", (2, 3, 2), "uint8"),
    Field("half", (2,), "float16"),
    Field("small", (), "int8"),
    Field("flags", (4,), "bool"),
    Field("one", (1,), "float64"),
    Field("timestamp", (), "int64"),
)
"""Fields of every kind of shape and dtype, one with the name of a feature of LeRobot's own."""


def lerobot_store(path: Path, episodes: Sequence[Episode], parts: int = 2) -> Store:
    """The plain store with fields of every kind that a LeRobot dataset holds."""
    return plain_store(path, episodes, parts, LEROBOT_FIELDS)


ROBOMIMIC_FIELDS = (
    Field("obs_grid", (3, 4)),
    Field("half", (2,), "float16"),
    Field("flags", (4,), "bool"),
    Field("initial_state_pose", (7,), per="episode"),
    Field("mass", (), "float64", per="episode"),
)
"""Observations of their own, other arrays, and both kinds of fields per episode."""


def robomimic_store(path: Path, episodes: Sequence[Episode], parts: int = 2) -> Store:
    """The plain store with fields of every kind that a robomimic file holds."""
    return plain_store(path, episodes, parts, ROBOMIMIC_FIELDS)


_ROBOMIMIC = Case(robomimic_store, (*PLAIN_FIELDS, *(each.name for each in ROBOMIMIC_FIELDS)))

CASES: dict[str, Case] = {
    "d4rl": Case(plain_store, PLAIN_FIELDS),
    "mocapact": Case(rollout_store, ROLLOUT_FIELDS),
    "lerobot": Case(lerobot_store, (*PLAIN_FIELDS, *(each.name for each in LEROBOT_FIELDS))),
    "minari": Case(minari_store, (*PLAIN_FIELDS, *(each.name for each in MINARI_FIELDS))),
    "robomimic": _ROBOMIMIC,
    "fcnet": Case(legged_store, ("obs", "action"), ("length",), schema=False),
}

ENDS = ("length", "terminated", "truncated")
VARIANTS: dict[str, tuple[str, Case]] = {
    **{name: (name, case) for name, case in CASES.items()},
    "d4rl without notes": (
        "d4rl",
        Case(plain_store, PLAIN_FIELDS, (*ENDS[:2], "return"), False, {"notes": False}),
    ),
    "lerobot without notes": (
        "lerobot",
        Case(
            lerobot_store,
            ("obs", "action", "reward", "grid", "cube", "half", "small", "flags"),
            ENDS,
            False,
            {"notes": False, "episode_stats": False},
        ),
    ),
    "minari without notes": (
        "minari",
        Case(
            plain_store,
            ("obs", "action", "reward", "final_obs"),
            (*ENDS, "seed"),
            False,
            {"notes": False},
        ),
    ),
    "robomimic of Isaac Lab": (
        "robomimic",
        replace(_ROBOMIMIC, options={"layout": "isaaclab", "compression": "none"}),
    ),
    **{
        f"robomimic {layout} without notes": (
            "robomimic",
            Case(
                plain_store,
                PLAIN_FIELDS,
                ("length", "terminated", "success", "seed"),
                False,
                {"layout": layout, "notes": False},
            ),
        )
        for layout in ("robomimic", "isaaclab")
    },
    **{
        f"minari {each}": ("minari", replace(CASES["minari"], options={"storage": each}))
        for each in ("arrow", "parquet")
    },
}
"""Name -> a format and what of it comes back, with options of the export too."""


def assert_equal(case: Case, before: Selection, after: Selection) -> None:
    """Everything that the case promises is the same, bit for bit, in the same order."""
    for name in case.fields:
        first, second = before.read(name), after.read(name)
        assert first.dtype == second.dtype
        assert first.tobytes() == second.tobytes(), name
    rows, again = before.episodes(), after.episodes()
    names = case.columns or [n for n in rows.column_names if n not in ("part", "start")]
    for name in names:
        assert rows.column(name).to_pylist() == again.column(name).to_pylist(), name
    if case.schema:
        assert after.store.schema == before.store.schema
