"""Loops of environments that are named by text, for `gaitforge record`: made, stepped, reset.

An environment: `mjlab:TASK`, `gymnasium:ID`, or `module:function` of the number of robots.
A policy: `random`, a file `NAME.onnx`, or `module:function` of what the environment returned.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError, listed, missing_package
from gaitforge.common.extensions import own_function
from gaitforge.common.trust import check_trusted
from gaitforge.plugins.exchange.recording.environments import (
    DISABLED,
    OBS,
    as_array,
    attribute,
    autoreset_of,
    is_batched,
    observations,
    robots_of,
)

RANDOM = "random"
_ONNX = ".onnx"

Act = Callable[[Any], Any]
"""Takes what the environment returned as its observation; returns the actions (N, A)."""


def made_environment(name: str, robots: int, device: str = "cpu") -> Any:
    """The environment of a name, with a number of robots.

    mjlab's environments do not reset themselves, so that the last observation of an episode is
    known: the loop resets them.

    Raises:
        DatasetError: its package is not installed, or there is none of this name.
        UntrustedCodeError: "module:function" that the user's command line does not name.
    """
    kind, _, member = name.partition(":")
    try:
        if kind == "mjlab":
            return _mjlab_environment(member, robots, device)
        if kind == "gymnasium":
            import gymnasium

            return gymnasium.make_vec(member, robots, vectorization_mode="sync")
    except ImportError as error:
        raise DatasetError(f"{name}: {error}; install {kind} beside gaitforge") from error
    except (ValueError, KeyError, RuntimeError) as error:
        raise DatasetError(f"{name}: {error}") from error
    except Exception as error:  # gymnasium has errors of its own for names
        if type(error).__module__.startswith("gymnasium"):
            raise DatasetError(f"{name}: {error}") from error
        raise
    check_trusted(name)
    return own_function(name)(robots)


def _mjlab_environment(task: str, robots: int, device: str) -> Any:
    """An environment of mjlab's registry."""
    from mjlab.envs import ManagerBasedRlEnv  # pyright: ignore[reportMissingImports]
    from mjlab.tasks.registry import load_env_cfg  # pyright: ignore[reportMissingImports]

    config = load_env_cfg(task)
    config.scene.num_envs = robots
    config.auto_reset = False
    return ManagerBasedRlEnv(cfg=config, device=device)


def made_policy(name: str, env: Any, seed: int) -> Act:
    """What acts in an environment.

    Raises:
        DatasetError: no such file, a file that is no such model, or no onnxruntime.
        UntrustedCodeError: "module:function" that the user's command line does not name.
    """
    if name == RANDOM:
        return _random_actions(env, seed)
    if name.endswith(_ONNX):
        return OnnxActor(Path(name))
    check_trusted(name)
    return own_function(name)


def _random_actions(env: Any, seed: int) -> Act:
    """Actions from the space of an environment, uniform where it is bounded.

    A side without a bound is 2 from the other one, and without both the actions are in -1..1, as
    those of a policy are to which a library adds its scale. rsl-rl's environments have no space.

    Raises:
        DatasetError: no space of numbers.
    """
    robots = robots_of(env)
    space = attribute(env, "single_action_space")
    if space is None:
        space = attribute(env, "action_space")
    shape = getattr(space, "shape", None)
    if space is None and isinstance(width := attribute(env, "num_actions"), int):
        shape = (width,)
    if shape is None:
        kind = "no action_space" if space is None else f"the action_space {space!s:.100}"
        raise DatasetError(f"random: the environment has {kind}; name a policy, module:function")
    low, high = _bounds(space, shape)
    is_single = attribute(env, "single_action_space") is not None or shape[:1] != (robots,)
    if robots is not None and (is_single or (len(shape) == 1 and not hasattr(space, "nvec"))):
        shape = (robots, *shape)
    rng = np.random.default_rng(seed)
    dtype = np.dtype(getattr(space, "dtype", None) or np.float32)
    if dtype.kind in "biu":
        return lambda observation: rng.integers(low, high, shape, endpoint=True).astype(dtype)
    low = np.asarray(low, dtype)
    high = np.asarray(high, dtype)
    # Rounding may lead out of the bounds.
    return lambda observation: np.clip(rng.uniform(low, high, shape).astype(dtype), low, high)


def _bounds(space: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Least and greatest action of a space, both allowed; of `shape` or one for all."""
    start = getattr(space, "start", 0)
    if hasattr(space, "nvec"):
        return start, start + np.asarray(space.nvec) - 1
    if hasattr(space, "n"):  # one choice, or one bit for every number
        return start, start + (space.n - 1 if shape == () else 1)
    if not hasattr(space, "low") or np.dtype(space.dtype).kind != "f":
        return getattr(space, "low", -1.0), getattr(space, "high", 1.0)
    low = np.asarray(space.low, np.float64)
    high = np.asarray(space.high, np.float64)
    largest = np.finfo(np.float32).max
    has_low = low > -largest
    has_high = high < largest
    return (
        np.where(has_low, low, np.where(has_high, high - 2, -1.0)),
        np.where(has_high, high, np.where(has_low, low + 2, 1.0)),
    )


class OnnxActor:
    """A policy without memory in an ONNX file with one input: observations (N or 1, D) float32."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise DatasetError(missing_package(str(path), "onnxruntime", "onnx")) from error
        if not path.is_file():
            raise DatasetError(f"no file {path}")
        try:
            self._session = onnxruntime.InferenceSession(
                path.read_bytes(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own errors have no common class
            raise DatasetError(
                f"{path} is no model that onnxruntime loads: {error!s:.200}"
            ) from None
        inputs = self._session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(entry.name for entry in inputs)
            raise DatasetError(f"{path} has the inputs {names}; one is allowed: the observation")
        self._name = inputs[0].name
        self._one_by_one = inputs[0].shape[0] == 1
        self._width = inputs[0].shape[-1]

    def __call__(self, observation: Any) -> np.ndarray:
        """Actions (N, A) for what an environment returned; (A,) for a single one."""
        groups = observations(observation)
        if OBS not in groups:
            raise DatasetError(f"the policy's observation is none of {listed(groups)}")
        rows = groups[OBS].astype(np.float32, copy=False)
        if isinstance(self._width, int) and rows.shape[-1] != self._width:
            raise DatasetError(f"the policy takes {self._width} numbers, not {rows.shape[-1]}")
        if rows.ndim == 1:
            return self._acted(rows[None])[0]
        if not self._one_by_one:
            return self._acted(rows)
        return np.concatenate([self._acted(row[None]) for row in rows])

    def _acted(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self._session.run(None, {self._name: rows})[0])


def run_loop(env: Any, act: Act, steps: int, seed: int, advance: Callable[[int], object]) -> None:
    """Step all robots `steps` times, and reset those whose episodes ended where that is needed.

    Args:
        advance: called with the robots' steps after every step.
    """
    resets = autoreset_of(env) == DISABLED
    seeds = {"seed": seed} if _accepts(env.reset, "seed") else {}
    seen = _first(env.reset(**seeds))
    robots = robots_of(env) or 1
    for _ in range(steps):
        returned = env.step(_like(act(seen), seen))
        seen, ends = returned[0], returned[2:-1]
        if resets:
            done = np.logical_or.reduce([np.atleast_1d(as_array(end)).astype(bool) for end in ends])
            if done.any():
                seen = _reset(env, done, seen)
        advance(robots)


def _reset(env: Any, done: np.ndarray, seen: Any) -> Any:
    """Reset robots of a mask (N,); returns the observation of all."""
    if not is_batched(env):
        return _first(env.reset())
    tensor = _leaf(seen)
    if not hasattr(tensor, "new_tensor"):
        return _first(env.reset(options={"reset_mask": done}))
    if not _accepts(env.reset, "env_ids"):
        raise DatasetError(
            f"reset of {type(env).__name__} takes no env_ids, by which single robots are reset; "
            "return the environment without its wrappers"
        )
    # Manager environments are on tensors, and take ids; a new tensor has the type of the old one.
    return _first(env.reset(env_ids=tensor.new_tensor(np.flatnonzero(done)).long()))


def _accepts(method: Callable[..., Any], name: str) -> bool:
    """Whether a method has a parameter of a name, or takes any."""
    parameters = inspect.signature(method).parameters
    return name in parameters or any(
        entry.kind is entry.VAR_KEYWORD for entry in parameters.values()
    )


def _first(returned: Any) -> Any:
    return returned[0] if isinstance(returned, tuple) else returned


def _like(action: Any, seen: Any) -> Any:
    """An action as a tensor where observations are tensors."""
    tensor = _leaf(seen)
    if not hasattr(tensor, "new_tensor") or hasattr(action, "new_tensor"):
        return action
    return tensor.new_tensor(action)


def _leaf(seen: Any) -> Any:
    """The array of an observation, or of the first of its groups."""
    while hasattr(seen, "keys"):
        seen = next(iter(seen.values()))
    return seen
