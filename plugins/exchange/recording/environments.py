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

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
_RESETTING_WRAPPER = "Autoreset"
"""gymnasium's wrapper of a single environment that resets it in the next step."""
_MASKS = ("mask", "reset_mask", "env_mask")
_BUFFERS = ("observation_manager", "episode_length_buf")
"""What environments of mjlab and Isaac Lab have, one of them in those without managers."""
_IDS = ("env_ids", "env_id", "env_idx", "env_indices", "ids", "idx", "indices")
"""Names of the parameters of `reset` by which libraries choose robots."""


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


def layers(env: Any) -> Iterator[Any]:
    """An environment, the one that it wraps, and so on to the innermost.

    gymnasium's wrappers do not forward attributes of what they wrap since 1.0.
    """
    seen: set[int] = set()
    while hasattr(env, "step") and id(env) not in seen:
        seen.add(id(env))
        yield env
        inner = getattr(env, "env", None)
        env = inner if hasattr(inner, "step") else getattr(env, "unwrapped", None)


def _first(values: Iterable[Any]) -> Any:
    """The first value that is not None; None without one."""
    return next((value for value in values if value is not None), None)


def attribute(env: Any, name: str) -> Any:
    """An attribute of an environment or of what it wraps, the outermost one; None without it."""
    return _first(getattr(layer, name, None) for layer in layers(env))


def _metadata(env: Any, key: str) -> Any:
    """As `attribute`, of an entry in `metadata`."""
    return _first((getattr(layer, "metadata", None) or {}).get(key) for layer in layers(env))


def autoreset_of(env: Any) -> Autoreset:
    """How an environment resets by itself.

    gymnasium's vector environments say it in their metadata (before 1.1: next_step); manager
    environments have it in their configuration; a single environment does it in a wrapper.
    """
    if not is_batched(env):
        names = [type(layer).__name__ for layer in layers(env)]
        return NEXT_STEP if _RESETTING_WRAPPER in names else DISABLED
    mode = _metadata(env, "autoreset_mode")
    if mode is not None:
        letters = re.sub(r"[^a-z]", "", str(getattr(mode, "value", mode)).lower())
        for name in AUTORESET:
            if letters == name.replace("_", ""):
                return name
        raise DatasetError(f"autoreset mode {mode!r} is unknown; allowed: {listed(AUTORESET)}")
    is_managed = any(attribute(env, name) is not None for name in _BUFFERS)
    if attribute(env, "single_action_space") is not None and not is_managed:
        return NEXT_STEP
    resets = _first(
        getattr(getattr(layer, "cfg", None), "auto_reset", None) for layer in layers(env)
    )
    return SAME_STEP if resets is None or resets else DISABLED


def tells_finals(env: Any, autoreset: Autoreset) -> bool:
    """Whether an environment returns the last observation of an episode."""
    return autoreset != SAME_STEP or _metadata(env, "autoreset_mode") is not None


def robots_of(env: Any) -> int | None:
    """How many robots an environment has in one array; None for a single environment."""
    robots = attribute(env, "num_envs")
    return None if robots is None else int(robots)


def is_batched(env: Any) -> bool:
    """Whether an environment has several robots in one array."""
    return robots_of(env) is not None


def control_dt_of(env: Any) -> float | None:
    """Seconds of a step, where an environment tells them."""
    for owner in (env, *(attribute(env, "envs") or ())[:1]):
        for layer in layers(owner):
            for name in ("step_dt", "dt"):
                value = getattr(layer, name, None)
                if isinstance(value, int | float | np.number):
                    return float(value)
    frames = _metadata(env, "render_fps")
    return 1.0 / frames if frames else None


def plain_array(value: Any) -> np.ndarray:
    """A tensor of any device, or anything that NumPy takes, with its type."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def as_array(value: Any, dtype: str | None = None) -> np.ndarray:
    """As `plain_array`, of a type; without one, float64 becomes float32."""
    array = plain_array(value)
    if dtype is None and array.dtype == np.float64:
        dtype = "float32"
    return array if dtype is None else array.astype(dtype, copy=False)


def truth_values(name: str, value: Any, robots: int) -> np.ndarray:
    """(N,) bool of what tells the end of episodes, or what is skipped.

    Raises:
        DatasetError: another shape, or other values than 0 and 1.
    """
    array = np.atleast_1d(plain_array(value))
    if array.shape != (robots,):
        raise DatasetError(f"{name} is {array.shape}, not ({robots},), a value for each robot")
    if array.dtype.kind not in "biu" and not np.isin(array, (0, 1)).all():
        raise DatasetError(f"{name} has other values than 0 and 1")
    return array.astype(bool)


def observations(value: Any, batched: bool = True) -> dict[str, np.ndarray]:
    """Field -> (N, *shape) of an observation, or of the groups of one.

    The policy's group is called "obs", the others "obs_NAME"; those of a tuple "obs_0", "obs_1".

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
    if isinstance(value, tuple):
        groups = {str(number): leaf for number, leaf in enumerate(value)}
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


def step_result(returned: tuple[Any, ...], autoreset: Autoreset, robots: int | None) -> StepResult:
    """What `env.step` returned, as arrays.

    Five values are gymnasium's (also those of manager environments), four rsl-rl's: observations,
    rewards, dones, extras with "time_outs".

    Args:
        robots: N; None for a single environment.

    Raises:
        DatasetError: another number of values, or rewards or ends that are not (N,).
    """
    rows = 1 if robots is None else robots
    count = len(returned) if isinstance(returned, tuple | list) else 0
    if count not in (4, 5):
        raise DatasetError(f"step returned {count} values, not 5 (gymnasium) or 4 (rsl-rl)")
    seen, reward, *ends, info = returned
    rewards = np.atleast_1d(plain_array(reward))
    if rewards.shape != (rows,) or rewards.dtype.kind not in "biuf":
        raise DatasetError(
            f"step returned {count} values, the second of which is no reward ({rows},) but "
            f"{rewards.dtype} {rewards.shape}; allowed: observations, rewards, terminated, "
            "truncated, info (gymnasium), or observations, rewards, dones, extras (rsl-rl)"
        )
    if count == 5:
        failed = truth_values("terminated", ends[0], rows)
        late = truth_values("truncated", ends[1], rows)
    else:
        if not isinstance(info, Mapping):
            raise DatasetError(
                f"step returned extras that are no mapping but {type(info).__name__}"
            )
        done = truth_values("dones", ends[0], rows)
        late = done & truth_values("time_outs", info.get("time_outs", np.zeros(rows)), rows)
        failed = done & ~late
    batched = robots is not None
    info = info if isinstance(info, Mapping) else {}
    obs = observations(seen, batched)
    finals = obs
    if autoreset == SAME_STEP:
        finals = final_observations(info, obs, failed | late, batched)
    return StepResult(obs, rewards.astype(np.float32), failed, late, finals, info)


def final_observations(
    info: Mapping[str, Any] | None,
    obs: Mapping[str, np.ndarray],
    done: np.ndarray,
    batched: bool = True,
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
    finals = observations(value, batched)
    return finals if finals.keys() == obs.keys() else None


def reset_rows(
    robots: int, reset: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> np.ndarray:
    """(N,) which robots a call of `reset` resets: by a mask, by ids, or all.

    gymnasium's mask is in `options`. Others are arguments with a name of `_MASKS` or `_IDS`, or
    without a name: there a mask is bool (N,), and ids are whole numbers.

    Raises:
        DatasetError: a mask that is not (N,), or ids of robots that the environment has not.
    """
    for name, value in _called_with(reset, arguments, named):
        if name == "options" and isinstance(value, Mapping):
            mask = value.get("reset_mask")
            if mask is not None:
                return truth_values("reset_mask", mask, robots)
        if value is None or name in ("seed", "options"):
            continue
        if isinstance(value, slice):
            return _chosen(robots, value)
        if name in _MASKS:
            return truth_values(name, value, robots)
        array = plain_array(value)
        if not array.size and (array.ndim or name in _IDS):
            return np.zeros(robots, bool)
        if array.dtype.kind == "b" and array.ndim:
            return truth_values(name or "mask", array, robots)
        if array.dtype.kind in "iu" and (array.ndim == 1 or name in _IDS):
            return _chosen(robots, array)
    return np.ones(robots, bool)


def _called_with(
    method: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Name and value of what a method is called with, of names that may tell robots.

    The name is empty where the caller passed it by its place and the method calls it otherwise.
    """
    names: list[str] = []
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # compiled
        parameters = ()
    names = [entry.name for entry in parameters if entry.kind is entry.POSITIONAL_OR_KEYWORD]
    known = (*_MASKS, *_IDS, "seed", "options")
    names = [name if name in known else "" for name in names]
    names += [""] * len(arguments)
    called = list(zip(names, arguments, strict=False))
    return called + [(name, value) for name, value in named.items() if name in known]


def _chosen(robots: int, ids: Any) -> np.ndarray:
    rows = np.zeros(robots, bool)
    try:
        rows[ids] = True
    except IndexError:
        raise DatasetError(f"reset: ids {ids} are not all in 0..{robots - 1}") from None
    return rows
