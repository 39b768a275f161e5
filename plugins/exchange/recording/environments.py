"""What batched environments of several libraries return, as arrays of NumPy.

Told apart by what they have, not by their class: gymnasium's vector environments (and a single
one), rsl-rl's `VecEnv`, and the manager environments of mjlab and Isaac Lab.

A library resets an environment whose episode ended in one of three ways, named as gymnasium does:

next_step: `step` returns the last observation; the next call of `step` ignores that robot's action
    and returns the first observation of its next episode.
same_step: `step` returns the first observation of the next episode. The last one is in
    `info["final_obs"]` (gymnasium), or is never computed (mjlab, Isaac Lab, rsl-rl).
disabled: `step` returns the last observation, and the loop calls `reset` with a mask or ids.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gaitforge.common.errors import DatasetError, listed

Autoreset = Literal["next_step", "same_step", "disabled"]
NEXT_STEP: Autoreset = "next_step"
SAME_STEP: Autoreset = "same_step"
DISABLED: Autoreset = "disabled"
AUTORESET = (NEXT_STEP, SAME_STEP, DISABLED)

OBS = "obs"
FINAL_OBS = "final_obs"
_POLICY_GROUPS = ("policy", "actor", "observation", "obs")
"""Names by which libraries call the observation of the policy, among several."""
_FINAL_KEYS = ("final_obs", "final_observation")
"""Keys of `info`: gymnasium's since 1.0, and before."""


@dataclass(frozen=True)
class StepResult:
    """What a step of N robots gave.

    Attributes:
        obs: field -> (N, *shape); terminated, truncated: (N,) bool; reward: (N,) float32.
        finals: field -> (N, *shape), right where an episode ended; None if the library has none.
        info: what the library returned beside them.
    """

    obs: dict[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    finals: dict[str, np.ndarray] | None
    info: Mapping[str, Any]


def autoreset_of(env: Any) -> Autoreset:
    """How an environment resets by itself.

    gymnasium's vector environments say it in their metadata (before 1.1: next_step); manager
    environments have it in their configuration; a single environment does not.
    """
    if not is_batched(env):
        return DISABLED
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is not None:
        letters = re.sub(r"[^a-z]", "", str(getattr(mode, "value", mode)).lower())
        for name in AUTORESET:
            if letters == name.replace("_", ""):
                return name
        raise DatasetError(f"autoreset mode {mode!r} is unknown; allowed: {listed(AUTORESET)}")
    if hasattr(env, "single_action_space") and not _is_managed(env):
        return NEXT_STEP
    return SAME_STEP if getattr(getattr(env, "cfg", None), "auto_reset", True) else DISABLED


def tells_finals(env: Any, autoreset: Autoreset) -> bool:
    """Whether an environment returns the last observation of an episode."""
    return autoreset != SAME_STEP or "autoreset_mode" in (getattr(env, "metadata", None) or {})


def is_batched(env: Any) -> bool:
    """Whether an environment has several robots in one array."""
    return getattr(env, "num_envs", None) is not None


def _is_managed(env: Any) -> bool:
    return hasattr(getattr(env, "unwrapped", env), "observation_manager")


def control_dt_of(env: Any) -> float | None:
    """Seconds of a step, where an environment tells them."""
    for owner in (env, getattr(env, "unwrapped", None), *(getattr(env, "envs", None) or ())[:1]):
        for name in ("step_dt", "dt"):
            value = getattr(getattr(owner, "unwrapped", owner), name, None)
            if isinstance(value, int | float):
                return float(value)
    frames = (getattr(env, "metadata", None) or {}).get("render_fps")
    return 1.0 / frames if frames else None


def as_array(value: Any, dtype: str | None = None) -> np.ndarray:
    """A tensor of any device, or anything that NumPy takes; float64 becomes float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if dtype is None and array.dtype == np.float64:
        dtype = "float32"
    return array if dtype is None else array.astype(dtype, copy=False)


def observations(value: Any, batched: bool = True) -> dict[str, np.ndarray]:
    """Field -> (N, *shape) of an observation, or of the groups of one.

    The policy's group is called "obs", the others "obs_NAME".

    Raises:
        DatasetError: two groups would have the same name.
    """
    arrays: dict[str, np.ndarray] = {}
    for path, leaf in _leaves(value):
        name = field_name(OBS, path)
        if name in arrays:
            raise DatasetError(f"two groups of the observation would be the field {name!r}")
        arrays[name] = as_array(leaf) if batched else as_array(leaf)[None]
    return arrays


def _leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Path and value of an observation's groups; of one without groups the path is empty."""
    groups: Any = value
    if isinstance(value, tuple) and value and isinstance(value[-1], Mapping):
        groups = value[0]  # rsl-rl before 3: the observation, and extras
    if not hasattr(groups, "keys"):
        return [(path, groups)]
    keys = [str(key) for key in groups.keys()]  # noqa: SIM118, a TensorDict iterates over rows
    first = next((key for key in _POLICY_GROUPS if key in keys), keys[0] if len(keys) == 1 else "")
    leaves = []
    for key in keys:
        inner = path if key == first else (*path, key)
        leaves += _leaves(groups[key], inner)
    return leaves


def field_name(prefix: str, path: tuple[str, ...]) -> str:
    """A field's name made of a group's path; a name that begins so stays as it is."""
    words = [re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_") for word in path]
    name = "_".join(filter(None, words))
    return name if name.startswith(f"{prefix}_") else "_".join(filter(None, [prefix, name]))


def final_name(field: str) -> str:
    """The field per episode with the last value of an observation's field."""
    return FINAL_OBS + field.removeprefix(OBS)


def step_result(returned: tuple[Any, ...], autoreset: Autoreset, batched: bool) -> StepResult:
    """What `env.step` returned, as arrays.

    Five values are gymnasium's (also those of manager environments), four rsl-rl's: observations,
    rewards, dones, extras with "time_outs".

    Raises:
        DatasetError: another number of values.
    """
    if len(returned) == 5:
        seen, reward, terminated, truncated, info = returned
        failed = np.atleast_1d(as_array(terminated)).astype(bool)
        late = np.atleast_1d(as_array(truncated)).astype(bool)
    elif len(returned) == 4:
        seen, reward, dones, info = returned
        done = np.atleast_1d(as_array(dones)).astype(bool)
        time_outs = info.get("time_outs")
        late = np.zeros_like(done) if time_outs is None else done & as_array(time_outs).astype(bool)
        failed = done & ~late
    else:
        raise DatasetError(f"step returned {len(returned)} values, not 5 (gymnasium) or 4 (rsl-rl)")
    obs = observations(seen, batched)
    finals = obs if autoreset != SAME_STEP else final_observations(info, obs, failed | late)
    rewards = np.atleast_1d(as_array(reward, "float32"))
    return StepResult(obs, rewards, failed, late, finals, info)


def final_observations(
    info: Mapping[str, Any] | None, obs: Mapping[str, np.ndarray], done: np.ndarray
) -> dict[str, np.ndarray] | None:
    """Field -> (N, *shape) of the last observations in `info`, right for robots that are `done`.

    None if they are not there for all of these.
    """
    info = info or {}
    key = next((key for key in _FINAL_KEYS if info.get(key) is not None), None)
    if key is None:
        return None
    value = info[key]
    # gymnasium: an observation for each robot that is done, and None for the others.
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        rows = {int(i): observations(value[i], batched=False) for i in np.flatnonzero(done)
                if value[i] is not None}  # fmt: skip
        if len(rows) < int(done.sum()):
            return None
        finals = {name: np.zeros_like(array) for name, array in obs.items()}
        for i, row in rows.items():
            for name, values in row.items():
                finals[name][i] = values[0]
        return finals
    finals = observations(value)
    return finals if finals.keys() == obs.keys() else None


def reset_rows(robots: int, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> np.ndarray:
    """(N,) which robots a call of `reset` resets: by gymnasium's mask, by ids, or all."""
    options = named.get("options") or {}
    mask = options.get("reset_mask") if isinstance(options, Mapping) else None
    if mask is not None:
        return as_array(mask).astype(bool)
    ids = named.get("env_ids")
    if ids is None and arguments and getattr(arguments[0], "shape", None):
        ids = arguments[0]
    if ids is None:
        return np.ones(robots, bool)
    rows = np.zeros(robots, bool)
    rows[as_array(ids)] = True
    return rows
