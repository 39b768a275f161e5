"""Import of D4RL's flat HDF5 files, versions 0 to 2.

Rows of all episodes lie one after the other in `observations`, `actions`, `rewards`,
`terminals` and, in most files, `timeouts`; newer files add `next_observations`; `infos/`
holds further rows, `metadata/` whatever the authors stored.

An episode ends at a terminal (terminated) or at a time-out (truncated). A time-out of a MuJoCo task
before its horizon ends only the recording: `medium-replay` files mark where a training iteration
had its 1,000 samples (D4RL issue 162). Such episodes, and the rows after the last mark, count as
cut off, because the sum of their rewards is not a return. Where a file has no time-outs
(`medium-replay` of version 0), episodes end at the environment's horizon; the kitchen's end at
their terminals alone. `success.py` says which are solved.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.datasets.errors import amount, listed
from gaitforge.datasets.formats.checks import check_option, damage_named, refuse
from gaitforge.datasets.formats.d4rl import d4rl_schema as keys
from gaitforge.datasets.formats.d4rl.d4rl_notes import (
    REMEDY,
    keys_of_notes,
    lengths_of_notes,
    refuse_options,
)
from gaitforge.datasets.formats.d4rl.d4rl_schema import (
    INFOS,
    NEXT,
    NOTES,
    OBSERVATIONS,
    TERMINALS,
    TIMEOUTS,
)
from gaitforge.datasets.formats.d4rl.file_names import named_dataset
from gaitforge.datasets.formats.d4rl.metadata import METADATA, packed_metadata
from gaitforge.datasets.formats.d4rl.success import UNKNOWN
from gaitforge.datasets.formats.d4rl.tasks import TASKS, obs_slices, task_columns
from gaitforge.datasets.formats.hdf5 import (
    dataset_at,
    datasets_of,
    open_hdf5,
    read_notes,
    read_rows,
)
from gaitforge.datasets.formats.notes import check_notes
from gaitforge.datasets.formats.protocol import Carried, Importer, PartInput
from gaitforge.datasets.formats.sources import (
    Parts,
    catalog_columns,
    identity,
    stored_dtype,
)
from gaitforge.datasets.schema import TASK_AND_QUALITY, Field, Schema

_UNKNOWN_DT_S = 0.02
_LAST_STEP = 1
"""A time-out counts as the horizon up to one step early, as some files end there."""


@dataclass(frozen=True)
class D4rlOptions:
    """How a file is read. A file with gaitforge's notes takes no options.

    Attributes:
        task: one of `d4rl.tasks.TASKS`, or another name; empty: from the file's name.
        quality: such as "medium-replay"; empty: from the file's name.
        horizon: steps of an episode that times out; 0 for the task's. Longer episodes are cut there
            if the file has no `timeouts`, or, with a given horizon, if none of them is set.
        control_dt_s: seconds of a step; 0 for the task's, or 0.02 if the task is unknown.
        early_timeouts: "cut_off" or "truncated": how a time-out before a MuJoCo task's horizon
            counts.
        keep_next: store `next_observations` as a field, for files where they are not the
            observations of the following rows.
        infos: import `infos/`.
    """

    task: str = ""
    quality: str = ""
    horizon: int = 0
    control_dt_s: float = 0.0
    early_timeouts: Annotated[str, ("cut_off", "truncated")] = "cut_off"
    keep_next: bool = False
    infos: bool = True

    def __post_init__(self) -> None:
        check_option("horizon", self.horizon, "steps", int)
        check_option("control_dt_s", self.control_dt_s, "seconds")


class D4rlImporter(Importer):
    """See `protocol.Importer`."""

    Options = D4rlOptions

    def __init__(self, source: str, options: D4rlOptions) -> None:
        self._path = path = Path(source)
        self._options = options
        task, quality = named_dataset(path)
        self._task, self._quality = options.task or task, options.quality or quality
        self._file = open_hdf5(path)
        with ExitStack() as undo, damage_named(path):
            undo.callback(self._file.close)
            self._open()
            undo.pop_all()

    def _open(self) -> None:
        datasets = datasets_of(self._file)
        self._rows = keys.check_keys(self._path, datasets)
        notes = self._file.get(NOTES)
        self._table: pa.Table | None = None
        if isinstance(notes, h5py.Group):
            refuse_options(self._path, self._options)
            self.schema, self._table = noted = read_notes(self._path, notes)
            self.carried = Carried(kept=("everything that gaitforge wrote",))
            args = noted[0], self._rows, len(noted[1])
            self._keys, self._episode_keys = keys_of_notes(self._path, self._file, *args)
            lengths = lengths_of_notes(self._path, datasets, noted[1], self._rows)
        else:
            self._describe(datasets)
            lengths = self._cut_episodes(datasets)
        self._keep_metadata()
        advice = f"mark more ends in {TIMEOUTS}, or if none is marked there give horizon=N"
        self.parts = Parts.checked(self._path, TERMINALS, lengths, self.schema.fields, advice)
        self.files = [self._path]
        read_as = replace(self._options, task=self._task, quality=self._quality)
        self.identity = identity(self.files, read_as if self._table is None else None)

    def _keep_metadata(self) -> None:
        self.metadata, left = packed_metadata(self._path, self._file)
        kept = [f"{METADATA} -> kept beside the parts, for an export"] if self.metadata else []
        carried = self.carried
        self.carried = replace(carried, kept=(*carried.kept, *kept), left=(*carried.left, *left))

    def _describe(self, datasets: dict[str, h5py.Dataset]) -> None:
        """Set the schema, the keys of its fields, and what is converted."""
        options, facts = self._options, TASKS.get(self._task)
        fields = {name: key for name, key in keys.MAIN_KEYS.items() if key in datasets}
        kept, left = [f"{fields[name]} -> {name}" for name in ("obs", "action", "reward")], []
        final = self._has_final_obs(datasets)
        if final:
            own = "as next_obs, and " if options.keep_next else ""
            kept.append(f"{NEXT} -> {own}the last of each episode as final_obs")
        elif NEXT in datasets:
            kept.append(f"{NEXT} -> next_obs only: its shape or dtype is not that of obs")
        if not options.keep_next:
            fields.pop("next_obs", None)
        for key, dataset in datasets.items():
            if key == INFOS or key.startswith(f"{INFOS}/"):
                name, problem = keys.info_field(key, dataset, self._rows, set(fields))
                problem = problem if options.infos else "left out as asked"
                if problem:
                    left.append(f"{key}: {problem}")
                else:
                    fields[name] = key
                    kept.append(f"{key} -> {name}")
            elif key not in (*keys.REQUIRED, TIMEOUTS, NEXT) and not key.startswith(METADATA):
                left.append(f"{key}: not a row per step")
        self._keys, self._episode_keys = fields, {"final_obs": NEXT} if final else {}
        attributes: dict[str, Any] = {"task": self._task, "format": "d4rl"}
        if untold := keys.untold_keys(fields):
            attributes[keys.KEYS] = untold
        notes = [f"success: {(facts.success if facts else UNKNOWN).words}"]
        if facts is not None:
            scores = {"random": facts.random_score, "expert": facts.expert_score}
            attributes["reference_returns"] = scores
            if facts.counts_every_step:
                problem = "the reference scores count a subtask once, the file's rewards every step"
                notes.append(f"no normalised_return: {problem}")
        else:
            notes.append("unknown task: no reference scores; a time step of 0.02 s unless given")
        step_s = options.control_dt_s or (facts.control_dt_s if facts else _UNKNOWN_DT_S)
        described = self._fields(datasets, final)
        robot = self._task or "unknown"
        self.schema = Schema(described, step_s, robot, attributes, TASK_AND_QUALITY)
        self.carried = Carried(tuple(kept), tuple(left), tuple(notes))

    def _fields(self, datasets: dict[str, h5py.Dataset], final: bool) -> tuple[Field, ...]:
        fields = [
            Field(
                name,
                () if name == "reward" else datasets[key].shape[1:],
                stored_dtype(datasets[key].dtype),
                description=f"{key} of D4RL",
                slices=obs_slices(self._task, datasets[key].shape[1:]) if name == "obs" else {},
            )
            for name, key in self._keys.items()
        ]
        text = "observation after the episode's last step"
        last = replace(fields[0], name="final_obs", description=text, per="episode")
        return (*fields, last) if final else tuple(fields)

    def _has_final_obs(self, datasets: dict[str, h5py.Dataset]) -> bool:
        """Whether the next observations have the observations' shape and dtype."""
        if NEXT not in datasets:
            return False
        pair = datasets[NEXT], datasets[OBSERVATIONS]
        following, obs = (
            f"shape {each.shape} and dtype {stored_dtype(each.dtype)}" for each in pair
        )
        if following != obs and not self._options.keep_next:
            problem = f"has {following}, but {OBSERVATIONS} have {obs}"
            refuse(self._path, NEXT, f"{problem}; import it as a field with keep_next=true")
        return following == obs

    def _cut_episodes(self, datasets: dict[str, h5py.Dataset]) -> np.ndarray:
        """(E,) lengths of the episodes; sets how they end."""
        facts, options, path = TASKS.get(self._task), self._options, self._path
        horizon = options.horizon or (facts.horizon if facts else 0)
        terminals = keys.marked_rows(path, datasets[TERMINALS], TERMINALS)
        timeouts = np.zeros(0, np.int64)
        if TIMEOUTS in datasets:
            timeouts = keys.marked_rows(path, datasets[TIMEOUTS], TIMEOUTS)
        by_marks = TIMEOUTS in datasets or (facts is not None and facts.ends_by_terminals)
        marked = by_marks and not (options.horizon and len(timeouts) == 0)
        stops = np.union1d(np.union1d(terminals, timeouts) + 1, [self._rows])
        if not marked and not horizon:
            problem = "the key is missing, so episodes end by the environment's horizon"
            refuse(path, TIMEOUTS, f"{problem}: give horizon=N, or a task of {listed(TASKS)}")
        if not marked:
            stops = keys.cut_long(stops, horizon)
        lengths = np.diff(stops, prepend=0)
        self._terminated = np.isin(stops - 1, terminals, assume_unique=True)
        if marked:
            self._truncated = np.isin(stops - 1, timeouts, assume_unique=True)
            if facts and facts.ends_at_horizon and options.early_timeouts == "cut_off":
                self._truncated &= self._terminated | (lengths >= horizon - _LAST_STEP)
        else:
            self._truncated = ~self._terminated & (lengths == horizon)
        self._report_endings(lengths, horizon)
        return lengths

    def _report_endings(self, lengths: np.ndarray, horizon: int) -> None:
        notes = list(self.carried.notes)
        if cut_off := int(np.count_nonzero(~self._terminated & ~self._truncated)):
            problem = "recording stopped before they ended, so their return-to-go is unknown"
            notes.append(f"{cut_off} of {len(lengths)} episodes were cut off: {problem}")
        if horizon and (longer := int(np.count_nonzero(lengths > horizon))):
            notes.append(f"{amount(longer, 'episode')} longer than the horizon of {horizon} steps")
        self.carried = replace(self.carried, notes=tuple(notes))

    def read_part(self, number: int) -> PartInput:
        """See `protocol.Importer`."""
        rows, episodes = self.parts.steps(number), self.parts.episodes(number)
        lengths = self.parts.lengths[number]
        with damage_named(self._path):
            steps = {name: self._read(key, rows) for name, key in self._keys.items()}
            steps["reward"] = rewards = steps["reward"].reshape(-1)
            finals = partial(self._final_obs, steps, lengths, rows)
            per_episode = {
                name: finals() if key == NEXT else self._read(key, episodes)
                for name, key in self._episode_keys.items()
            }
        if self._table is not None:
            table = self._table.slice(episodes.start, len(lengths))
            first = episodes.start
            check_notes(self._path, NOTES, table, first, lengths, remedy=REMEDY, rewards=rewards)
            return PartInput(steps, table, per_episode)
        ends = self._terminated[episodes], self._truncated[episodes]
        columns = task_columns(self._task, self._quality, rewards, lengths, *ends)
        first, group_by = episodes.start, TASK_AND_QUALITY
        columns = catalog_columns(first, lengths, self.identity, group_by, **columns)
        return PartInput(steps, columns, per_episode)

    def _final_obs(
        self, steps: dict[str, np.ndarray], lengths: np.ndarray, rows: slice
    ) -> np.ndarray:
        """(E, *shape) the next observation of each episode's last step."""
        following = steps.get("next_obs")
        if following is None:
            following = self._read(NEXT, rows)
            self._check_following(steps["obs"], following, lengths, rows.start)
        return following[np.cumsum(lengths) - 1]

    def _read(self, key: str, rows: slice) -> np.ndarray:
        return read_rows(self._path, dataset_at(self._file, key), key, rows.start, rows.stop)

    def _check_following(
        self, obs: np.ndarray, following: np.ndarray, lengths: np.ndarray, first: int
    ) -> None:
        """Refuse `next_observations` that are not the following rows' observations."""
        bits = f"u{obs.itemsize}"
        differ = following[:-1].view(bits) != obs[1:].view(bits)
        differ = differ.any(axis=tuple(range(1, differ.ndim)))
        differ[np.cumsum(lengths)[:-1] - 1] = False
        if differ.any():
            row = first + int(np.argmax(differ))
            problem = f"row {row} is not row {row + 1} of {OBSERVATIONS} within an episode"
            remedy = f"{REMEDY}, and " if self._table is not None else ""
            remedy += "import it as a field with keep_next=true"
            refuse(self._path, NEXT, f"{problem}; {remedy}")

    def close(self) -> None:
        """See `protocol.Importer`."""
        self._file.close()
