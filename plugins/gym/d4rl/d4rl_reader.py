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

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.common.errors import amount, listed
from gaitforge.datasets.formats import hdf5
from gaitforge.datasets.formats.protocol import Carried, PartInput
from gaitforge.datasets.formats.sources import (
    Span,
    check_notes,
    check_option,
    cut_parts,
    damage_named,
    identity,
    refuse,
    refuse_options,
    stored_dtype,
)
from gaitforge.datasets.schema import TASK_AND_QUALITY, Field, Schema
from gaitforge.plugins.gym.d4rl import d4rl_layout as layout
from gaitforge.plugins.gym.d4rl.d4rl_tasks import (
    LAST_STEP,
    TASKS,
    UNKNOWN,
    named_dataset,
    obs_slices,
    task_columns,
)

_UNKNOWN_DT_S = 0.02


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


class D4rlImporter(hdf5.Hdf5Importer):
    """See `protocol.Importer`."""

    Options = D4rlOptions

    @classmethod
    def recognises(cls, source: Path) -> bool:
        """See `protocol.Importer`."""
        return len({*hdf5.top_names(source)} & {*layout.REQUIRED}) > 1

    def _open(self) -> None:
        path = self._path
        datasets = hdf5.datasets_of(self._file)
        task, quality = named_dataset(path)
        self._task = self._options.task or task
        self._quality = self._options.quality or quality
        self._rows = layout.check_keys(path, datasets)
        group = self._file.get(layout.NOTES)
        read_as = None
        self._table: pa.Table | None = None
        if isinstance(group, h5py.Group):
            refuse_options(path, layout.NOTES, self._options, layout.REMEDY)
            self.schema, table = hdf5.read_notes(path, group)
            self._table = table
            self.carried = Carried(kept=("everything that gaitforge wrote",))
            args = self.schema, self._rows, len(table)
            self._keys, self._episode_keys = layout.keys_of_notes(path, self._file, *args)
            lengths = layout.lengths_of_notes(path, datasets, table, self._rows)
        else:
            self._describe(datasets)
            lengths = self._cut_episodes(datasets)
            read_as = replace(self._options, task=self._task, quality=self._quality)
        self.metadata, left = layout.packed_metadata(path, self._file)
        kept = [f"{layout.METADATA} -> kept beside the parts, for an export"] * bool(self.metadata)
        carried = self.carried
        self.carried = replace(carried, kept=(*carried.kept, *kept), left=(*carried.left, *left))
        advice = f"mark more ends in {layout.TIMEOUTS}, or if none is marked there give horizon=N"
        self.parts = cut_parts(path, layout.TERMINALS, lengths, self.schema.fields, advice)
        self.files = [path]
        self.identity = identity(self.files, read_as)

    def _describe(self, datasets: dict[str, h5py.Dataset]) -> None:
        """Set the schema, the keys of its fields, and what is converted."""
        options = self._options
        facts = TASKS.get(self._task)
        fields = {name: key for name, key in layout.MAIN_KEYS.items() if key in datasets}
        kept = [f"{fields[name]} -> {name}" for name in ("obs", "action", "reward")]
        left = []
        final = self._has_final_obs(datasets)
        if final:
            prefix = "as next_obs, and " if options.keep_next else ""
            kept.append(f"{layout.NEXT} -> {prefix}the last of each episode as final_obs")
        elif layout.NEXT in datasets:
            kept.append(f"{layout.NEXT} -> next_obs only: its shape or dtype is not that of obs")
        if not options.keep_next:
            fields.pop("next_obs", None)
        for key, dataset in datasets.items():
            if key == layout.INFOS or key.startswith(f"{layout.INFOS}/"):
                name, problem = layout.info_field(key, dataset, self._rows, set(fields))
                problem = problem if options.infos else "left out as asked"
                if problem:
                    left.append(f"{key}: {problem}")
                else:
                    fields[name] = key
                    kept.append(f"{key} -> {name}")
            elif key not in layout.ROWS and not key.startswith(layout.METADATA):
                left.append(f"{key}: not a row per step")
        self._keys = fields
        self._episode_keys = {"final_obs": layout.NEXT} if final else {}
        attributes: dict[str, Any] = {"task": self._task, "format": "d4rl"}
        if untold := layout.untold_keys(fields):
            attributes[layout.KEYS] = untold
        said = [f"success: {(facts.success if facts else UNKNOWN).words}"]
        if facts is not None:
            scores = {"random": facts.random_score, "expert": facts.expert_score}
            attributes["reference_returns"] = scores
            if facts.is_kitchen:
                problem = "the reference scores count a subtask once, the file's rewards every step"
                said.append(f"no normalised_return: {problem}")
        else:
            said.append("unknown task: no reference scores; a time step of 0.02 s unless given")
        step_s = options.control_dt_s or (facts.control_dt_s if facts else _UNKNOWN_DT_S)
        described = self._fields(datasets, final)
        robot = self._task or "unknown"
        self.schema = Schema(described, step_s, robot, attributes, TASK_AND_QUALITY)
        self.carried = Carried(tuple(kept), tuple(left), tuple(said))

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
        if layout.NEXT not in datasets:
            return False
        pair = datasets[layout.NEXT], datasets[layout.OBSERVATIONS]
        following, obs = (
            f"shape {dataset.shape} and dtype {stored_dtype(dataset.dtype)}" for dataset in pair
        )
        if following != obs and not self._options.keep_next:
            problem = f"has {following}, but {layout.OBSERVATIONS} have {obs}"
            refuse(self._path, layout.NEXT, f"{problem}; import it as a field with keep_next=true")
        return following == obs

    def _cut_episodes(self, datasets: dict[str, h5py.Dataset]) -> np.ndarray:
        """(E,) lengths of the episodes; sets how they end."""
        facts = TASKS.get(self._task)
        options = self._options
        path = self._path
        horizon = options.horizon or (facts.horizon if facts else 0)
        terminals = layout.marked_rows(path, datasets[layout.TERMINALS], layout.TERMINALS)
        timeouts = np.zeros(0, np.int64)
        if layout.TIMEOUTS in datasets:
            timeouts = layout.marked_rows(path, datasets[layout.TIMEOUTS], layout.TIMEOUTS)
        by_marks = layout.TIMEOUTS in datasets or (facts is not None and facts.is_kitchen)
        marked = by_marks and not (options.horizon and len(timeouts) == 0)
        stops = np.union1d(np.union1d(terminals, timeouts) + 1, [self._rows])
        if not marked and not horizon:
            problem = "the key is missing, so episodes end by the environment's horizon"
            refuse(
                path, layout.TIMEOUTS, f"{problem}: give horizon=N, or a task of {listed(TASKS)}"
            )
        if not marked:
            stops = layout.cut_long(stops, horizon)
        lengths = np.diff(stops, prepend=0)
        self._terminated = np.isin(stops - 1, terminals, assume_unique=True)
        if marked:
            self._truncated = np.isin(stops - 1, timeouts, assume_unique=True)
            if facts and facts.ends_at_horizon and options.early_timeouts == "cut_off":
                self._truncated &= self._terminated | (lengths >= horizon - LAST_STEP)
        else:
            self._truncated = ~self._terminated & (lengths == horizon)
        self._report_endings(lengths, horizon)
        return lengths

    def _report_endings(self, lengths: np.ndarray, horizon: int) -> None:
        said = list(self.carried.notes)
        if cut_off := int(np.count_nonzero(~self._terminated & ~self._truncated)):
            problem = "recording stopped before they ended, so their return-to-go is unknown"
            said.append(f"{cut_off} of {len(lengths)} episodes were cut off: {problem}")
        if horizon and (longer := int(np.count_nonzero(lengths > horizon))):
            said.append(f"{amount(longer, 'episode')} longer than the horizon of {horizon} steps")
        self.carried = replace(self.carried, notes=tuple(said))

    def read_part(self, part: Span) -> PartInput:
        """See `protocol.Importer`."""
        with damage_named(self._path):
            arrays = {name: self._read(key, part.steps) for name, key in self._keys.items()}
            arrays["reward"] = rewards = arrays["reward"].reshape(-1)
            for name, key in self._episode_keys.items():
                in_next = key == layout.NEXT
                arrays[name] = (
                    self._final_obs(arrays, part) if in_next else self._read(key, part.episodes)
                )
        if self._table is not None:
            table = self._table.slice(part.first, len(part.lengths))
            remedy = layout.REMEDY
            check_notes(self._path, layout.NOTES, table, part, remedy=remedy, rewards=rewards)
            return PartInput(arrays, table)
        ends = self._terminated[part.episodes], self._truncated[part.episodes]
        columns = task_columns(self._task, self._quality, rewards, part.lengths, *ends)
        return PartInput(arrays, self.catalog(part, **columns))

    def _read(self, key: str, rows: slice) -> np.ndarray:
        return hdf5.read_rows(
            self._path, hdf5.dataset_at(self._file, key), key, rows.start, rows.stop
        )

    def _final_obs(self, steps: dict[str, np.ndarray], part: Span) -> np.ndarray:
        """(E, *shape) the next observation of each episode's last step.

        Refuses `next_observations` that are not the following rows' observations, unless they are
        a field.
        """
        if "next_obs" in steps:
            return steps["next_obs"][part.stops - 1]
        obs = steps["obs"]
        following = self._read(layout.NEXT, part.steps)
        differ = hdf5.unlike_following(following, obs)
        differ[part.stops[:-1] - 1] = False
        if differ.any():
            row = part.first_step + int(np.argmax(differ))
            problem = f"row {row} is not row {row + 1} of {layout.OBSERVATIONS} within an episode"
            remedy = f"{layout.REMEDY}, and " if self._table is not None else ""
            remedy += "import it as a field with keep_next=true"
            refuse(self._path, layout.NEXT, f"{problem}; {remedy}")
        return following[part.stops - 1]
