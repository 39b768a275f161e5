"""Import of Minari datasets, read through the `minari` library from any of its storages.

Nothing is downloaded, and no environment is made: a dataset without its spaces is refused, because
making its environment would run whatever code its metadata name.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.files import check_inside, files_under
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.hdf5 import open_hdf5
from gaitforge.datasets.formats.protocol import Carried, Importer, PartInput
from gaitforge.datasets.formats.sources import check_finite, check_notes, damage_named, refuse
from gaitforge.datasets.schema import TASK_AND_QUALITY, Field, Schema
from gaitforge.plugins.exchange.minari import minari_schema as layout
from gaitforge.plugins.exchange.minari import minari_schema as meta
from gaitforge.plugins.exchange.minari.minari_schema import minari_library

UNKNOWN_DT_S = 0.02
_IN_SPACES = {"obs": layout.OBSERVATIONS, "action": layout.ACTIONS}
_KEYS = {**_IN_SPACES, "final_obs": layout.OBSERVATIONS, "reward": layout.REWARDS}
"""Field -> its key in an episode."""

_REMEDY = f"delete the key {layout.NOTES} of metadata.json to use the arrays"


@dataclass(frozen=True)
class MinariOptions:
    """How a dataset is read.

    Attributes:
        control_dt_s: seconds of a step, which Minari does not store.
        infos: import the infos that are numbers.
    """

    control_dt_s: float = UNKNOWN_DT_S
    infos: bool = True


class MinariImporter(Importer):
    """See `protocol.Importer`."""

    Options = MinariOptions

    def __init__(self, source: str, options: MinariOptions) -> None:
        minari = minari_library()
        self._options = options
        self._path = meta.data_folder(source)
        check_inside(self._path, self._path.rglob("*"))
        if (arrays := self._path / layout.HDF5_FILE).exists():
            open_hdf5(arrays).close()  # checks it before the library opens it
        self._metadata = meta.read_metadata(self._path)
        with damage_named(self._path, "", "cannot be read as a Minari dataset"):
            self._storage = minari.MinariDataset(self._path).storage
            spaces = self._storage.observation_space, self._storage.action_space
            self._left: list[str] = []
            self._spaces = [
                layout.leaves_of(f"{name}_space", space, self._left)
                for name, space in zip(("observation", "action"), spaces, strict=True)
            ]
            if not all(self._spaces):
                refuse(self._path, "", "; ".join(self._left) or "a space is empty")
            lengths, episode_keys = self._survey()
        self._types: Mapping[str, pa.DataType] | None = None  # of the notes' catalog columns
        self._infos: dict[str, str] = {}  # field per step -> key of the infos
        self._info_keys: frozenset[str] | None = None  # of every episode; None for any
        first = next(iter(self._episodes([0])))
        describe = self._describe_notes if layout.NOTES in self._metadata else self._describe
        describe(first, episode_keys)
        self.files = sorted(self._path / name for name in files_under(self._path))
        self.identity = sources.identity(self.files, options)
        self.parts = sources.cut_spans(lengths, self.schema.fields)

    @classmethod
    def recognises(cls, source: Path) -> bool:
        """See `protocol.Importer`."""
        folders = source, source / "data"
        files = layout.METADATA_FILE, layout.HDF5_FILE
        return any((folder / name).is_file() for folder in folders for name in files)

    def _survey(self) -> tuple[np.ndarray, set[str]]:
        """(E,) lengths of the episodes, and all keys of their metadata."""
        total = int(self._metadata[meta.EPISODES])
        keys = set[str]()
        counts: list[int] = []
        data_format = self._metadata["data_format"]
        for number, about in enumerate(self._about(range(total))):
            keys.update(about)
            counts.append(meta.episode_length(self._path, number, about, data_format))
        try:
            following = bool(list(self._storage.get_episode_metadata([total])))
        except (KeyError, FileNotFoundError):
            following = False
        lengths = np.array(counts, np.int64)
        meta.check_totals(self._path, self._metadata, lengths, following)
        return lengths, keys

    def _describe(self, first: Mapping[str, Any], episode_keys: Iterable[str]) -> None:
        """Set the schema, the infos that become fields, and what is converted."""
        infos = layout.flat_infos(first[layout.INFOS])
        if self._options.infos:
            self._info_keys = frozenset(infos)
        obs, action = (
            layout.leaves_field(name, leaves, key)
            for (name, key), leaves in zip(_IN_SPACES.items(), self._spaces, strict=True)
        )
        if not obs.slices and len(obs.shape) == 1:
            obs = replace(obs, slices={"state": (0, obs.shape[0])})
        rewards = np.asarray(first[layout.REWARDS])
        if not (reward_dtype := sources.stored_dtype(rewards.dtype)):
            key = f"episode_0/{layout.REWARDS}"
            refuse(self._path, key, f"dtype {rewards.dtype} is not one of numbers")
        fields = [
            obs,
            action,
            Field("reward", (), reward_dtype),
            Field("final_obs", obs.shape, obs.dtype, slices=obs.slices, per="episode"),
        ]
        kept = [
            f"{layout.OBSERVATIONS} -> obs and final_obs",
            f"{layout.ACTIONS} -> action",
            "rewards -> reward",
            "seed, terminations and truncations -> the catalog",
        ]
        left = [*self._left]
        steps = len(first[layout.REWARDS])
        for key, values in infos.items():
            name = sources.field_name(f"info_{key}")
            rows = np.asarray(values)
            problem = self._info_problem(name, rows, steps)
            if problem:
                left.append(f"{layout.INFOS}/{key}: {problem}")
                continue
            self._infos[name] = key
            field = Field(name, rows.shape[1:], sources.stored_dtype(rows.dtype))
            final = replace(field, name=f"final_{name}", per="episode")
            fields += [field, final] if len(rows) == steps + 1 else [field]
            kept.append(f"{layout.INFOS}/{key} -> {name}")
        names = {"dataset_id": str(self._metadata.get("dataset_id", "")), "format": "minari"}
        self.schema = Schema(
            tuple(fields), self._options.control_dt_s, self._task(), names, TASK_AND_QUALITY
        )
        for name, leaves in zip(("observation", "action"), self._spaces, strict=True):
            left += [f"bounds of {name}_space"] if any(leaf.bounded for leaf in leaves) else []
        used = ("dataset_id", "algorithm_name", "env_spec")
        left += meta.unused(self._metadata, episode_keys, used)
        notes = (
            "success: the episode did not terminate",
            f"a time step of {self._options.control_dt_s} s, which Minari does not store",
        )
        self.carried = Carried(tuple(kept), tuple(left), notes)

    def _describe_notes(self, first: Mapping[str, Any], episode_keys: Iterable[str]) -> None:
        """As `_describe`, from the notes of an export."""
        self.schema, self._types = layout.read_schema_note(self._path, self._metadata[layout.NOTES])
        names = self.schema.names("step")
        self._infos = {name: name for name in names if name not in _KEYS}
        possible = {*_KEYS, *names, *(f"final_{name}" for name in self._infos)}
        if not {*_KEYS} - {"final_obs"} <= {*names} or not {*self.schema.names()} <= possible:
            refuse(self._path, layout.NOTES, f"its fields are not those of an export; {_REMEDY}")
        infos = layout.flat_infos(first[layout.INFOS])
        added = [key for key in infos if key not in names]
        left = [f"{layout.INFOS}/{key}: was added to the export" for key in added]
        left += meta.unused(self._metadata, episode_keys, ())
        self.carried = Carried(("everything that gaitforge wrote",), tuple(left))

    def _info_problem(self, name: str, rows: np.ndarray, steps: int) -> str:
        if not self._options.infos:
            return "left out as asked"
        if not sources.stored_dtype(rows.dtype) or 0 in rows.shape:
            return "not numbers"
        if rows.shape[:1] not in ((steps,), (steps + 1,)):
            return "not a row per step"
        return "another has this name in lower case" if name in self._infos else ""

    def _task(self) -> str:
        """The environment's id, or the dataset's."""
        spec = self._metadata.get("env_spec")
        try:
            return str(json.loads(spec)["id"]) if spec else str(self._metadata["dataset_id"])
        except (ValueError, KeyError, TypeError):
            return "unknown"

    def _episodes(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        with damage_named(self._path, "", "episodes cannot be read"):
            yield from self._storage.get_episodes(list(numbers))

    def _about(self, numbers: range) -> Iterator[Mapping[str, Any]]:
        """The metadata of some episodes."""
        with damage_named(self._path, "", "the metadata of episodes cannot be read"):
            about = iter(self._storage.get_episode_metadata(numbers))
            for number in numbers:
                try:
                    record = next(about)
                except (KeyError, FileNotFoundError):
                    problem = "is missing; episodes are numbered from 0 without a gap"
                    refuse(self._path, f"episode_{number}", problem)
                if not isinstance(record, Mapping):
                    refuse(self._path, f"episode_{number}", "its metadata must be a JSON object")
                yield record

    def read_part(self, part: sources.Span) -> PartInput:
        """See `protocol.Importer`."""
        first = part.first
        lengths = part.lengths.tolist()
        read = [
            self._episode(number, episode, lengths[number - first])
            for number, episode in enumerate(
                self._episodes(range(first, part.episodes.stop)), first
            )
        ]
        if len(read) != len(lengths):
            refuse(self._path, f"episode_{first + len(read)}", "is missing")
        join = {"step": np.concatenate, "episode": np.stack}
        arrays = {
            field.name: join[field.per]([episode[field.name] for episode, _ in read])
            for field in self.schema.fields
        }
        ends = np.array([ends for _, ends in read])
        return PartInput(arrays, self._catalog(part, ends, arrays["reward"]))

    def _catalog(
        self, part: sources.Span, ends: np.ndarray, rewards: np.ndarray
    ) -> pa.Table | dict[str, Any]:
        """Catalog rows of a part; `ends` (E, 2) are terminated and truncated."""
        about = list(self._about(range(part.first, part.episodes.stop)))
        seeds = [
            meta.episode_seed(self._path, n, record) for n, record in enumerate(about, part.first)
        ]
        flags = {"terminated": ends[:, 0], "truncated": ends[:, 1]}
        if self._types is not None:
            notes = [record.get(layout.NOTES) for record in about]
            table = layout.rows_of_notes(self._path, notes, self._types)
            arguments: dict[str, Any] = {"remedy": _REMEDY, "rewards": rewards, **flags}
            check_notes(self._path, layout.NOTES, table, part, **arguments)
            self._check_seeds(table, part.first, seeds)
            return table
        return self.catalog(
            part,
            **meta.seed_columns(seeds),
            task=self._task(),
            quality=str(self._metadata.get("dataset_id", "unknown")),
            robot=self._task(),
            expert=str(self._metadata.get("algorithm_name", "unknown")),
            success=~ends[:, 0],
            **flags,
            **{"return": sources.episode_returns(rewards, part.lengths)},
        )

    def _check_seeds(self, table: pa.Table, first: int, seeds: Sequence[int | None]) -> None:
        """Refuse notes with other seeds than Minari's own."""
        columns = [
            table.column(name).to_pylist() if name in table.column_names else [None] * len(seeds)
            for name in (meta.SEED, meta.LARGE_SEED)
        ]
        for number, (seed, *row) in enumerate(zip(seeds, *columns, strict=True), first):
            noted = None if row[0] is None else meta.catalog_seed(*row)
            if noted != seed:
                problem = f"seed of episode {number} is {noted} in the notes, but {seed}"
                refuse(self._path, layout.NOTES, f"{problem} beside them; {_REMEDY}")

    def _episode(
        self, number: int, episode: Mapping[str, Any], length: int
    ) -> tuple[dict[str, np.ndarray], tuple[bool, bool]]:
        """The fields of an episode, and whether it terminated and was truncated."""
        at = f"episode_{number}"
        path = self._path
        schema = self.schema
        with damage_named(path, at):
            obs, action = (
                layout.joined(path, f"{at}/{key}", leaves, episode[key], schema.field(name))
                for (name, key), leaves in zip(_IN_SPACES.items(), self._spaces, strict=True)
            )
            arrays = {"obs": obs[:-1], "final_obs": obs[-1], "action": action}
            arrays["reward"] = _stored(episode[layout.REWARDS])
            arrays |= self._infos_of(at, layout.flat_infos(episode[layout.INFOS]), length)
            terminated, truncated = (
                self._end(f"{at}/{key}", np.asarray(episode[key]), length)
                for key in (layout.TERMINATIONS, layout.TRUNCATIONS)
            )
        fields = {name: arrays[name] for name in schema.names()}
        for name, values in fields.items():
            self._check(at, length, name, values)
        return fields, (terminated, truncated)

    def _infos_of(self, at: str, infos: Mapping[str, Any], length: int) -> dict[str, np.ndarray]:
        """The fields of an episode's infos, whose keys must be those of the first episode."""
        if self._info_keys is not None and (differ := self._info_keys ^ infos.keys()):
            key = min(differ)
            added = key in infos
            key = f"{at}/{layout.INFOS}/{key}"
            problem = "the first episode has no such infos" if added else "the key is missing"
            refuse(self._path, key, f"{problem}; with infos=false none are imported")
        fields: dict[str, np.ndarray] = {}
        for name, key in self._infos.items():
            rows = _stored(infos[key])
            final = f"final_{name}"
            count = length + int(self._types is not None or final in self.schema.names())
            if rows.shape[:1] != (count,):
                problem = f"has shape {rows.shape}, not {count} rows as {length} steps have"
                refuse(self._path, f"{at}/{layout.INFOS}/{key}", problem)
            fields |= {name: rows[:length], final: rows[-1]}
        return fields

    def _end(self, key: str, flags: np.ndarray, length: int) -> bool:
        """The flag at an episode's last step; no other may be set."""
        if flags.shape != (length,) or flags.dtype.kind not in "biu":
            actual = f"shape {flags.shape} and dtype {flags.dtype}"
            refuse(self._path, key, f"has {actual}, not ({length},) of bool")
        if (set_early := np.flatnonzero(flags[:-1])).size:
            problem = f"is set at step {set_early[0]} of {length}"
            refuse(self._path, key, f"{problem}; an episode ends at its last step")
        return bool(flags[-1])

    def _check(self, at: str, length: int, name: str, values: np.ndarray) -> None:
        field = self.schema.field(name)
        step = name.removeprefix("final_") if field.per == "episode" else name
        key = f"{at}/{_KEYS[name] if name in _KEYS else f'{layout.INFOS}/{self._infos[step]}'}"
        shape = (length, *field.shape) if field.per == "step" else field.shape
        if values.shape != shape:
            refuse(self._path, key, f"has shape {values.shape}, not {shape}")
        if values.dtype != np.dtype(field.dtype):
            refuse(self._path, key, f"has dtype {values.dtype}, the first episode {field.dtype}")
        check_finite(self._path, key, values if field.per == "step" else values[None])


def _stored(values: Any) -> np.ndarray:
    """Numbers in the store's dtype that holds them; anything else unchanged."""
    rows = np.asarray(values)
    return rows.astype(sources.stored_dtype(rows.dtype) or rows.dtype, copy=False)
