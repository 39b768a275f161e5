"""The keys of a robomimic file and how a store's fields map to them.

A demo is a group `data/demo_K` with `actions`, `obs/NAME`, in most files `rewards`, `dones` and
`next_obs/NAME`, and whatever else was recorded, one row a step. `mask/NAME` lists demos (a filter
key). Isaac Lab's recorder (`HDF5DatasetFileHandler`) writes the same with further nested groups,
one row of `initial_state/...` a demo, and the attributes `success` and `seed`. We keep what else
there is once an episode below `episode/`.
"""

import re
from collections.abc import Collection, Mapping

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.hdf5 import keys_clash, next_holds_final
from gaitforge.datasets.formats.sources import field_name, free_name, tiling_slices
from gaitforge.datasets.schema import STREAM_KEYS, Schema

DATA = "data"
MASK = "mask"
NOTES = "gaitforge"
OBS = "obs"
NEXT = "next_obs"
ACTIONS = "actions"
REWARDS = "rewards"
DONES = "dones"
INITIAL_STATE = "initial_state/"
EPISODE = "episode/"
PER_EPISODE = (INITIAL_STATE, EPISODE)
SAMPLES = "num_samples"
SUCCESS = "success"
SEED = "seed"
TOTAL = "total"
ENV_ARGS = "env_args"
NESTED = "nested"
REMEDY = f"delete the group {NOTES} to use the arrays"

KEYS = "robomimic_keys"
"""Attribute of the schema: key by a field's or slice's name -> key of the imported file."""

_KEY = re.compile(r"[^/\0.][^/\0]*(/[^/\0.][^/\0]*)*")
_OWN = {"action": ACTIONS, "reward": REWARDS, NEXT: f"{NEXT}/state"}
_RESERVED = ("obs", "action", "reward", *STREAM_KEYS)


def own_key(name: str, per: str = "step") -> str:
    """The key by a field's name: `obs_NAME` is below `obs`, fields per episode below `episode`."""
    if per == "episode":
        key = re.sub("^initial_state_", INITIAL_STATE, name)
        return key if key != name else f"{EPISODE}{name}"
    return _OWN.get(name) or re.sub("^obs_", "obs/", name)


def name_of(key: str, taken: Collection[str]) -> str:
    """A field's name for a key: lower case, with a number where it is `taken` or reserved."""
    name = re.sub(r"^(?=[^a-z])", "key_", field_name(key.removeprefix(EPISODE)))
    return free_name(name, {*taken, *_RESERVED})


def keys_of(schema: Schema, nested: bool) -> dict[str, list[str]]:
    """Field -> the keys below a demo whose arrays hold it side by side; DatasetError for a clash.

    `nested` takes the groups of an imported file; otherwise names are flat, as robomimic has them.
    """
    noted = schema.attributes.get(KEYS)
    noted = noted if isinstance(noted, Mapping) else {}

    def placed(key: str) -> str:
        noted_key = str(noted.get(key, key))
        return noted_key if nested or noted_key.count("/") == key.count("/") else key

    keys = {
        field.name: [placed(own_key(field.name, field.per))]
        for field in schema.fields
        if field.name not in ("obs", "final_obs")
    }
    parts = [placed(f"{OBS}/{name}") for name, _ in tiling_slices(schema.field("obs"))]
    has_others = any(
        key.startswith(f"{OBS}/") for field_keys in keys.values() for key in field_keys
    )
    keys["obs"] = parts or ([OBS] if nested and not has_others else [f"{OBS}/state"])
    if next_holds_final(schema, NEXT):
        keys["final_obs"] = [f"next_{key}" for key in keys["obs"]]
    elif "final_obs" in schema.names("episode"):
        keys["final_obs"] = [f"{EPISODE}final_obs"]
    every = sorted([DONES, *(key for field_keys in keys.values() for key in field_keys)])
    if keys_clash(every):
        raise DatasetError(f"two fields would have one key, or one in the other's: {listed(every)}")
    if odd := [key for key in every if not _KEY.fullmatch(key)]:
        raise DatasetError(f"{listed(odd)} cannot be keys of a robomimic file")
    return keys
