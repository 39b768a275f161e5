"""`gaitforge.record`: record an environment while the user's own loop runs it, unchanged.

    with gaitforge.record("walks.zarr", env, quality="expert") as env:
        obs, _ = env.reset(seed=0)
        for _ in range(10_000):
            obs, *_ = env.step(policy(obs))

The environment stays the object that it is: its methods `step` and `reset` are replaced for the
time of the block, so whatever else the loop reads or sets on it works as before.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError, names_allowed
from gaitforge.plugins.exchange.recording.environments import (
    AUTORESET,
    NEXT_STEP,
    SAME_STEP,
    Autoreset,
    as_array,
    autoreset_of,
    control_dt_of,
    is_batched,
    observations,
    reset_rows,
    step_result,
    tells_finals,
)
from gaitforge.plugins.exchange.recording.recorder import Recorder, RecordingOptions

Draw = Callable[[Any], Any]
"""Takes the environment; returns (N,) values of the episodes that run now."""
_SUCCESS = ("success", "is_success")


@contextmanager
def record(
    path: str | os.PathLike[str],
    env: Any,
    *,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    draws: Mapping[str, Draw | Any] | None = None,
    more: Mapping[str, Draw] | None = None,
    control_dt_s: float | None = None,
    autoreset: Autoreset | None = None,
    final_obs: bool | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Record what an environment does in the block into a store; yields the environment.

    Args:
        path: of the store; one that is there gets further parts.
        env: a vector environment of gymnasium or a single one, rsl-rl's `VecEnv`, or a manager
            environment of mjlab or Isaac Lab.
        fields: name of a field -> its `unit`, `description`, `slices`.
        draws: name of a catalog column -> (N,) values, or a function of the environment, called
            whenever episodes have begun.
        more: name of a further field -> a function of the environment, called before every step;
            returns (N, ...).
        control_dt_s: seconds of a step; by default what the environment says.
        autoreset: "next_step", "same_step" or "disabled"; by default what the environment says.
        final_obs: whether the observation after the last step is stored; by default where the
            environment tells it (mjlab and Isaac Lab never compute it when they reset).
        **options: further ones of `RecordingOptions`.

    Raises:
        DatasetError: a wrong option, no control_dt_s, no store at `path`, or a part that could not
            be written.
    """
    if autoreset not in (None, *AUTORESET):
        raise DatasetError(f"no autoreset {autoreset!r}; {names_allowed(autoreset, AUTORESET)}")
    mode: Autoreset = autoreset or autoreset_of(env)
    seconds = control_dt_s or control_dt_of(env)
    if not seconds:
        raise DatasetError("the environment does not tell the seconds of a step; pass control_dt_s")
    known = tells_finals(env, mode) if final_obs is None else final_obs
    allowed = RecordingOptions.__dataclass_fields__
    if unknown := [name for name in options if name not in allowed]:
        raise DatasetError(f"no option {unknown[0]!r}; {names_allowed(unknown[0], allowed)}")
    chosen = RecordingOptions(seconds, fields or {}, final_obs=known, **options)
    with Recorder(path, chosen) as recorder:
        recorded = _Recorded(env, recorder, mode, draws or {}, more or {})
        with recorded.methods():
            yield env


class _Recorded:
    """The methods `step` and `reset` of an environment that is recorded."""

    def __init__(
        self,
        env: Any,
        recorder: Recorder,
        autoreset: Autoreset,
        draws: Mapping[str, Draw | Any],
        more: Mapping[str, Draw],
    ) -> None:
        self._env = env
        self._recorder = recorder
        self._autoreset: Autoreset = autoreset
        self._batched = is_batched(env)
        self._draws = draws
        self._more = more
        self._step = env.step
        self._reset = env.reset
        self._obs: dict[str, np.ndarray] | None = None
        self._resetting: np.ndarray | None = None
        if hasattr(env, "get_observations"):  # it was reset when it was made
            self._see(env.get_observations())

    @contextmanager
    def methods(self) -> Iterator[None]:
        """Replace the environment's methods for the time of the block."""
        replaced = {name: vars(self._env).get(name) for name in ("step", "reset")}
        self._env.step = self.step
        self._env.reset = self.reset
        try:
            yield
        finally:
            for name, before in replaced.items():
                delattr(self._env, name)
                if before is not None:
                    setattr(self._env, name, before)

    def reset(self, *arguments: Any, **named: Any) -> Any:
        """As the environment's; episodes that run in what is reset end."""
        robots = 1 if not self._batched else int(self._env.num_envs)
        rows = reset_rows(robots, arguments, named)
        self._recorder.end(rows)
        returned = self._reset(*arguments, **named)
        seen = returned[0] if isinstance(returned, tuple) else returned
        fresh = self._arrays(seen)
        if self._obs is None or rows.all():
            self._obs = fresh
        else:
            for name, kept in self._obs.items():
                kept[rows] = fresh[name][rows]
        if self._resetting is not None:
            self._resetting &= ~rows
        self._recorder.start(self._drawn(), rows)
        return returned

    def step(self, action: Any, *arguments: Any, **named: Any) -> Any:
        """As the environment's; the step is recorded.

        Raises:
            DatasetError: nothing was observed yet.
        """
        if self._obs is None:
            raise DatasetError("the environment was not reset in the block; call env.reset() first")
        given = np.array(as_array(action))  # before the environment changes it
        more = {name: np.array(as_array(read(self._env))) for name, read in self._more.items()}
        returned = self._step(action, *arguments, **named)
        result = step_result(returned, self._autoreset, self._batched)
        self._recorder.add(
            self._obs,
            given if self._batched else given[None],
            result.reward,
            result.terminated,
            result.truncated,
            final_obs=result.finals,
            skipped=self._resetting,
            more=more if self._batched else {name: value[None] for name, value in more.items()},
            success=_success(result.info, len(result.reward), self._autoreset),
        )
        self._obs = {name: np.array(array) for name, array in result.obs.items()}
        done = result.terminated | result.truncated
        began = done if self._autoreset != NEXT_STEP else self._resetting
        self._resetting = done if self._autoreset == NEXT_STEP else None
        if began is not None and began.any():
            self._recorder.start(self._drawn(), began)
        return returned

    def _see(self, value: Any) -> None:
        self._obs = self._arrays(value)
        self._recorder.start(self._drawn())

    def _arrays(self, value: Any) -> dict[str, np.ndarray]:
        seen = observations(value, self._batched)
        return {name: np.array(array) for name, array in seen.items()}

    def _drawn(self) -> dict[str, np.ndarray]:
        """Name -> (N,) values of the episodes that run now."""
        drawn = {}
        for name, draw in self._draws.items():
            values = np.array(as_array(draw(self._env) if callable(draw) else draw))
            drawn[name] = values if values.ndim else values[None]
        return drawn


def _success(info: Any, robots: int, autoreset: Autoreset) -> np.ndarray | None:
    """(N,) what the environment said of success, where it said something.

    In the step that resets, `info` is of the next episode and has that of the last one inside.
    """
    if autoreset == SAME_STEP:
        info = info.get("final_info", info)
    for key in _SUCCESS if isinstance(info, Mapping) else ():
        if key in info:
            said = np.atleast_1d(as_array(info[key]))
            return said.astype(bool) if said.shape == (robots,) else None
    return None
