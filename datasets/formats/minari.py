"""Minari datasets as a store, read through the ``minari`` library from any of its storages.

Nothing is downloaded, and no environment is made: a data set that does not say its spaces is
refused, because making its environment would run whatever code its metadata name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datasets.errors import DatasetError, listed
from datasets.formats.interface import Carried, PartInput
from datasets.formats.minari_layout import (
    ACTIONS,
    INFOS,
    METADATA_FILE,
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
from datasets.schema import Field, Schema

UNKNOWN_DT_S = 0.02
_FAULTS = (OSError, ValueError, KeyError, TypeError, AssertionError, IndexError, RuntimeError)


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
        self._path = _data_folder(source)
        self._metadata = _read_metadata(self._path)
        with self._naming("", "cannot be read as a Minari data set"):
            self._storage = minari.MinariDataset(self._path).storage
            self._observations = leaves_of(
                self._path, "observation_space", self._storage.observation_space
            )
            self._actions = leaves_of(self._path, "action_space", self._storage.action_space)
            episodes = list(range(self._storage.total_episodes))
            if not episodes:
                refuse(self._path, METADATA_FILE, "has no episodes")
            about = list(self._storage.get_episode_metadata(episodes))
            lengths = np.array([int(each["total_steps"]) for each in about], np.int64)
        self._seeds = [int(each.get("seed", -1)) for each in about]
        self._notes = [each.get(NOTES) for each in about]
        self._types: Mapping[str, pa.DataType] | None = None
        self._describe(any("options" in each for each in about))
        self.files = sorted(path for path in self._path.rglob("*") if path.is_file())
        self.identity = identity(self.files, options)
        steps = self.schema.names("step")
        self.part_lengths = pack_episodes(
            lengths, sum(self.schema.field(name).row_bytes for name in steps)
        )
        self._first_episodes = np.cumsum([0, *(len(part) for part in self.part_lengths)])

    def _describe(self, has_options: bool) -> None:
        """Schema, the infos that become fields, and what is not carried over."""
        first = next(iter(self._episodes([0])))
        infos = flat_infos(first[INFOS])
        if NOTES in self._metadata:
            self.schema, self._types = read_schema_note(self._path, self._metadata[NOTES])
            own = [name for name in self.schema.names("step") if name not in _MAIN]
            self._infos = {name: name for name in own}
            self.carried = Carried(kept=("everything that gaitforge wrote",))
            return
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
        left = ["options of resets"] if has_options else []
        self._infos: dict[str, str] = {}
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
        self.schema = Schema(tuple(fields), self._options.control_dt_s, self._task(), names)
        notes = (
            "success: the episode did not terminate",
            f"a time step of {self._options.control_dt_s} s, which Minari does not keep",
        )
        self.carried = Carried(tuple(kept), tuple(left), notes)

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
        if self._types is not None:
            table = noted_rows(self._path, self._notes[first:stop], self._types)
            return PartInput(steps, table, per_episode)
        ends = np.array([ends for _, ends in read])
        columns = catalog_columns(
            first,
            lengths,
            self.identity,
            seed=self._seeds[first:stop],
            terrain=self._task(),
            skill=str(self._metadata.get("dataset_id", "unknown")),
            robot=self._task(),
            expert=str(self._metadata.get("algorithm_name", "unknown")),
            success=~ends[:, 0],
            terminated=ends[:, 0],
            truncated=ends[:, 1],
            **{"return": episode_returns(steps["reward"], lengths)},
        )
        return PartInput(steps, columns, per_episode)

    def _episode(
        self, number: int, episode: Mapping[str, Any], length: int
    ) -> tuple[dict[str, np.ndarray], tuple[bool, bool]]:
        """The fields of an episode, and whether it terminated and was truncated."""
        with self._naming(f"episode_{number}", "does not have the shapes of the first episode"):
            obs = joined(self._observations, episode[OBSERVATIONS], self.schema.field("obs"))
            given = {
                "obs": obs[:-1],
                "final_obs": obs[-1],
                "action": joined(self._actions, episode[ACTIONS], self.schema.field("action")),
                "reward": np.asarray(episode[REWARDS]),
            }
            infos = flat_infos(episode[INFOS])
            for name, key in self._infos.items():
                rows = np.asarray(infos[key])
                given |= {name: rows[:length], f"final_{name}": rows[-1]}
        found = {name: given[name] for name in self.schema.names()}
        for name, values in found.items():
            self._check(number, length, name, values)
        last = [bool(np.asarray(episode[key])[-1]) for key in (TERMINATIONS, TRUNCATIONS)]
        return found, (last[0], last[1])

    def _check(self, number: int, length: int, name: str, values: np.ndarray) -> None:
        field, key = self.schema.field(name), f"episode_{number}/{name}"
        shape = (length, *field.shape) if field.per == "step" else field.shape
        if values.shape != shape:
            refuse(self._path, key, f"has shape {values.shape}, not {shape}")
        if values.dtype != np.dtype(field.dtype):
            refuse(self._path, key, f"has dtype {values.dtype}, the first episode {field.dtype}")
        check_finite(self._path, key, values if field.per == "step" else values[None])

    def close(self) -> None:
        """See ``interface.Importer``."""


_MAIN = ("obs", "action", "reward")


def _data_folder(source: str) -> Path:
    """The folder with the metadata: given, below a data set's folder, or of a local data set."""
    from minari.storage.datasets_root_dir import get_dataset_path

    places = [Path(source), Path(source, "data")]
    if not Path(source).exists():
        places.append(get_dataset_path(source) / "data")
    for place in places:
        if (place / METADATA_FILE).is_file():
            return place
    refuse(source, METADATA_FILE, "no such file there or in data/, and no local data set's id")


def _read_metadata(folder: Path) -> dict[str, Any]:
    path = folder / METADATA_FILE
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        refuse(path, "", f"cannot be read as JSON: {(str(error).splitlines() or ['?'])[0]}")
    if not isinstance(tree, dict):
        refuse(path, "", "must hold an object of named values")
    needed = ("observation_space", "action_space", "data_format", "dataset_id", "total_episodes")
    for key in needed:
        if key not in tree:
            refuse(path, key, f"the key is missing; there must be {listed(needed)}")
    return tree
