"""`gaitforge.record`: record an environment while the user's own loop runs it, unchanged.

    with gaitforge.record("walks.zarr", env, quality="expert") as env:
        obs, _ = env.reset(seed=0)
        for _ in range(10_000):
            obs, *_ = env.step(policy(obs))

The environment stays the object that it is: its methods `step` and `reset` are replaced for the
time of the block, so whatever else the loop reads or sets on it works as before.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError, amount, names_allowed
from gaitforge.plugins.exchange.recording.checks import (
    check_draw_names,
    check_field_names,
    draw_values,
)
from gaitforge.plugins.exchange.recording.environments import (
    AUTORESET,
    NEXT_STEP,
    SAME_STEP,
    Autoreset,
    as_array,
    autoreset_of,
    control_dt_of,
    observations,
    plain_array,
    reset_rows,
    robots_of,
    step_result,
    tells_finals,
)
from gaitforge.plugins.exchange.recording.recorder import Recorder, RecordingOptions

Draw = Callable[[Any], Any]
"""Takes the environment; returns (N,) values of the episodes that run now, or one for all."""
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
        draws: name of a catalog column -> (N,) values, one value for all, or a function of the
            environment that returns these, called whenever episodes have begun.
        more: name of a further field -> a function of the environment, called before every step;
            returns (N, ...).
        control_dt_s: seconds of a step; by default what the environment says.
        autoreset: "next_step", "same_step" or "disabled"; by default what the environment says.
        final_obs: whether the observation after the last step is stored; by default where the
            environment tells it (mjlab and Isaac Lab never compute it when they reset).
        **options: further ones of `RecordingOptions`.

    Raises:
        DatasetError: a wrong option, no control_dt_s, something else than a store at `path`, a
            first step that does not fit the options or the store, or a part that could not be
            written.
    """
    if autoreset not in (None, *AUTORESET):
        raise DatasetError(f"no autoreset {autoreset!r}; {names_allowed(autoreset, AUTORESET)}")
    mode: Autoreset = autoreset or autoreset_of(env)
    seconds = control_dt_of(env) if control_dt_s is None else control_dt_s
    if seconds is None:
        raise DatasetError("the environment does not tell the seconds of a step; pass control_dt_s")
    known = tells_finals(env, mode) if final_obs is None else final_obs
    allowed = RecordingOptions.__dataclass_fields__
    if unknown := [name for name in options if name not in allowed]:
        raise DatasetError(f"no option {unknown[0]!r}; {names_allowed(unknown[0], allowed)}")
    chosen = RecordingOptions(seconds, fields or {}, final_obs=known, **options)
    check_draw_names(draws or {})
    check_field_names(more or {})
    with Recorder(path, chosen) as recorder:
        recorded = _Recorded(env, recorder, mode, draws or {}, more or {})
        with recorded.methods():
            yield env
    if recorder.left_out:
        warnings.warn(
            f"{amount(recorder.left_out, 'episode')} left out: values are no finite numbers",
            stacklevel=3,
        )


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
        self._count = robots_of(env)
        self._batched = self._count is not None
        self._robots = 1 if self._count is None else self._count
        self._draws = draws
        self._more = more
        self._step = env.step
        self._reset = env.reset
        self._running = False
        self._warned = False
        self._obs: dict[str, np.ndarray] | None = None
        # (N,) robots whose episode ended and whose next one has not begun: no step is theirs.
        self._between: np.ndarray | None = None
        for name, draw in self._draws.items():
            if not callable(draw):
                draw_values(name, draw, self._robots)
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
        """As the environment's; episodes that run in what is reset end.

        Raises:
            DatasetError: ids of robots that are not there, or observations of others than these.
        """
        if self._running:
            return self._reset(*arguments, **named)
        with self._outermost():
            return self._recorded_reset(arguments, named)

    def step(self, *arguments: Any, **named: Any) -> Any:
        """As the environment's; the step is recorded.

        Raises:
            DatasetError: nothing was observed yet, or `Recorder.add` refuses the step.
        """
        if self._running:
            return self._step(*arguments, **named)
        with self._outermost():
            return self._recorded_step(arguments, named)

    @contextmanager
    def _outermost(self) -> Iterator[None]:
        """While a call is recorded, the environment's calls of its methods are not.

        Environments reset themselves by `self.reset` in `step`, or step once in `reset`.
        """
        self._running = True
        try:
            yield
        finally:
            self._running = False

    def _recorded_reset(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        rows = np.ones(1, bool)
        if self._batched:
            rows = reset_rows(self._robots, self._reset, arguments, named)
        self._recorder.end(rows)
        returned = self._reset(*arguments, **named)
        seen = returned[0] if isinstance(returned, tuple) else returned
        self._obs = self._after_reset(self._arrays(seen), rows)
        if self._between is not None:
            self._between = self._between & ~rows
        self._recorder.start(self._drawn(), rows)
        return returned

    def _after_reset(self, fresh: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Observations (N, ...), those of a mask (N,) from what `reset` returned.

        That is of all robots, or of those that were reset.
        """
        counts = {array.shape[:1] for array in fresh.values()}
        if counts == {(self._robots,)} and (self._obs is None or rows.all()):
            return fresh
        is_all = counts == {(self._robots,)}
        if (
            self._obs is None
            or fresh.keys() != self._obs.keys()
            or not (is_all or counts == {(int(rows.sum()),)})
        ):
            shapes = {name: array.shape for name, array in fresh.items()}
            raise DatasetError(
                f"reset returned observations {shapes}, not of all {self._robots} robots"
            )
        for name, kept in self._obs.items():
            kept[rows] = fresh[name][rows] if is_all else fresh[name]
        return self._obs

    def _recorded_step(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._obs is None:
            raise DatasetError("the environment was not reset in the block; call env.reset() first")
        action = next(iter((*arguments, *named.values())), None)
        taken = np.array(as_array(action))  # before the environment changes it
        more = {name: np.array(as_array(read(self._env))) for name, read in self._more.items()}
        returned = self._step(*arguments, **named)
        result = step_result(returned, self._autoreset, self._count)
        success, success_known = _success(result.info, self._robots, self._autoreset)
        self._recorder.add(
            self._obs,
            taken if self._batched else taken[None],
            result.reward,
            result.terminated,
            result.truncated,
            final_obs=result.finals,
            skipped=self._between,
            more=more if self._batched else {name: value[None] for name, value in more.items()},
            success=success,
            success_known=success_known,
        )
        self._obs = {name: np.array(array) for name, array in result.obs.items()}
        began = self._ended(result.terminated | result.truncated)
        if began is not None and began.any():
            self._recorder.start(self._drawn(), began)
        return returned

    def _ended(self, done: np.ndarray) -> np.ndarray | None:
        """Take note of ends (N,); returns the robots whose next episodes have begun."""
        if self._autoreset == SAME_STEP:
            return done
        before = np.zeros(self._robots, bool) if self._between is None else self._between
        if self._autoreset == NEXT_STEP:
            self._between = done & ~before
            return before
        if before.all() and not self._warned:
            self._warned = True
            warnings.warn(
                "every recorded episode has ended and the loop steps on: nothing is recorded until "
                "it calls reset of this environment; if that resets itself, pass autoreset=",
                stacklevel=5,
            )
        self._between = done | before
        return None

    def _see(self, value: Any) -> None:
        if isinstance(value, tuple) and value and isinstance(value[-1], Mapping):
            value = value[0]  # rsl-rl before 3: the observation, and extras
        self._obs = self._arrays(value)
        self._recorder.start(self._drawn())

    def _arrays(self, value: Any) -> dict[str, np.ndarray]:
        seen = observations(value, self._batched)
        return {name: np.array(array) for name, array in seen.items()}

    def _drawn(self) -> dict[str, np.ndarray]:
        """Name -> (N,) values of the episodes that run now."""
        return {
            name: draw_values(name, draw(self._env) if callable(draw) else draw, self._robots)
            for name, draw in self._draws.items()
        }


def _success(
    info: Mapping[str, Any], robots: int, autoreset: Autoreset
) -> tuple[np.ndarray | None, np.ndarray]:
    """(N,) what the environment said of success, None if nothing; and (N,) of which it said it.

    In the step that resets, `info` is of the next episode and has that of the last one inside.
    gymnasium's vector environments tell in `_success` which robots said something.
    """
    known = np.zeros(robots, bool)
    success = np.zeros(robots, bool)
    if autoreset == SAME_STEP:
        info = info.get("final_info", info)
    for key in _SUCCESS if isinstance(info, Mapping) else ():
        said = np.atleast_1d(plain_array(info.get(key)))
        told = np.atleast_1d(plain_array(info.get(f"_{key}", np.ones(robots, bool))))
        if key in info and said.shape == told.shape == (robots,):
            told = told.astype(bool) & ~known
            success[told] = said[told].astype(bool)
            known |= told
    return (success if known.any() else None), known
