"""Import of MoCapAct's rollouts; `mocapact_schema.py` describes both sides."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, failures, listed
from gaitforge.common.files import visible
from gaitforge.datasets.formats.hdf5 import open_hdf5, top_names
from gaitforge.datasets.formats.protocol import Carried, Importer, PartInput
from gaitforge.datasets.formats.sources import (
    Span,
    catalog_columns,
    content_digests,
    cut_parts,
    damage_named,
    joint_identity,
    refuse,
)
from gaitforge.datasets.schema import Schema
from gaitforge.plugins.mocapact.format import mocapact_files as files
from gaitforge.plugins.mocapact.format import mocapact_schema as keys
from gaitforge.plugins.mocapact.format.mocapact_files import FileContents, Rollouts

_ROLLOUT_BITS = 20
"""Bits of an episode's id that count the rollouts of a snippet."""

RETURN_TOLERANCE = 1e-3
"""Relative tolerance between a recorded return, summed in float32, and the sum of the rewards."""


@dataclass(frozen=True)
class MocapactOptions:
    """How rollouts become a store.

    Attributes:
        observables: of the field `obs`: "body", the 13 that the Body Transformer learns from (all
            others become `further_obs`), or "all".
        validation_clips: a text file with a clip a line, whose episodes get "validation" in the
            catalog's column `split`; all others get "train".
    """

    observables: Annotated[str, ("body", "all")] = "body"
    validation_clips: str = ""


class MocapactImporter(Importer):
    """Reads one file or a folder of them; see `protocol.Importer`.

    The lengths of the rollouts come from the metrics of their snippets; `read_part` checks the
    arrays against them.
    """

    Options = MocapactOptions

    def __init__(self, source: str, options: MocapactOptions) -> None:
        self.files = _files(Path(source))
        clips = _clip_list(options.validation_clips) if options.validation_clips else ()
        contents = {path: files.read_contents(path) for path in self.files}
        self._contents = [content for content in contents.values() if content]
        self._empty = [path.name for path, content in contents.items() if not content]
        if not self._contents:
            refuse(source, "", "has no group <clip>-<start>-<end>; is it MoCapAct's?")
        self._layout, self.schema = _common_schema(self._contents, options.observables)
        self._rollouts = [rollouts for content in self._contents for rollouts in content.rollouts]
        self._identities = dict(zip(self.files, content_digests(self.files), strict=True))
        self._tables = {
            content.path: content.notes[1] for content in self._contents if content.notes
        }
        self._validation = _known_clips(self._rollouts, clips)
        self.identity = joint_identity(self._identities.values(), (options.observables, clips))
        lengths = np.concatenate([rollouts.columns["length"] for rollouts in self._rollouts])
        advice = "is the file damaged?"
        fields = self.schema.fields
        self.parts = cut_parts(source, "episode_lengths", lengths, fields, advice)
        self._first_rollouts = np.cumsum([0, *map(len, self._rollouts)])
        self.carried = self._carried()

    @classmethod
    def recognises(cls, source: Path) -> bool:
        """See `protocol.Importer`."""
        # One file tells it, and there may be thousands; the first ones may be damaged.
        paths = [source]
        if source.is_dir():
            paths = sorted(path for path in source.iterdir() if path.suffix in keys.SUFFIXES)
        names = next(filter(None, map(top_names, paths)), None)
        if names is None:  # no other format has files of HDF5 alone in a folder
            return source.is_dir() and bool(paths)
        return any(keys.MocapactSnippet.parse(name) for name in names)

    def read_part(self, part: Span) -> PartInput:
        """See `protocol.Importer`."""
        fields = self.schema.fields
        sizes = {"step": part.n_steps, "episode": len(part.lengths)}
        arrays = {
            field.name: np.empty((sizes[field.per], *field.shape), field.dtype) for field in fields
        }
        buffer = np.empty((int(part.lengths.max()) + 1, self._layout.width), np.float32)
        tables: list[pa.Table] = []
        episode = 0
        for rollouts, low, high in self._pieces(part):
            with open_hdf5(rollouts.path) as file, damage_named(rollouts.path):
                for number in range(low, high):
                    rows = slice(part.starts[episode], part.stops[episode])
                    places = {"step": rows, "episode": episode}
                    out = {field.name: arrays[field.name][places[field.per]] for field in fields}
                    self._read_rollout(file, rollouts, number, out, buffer)
                    episode += 1
            tables.append(self._catalog_of(rollouts, low, high))
        return PartInput(arrays, pa.concat_tables(tables, promote_options="permissive"))

    def _pieces(self, part: Span) -> Iterator[tuple[Rollouts, int, int]]:
        """The snippets of a part's episodes, each with a range of its rollouts."""
        first = part.first
        stop = part.episodes.stop
        at = int(np.searchsorted(self._first_rollouts, first, side="right")) - 1
        while at < len(self._rollouts) and self._first_rollouts[at] < stop:
            begin, end = (int(bound) for bound in self._first_rollouts[at : at + 2])
            yield self._rollouts[at], max(first, begin) - begin, min(stop, end) - begin
            at += 1

    def _read_rollout(
        self,
        file: h5py.File,
        rollouts: Rollouts,
        number: int,
        out: Mapping[str, np.ndarray],
        buffer: np.ndarray,
    ) -> None:
        """Read a rollout's fields into `out`; `buffer` takes its observations."""
        path = rollouts.path
        group = f"{rollouts.snippet.name}/{number}"
        for key, name in keys.STEP_KEYS.items():
            if name in out:
                files.read_float32(path, file, f"{group}/{key}", out[name])
        seen = buffer[: len(out["reward"]) + 1]
        files.read_float32(path, file, f"{group}/{keys.PROPRIOCEPTIVE}", seen)
        for name, columns in self._layout.columns.items():
            out[name][:] = seen[:-1, columns]
            out[f"final_{name}"][:] = seen[-1, columns]
        summed = float(out["reward"].sum(dtype=np.float64))
        recorded = float(rollouts.columns["return"][number])
        if abs(summed - recorded) > RETURN_TOLERANCE * max(1.0, abs(summed)):
            problem = f"sum to {summed:.6g}, but the metrics' episode return is {recorded:.6g}"
            refuse(path, f"{group}/rewards", problem)

    def _catalog_of(self, rollouts: Rollouts, low: int, high: int) -> pa.Table:
        """Catalog rows of a snippet's rollouts low .. high - 1."""
        snippet = rollouts.snippet
        clip = keys.clip_of(snippet.clip)
        if rollouts.note_rows is not None:
            table = self._tables[rollouts.path].take(pa.array(rollouts.note_rows[low:high]))
        else:
            metrics = {name: values[low:high] for name, values in rollouts.columns.items()}
            numbers = np.arange(low, high)
            columns = catalog_columns(
                low,
                metrics.pop("length"),
                self.identity,
                episode=_first_id(self._identities[rollouts.path], snippet) + numbers,
                terrain="flat",
                skill=clip,
                robot=keys.ROBOT,
                simulator="dm_control",
                expert=snippet.name,
                success=~metrics["terminated"],
                truncated=~metrics["terminated"],
                clip=clip,
                snippet_start=snippet.start,
                snippet_end=snippet.end,
                rollout=numbers,
                **dict[str, Any](metrics),
            )
            table = pa.table({name: pa.array(values) for name, values in columns.items()})
        if self._validation:
            side = "validation" if clip in self._validation else "train"
            names = [name for name in table.column_names if name != "split"]
            table = table.select(names).append_column("split", pa.array([side] * len(table)))
        return table

    def _carried(self) -> Carried:
        steps = self.schema.names("step")
        source = keys.PROPRIOCEPTIVE
        kept = [
            f"{source} ({listed(seen, 40)}) -> {name}; its last row -> final_{name}"
            for name, seen in self._layout.fields.items()
        ]
        kept += [f"{key} -> {name}" for key, name in keys.STEP_KEYS.items() if name in steps]
        kept.append(
            "everything else that gaitforge wrote"
            if self._tables
            else "snippets, their metrics and early_termination (terminated) -> the catalog"
        )
        names = sorted({name for content in self._contents for name in content.left})
        left = [f"{name}: not in the published schema" for name in names]
        left += [f"{name}: has no group <clip>-<start>-<end>" for name in self._empty]
        notes = (
            "stats: not copied; a store computes them for any selection",
            "to leave out early terminations, as the Body Transformer does, select where('not "
            "terminated')",
        )
        return Carried(tuple(kept), tuple(left), notes)


def _first_id(file_identity: str, snippet: keys.MocapactSnippet) -> int:
    """The id of a snippet's first rollout, independent of the other files.

    So no file is imported twice when a folder has grown since its import.
    """
    digest = hashlib.sha256(f"{file_identity} {snippet.name}".encode()).hexdigest()
    return int(digest[:16], 16) >> (1 + _ROLLOUT_BITS) << _ROLLOUT_BITS


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    paths = [path for path in visible(source) if path.suffix in keys.SUFFIXES]
    if not paths:
        refuse(source, "", f"no file ending in {' or '.join(keys.SUFFIXES)} in this folder")
    return paths


def _common_schema(
    contents: Sequence[FileContents], observables: str
) -> tuple[keys.ObservableLayout, Schema]:
    """The observables' layout and the schema of all files; DatasetError if they differ."""
    first = contents[0]
    for content in contents:
        described = ("widths", "keys", "action_dim", "ref_steps")
        differ = [name for name in described if getattr(content, name) != getattr(first, name)]
        if differ or list(content.widths) != list(first.widths):
            refuse(content.path, "", f"its observables or arrays are not those of {first.path}")
        noted = [item.notes[0] if item.notes else None for item in (content, first)]
        if noted[0] != noted[1]:
            problem = "have another schema than" if all(noted) else "are in only one of it and"
            refuse(content.path, "", f"gaitforge's notes {problem} {first.path}")
    if first.notes:
        return _schema_of_notes(first, first.notes[0])
    obs_names = [name for name in first.widths if name in keys.BODY_OBSERVABLES]
    if observables == "all" or not obs_names:
        obs_names = list(first.widths)
    layout = keys.ObservableLayout.of_file(first.widths, obs_names)
    return layout, keys.store_schema(layout, first.action_dim, first.keys, first.ref_steps)


def _schema_of_notes(content: FileContents, noted: Schema) -> tuple[keys.ObservableLayout, Schema]:
    """The schema in the notes, less the fields that the format does not hold."""
    layout = keys.ObservableLayout.of_schema(noted)
    fresh = keys.store_schema(layout, content.action_dim, content.keys, content.ref_steps)
    held = {(field.name, field.shape, field.dtype, field.per) for field in fresh.fields}
    fields = tuple(
        field for field in noted.fields if (field.name, field.shape, field.dtype, field.per) in held
    )
    if len(fields) != len(held) or [*layout.widths.items()] != [*content.widths.items()]:
        refuse(content.path, "", "gaitforge's notes do not describe its arrays; delete the group")
    return layout, replace(noted, fields=fields)


def _clip_list(path: str) -> tuple[str, ...]:
    """The clips of a text file, one per line, without empty lines and comments (#)."""
    with failures(f"cannot read the clip list {path}", OSError, UnicodeDecodeError):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    clips = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not clips:
        raise DatasetError(f"the clip list {path} names no clip; write one per line")
    return tuple(dict.fromkeys(clips))


def _known_clips(rollouts: Sequence[Rollouts], clips: Sequence[str]) -> frozenset[str]:
    known = {keys.clip_of(entry.snippet.clip) for entry in rollouts}
    if unknown := sorted(set(clips) - known):
        raise DatasetError(
            f"option validation_clips: no clip {listed(unknown)}; allowed: {listed(sorted(known))}"
        )
    return frozenset(clips)
