"""D4RL's flat HDF5 files, versions 0 to 2, as a store.

Rows of all episodes lie one after the other in ``observations``, ``actions``, ``rewards``,
``terminals`` and, in most files, ``timeouts``; newer files add ``next_observations``; ``infos/``
holds further rows, ``metadata/`` whatever the authors kept.

Where episodes end: at a terminal (the task failed or was done: terminated) and at a time-out. A
time-out of a MuJoCo task before its horizon is no end of the episode, but one of recording:
``medium-replay`` files mark where a training iteration had its 1,000 samples (D4RL issue 162). Such
episodes are cut off, like the rows after the last mark, so that no one takes the sum of their
rewards for a return. Where a file marks no time-outs at all (``medium-replay`` of version 0),
episodes end after as many steps as the environment has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from datasets.errors import listed
from datasets.formats.d4rl_layout import (
    INFOS,
    MAIN_KEYS,
    NEXT,
    NOTED_FIELDS,
    NOTES,
    OBSERVATIONS,
    REQUIRED,
    TERMINALS,
    TIMEOUTS,
    check_keys,
    cut_long,
    info_name,
    key_of,
    marked_rows,
)
from datasets.formats.d4rl_tasks import (
    TASKS,
    D4rlTask,
    named_dataset,
    normalised_return,
    obs_slices,
)
from datasets.formats.hdf5 import (
    damage_named,
    dataset_at,
    datasets_of,
    open_hdf5,
    read_notes,
    read_rows,
)
from datasets.formats.interface import Carried, PartInput
from datasets.formats.sources import (
    catalog_columns,
    episode_returns,
    identity,
    pack_episodes,
    refuse,
    stored_dtype,
)
from datasets.schema import Field, Schema

EARLY_TIMEOUTS = ("cut_off", "truncated")
_UNKNOWN_DT_S = 0.02
_LAST_STEP = 1
"""Steps short of the horizon at which a time-out still counts as reaching it: rows of some files
end one step early."""


@dataclass(frozen=True)
class D4rlOptions:
    """How a file is read.

    Attributes:
        task: one of ``d4rl_tasks.TASKS``, or another name; empty: what the file's name says.
        quality: such as "medium-replay"; empty: what the file's name says.
        horizon: steps of an episode that times out; 0 for the task's.
        control_dt_s: of a step; 0 for the task's, or 0.02 where the task is unknown.
        early_timeouts: "cut_off" or "truncated": what a time-out before a MuJoCo task's horizon is.
        keep_next: keep ``next_observations`` as a field of their own, for files where they are not
            the observations of the following rows.
        infos: keep the rows of ``infos/``.
    """

    task: str = ""
    quality: str = ""
    horizon: int = 0
    control_dt_s: float = 0.0
    early_timeouts: str = "cut_off"
    keep_next: bool = False
    infos: bool = True


class D4rlImporter:
    """See ``interface.Importer``."""

    Options = D4rlOptions

    def __init__(self, source: str, options: D4rlOptions) -> None:
        self._path = path = Path(source)
        if options.early_timeouts not in EARLY_TIMEOUTS:
            refuse(path, "", f"option early_timeouts must be one of {listed(EARLY_TIMEOUTS)}")
        self._options = options
        self._file = open_hdf5(path)
        try:
            named_task, named_quality = named_dataset(path)
            self._task = options.task or named_task
            self._quality = options.quality or named_quality
            with damage_named(self._path):
                self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        found = datasets_of(self._file)
        self._rows = check_keys(self._path, found)
        notes = self._file.get(NOTES)
        self._noted: pa.Table | None = None
        if isinstance(notes, h5py.Group):
            self.schema, self._noted = read_notes(self._path, notes)
            self._keys = {name: key_of(name) for name in self._steps()}
            self.carried = Carried(kept=("everything that gaitforge wrote",))
            self._check_noted_fields()
            lengths = self._noted_lengths(found)
        else:
            self._describe(found)
            lengths = self._cut_episodes(found)
        chosen = (self._task, self._quality, self._options)
        self.files = [self._path]
        self.identity = identity(self.files, chosen)
        row_bytes = sum(self.schema.field(name).row_bytes for name in self._steps())
        self.part_lengths = pack_episodes(lengths, row_bytes)
        counts = [len(part) for part in self.part_lengths]
        steps = [int(part.sum()) for part in self.part_lengths]
        self._first_episodes = np.cumsum([0, *counts])
        self._first_rows = np.cumsum([0, *steps])

    def _steps(self) -> list[str]:
        return self.schema.names("step")

    @property
    def _facts(self) -> D4rlTask | None:
        return TASKS.get(self._task)

    def _describe(self, found: dict[str, h5py.Dataset]) -> None:
        """Schema, keys of its fields, and what is not carried over."""
        options, facts = self._options, self._facts
        keys = {name: key for name, key in MAIN_KEYS.items() if key in found}
        kept, left = [f"{keys[name]} -> {name}" for name in ("obs", "action", "reward")], []
        if NEXT in found:
            own = "as next_obs, and " if options.keep_next else ""
            kept.append(f"{NEXT} -> {own}the last of each episode as final_obs")
        if not options.keep_next:
            keys.pop("next_obs", None)
        for key, dataset in found.items():
            if key.startswith(f"{INFOS}/"):
                name, problem = info_name(key, dataset, self._rows, set(keys))
                problem = problem if options.infos else "left out as asked"
                if problem:
                    left.append(f"{key}: {problem}")
                else:
                    keys[name] = key
                    kept.append(f"{key} -> {name}")
            elif key not in (*REQUIRED, TIMEOUTS, NEXT):
                left.append(f"{key}: not a row a step")
        self._keys = keys
        fields = [
            Field(
                name,
                () if name == "reward" else found[key].shape[1:],
                stored_dtype(found[key].dtype),
                description=f"{key} of D4RL",
                slices=obs_slices(self._task, found[key].shape[1:]) if name == "obs" else {},
            )
            for name, key in keys.items()
        ]
        if NEXT in found:
            obs = fields[0]
            text = "observation after the episode's last step"
            fields.append(
                Field("final_obs", obs.shape, obs.dtype, "1", text, obs.slices, per="episode")
            )
        attributes: dict[str, Any] = {"task": self._task, "format": "d4rl"}
        if facts is not None:
            attributes["reference_returns"] = {
                "random": facts.random_score,
                "expert": facts.expert_score,
            }
        step_s = options.control_dt_s or (facts.control_dt_s if facts else _UNKNOWN_DT_S)
        self.schema = Schema(tuple(fields), step_s, self._task or "unknown", attributes)
        notes = ["success: the episode did not terminate"]
        if facts is None:
            notes.append("unknown task: no reference scores; a time step of 0.02 s unless given")
        self.carried = Carried(tuple(kept), tuple(left), tuple(notes))

    def _check_noted_fields(self) -> None:
        assert self._noted is not None
        for field in self.schema.fields:
            key, rows = key_of(field.name), self._rows
            if field.per == "episode":
                key, rows = f"{NOTED_FIELDS}/{field.name}", self._noted.num_rows
                if field.name == "final_obs" and NEXT in self._file:
                    continue
            there = self._file.get(key)
            if not isinstance(there, h5py.Dataset):
                refuse(self._path, key, "the key is missing, which gaitforge's notes name")
            given = there.shape, stored_dtype(there.dtype)
            if given != ((rows, *field.shape), field.dtype):
                refuse(self._path, key, f"shape or dtype is not what gaitforge's {NOTES} say")

    def _noted_lengths(self, found: dict[str, h5py.Dataset]) -> np.ndarray:
        """Lengths of the episodes in the notes, which must end where the file has its marks."""
        assert self._noted is not None
        columns = self._noted.column_names
        lengths = self._noted.column("length").to_numpy() if "length" in columns else np.array([0])
        marks = [marked_rows(self._path, found[key], key) for key in (TERMINALS, TIMEOUTS)]
        stops = np.union1d(np.concatenate(marks) + 1, [self._rows])
        if not np.array_equal(np.cumsum(lengths), stops):
            refuse(
                self._path,
                NOTES,
                f"the lengths kept there are not those that {TERMINALS} and {TIMEOUTS} tell; "
                "delete the group to go by these",
            )
        return lengths

    def _cut_episodes(self, found: dict[str, h5py.Dataset]) -> np.ndarray:
        """Lengths of the episodes; sets how they end."""
        facts, options = self._facts, self._options
        horizon = options.horizon or (facts.horizon if facts else 0)
        terminals = marked_rows(self._path, found[TERMINALS], TERMINALS)
        if TIMEOUTS in found:
            timeouts = marked_rows(self._path, found[TIMEOUTS], TIMEOUTS)
            stops = np.union1d(np.union1d(terminals, timeouts) + 1, [self._rows])
        elif horizon:
            timeouts = np.zeros(0, np.int64)
            stops = cut_long(np.union1d(terminals + 1, [self._rows]), horizon)
        else:
            refuse(
                self._path,
                TIMEOUTS,
                "the key is missing, so episodes end by the environment's horizon: give it with "
                f"horizon=N, or a task of {listed(TASKS)}",
            )
        lengths = np.diff(stops, prepend=0)
        self._terminated = np.isin(stops - 1, terminals, assume_unique=True)
        if TIMEOUTS in found:
            self._truncated = np.isin(stops - 1, timeouts, assume_unique=True)
            self._reconsider_early(lengths, horizon)
        else:
            self._truncated = ~self._terminated & (lengths == horizon)
        self._note_endings(lengths, horizon)
        return lengths

    def _reconsider_early(self, lengths: np.ndarray, horizon: int) -> None:
        facts = self._facts
        if facts is None or not facts.ends_at_horizon or self._options.early_timeouts != "cut_off":
            return
        self._truncated &= self._terminated | (lengths >= horizon - _LAST_STEP)

    def _note_endings(self, lengths: np.ndarray, horizon: int) -> None:
        cut_off = int(np.count_nonzero(~self._terminated & ~self._truncated))
        notes = list(self.carried.notes)
        if cut_off:
            notes.append(
                f"{cut_off} of {len(lengths)} episodes were cut off, for recording stopped before "
                "they ended: their return-to-go is unknown"
            )
        if horizon and (longer := int(np.count_nonzero(lengths > horizon))):
            notes.append(f"{longer} episodes are longer than the horizon of {horizon} steps")
        self.carried = Carried(self.carried.kept, self.carried.left, tuple(notes))

    def read_part(self, number: int) -> PartInput:
        """See ``interface.Importer``."""
        with damage_named(self._path):
            return self._read_part(number)

    def _read_part(self, number: int) -> PartInput:
        first, stop = (int(row) for row in self._first_rows[number : number + 2])
        lengths = self.part_lengths[number]
        steps = {name: self._read(key, first, stop) for name, key in self._keys.items()}
        steps["reward"] = steps["reward"].reshape(-1)
        per_episode = {}
        if "final_obs" in self.schema.names("episode") and NEXT in self._file:
            following = steps.get("next_obs")
            if following is None:
                following = self._read(NEXT, first, stop)
                self._check_following(steps["obs"], following, lengths, first)
            per_episode["final_obs"] = following[np.cumsum(lengths) - 1]
        episodes = slice(*self._first_episodes[number : number + 2].tolist())
        for name in self.schema.names("episode"):
            if name not in per_episode:
                key = f"{NOTED_FIELDS}/{name}"
                per_episode[name] = self._read(key, episodes.start, episodes.stop)
        if self._noted is not None:
            table = self._noted.slice(episodes.start, episodes.stop - episodes.start)
            return PartInput(steps, table, per_episode)
        return PartInput(steps, self._columns(steps["reward"], lengths, episodes), per_episode)

    def _read(self, key: str, first: int, stop: int) -> np.ndarray:
        return read_rows(self._path, dataset_at(self._file, key), key, first, stop)

    def _columns(self, rewards: np.ndarray, lengths: np.ndarray, episodes: slice) -> dict[str, Any]:
        returns = episode_returns(rewards, lengths)
        terminated, truncated = self._terminated[episodes], self._truncated[episodes]
        known: dict[str, Any] = {}
        if self._facts is not None:
            known = {
                "simulator": "mujoco",
                "normalised_return": normalised_return(self._task, returns),
            }
        return catalog_columns(
            episodes.start,
            lengths,
            self.identity,
            terrain=self._task or "unknown",
            skill=self._quality,
            robot=self._task or "unknown",
            expert=self._quality,
            success=~terminated,
            terminated=terminated,
            truncated=truncated,
            **{"return": returns},
            **known,
        )

    def _check_following(
        self, obs: np.ndarray, following: np.ndarray, lengths: np.ndarray, first: int
    ) -> None:
        """Refuse a file whose ``next_observations`` say more than the observations do."""
        if following.shape != obs.shape or following.dtype != obs.dtype:
            refuse(self._path, NEXT, f"shape or dtype is not that of {OBSERVATIONS}")
        bits = f"u{obs.itemsize}"
        differ = following[:-1].view(bits) != obs[1:].view(bits)
        differ = differ.any(axis=tuple(range(1, differ.ndim)))
        differ[np.cumsum(lengths)[:-1] - 1] = False
        if differ.any():
            row = first + int(np.argmax(differ))
            refuse(
                self._path,
                NEXT,
                f"row {row} is not row {row + 1} of {OBSERVATIONS}, in the middle of an episode; "
                "keep them as a field of their own with keep_next=true",
            )

    def close(self) -> None:
        """See ``interface.Importer``."""
        self._file.close()
