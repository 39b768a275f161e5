"""Minari datasets as a store, read through the ``minari`` library from any of its storages.

Nothing is downloaded, and no environment is made: a data set that does not say its spaces is
refused, because making its environment would run whatever code its metadata name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from datasets.errors import DatasetError
from datasets.formats.interface import Carried, PartInput
from datasets.formats.minari.metadata import (
    LARGE_SEED,
    SEED,
    catalog_seed,
    check_totals,
    data_folder,
    episode_length,
    episode_seed,
    read_metadata,
    seed_columns,
    unused,
)
from datasets.formats.minari.schema import (
    ACTIONS,
    INFOS,
    NOTES,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    flat_infos,
    joined,
    leaves_field,
    leaves_of,
    noted_rows,
    read_schema_note,
)
from datasets.formats.notes import check_noted
from datasets.formats.sources import (
    catalog_columns,
    check_finite,
    episode_returns,
    field_name,
    identity,
    pack_episodes,
    refuse,
    stored_dtype,
)
from datasets.schema import TASK_AND_QUALITY, Field, Schema

UNKNOWN_DT_S = 0.02
_FAULTS = (
    *(OSError, ValueError, KeyError, TypeError, AssertionError, IndexError, RuntimeError),
    MemoryError,
)
_KEYS = {"obs": OBSERVATIONS, "final_obs": OBSERVATIONS, "action": ACTIONS, "reward": REWARDS}
"""Field -> its key in an episode."""

_REMEDY = f"delete the key {NOTES} of metadata.json to go by the arrays"


@dataclass(frozen=True)
class MinariOptions:
    """How a data set is read.

    Attributes:
        control_dt_s: seconds of a step, which Minari does not keep.
        infos: keep the infos that are numbers.
    """

    control_dt_s: float = UNKNOWN_DT_S
    infos: bool = True


class MinariImporter:
    """See ``interface.Importer``."""

    Options = MinariOptions

    def __init__(self, source: str, options: MinariOptions) -> None:
        import minari

        self._options = options
        self._path = data_folder(source)
        self._metadata = read_metadata(self._path)
        with self._naming("", "cannot be read as a Minari data set"):
            self._storage = minari.MinariDataset(self._path).storage
            self._observations = leaves_of(
                self._path, "observation_space", self._storage.observation_space
            )
            self._actions = leaves_of(self._path, "action_space", self._storage.action_space)
            lengths, episode_keys = self._survey()
        self._types: Mapping[str, pa.DataType] | None = None
        self._infos: dict[str, str] = {}  # field a step -> key of the infos
        self._info_keys: frozenset[str] | None = None  # of every episode; None for any
        self._describe(episode_keys)
        self.files = sorted(path for path in self._path.rglob("*") if path.is_file())
        self.identity = identity(self.files, options)
        steps = self.schema.names("step")
        self.part_lengths = pack_episodes(
            lengths, sum(self.schema.field(name).row_bytes for name in steps)
        )
        self._first_episodes = np.cumsum([0, *(len(part) for part in self.part_lengths)])

    def _survey(self) -> tuple[np.ndarray, set[str]]:
        """(E,) lengths of the episodes, and all keys of their metadata."""
        total, keys = int(self._metadata["total_episodes"]), set[str]()
        lengths: list[int] = []
        data_format = self._metadata["data_format"]
        for number, about in enumerate(self._about(range(total))):
            keys.update(about)
            lengths.append(episode_length(self._path, number, about, data_format))
        try:
            following = bool(list(self._storage.get_episode_metadata([total])))
        except (KeyError, FileNotFoundError):
            following = False
        found = np.array(lengths, np.int64)
        check_totals(self._path, self._metadata, found, following)
        return found, keys

    def _describe(self, episode_keys: Iterable[str]) -> None:
        """Schema, the infos that become fields, and what is not carried over."""
        first = next(iter(self._episodes([0])))
        infos = flat_infos(first[INFOS])
        if NOTES in self._metadata:
            self._describe_noted(infos, episode_keys)
            return
        if self._options.infos:
            self._info_keys = frozenset(infos)
        obs = leaves_field("obs", self._observations, OBSERVATIONS)
        if not obs.slices and len(obs.shape) == 1:
            obs = replace(obs, slices={"state": (0, obs.shape[0])})
        fields = [
            obs,
            leaves_field("action", self._actions, ACTIONS),
            Field("reward", (), stored_dtype(np.asarray(first[REWARDS]).dtype)),
            Field("final_obs", obs.shape, obs.dtype, slices=obs.slices, per="episode"),
        ]
        kept = [f"{OBSERVATIONS} -> obs and final_obs", f"{ACTIONS} -> action", "rewards -> reward"]
        kept += ["seed, terminations and truncations -> the catalog"]
        left = []
        for key, values in infos.items():
            name = field_name(f"info_{key}")
            problem = self._info_problem(np.asarray(values), len(first[REWARDS]))
            if problem or name in self._infos:
                left.append(f"{INFOS}/{key}: {problem or 'another has this name in lower case'}")
                continue
            self._infos[name] = key
            rows = np.asarray(values)
            fields.append(Field(name, rows.shape[1:], stored_dtype(rows.dtype)))
            kept.append(f"{INFOS}/{key} -> {name}")
            if len(rows) == len(first[REWARDS]) + 1:
                fields.append(
                    Field(f"final_{name}", rows.shape[1:], stored_dtype(rows.dtype), per="episode")
                )
        names = {"dataset_id": str(self._metadata.get("dataset_id", "")), "format": "minari"}
        self.schema = Schema(
            tuple(fields), self._options.control_dt_s, self._task(), names, TASK_AND_QUALITY
        )
        left += [
            f"bounds of {key}"
            for key, leaves in (
                ("observation_space", self._observations),
                ("action_space", self._actions),
            )
            if any(leaf.bounded for leaf in leaves)
        ]
        used = ("dataset_id", "algorithm_name", "env_spec")
        left += unused(self._metadata, episode_keys, used)
        notes = (
            "success: the episode did not terminate",
            f"a time step of {self._options.control_dt_s} s, which Minari does not keep",
        )
        self.carried = Carried(tuple(kept), tuple(left), notes)

    def _describe_noted(self, infos: Mapping[str, Any], episode_keys: Iterable[str]) -> None:
        """The same by the notes that an export kept."""
        self.schema, self._types = read_schema_note(self._path, self._metadata[NOTES])
        names = self.schema.names("step")
        self._infos = {name: name for name in names if name not in _KEYS}
        givable = {*_KEYS, *names, *(f"final_{name}" for name in self._infos)}
        if not {*_KEYS} - {"final_obs"} <= {*names} or not {*self.schema.names()} <= givable:
            refuse(self._path, NOTES, f"its fields are not those of an export; {_REMEDY}")
        left = [f"{INFOS}/{key}: was added to the export" for key in infos if key not in names]
        left += unused(self._metadata, episode_keys, ())
        self.carried = Carried(("everything that gaitforge wrote",), tuple(left))

    def _info_problem(self, rows: np.ndarray, steps: int) -> str:
        if not self._options.infos:
            return "left out as asked"
        if not stored_dtype(rows.dtype) or 0 in rows.shape:
            return "not numbers"
        return "" if rows.shape[:1] in ((steps,), (steps + 1,)) else "not a row a step"

    def _task(self) -> str:
        """The environment's id, or the data set's."""
        spec = self._metadata.get("env_spec")
        try:
            return str(json.loads(spec)["id"]) if spec else str(self._metadata["dataset_id"])
        except (ValueError, KeyError, TypeError):
            return "unknown"

    def _episodes(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        with self._naming("", "episodes cannot be read"):
            yield from self._storage.get_episodes(list(numbers))

    def _about(self, numbers: range) -> Iterator[Mapping[str, Any]]:
        """The metadata of some episodes."""
        with self._naming("", "the metadata of episodes cannot be read"):
            about = self._storage.get_episode_metadata(numbers)
            for number, each in zip(numbers, about, strict=True):
                if not isinstance(each, Mapping):
                    refuse(self._path, f"episode_{number}", "its metadata must be named values")
                yield each

    @contextmanager
    def _naming(self, key: str, problem: str) -> Iterator[None]:
        """What the library raises on damaged data, as the one line of bad input."""
        try:
            yield
        except DatasetError:
            raise
        except (*_FAULTS, pa.ArrowException) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            refuse(self._path, key, f"{problem}: {reason}")

    def read_part(self, number: int) -> PartInput:
        """See ``interface.Importer``."""
        first, stop = (int(n) for n in self._first_episodes[number : number + 2])
        lengths = self.part_lengths[number]
        read = [
            self._episode(first + i, episode, int(lengths[i]))
            for i, episode in enumerate(self._episodes(range(first, stop)))
        ]
        if len(read) != stop - first:
            refuse(self._path, f"episode_{first + len(read)}", "is missing")
        steps = {
            name: np.concatenate([fields[name] for fields, _ in read])
            for name in self.schema.names("step")
        }
        per_episode = {
            name: np.stack([fields[name] for fields, _ in read])
            for name in self.schema.names("episode")
        }
        ends = np.array([ends for _, ends in read])
        return PartInput(steps, self._catalog(first, lengths, ends, steps["reward"]), per_episode)

    def _catalog(
        self, first: int, lengths: np.ndarray, ends: np.ndarray, rewards: np.ndarray
    ) -> pa.Table | dict[str, Any]:
        """Catalog rows of a part.

        Args:
            first: number of its first episode.
            lengths: (E,); ends: (E, 2) terminated and truncated; rewards: (T,).
        """
        about = list(self._about(range(first, first + len(lengths))))
        seeds = [episode_seed(self._path, first + i, each) for i, each in enumerate(about)]
        if self._types is not None:
            table = noted_rows(self._path, [each.get(NOTES) for each in about], self._types)
            terminated, truncated = ends.T
            check_noted(
                self._path,
                NOTES,
                table,
                first,
                lengths,
                remedy=_REMEDY,
                terminated=terminated,
                truncated=truncated,
                rewards=rewards,
            )
            self._check_noted_seeds(table, first, seeds)
            return table
        return catalog_columns(
            first,
            lengths,
            self.identity,
            TASK_AND_QUALITY,
            **seed_columns(seeds),
            task=self._task(),
            quality=str(self._metadata.get("dataset_id", "unknown")),
            robot=self._task(),
            expert=str(self._metadata.get("algorithm_name", "unknown")),
            success=~ends[:, 0],
            terminated=ends[:, 0],
            truncated=ends[:, 1],
            **{"return": episode_returns(rewards, lengths)},
        )

    def _check_noted_seeds(self, table: pa.Table, first: int, seeds: Sequence[int | None]) -> None:
        columns = [
            table.column(name).to_pylist() if name in table.column_names else [None] * len(seeds)
            for name in (SEED, LARGE_SEED)
        ]
        for number, (seed, *noted) in enumerate(zip(seeds, *columns, strict=True), first):
            kept = None if noted[0] is None else catalog_seed(*noted)
            if kept != seed:
                problem = f"seed of episode {number} is kept there as {kept}, but beside it {seed}"
                refuse(self._path, NOTES, f"{problem}; {_REMEDY}")

    def _episode(
        self, number: int, episode: Mapping[str, Any], length: int
    ) -> tuple[dict[str, np.ndarray], tuple[bool, bool]]:
        """The fields of an episode, and whether it terminated and was truncated."""
        at = f"episode_{number}"
        with self._naming(at, "cannot be read"):
            obs, action = (
                joined(self._path, f"{at}/{key}", leaves, episode[key], self.schema.field(name))
                for name, key, leaves in (
                    ("obs", OBSERVATIONS, self._observations),
                    ("action", ACTIONS, self._actions),
                )
            )
            given = {"obs": obs[:-1], "final_obs": obs[-1], "action": action}
            given["reward"] = _stored(episode[REWARDS])
            given |= self._episode_infos(at, flat_infos(episode[INFOS]), length)
            ends = [
                self._end(f"{at}/{key}", np.asarray(episode[key]), length)
                for key in (TERMINATIONS, TRUNCATIONS)
            ]
        found = {name: given[name] for name in self.schema.names()}
        for name, values in found.items():
            self._check(at, length, name, values)
        return found, (ends[0], ends[1])

    def _episode_infos(
        self, at: str, infos: Mapping[str, Any], length: int
    ) -> dict[str, np.ndarray]:
        """The fields of an episode's infos, of which there are those of the first episode."""
        if self._info_keys is not None and (differ := self._info_keys ^ infos.keys()):
            key = min(differ)
            problem = (
                "the first episode has no such infos" if key in infos else "the key is missing"
            )
            advice = "; with infos=false none are imported"
            refuse(self._path, f"{at}/{INFOS}/{key}", problem + advice)
        found: dict[str, np.ndarray] = {}
        for name, key in self._infos.items():
            rows, final = _stored(infos[key]), f"final_{name}"
            wanted = length + int(self._types is not None or final in self.schema.names())
            if rows.shape[:1] != (wanted,):
                problem = f"has shape {rows.shape}, not {wanted} rows as {length} steps have"
                refuse(self._path, f"{at}/{INFOS}/{key}", problem)
            found |= {name: rows[:length], final: rows[-1]}
        return found

    def _end(self, key: str, flags: np.ndarray, length: int) -> bool:
        """Whether an episode ended so: the last of its flags, and no other may be set."""
        if flags.shape != (length,):
            refuse(self._path, key, f"has shape {flags.shape}, not ({length},)")
        if (set_early := np.flatnonzero(flags[:-1])).size:
            problem = f"is set at step {set_early[0]} of {length}; an episode ends at its last step"
            refuse(self._path, key, problem)
        return bool(flags[-1])

    def _check(self, at: str, length: int, name: str, values: np.ndarray) -> None:
        field = self.schema.field(name)
        step = name.removeprefix("final_") if field.per == "episode" else name
        key = f"{at}/{_KEYS[name] if name in _KEYS else f'{INFOS}/{self._infos[step]}'}"
        shape = (length, *field.shape) if field.per == "step" else field.shape
        if values.shape != shape:
            refuse(self._path, key, f"has shape {values.shape}, not {shape}")
        if values.dtype != np.dtype(field.dtype):
            refuse(self._path, key, f"has dtype {values.dtype}, the first episode {field.dtype}")
        check_finite(self._path, key, values if field.per == "step" else values[None])

    def close(self) -> None:
        """See ``interface.Importer``."""


def _stored(values: Any) -> np.ndarray:
    """Numbers in the store's dtype that holds them; anything else as it is."""
    rows = np.asarray(values)
    return rows.astype(stored_dtype(rows.dtype) or rows.dtype, copy=False)
