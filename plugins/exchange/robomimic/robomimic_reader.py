"""Import of robomimic's and Isaac Lab's HDF5 files; `robomimic_schema.py` describes the layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np
from h5py import h5d, h5s  # pyright: ignore[reportAttributeAccessIssue] (compiled)

from gaitforge.common.errors import failures, listed
from gaitforge.datasets.formats import hdf5
from gaitforge.datasets.formats.protocol import Carried, PartInput
from gaitforge.datasets.formats.sources import (
    EPISODE_BYTES,
    Span,
    check_finite,
    check_notes,
    check_option,
    cut_parts,
    damage_named,
    episode_returns,
    field_bytes,
    identity,
    refuse,
    refuse_options,
)
from gaitforge.datasets.schema import TASK_AND_QUALITY, Field, Schema, consecutive_slices
from gaitforge.plugins.exchange.robomimic import robomimic_schema as files
from gaitforge.plugins.exchange.robomimic import robomimic_schema as keys
from gaitforge.plugins.exchange.robomimic.robomimic_schema import Demo, Kind

_UNKNOWN_DT_S = 0.02
_MIMIC = "obs/datagen_info/"
"""Isaac Lab Mimic's own group of the observations, which no policy sees."""


@dataclass(frozen=True)
class RobomimicOptions:
    """How a file is read. A file with gaitforge's notes takes no options.

    Attributes:
        obs: names below `obs` that become `obs`, in this order, each flat; `*` matches any text.
            Empty: all but pictures and `datagen_info`, in the file's order.
        fields: keys below a demo, such as `states` and `obs/eef_*`, that become fields of their
            own. Empty: all other arrays of numbers but pictures and `next_obs`.
        done_mode: as robomimic's: a set `dones` says 0 that the task is solved, 1 that the demo
            ends, 2 either. With 1 and 2 a demo is solved by a positive last reward.
        control_dt_s: seconds of a step; 0 for `control_freq` of `env_args`, or 0.02.
        quality: such as "mh"; the file does not say.
    """

    obs: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    done_mode: Annotated[int, (0, 1, 2)] = 0
    control_dt_s: float = 0.0
    quality: str = "unknown"

    def __post_init__(self) -> None:
        check_option("control_dt_s", self.control_dt_s, "seconds")


class RobomimicImporter(hdf5.Hdf5Importer):
    """See `protocol.Importer`."""

    Options = RobomimicOptions

    @classmethod
    def recognises(cls, source: Path) -> bool:
        """See `protocol.Importer`."""
        return keys.DATA in hdf5.top_names(source)

    def _open(self) -> None:
        path = self._path
        self._table = None
        self._demos, self._left, self._said = files.read_demos(path, self._file)
        self._kinds = files.common_kinds(self._demos)
        env, self.metadata = files.read_env(path, self._file)
        self._task = str(env.get("env_name") or "unknown")
        group = self._file.get(keys.NOTES)
        if isinstance(group, h5py.Group):
            refuse_options(path, keys.NOTES, self._options, keys.REMEDY)
            self._describe_notes(group)
        else:
            self._describe(env)
        if keys.DONES in self._kinds:
            self._required(keys.DONES, size=1)
        lengths = np.array([demo.length for demo in self._demos])
        advice = "cut it into several demos"
        self.parts = cut_parts(path, keys.DATA, lengths, self.schema.fields, advice)
        if field_bytes(self.schema.fields, 0, 1) > EPISODE_BYTES:
            refuse(path, keys.DATA, "the arrays with a row a demo are too large to be read")
        self.files = [path]
        self.identity = identity(self.files, self._options)
        masks = files.read_masks(self._file, self._demos, self._said)
        rows = self.catalog(Span(lengths, 0, 0)) if self._table is None else self._table
        self.selections = {n: np.asarray(rows["episode"])[mask] for n, mask in masks.items()}
        kept = [f"{listed(sources)} -> {name}" for name, sources in self._keys.items()]
        kept = kept if self._table is None else ["everything that gaitforge wrote"]
        kept += [f"mask/{name} -> the selection {name}" for name in masks]
        self.carried = Carried(tuple(kept), tuple(self._left), tuple(self._said))

    def _describe_notes(self, group: h5py.Group) -> None:
        """Set the schema and keys from gaitforge's notes; refuses demos that are not so."""
        self.schema, self._table = hdf5.read_notes(self._path, group)
        with failures(str(self._path)):
            self._keys = keys.keys_of(self.schema, bool(group.attrs.get(keys.NESTED, False)))
        for field in self.schema.fields:
            parts = [self._required(key) for key in self._keys[field.name]]
            size = sum(part.size for part in parts), {part.dtype for part in parts}
            if size != (int(np.prod(field.shape, dtype=np.int64)), {field.dtype}):
                problem = f"shape or dtype is not what the notes say; {keys.REMEDY}"
                refuse(self._path, self._keys[field.name][0], problem)
        self._required(keys.DONES)
        if len(self._table) != len(self._demos):
            problem = f"the notes have {len(self._table)} episodes, not {len(self._demos)}"
            refuse(self._path, keys.NOTES, f"{problem}; {keys.REMEDY}")

    def _describe(self, env: Mapping[str, Any]) -> None:
        """Set the schema, the keys of its fields, and what is converted."""
        observed = self._observed()
        final = self._final_keys(observed)
        obs, noted = self._obs_field(observed)
        action = self._field("action", keys.ACTIONS)
        fields = [obs, action, Field("reward")]
        reward = keys.REWARDS in self._kinds
        self._keys = {"obs": observed, "action": [keys.ACTIONS]}
        if reward:
            fields[2] = Field("reward", (), self._required(keys.REWARDS, size=1).dtype)
            self._keys["reward"] = [keys.REWARDS]
        else:
            self._said.append("no rewards: every reward is 0")
        if final:
            fields.append(replace(obs, name="final_obs", per="episode"))
            self._keys["final_obs"] = final
        for key in self._further([*observed, *final]):
            name = keys.name_of(key, self._keys)
            fields.append(self._field(name, key))
            self._keys[name] = [key]
            if (own_key := keys.own_key(name, fields[-1].per)) != key:
                noted[own_key] = key
        settings = env.get("env_kwargs")
        rate = settings.get("control_freq") if isinstance(settings, Mapping) else None
        is_rate = isinstance(rate, int | float) and 0.0 < rate < np.inf
        dt_s = self._options.control_dt_s or (1.0 / rate if is_rate else _UNKNOWN_DT_S)
        attributes = {"task": self._task, "format": "robomimic"}
        attributes |= {keys.KEYS: noted} if noted else {}
        self.schema = Schema(tuple(fields), dt_s, self._task, attributes, TASK_AND_QUALITY)
        self._said += files.ending_notes(self._demos, self._kinds, self._options.done_mode)
        self._left += files.other_attributes(self._file, self._demos[0])

    def _required(self, key: str, remedy: str = "", size: int = 0) -> Kind:
        """Kind of a required array, with `size` numbers a row; refuses the file without it."""
        kind = self._kinds.get(key, Kind(problem="the key is missing"))
        if kind.problem or (size and kind.size != size):
            problem = kind.problem or f"needs {size} number a step, not shape {kind.shape}"
            refuse(self._path, f"{keys.DATA}/*/{key}", f"{problem}{remedy}")
        return kind

    def _field(self, name: str, key: str) -> Field:
        kind = self._required(key)
        text = f"{key} of the demos"
        per = "episode" if key.startswith(keys.PER_EPISODE) else "step"
        return Field(name, kind.shape, kind.dtype, description=text, per=per)

    def _observed(self) -> list[str]:
        """The keys that become `obs`, in order."""
        if keys.OBS in self._kinds:
            return [keys.OBS]
        kinds = self._kinds
        start = f"{keys.OBS}/"
        first: Any = self._file[self._demos[0].group]
        group = first.get(keys.OBS)
        order = {name: at for at, name in enumerate(group)} if group is not None else {}
        names = [key for key in kinds if key.startswith(start)]
        names.sort(key=lambda key: order.get(key.split("/")[1], len(order)))
        if self._options.obs:
            below = {key.removeprefix(start): kinds[key] for key in names}
            picked = files.chosen(self._path, keys.OBS, self._options.obs, below)
            return [start + name for name in picked]
        picked = [k for k in names if not kinds[k].is_picture and not k.startswith(_MIMIC)]
        if not picked:
            refuse(self._path, keys.OBS, "no demo has observations that are numbers")
        return picked

    def _obs_field(self, observed: Sequence[str]) -> tuple[Field, dict[str, str]]:
        """The field, and own key -> key of the slices whose names do not tell it."""
        widths = dict[str, int]()
        noted = dict[str, str]()
        parts = [self._required(key, "; name others with obs=NAME,NAME") for key in observed]
        for key, kind in zip(observed, parts, strict=True):
            name = keys.name_of(key.partition("/")[2] or "state", widths)
            widths[name] = kind.size
            if key not in (keys.OBS, own_key := f"{keys.OBS}/{name}"):
                noted[own_key] = key
        dtype = np.result_type(*(np.dtype(kind.dtype) for kind in parts)).name
        slices = {} if observed == [keys.OBS] else consecutive_slices(widths)
        return Field("obs", (sum(widths.values()),), dtype, slices=slices), noted

    def _final_keys(self, observed: Sequence[str]) -> list[str]:
        """The keys of the next observations, if they are like the observations and not fields."""
        following = {key: f"next_{key}" for key in observed}
        kinds = self._kinds
        alike = all(kinds.get(after) == kinds[key] for key, after in following.items())
        as_fields = [
            files.matching(following.values(), pattern) for pattern in self._options.fields
        ]
        return list(following.values()) if alike and not any(as_fields) else []

    def _further(self, used: Sequence[str]) -> list[str]:
        """The keys of the other arrays that become fields."""
        main = (keys.ACTIONS, keys.REWARDS, keys.DONES)
        unused = {key: kind for key, kind in self._kinds.items() if key not in (*main, *used)}
        if self._options.fields:
            picked = files.chosen(self._path, "fields", self._options.fields, unused)
        else:
            start = (keys.NEXT, f"{keys.NEXT}/")
            picked = [k for k, kind in unused.items() if not kind.unfit and not k.startswith(start)]
        unpicked = {key: kind.unfit for key, kind in unused.items() if key not in picked}
        self._left += [f"{key}: {unfit or 'not chosen'}" for key, unfit in unpicked.items()]
        return picked

    def read_part(self, part: Span) -> PartInput:
        """See `protocol.Importer`."""
        rows = {"step": part.n_steps, "episode": len(part.lengths)}
        fields = self.schema.fields
        demos = self._demos[part.episodes]
        ends = []
        with damage_named(self._path):
            arrays = {f.name: np.zeros((rows[f.per], *f.shape), f.dtype) for f in fields}
            for at, demo in enumerate(demos):
                steps = slice(part.stops[at] - demo.length, part.stops[at])
                places = {"step": steps, "episode": slice(at, at + 1)}
                views = {field.name: arrays[field.name][places[field.per]] for field in fields}
                for name, sources in self._keys.items():
                    if sources[0].split("/")[0] == keys.NEXT and name == "final_obs":
                        self._read_final(demo, sources, views)
                    else:
                        self._read(demo, sources, views[name])
                ends.append(self._ends(demo, views["reward"]))
        solved, terminated, truncated = np.array(ends, bool).T
        if self._table is not None:
            table = self._table.slice(part.first, len(part.lengths))
            arguments = {"rewards": arrays["reward"], "terminated": terminated}
            check_notes(self._path, keys.NOTES, table, part, remedy=keys.REMEDY, **arguments)
            return PartInput(arrays, table)
        columns: dict[str, Any] = {
            "task": self._task,
            "quality": self._options.quality,
            "robot": self._task,
            "seed": [demo.seed for demo in demos],
            "demo": [demo.number for demo in demos],
            "return": episode_returns(arrays["reward"], part.lengths),
            "success": solved,
            "terminated": terminated,
            "truncated": truncated,
        }
        return PartInput(arrays, self.catalog(part, **columns))

    def _rows(self, demo: Demo, key: str) -> np.ndarray:
        key = f"{demo.group}/{key}"
        dataset = h5d.open(self._file.id, key.encode())  # h5py's other calls take twice as long
        rows = np.empty(dataset.shape, dataset.dtype)
        with damage_named(self._path, key, "cannot be read"):
            dataset.read(h5s.ALL, h5s.ALL, rows)
        check_finite(self._path, key, rows)
        return rows

    def _read(self, demo: Demo, sources: Sequence[str], out: np.ndarray) -> None:
        """Fill `out` with the arrays at some keys, side by side."""
        flat = out.reshape(len(out), -1)
        stop = 0
        for key in sources:
            rows = self._rows(demo, key).reshape(len(out), -1)
            start = stop
            stop = stop + rows.shape[1]
            flat[:, start:stop] = rows

    def _read_final(
        self, demo: Demo, sources: Sequence[str], views: Mapping[str, np.ndarray]
    ) -> None:
        """Fill `final_obs`; refuses next observations that are not the following rows'."""
        obs = views["obs"]
        following = np.empty_like(obs)
        self._read(demo, sources, following)
        differ = hdf5.unlike_following(following, obs)
        if differ.any():
            row = int(np.argmax(differ))
            problem = f"row {row} is not row {row + 1} of {keys.OBS}; to keep it as it is"
            key = f"{demo.group}/{keys.NEXT}"
            refuse(self._path, key, f"{problem} name it in fields, as fields=*")
        views["final_obs"][:] = following[-1]

    def _ends(self, demo: Demo, rewards: np.ndarray) -> tuple[bool, bool, bool]:
        """Whether a demo is solved, terminated and truncated; `ending_notes` says the rules."""
        if keys.DONES not in self._kinds:
            return bool(demo.success), bool(demo.success), demo.success is False
        dones = self._rows(demo, keys.DONES).reshape(-1)
        if not np.isin(dones, (0, 1)).all():
            refuse(self._path, f"{demo.group}/{keys.DONES}", "has values other than 0 and 1")
        if self._options.done_mode == 0:
            solved = bool(dones.any()) if demo.success is None else demo.success
            return solved, bool(dones[-1]), not dones[-1]
        solved = bool(rewards[-1] > 0) if demo.success is None else demo.success
        return solved, solved, not solved
