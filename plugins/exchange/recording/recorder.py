"""Write the steps of N robots into a store as whole episodes, while they are made.

A thread writes: parts are committed as they fill, so a kill loses at most the steps that are not in
a part yet, and others read the store meanwhile.
"""

import os
import secrets
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from gaitforge.common.errors import DatasetError, failures, listed, names_allowed
from gaitforge.datasets import Field, Schema
from gaitforge.datasets.formats.sources import catalog_columns, episode_returns
from gaitforge.datasets.schema import ACTION, TASK_AND_QUALITY
from gaitforge.datasets.storage.store import PartStore
from gaitforge.plugins.exchange.recording.checks import (
    REWARD,
    SUCCESS_KNOWN,
    check_draw_names,
    check_field_names,
    check_joins,
    check_stored_columns,
    draw_values,
    merged,
)
from gaitforge.plugins.exchange.recording.environments import (
    OBS,
    as_array,
    final_name,
    final_observations,
    observations,
    truth_values,
)
from gaitforge.plugins.exchange.recording.episode_buffer import (
    EpisodeBuffer,
    FinishedEpisodes,
    flags,
)

MOST_BYTES = 2_000_000_000
"""Memory for steps; where running episodes need more, the oldest are cut."""
PART_STEPS = 200_000
_TEXTS = ("unit", "description", "slices")
_OPTIONS_OF_TEXT = ("task", "quality", "robot", "simulator", "simulator_version", "policy")


@dataclass(frozen=True)
class RecordingOptions:
    """What a store says of its recorded episodes, and how they are kept.

    Attributes:
        control_dt_s: seconds of a step.
        fields: name of a field -> its `unit`, `description` and `slices` (name -> (start, stop)).
        task, quality: the columns by which queries and cards group.
        robot, simulator, simulator_version, policy: of all episodes; `policy` is the column
            `expert`.
        part_steps: steps of a part, at least.
        unfinished: whether episodes that still run at the end, or at a reset, are kept as cut off
            (neither terminated nor truncated) or dropped.
        most_bytes: memory for steps that are in no part yet, of a few steps or more.
        final_obs: whether the observation after the last step of every episode is known.
    """

    control_dt_s: float
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    task: str = "recorded"
    quality: str = "recorded"
    robot: str = "unknown"
    simulator: str = "unknown"
    simulator_version: str = ""
    policy: str = "unknown"
    part_steps: int = PART_STEPS
    unfinished: Literal["keep", "drop"] = "keep"
    most_bytes: int = MOST_BYTES
    final_obs: bool = True

    def __post_init__(self) -> None:
        """Raise DatasetError for a value that is not allowed."""
        with failures("control_dt_s must be a number of seconds", TypeError, ValueError):
            object.__setattr__(self, "control_dt_s", float(self.control_dt_s))
        if not (isfinite(self.control_dt_s) and self.control_dt_s > 0):
            raise DatasetError(f"control_dt_s must be positive and finite, not {self.control_dt_s}")
        for name in _OPTIONS_OF_TEXT:
            if not isinstance(getattr(self, name), str):
                raise DatasetError(f"{name} must be text, not {getattr(self, name)!r}")
        if self.part_steps < 1 or self.most_bytes < 1:
            raise DatasetError("part_steps and most_bytes must be 1 or more")
        if self.unfinished not in ("keep", "drop"):
            raise DatasetError(f"unfinished={self.unfinished!r}; allowed: keep, drop")
        for name, texts in self.fields.items():
            if unknown := [key for key in texts if key not in _TEXTS]:
                raise DatasetError(
                    f"fields[{name!r}]: no {unknown[0]!r}; {names_allowed(unknown[0], _TEXTS)}"
                )


class Recorder:
    """Takes steps of N robots, and commits them to a store as whole episodes.

    Use it as a context manager, or call `close`. An episode with a value that is no finite number
    is left out and counted.

    Attributes:
        path: of the store, which exists from the first committed part on.
        committed_steps, committed_episodes: in parts that this recorder has committed.
        left_out: episodes that were not finite numbers; cut: episodes cut for want of memory.
    """

    def __init__(self, path: str | os.PathLike[str], options: RecordingOptions) -> None:
        """Make a recorder; a store that is there gets further parts.

        Raises:
            DatasetError: something else is at `path`, or its folder cannot be written.
        """
        self.path = Path(path)
        self.options = options
        self.committed_steps = 0
        self.committed_episodes = 0
        self.left_out = 0
        self.cut = 0
        self._buffer: EpisodeBuffer | None = None
        self._store: PartStore | None = None
        self._fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._draws: dict[str, np.ndarray] = {}
        # Parts of several recorders of one store have different names, and episodes different ids.
        self._name = secrets.token_hex(4)
        self._parts = 0
        self._episodes = 0
        self._thread = ThreadPoolExecutor(1, "gaitforge-recorder")
        self._writing: Future[None] | None = None
        if os.path.lexists(self.path):
            PartStore.open(self.path).check_writable()
        elif not os.access(_existing_parent(self.path), os.W_OK):
            raise DatasetError(f"cannot create a store at {path}: its folder cannot be written")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, draws: Mapping[str, Any], robots: np.ndarray | None = None) -> None:
        """Tell the draws of the episodes that begin: name -> (N,) values, of a mask (N,) or all.

        A column holds numbers, truth values or text; whole numbers become fractions where some
        are.

        Raises:
            DatasetError: a name that is not allowed, or that was not told before the first step;
                values that are not (N,), or of another kind than before.
        """
        check_draw_names(draws)
        count = None if self._buffer is None else self._buffer.robots
        values = {name: draw_values(name, value, count) for name, value in draws.items()}
        for name, array in values.items():
            if name in self._draws:
                check_joins(name, self._draws[name].dtype, array.dtype)
            elif self._buffer is not None:
                raise DatasetError(f"draws[{name!r}] was not among those before the first step")
        for name, array in values.items():
            mask = np.ones(len(array), bool) if robots is None else robots
            self._draws[name] = merged(self._draws.get(name), mask, array)
            if self._buffer is not None:
                self._buffer.set_columns(mask, {name: array})

    def add(  # noqa: PLR0913, the values of a step have names in the field
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: Mapping[str, Any] | None = None,
        *,
        final_obs: Any = None,
        skipped: Any = None,
        more: Mapping[str, Any] | None = None,
        success: Any = None,
        success_known: Any = None,
    ) -> None:
        """Add a step of all robots.

        Args:
            obs: (N, ...) that the actions were chosen on, or groups of them; action: (N, A);
                reward, terminated, truncated: (N,).
            info: what gymnasium's `step` returned; only "final_obs" is read, where `final_obs` is
                not passed.
            final_obs: (N, ...) what was seen after the step; read for episodes that end with it.
            skipped: (N,) robots for which this was no step.
            more: further field -> (N, ...).
            success: (N,) bool, read for episodes that end; success_known: (N,) of which it was
                told, by default of all.

        Raises:
            DatasetError: at the first step, a name, shape, type or option that the store cannot
                have; later, shapes that differ from the first step's; a final observation is
                missing; an earlier part could not be written.
        """
        values = observations(obs)
        values[ACTION] = as_array(action)
        values[REWARD] = as_array(reward, "float32")
        check_field_names(more or {})
        values |= {name: as_array(value) for name, value in (more or {}).items()}
        self._raise_failed()
        buffer = self._checked(values)
        failed = truth_values("terminated", terminated, buffer.robots)
        late = truth_values("truncated", truncated, buffer.robots)
        mask = None if skipped is None else truth_values("skipped", skipped, buffer.robots)
        if mask is not None:
            failed = failed & ~mask
            late = late & ~mask
        buffer.append(values, mask)
        done = failed | late
        if done.any():
            seen = {name: values[name] for name in self._observed()}
            known = final_obs if final_obs is not None else final_observations(info, seen, done)
            columns = _success_columns(success, success_known, buffer.robots)
            buffer.end(failed, late, self._finals(known), columns)
        if buffer.bytes > self.options.most_bytes:
            self._make_room(buffer)
        elif buffer.finished_steps >= self.options.part_steps:
            self._write_part()

    def end(self, robots: np.ndarray | None = None) -> None:
        """End the running episodes of a mask (N,), or of all, as `RecordingOptions.unfinished`."""
        if self._buffer is None:
            return
        mask = np.ones(self._buffer.robots, bool) if robots is None else robots
        if self.options.unfinished == "drop":
            self._buffer.drop(mask)
        else:
            self._buffer.cut(mask, self._final_names(), goes_on=False)

    def close(self) -> None:
        """End all episodes, commit what is not committed, and stop the thread.

        Raises:
            DatasetError: a part could not be written.
        """
        try:
            self.end()
            self._write_part()
            if self._writing is not None:
                self._writing.result()
        finally:
            self._writing = None
            self._buffer = None
            self._thread.shutdown()

    # The steps.
    def _checked(self, values: Mapping[str, np.ndarray]) -> EpisodeBuffer:
        """The buffer, which the first step makes.

        Raises:
            DatasetError: a field has another shape or dtype than in the first step, or the first
                step does not fit the options, the draws or the store.
        """
        if self._buffer is None:
            self._buffer = self._begun(values)
        for name, (shape, dtype) in self._fields.items():
            array = values.get(name)
            if array is None or (array.shape, array.dtype) != (
                (self._buffer.robots, *shape),
                dtype,
            ):
                seen = "missing" if array is None else f"{array.dtype} {array.shape}"
                expected = f"{dtype} {(self._buffer.robots, *shape)}"
                raise DatasetError(f"{name} is {seen}, not {expected} as in the first step")
        return self._buffer

    def _begun(self, values: Mapping[str, np.ndarray]) -> EpisodeBuffer:
        """A buffer for steps like the first; whatever a part could be refused for is checked."""
        if values[REWARD].ndim != 1:
            raise DatasetError(f"the rewards are {values[REWARD].shape}, not (N,)")
        robots = len(values[REWARD])
        named = [name for name in self.options.fields if name not in values]
        if named := [name for name in named if name not in self._final_names(values).values()]:
            raise DatasetError(f"fields: no field {named[0]!r}; {names_allowed(named[0], values)}")
        if odd := [name for name, array in values.items() if array.shape[:1] != (robots,)]:
            raise DatasetError(f"{listed(odd)}: not {robots} rows, as the rewards have")
        for name, array in self._draws.items():
            if len(array) != robots:
                raise DatasetError(f"draws[{name!r}] must be ({robots},), not {array.shape}")
        self._fields = {name: (array.shape[1:], array.dtype) for name, array in values.items()}
        schema = self._schema()
        if os.path.lexists(self.path):
            store = PartStore.open(self.path)
            store.check_schema(schema)
            check_stored_columns(store.collected().schema, self._draws)
        buffer = EpisodeBuffer(robots, values, self.options.most_bytes)
        unknown = np.zeros(robots, bool)
        columns = {**_success_columns(unknown, unknown, robots), **self._draws}
        buffer.set_columns(np.ones(robots, bool), columns)
        return buffer

    def _observed(self) -> list[str]:
        return [name for name in self._fields if name == OBS or name.startswith(f"{OBS}_")]

    def _final_names(self, values: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Field -> field per episode with its value after the last step."""
        fields = self._fields if values is None else values
        seen = [name for name in fields if name == OBS or name.startswith(f"{OBS}_")]
        return {name: final_name(name) for name in seen if self.options.final_obs}

    def _finals(self, final_obs: Any) -> dict[str, np.ndarray]:
        """Field per episode -> (N, *shape); nothing where the store has none."""
        names = self._final_names()
        if names and final_obs is None:
            raise DatasetError(
                "the observation after an episode's last step is missing; pass final_obs, or "
                "record without it by final_obs=False"
            )
        seen = observations(final_obs) if names else {}
        finals = {}
        for name, final in names.items():
            shape, dtype = self._fields[name]
            array = seen.get(name, np.empty(0))
            expected = (len(self._buffer.running()) if self._buffer else 0, *shape)
            if array.shape != expected or not np.can_cast(array.dtype, dtype, "same_kind"):
                told = f"{array.dtype} {array.shape}" if name in seen else "missing"
                raise DatasetError(f"final_obs: {name} is {told}, not {dtype} {expected}")
            finals[final] = array.astype(dtype, copy=False)
        return finals

    def _make_room(self, buffer: EpisodeBuffer) -> None:
        """Commit what is finished, and cut the oldest running episodes while too much is left."""
        self._write_part()
        while buffer.bytes > self.options.most_bytes:
            cut = buffer.cut(buffer.oldest(), self._final_names(), goes_on=True)
            if not cut:
                return
            self.cut += cut
            self._write_part()

    # The parts.
    def _write_part(self) -> None:
        """Let the thread write the finished episodes, after the part that it writes now."""
        episodes = self._buffer.take() if self._buffer is not None else None
        if episodes is None:
            return
        if self._writing is not None:
            self._writing.result()
        self._writing = self._thread.submit(self._commit, episodes)

    def _raise_failed(self) -> None:
        if self._writing is not None and self._writing.done():
            self._writing.result()

    def _commit(self, episodes: FinishedEpisodes) -> None:
        """Write a part; runs in the thread."""
        whole = episodes.finite()
        if not whole.all():
            self.left_out += int(np.count_nonzero(~whole))
            episodes = episodes.chosen(whole)
        if not len(episodes):
            return
        if self._store is None:
            self._store = PartStore.create(self.path, self._schema())
        self._store.write_part(
            f"{self._name}-{self._parts:06d}",
            episodes.steps,
            self._catalog(episodes),
            episodes.finals,
        )
        self._parts += 1
        self._episodes += len(episodes)
        self.committed_episodes += len(episodes)
        self.committed_steps += int(episodes.lengths.sum())

    def _catalog(self, episodes: FinishedEpisodes) -> dict[str, Any]:
        options = self.options
        columns = dict(episodes.columns)
        columns |= flags(episodes.ending)
        columns["return"] = episode_returns(episodes.steps[REWARD], episodes.lengths)
        return catalog_columns(
            self._episodes,
            episodes.lengths,
            self._name,
            TASK_AND_QUALITY,
            task=options.task,
            quality=options.quality,
            robot=options.robot,
            simulator=options.simulator,
            simulator_version=options.simulator_version,
            expert=options.policy,
            **columns,
        )

    def _schema(self) -> Schema:
        """The schema of the steps, with the caller's units, descriptions and slices."""
        fields = []
        for name, (shape, dtype) in self._fields.items():
            texts = dict(self.options.fields.get(name, {}))
            texts.setdefault("description", _DESCRIPTIONS.get(name, ""))
            if name == OBS and len(shape) == 1:  # networks read an observation by its slices
                texts.setdefault("slices", {name: (0, shape[0])})
            with failures(f"fields[{name!r}]", TypeError, AttributeError, ValueError):
                fields.append(Field(name, shape, str(dtype), **texts))
        for name, final in self._final_names().items():
            shape, dtype = self._fields[name]
            texts = {**self.options.fields.get(name, {}), **self.options.fields.get(final, {})}
            if name == OBS and len(shape) == 1:
                texts.setdefault("slices", {name: (0, shape[0])})
            texts["description"] = f"{name} after the episode's last step"
            with failures(f"fields[{final!r}]", TypeError, AttributeError, ValueError):
                fields.append(Field(final, shape, str(dtype), per="episode", **texts))
        if os.path.lexists(self.path):  # the order of fields means nothing
            order = PartStore.open(self.path).schema.names()
            fields.sort(key=lambda field: [*order, field.name].index(field.name))
        attributes = {"format": "recorded", "task": self.options.task}
        return Schema(
            tuple(fields),
            self.options.control_dt_s,
            self.options.robot,
            attributes,
            TASK_AND_QUALITY,
        )


def _success_columns(success: Any, known: Any, robots: int) -> dict[str, np.ndarray]:
    """Columns of episodes (N,); `known` is None if success is known of all."""
    if success is None:
        return {}
    told = np.ones(robots, bool) if known is None else known
    told = truth_values("success_known", told, robots)
    return {"success": truth_values("success", success, robots) & told, SUCCESS_KNOWN: told}


_DESCRIPTIONS = {
    OBS: "observation before the step",
    ACTION: "action that the loop gave to the environment",
    REWARD: "of the step",
}


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.is_dir())
