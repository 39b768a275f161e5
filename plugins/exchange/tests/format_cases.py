"""What the formats of other projects are tried with beside all others."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.datasets import Field, Store
from gaitforge.plugins.exchange.tests.lerobot.lerobot_files import DATA, read
from tests.datasets.formats.format_stores import (
    PLAIN_FIELDS,
    Case,
    Episode,
    gone,
    halved,
    plain_store,
    spoil_hdf5,
    text,
    without,
)

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


def spoil_parquet(path: Path) -> None:
    table = read(path / DATA)
    rows = table.column("action").to_pylist()
    rows[5] = [float("nan")] * len(rows[5])
    at = table.column_names.index("action")
    kind = table.schema.field("action").type
    pq.write_table(table.set_column(at, "action", pa.array(rows, kind)), path / DATA)


def older(source: Path) -> None:
    """A LeRobot dataset of the version before."""
    path = source / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"codebase_version": "v2.1"}))


ENDS = ("length", "terminated", "truncated")
ROBOMIMIC = Case(
    robomimic_store,
    (*PLAIN_FIELDS, *(field.name for field in ROBOMIMIC_FIELDS)),
    spoil=lambda path: spoil_hdf5(path, "data/demo_3/actions"),
    damages={
        "half": halved(),
        "a demo without actions": without("demo_0/actions"),
        "no demo": without("data/demo_0", "data/demo_1", "data/demo_2", "data/demo_3"),
    },
    required=r"data/demo_\d+/(actions|rewards|dones|obs/.*)",
    notes="gaitforge/episodes",
)
MINARI = Case(
    minari_store,
    (*PLAIN_FIELDS, *(field.name for field in MINARI_FIELDS)),
    spoil=lambda path: spoil_hdf5(path / "data/main_data.hdf5", "episode_3/actions"),
    damages={
        "half of the arrays": halved("data/main_data.hdf5"),
        "no array file": gone("data/main_data.hdf5"),
        "no metadata": gone("data/metadata.json"),
        "metadata that are no JSON": text("data/metadata.json", "{"),
        "empty metadata": text("data/metadata.json", "{}"),
    },
    links=("data/main_data.hdf5", "data/metadata.json", "data"),
    required=r"episode_\d+/(observations|actions|rewards|terminations|truncations)",
    circles=False,  # the library counts groups as episodes
)
LEROBOT = Case(
    lerobot_store,
    (*PLAIN_FIELDS, *(field.name for field in LEROBOT_FIELDS)),
    variants={
        "without notes": Case(
            lerobot_store,
            ("obs", "action", "reward", "grid", "cube", "half", "small", "flags"),
            ENDS,
            False,
            {"notes": False, "episode_stats": False},
        )
    },
    spoil=spoil_parquet,
    damages={
        "no info": gone("meta/info.json"),
        "info that is no JSON": text("meta/info.json", "{"),
        "an empty info": text("meta/info.json", "{}"),
        "an older version": older,
        "no episodes": gone("meta/episodes"),
        "no data": gone("data"),
        "half of the data": halved("data/*/*.parquet"),
        "half of the episodes": halved("meta/episodes/*/*.parquet"),
    },
    links=("data/chunk-000/file-000.parquet", "meta/tasks.parquet", "data", "meta/episodes"),
)
CASES = {
    "lerobot": LEROBOT,
    "minari": replace(
        MINARI,
        variants={
            "without notes": Case(
                plain_store,
                ("obs", "action", "reward", "final_obs"),
                (*ENDS, "seed"),
                False,
                {"notes": False},
            ),
            **{kind: replace(MINARI, options={"storage": kind}) for kind in ("arrow", "parquet")},
        },
    ),
    "robomimic": replace(
        ROBOMIMIC,
        variants={
            "of Isaac Lab": replace(
                ROBOMIMIC, options={"layout": "isaaclab", "compression": "none"}
            ),
            **{
                f"{layout} without notes": Case(
                    plain_store,
                    PLAIN_FIELDS,
                    ("length", "terminated", "success", "seed"),
                    False,
                    {"layout": layout, "notes": False},
                )
                for layout in ("robomimic", "isaaclab")
            },
        },
    ),
}
