"""Export of a selection as a robomimic file; `robomimic_schema.py` describes the layout."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.hdf5 import packing, write_notes
from gaitforge.datasets.formats.protocol import Advance, Carried, Exporter, ExportOptions
from gaitforge.datasets.formats.sources import blocks, check_fields, check_room, tiling_slices
from gaitforge.datasets.formats.transfer.imported import imported_metadata
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection import EpisodeSelection, load_selection
from gaitforge.datasets.storage.about import read_about
from gaitforge.plugins.exchange.robomimic import robomimic_schema as keys

_GYM_TYPE = 2
"""robomimic's and Isaac Lab's number for Gym environments in `env_args`."""
_NEEDED = ("env_name", "type", "env_kwargs")
"""Keys of `env_args` that robomimic's own readers need, each of one kind."""
_CHUNK_BYTES = 1 << 20
_SIDES = ("train", "valid")


@dataclass(frozen=True)
class RobomimicExportOptions(ExportOptions):
    """How a file is written.

    Attributes:
        layout: "robomimic" with flat names, or "isaaclab", whose groups nest as an imported file's.
        masks: files of saved selections, or folders of them, that become filter keys.
        held_out: share of the episodes in the filter key `valid`; the others are in `train`.
        compression: "gzip" as in Isaac Lab's files, "lzf" or "none".
        notes: embed the schema and the catalog in the group `gaitforge`, so that an import gives
            back the same store; other readers ignore them.
        actions: see `ExportOptions`.
    """

    layout: Annotated[str, ("robomimic", "isaaclab")] = "robomimic"
    masks: tuple[str, ...] = ()
    held_out: float = 0.0
    compression: Annotated[str, ("gzip", "lzf", "none")] = "gzip"
    notes: bool = True


class RobomimicExporter(Exporter):
    """See `protocol.Exporter`."""

    Options = RobomimicExportOptions

    def check(self, selection: EpisodeSelection, destination: Path) -> None:
        """See `protocol.Exporter`."""
        check_fields(selection, "a robomimic file", ("obs", "action", "reward"))
        self._keys = keys.keys_of(selection.schema, self._nested)
        names = [key.partition("/")[2] for key in self._keys["obs"]]
        field_keys = [
            parts[0] for name, parts in self._keys.items() if name not in ("obs", "final_obs")
        ]
        fields = [key for key in field_keys if key not in (keys.ACTIONS, keys.REWARDS)]
        reading = {"obs": tuple(map(escape, filter(None, names)))}
        reading |= {"fields": tuple(map(escape, fields))} if fields else {}
        self.reading = reading  # pyright: ignore[reportAttributeAccessIssue]
        self._masks = self._filter_keys(selection)
        check_room(selection, destination)

    @property
    def _nested(self) -> bool:
        return self._options.layout == "isaaclab"

    def _filter_keys(self, selection: EpisodeSelection) -> dict[str, np.ndarray]:
        """Filter key -> its episodes, as numbers in the selection."""
        masks: dict[str, np.ndarray] = {}
        if share := self._options.held_out:
            masks = {n: s.rows for n, s in zip(_SIDES, selection.split(share, 0), strict=True)}
        for path in map(Path, self._options.masks):
            for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
                if file.stem in masks:
                    raise DatasetError(f"two filter keys would be named {file.stem}")
                masks[file.stem] = _rows_of(load_selection(selection.store, file), selection)
        episodes = {n: np.flatnonzero(np.isin(selection.rows, rows)) for n, rows in masks.items()}
        if empty := [name for name, rows in episodes.items() if not len(rows)]:
            raise DatasetError(f"filter key {listed(empty)}: none of its episodes is exported")
        return episodes

    def write(self, selection: EpisodeSelection, temporary: Path, advance: Advance) -> Carried:
        """See `protocol.Exporter`."""
        schema = selection.schema
        metadata = imported_metadata(selection, "robomimic")
        names = ("terminated", "success", "seed")
        ends = {name: selection.episodes(name).column(name).to_numpy() for name in names}
        largest = 0.0
        # Only this process knows the file, and not every file system has locks.
        with h5py.File(temporary, "w", locking=False) as file:
            file.attrs.update(read_about(selection.store).texts)
            data = file.create_group(keys.DATA)
            data.attrs[keys.TOTAL] = selection.steps
            env_args, differing = _env_args(schema, metadata)
            data.attrs[keys.ENV_ARGS] = env_args
            for block in blocks(selection):
                values = block.read(schema.names())
                largest = max(largest, float(np.abs(values["action"]).max()))
                for at, stop in enumerate(block.stops):
                    episode = block.first + at
                    steps = slice(stop - block.lengths[at], stop)
                    rows = {
                        field.name: values[field.name][steps if field.per == "step" else [at]]
                        for field in schema.fields
                    }
                    demo = data.create_group(f"demo_{episode}")
                    demo.attrs[keys.SAMPLES] = block.lengths[at]
                    demo.attrs[keys.SUCCESS] = ends["success"][episode]
                    if ends["seed"][episode] >= 0:
                        demo.attrs[keys.SEED] = ends["seed"][episode]
                    self._write_demo(demo, schema, rows, bool(ends["terminated"][episode]))
                advance(block.n_steps)
            for name, episodes in self._masks.items():
                file[f"{keys.MASK}/{name}"] = np.array(
                    [f"demo_{number}" for number in episodes], "S"
                )
            if self._options.notes:
                notes = file.create_group(keys.NOTES)
                write_notes(notes, selection)
                notes.attrs[keys.NESTED] = self._nested
        return self._carried(schema, largest, differing)

    def _write_demo(
        self, demo: h5py.Group, schema: Schema, rows: Mapping[str, np.ndarray], terminated: bool
    ) -> None:
        """Write an episode's fields, (T, *shape) or (1, *shape), below a demo's group."""
        dones = np.zeros(len(rows["action"]), np.int64)
        dones[-1] = terminated
        self._put(demo, keys.DONES, dones)
        for name, sources in self._keys.items():
            values = rows[name]
            if sources[0].split("/")[0] == keys.NEXT and name == "final_obs":
                values = np.concatenate([rows["obs"][1:], values])
            stops = [stop for _, (_, stop) in tiling_slices(schema.field("obs"))]
            pieces = np.split(values, stops[:-1], axis=-1) if len(sources) > 1 else [values]
            for key, piece in zip(sources, pieces, strict=True):
                self._put(demo, key, piece)

    def _put(self, demo: h5py.Group, key: str, values: np.ndarray) -> None:
        """Create a dataset; groups keep the order of their names."""
        if "/" in key and (head := key.partition("/")[0]) not in demo:
            demo.create_group(head, track_order=True)
        chunk = min(len(values), max(1, _CHUNK_BYTES // max(1, values[0].nbytes)))
        packed = packing(self._options.compression)
        layout = {"chunks": (chunk, *values.shape[1:])} if packed else {}
        demo.create_dataset(key, data=values, compression=packed, **layout)

    def _carried(self, schema: Schema, largest: float, differing: Sequence[str]) -> Carried:
        kept = [f"{name} -> {listed(parts)}" for name, parts in self._keys.items()]
        kept += [f"the selection {name} -> {keys.MASK}/{name}" for name in self._masks]
        left = list(differing)
        notes = list[str]()
        if self._options.notes:
            kept.append(f"the catalog and schema -> {keys.NOTES}")
        else:
            left += [f"the catalog but terminated, {keys.SUCCESS} and {keys.SEED}", "the units"]
        if largest > 1.0:
            notes.append(f"actions reach {largest:.3g}; robomimic wants them within -1 and 1")
        if "final_obs" not in self._keys:
            notes.append(
                f"no {keys.NEXT}: the store has no final_obs; load_next_obs=False reads it"
            )
        return Carried(tuple(kept), tuple(left), tuple(notes))


def _rows_of(loaded: EpisodeSelection, selection: EpisodeSelection) -> np.ndarray:
    """Row numbers of a loaded selection in another's catalog, which may lack later parts."""
    bounds = selection.catalog.part_bounds
    parts = [(part_id, rows) for part_id, rows in loaded.rows_by_part() if part_id in bounds]
    return np.concatenate(
        [np.zeros(0, np.int64), *(bounds[part][0] + rows for part, rows in parts)]
    )


def _env_args(schema: Schema, sources: Sequence[bytes]) -> tuple[str, list[str]]:
    """`env_args` of episodes of these imported `env_args`, and what a file cannot say of several.

    What all sources say stays. Of texts and numbers that differ, such as a version, all are named
    in one text; of others, and of what readers need, the store's own value stands.
    """
    own_env = _env(schema)
    trees: list[dict[str, Any]] = [json.loads(source) for source in sources] or [own_env]
    joint: dict[str, Any] = {}
    differing: list[str] = []
    for key in dict.fromkeys(name for tree in trees for name in tree):
        values = [tree[key] for tree in trees if key in tree]
        different = [value for at, value in enumerate(values) if value not in values[:at]]
        if len(different) == 1 and len(values) == len(trees):
            joint[key] = values[0]
            continue
        words = [_shown(value) for value in different] + ["none"] * (len(values) < len(trees))
        if key in _NEEDED:
            joint[key] = own_env[key]
            stands = f"it says {_shown(own_env[key])}"
        elif any(isinstance(value, dict | list) for value in different):
            stands = "it says nothing"
        else:
            joint[key] = " and ".join(words)
            stands = "it says so"
        differing.append(
            f"one {key} for all episodes in {keys.ENV_ARGS}: the sources have "
            f"{' and '.join(words)}; {stands}"
        )
    return json.dumps(joint), differing


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _env(schema: Schema) -> dict[str, Any]:
    """`env_args` of a store's own task; no environment of this name is registered elsewhere."""
    task = str(schema.attributes.get("task") or schema.robot)
    described = {"env_name": task, "type": _GYM_TYPE, "env_version": version("gaitforge")}
    return {**described, "env_kwargs": {"control_freq": 1.0 / schema.control_dt_s}}
