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

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from datasets.errors import DatasetError, listed
from datasets.formats.d4rl.notes import REMEDY, noted_keys, noted_lengths, refuse_options
from datasets.formats.d4rl.schema import (
    INFOS,
    MAIN_KEYS,
    NEXT,
    NOTES,
    OBSERVATIONS,
    REQUIRED,
    TERMINALS,
    TIMEOUTS,
    check_keys,
    cut_long,
    info_name,
    marked_rows,
)
from datasets.formats.d4rl.tasks import (
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
from datasets.formats.notes import check_noted
from datasets.formats.sources import (
    catalog_columns,
    check_episodes_fit,
    check_seconds_option,
    check_steps_option,
    episode_returns,
    identity,
    pack_episodes,
    refuse,
    stored_dtype,
)
from datasets.schema import TASK_AND_QUALITY, Field, Schema

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
        horizon: steps of an episode that times out; 0 for the task's. Where no time-out is marked,
            longer episodes are cut at it: by the task's if the file has no ``timeouts``, by a given
            one also if they are all unset.
        control_dt_s: of a step; 0 for the task's, or 0.02 where the task is unknown.
        early_timeouts: "cut_off" or "truncated": what a time-out before a MuJoCo task's horizon is.
        keep_next: keep ``next_observations`` as a field of their own, for files where they are not
            the observations of the following rows.
        infos: keep the rows of ``infos/``.

    A file with gaitforge's own notes takes none of these: the notes say it all.

    Raises:
        DatasetError: a value that is not allowed.
    """

    task: str = ""
    quality: str = ""
    horizon: int = 0
    control_dt_s: float = 0.0
    early_timeouts: str = "cut_off"
    keep_next: bool = False
    infos: bool = True

    def __post_init__(self) -> None:
        if self.early_timeouts not in EARLY_TIMEOUTS:
            raise DatasetError(f"option early_timeouts must be one of {listed(EARLY_TIMEOUTS)}")
        check_steps_option("horizon", self.horizon)
        check_seconds_option("control_dt_s", self.control_dt_s)


class D4rlImporter:
    """See ``interface.Importer``."""

    Options = D4rlOptions

    def __init__(self, source: str, options: D4rlOptions) -> None:
        self._path = path = Path(source)
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
            refuse_options(self._path, self._options)
            self.schema, noted = read_notes(self._path, notes)
            self.carried = Carried(kept=("everything that gaitforge wrote",))
            self._keys, self._episode_keys = noted_keys(
                self._path, self._file, self.schema, self._rows, noted.num_rows
            )
            lengths = noted_lengths(self._path, found, noted, self._rows)
            self._noted = noted
        else:
            self._describe(found)
            lengths = self._cut_episodes(found)
        row_bytes = sum(self.schema.field(name).row_bytes for name in self._keys)
        advice = f"mark more ends in {TIMEOUTS}, or if none is marked there give horizon=N"
        check_episodes_fit(self._path, TERMINALS, lengths, row_bytes, advice)
        self.files = [self._path]
        read_as = replace(self._options, task=self._task, quality=self._quality)
        self.identity = identity(self.files, read_as if self._noted is None else None)
        self.part_lengths = pack_episodes(lengths, row_bytes)
        counts = [len(part) for part in self.part_lengths]
        steps = [int(part.sum()) for part in self.part_lengths]
        self._first_episodes = np.cumsum([0, *counts])
        self._first_rows = np.cumsum([0, *steps])

    @property
    def _facts(self) -> D4rlTask | None:
        return TASKS.get(self._task)

    def _describe(self, found: dict[str, h5py.Dataset]) -> None:
        """Schema, keys of its fields, and what is not carried over."""
        options, facts = self._options, self._facts
        keys = {name: key for name, key in MAIN_KEYS.items() if key in found}
        kept, left = [f"{keys[name]} -> {name}" for name in ("obs", "action", "reward")], []
        final = self._has_final_obs(found)
        if final:
            own = "as next_obs, and " if options.keep_next else ""
            kept.append(f"{NEXT} -> {own}the last of each episode as final_obs")
        elif NEXT in found:
            kept.append(f"{NEXT} -> next_obs alone, for its shape or dtype is not that of obs")
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
        self._keys, self._episode_keys = keys, {"final_obs": NEXT} if final else {}
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
        if final:
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
        self.schema = Schema(
            tuple(fields), step_s, self._task or "unknown", attributes, TASK_AND_QUALITY
        )
        notes = ["success: the episode did not terminate"]
        if facts is None:
            notes.append("unknown task: no reference scores; a time step of 0.02 s unless given")
        self.carried = Carried(tuple(kept), tuple(left), tuple(notes))

    def _has_final_obs(self, found: dict[str, h5py.Dataset]) -> bool:
        """Whether the next observations are observations: they may be something of their own."""
        if NEXT not in found:
            return False
        shapes = [found[key].shape for key in (NEXT, OBSERVATIONS)]
        dtypes = [stored_dtype(found[key].dtype) for key in (NEXT, OBSERVATIONS)]
        equal = shapes[0] == shapes[1] and dtypes[0] == dtypes[1]
        if not equal and not self._options.keep_next:
            refuse(
                self._path,
                NEXT,
                f"shape {shapes[0]} and dtype {dtypes[0]} are not the {shapes[1]} and {dtypes[1]} "
                f"of {OBSERVATIONS}; keep them as a field of their own with keep_next=true",
            )
        return equal

    def _cut_episodes(self, found: dict[str, h5py.Dataset]) -> np.ndarray:
        """Lengths of the episodes; sets how they end."""
        facts, options = self._facts, self._options
        horizon = options.horizon or (facts.horizon if facts else 0)
        terminals = marked_rows(self._path, found[TERMINALS], TERMINALS)
        timeouts = np.zeros(0, np.int64)
        if TIMEOUTS in found:
            timeouts = marked_rows(self._path, found[TIMEOUTS], TIMEOUTS)
        marked = TIMEOUTS in found and not (options.horizon and len(timeouts) == 0)
        if marked:
            stops = np.union1d(np.union1d(terminals, timeouts) + 1, [self._rows])
        elif horizon:
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
        if marked:
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
        episodes = slice(*self._first_episodes[number : number + 2].tolist())
        per_episode = {
            name: self._read(key, episodes.start, episodes.stop)
            if key != NEXT
            else self._final_obs(steps, lengths, first, stop)
            for name, key in self._episode_keys.items()
        }
        if self._noted is None:
            columns = self._columns(steps["reward"], lengths, episodes)
            return PartInput(steps, columns, per_episode)
        table = self._noted.slice(episodes.start, episodes.stop - episodes.start)
        check_noted(
            self._path,
            NOTES,
            table,
            episodes.start,
            lengths,
            remedy=REMEDY,
            rewards=steps["reward"],
        )
        return PartInput(steps, table, per_episode)

    def _final_obs(
        self, steps: dict[str, np.ndarray], lengths: np.ndarray, first: int, stop: int
    ) -> np.ndarray:
        """(E, *shape) the next observation of each episode's last step."""
        following = steps.get("next_obs")
        if following is None:
            following = self._read(NEXT, first, stop)
            self._check_following(steps["obs"], following, lengths, first)
        return following[np.cumsum(lengths) - 1]

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
            TASK_AND_QUALITY,
            task=self._task or "unknown",
            quality=self._quality,
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
        bits = f"u{obs.itemsize}"
        differ = following[:-1].view(bits) != obs[1:].view(bits)
        differ = differ.any(axis=tuple(range(1, differ.ndim)))
        differ[np.cumsum(lengths)[:-1] - 1] = False
        if differ.any():
            row = first + int(np.argmax(differ))
            away = f"{REMEDY}, and " if self._noted is not None else ""
            refuse(
                self._path,
                NEXT,
                f"row {row} is not row {row + 1} of {OBSERVATIONS}, in the middle of an episode; "
                f"{away}keep them as a field of their own with keep_next=true",
            )

    def close(self) -> None:
        """See ``interface.Importer``."""
        self._file.close()
