"""FCNet's published quadruped data: three flat memory maps, as a store and back.

    src_<steps>_58.dat    float32 (steps, 58): the state, command last, without the last action
    tgt_<steps>_12.dat    float32 (steps, 12): the expert's action
    meta_<episodes>.dat   int32 (episodes,): steps of each episode, end to end

The names hold the shapes. The last action is rebuilt where the data are read: zeros at the first
step, then the action of the step before. Rewards, final observations and how episodes ended are
not there: an episode as long as the longest is taken as one that timed out, a shorter one as one
that failed, because the data were collected to a fixed length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from datasets.errors import DatasetError
from datasets.formats.interface import Carried, PartInput
from datasets.formats.sources import (
    catalog_columns,
    check_episodes_fit,
    check_finite,
    check_steps_option,
    identity,
    pack_episodes,
    refuse,
    refuse_unreadable,
)
from datasets.schema import Field, Schema

STATE = {
    "projected_gravity": 3,
    "joint_vel": 12,
    "sin_joint_pos": 12,
    "cos_joint_pos": 12,
    "base_ang_vel_body": 3,
    "command": 16,
}
"""Channels of ``src`` in its order, by the names that the slices of our observation have."""

LAST_ACTION, COMMAND = "last_action", "command"
STATE_DIM, ACTION_DIM = sum(STATE.values()), 12
OBS_DIM = STATE_DIM + ACTION_DIM


def _consecutive(sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    stops = np.cumsum(list(sizes.values())).tolist()
    return {
        name: (stop - size, stop) for (name, size), stop in zip(sizes.items(), stops, strict=True)
    }


_SENSED = {name: size for name, size in STATE.items() if name != COMMAND}
OBS_SLICES = _consecutive({**_SENSED, LAST_ACTION: ACTION_DIM, COMMAND: STATE[COMMAND]})
"""Name -> (start, stop) in the imported observation: the paper's order, last action before the
command."""

CONTROL_DT_S = 0.02
_KINDS = ("src", "tgt", "meta")
_NAME = re.compile(r"(src|tgt|meta)((?:_\d+)+)\.dat")
_ITEM_BYTES = 4


@dataclass(frozen=True)
class FcnetOptions:
    """How a folder is read.

    Attributes:
        robot: whose joints the channels are.
        horizon: steps of an episode that timed out; 0 for the longest in the data.

    Raises:
        DatasetError: an empty robot, or a negative horizon.
    """

    robot: str = "aliengo"
    horizon: int = 0

    def __post_init__(self) -> None:
        check_steps_option("horizon", self.horizon)
        if not self.robot:
            raise DatasetError("option robot needs a name")


class FcnetImporter:
    """See ``interface.Importer``."""

    Options = FcnetOptions

    def __init__(self, source: str, options: FcnetOptions) -> None:
        self._folder = Path(source)
        self._paths, shapes = _find_maps(self._folder)
        self._check_shapes(shapes)
        lengths = np.fromfile(self._paths["meta"], "<i4").astype(np.int64)
        self._check_lengths(lengths, shapes["src"][0])
        self._robot = options.robot
        self._horizon = options.horizon or int(lengths.max())
        self.schema = _schema(options.robot)
        self.files = [self._paths[kind] for kind in _KINDS]
        self.identity = identity(self.files, options)
        row_bytes = sum(field.row_bytes for field in self.schema.fields)
        advice = "cut it into several in meta"
        check_episodes_fit(self._paths["meta"], "meta", lengths, row_bytes, advice)
        self.part_lengths = pack_episodes(lengths, row_bytes)
        self._first_episodes = np.cumsum([0, *(len(part) for part in self.part_lengths)])
        self._first_rows = np.cumsum([0, *(int(part.sum()) for part in self.part_lengths)])
        self.carried = Carried(
            kept=("src -> obs, by the channels' names", "tgt -> action, and last_action of obs"),
            notes=(
                f"episodes of {self._horizon} steps or more timed out, shorter ones failed",
                "no rewards: the catalog's returns are 0 and mean nothing",
                "joints, commands and scales are taken to be ours; the files do not name them",
            ),
        )

    def _check_shapes(self, shapes: dict[str, tuple[int, ...]]) -> None:
        steps = shapes["src"][0]
        wanted = {"src": (steps, STATE_DIM), "tgt": (steps, ACTION_DIM), "meta": shapes["meta"][:1]}
        for kind in _KINDS:
            path, shape = self._paths[kind], shapes[kind]
            if shape[0] == 0:
                refuse(path, kind, "has no rows")
            if shape != wanted[kind]:
                refuse(path, kind, f"shape {shape} in its name must be {wanted[kind]}")
            size, expected = path.stat().st_size, _ITEM_BYTES * int(np.prod(shape))
            if size != expected:
                refuse_unreadable(
                    path,
                    f"a memory map of shape {shape}",
                    f"it has {size} bytes, its name says {expected}",
                )

    def _check_lengths(self, lengths: np.ndarray, rows: int) -> None:
        def wrong(episode: int, problem: str) -> NoReturn:
            refuse(self._paths["meta"], "meta", f"episode {episode} {problem}")

        if lengths.min() < 1:
            episode = int(np.argmin(lengths))
            wrong(episode, f"has {lengths[episode]} steps; at least 1 is needed")
        stops = np.cumsum(lengths)
        if stops[-1] > rows:
            episode = int(np.searchsorted(stops, rows, side="right"))
            wrong(episode, f"of {lengths[episode]} steps goes beyond the {rows} rows of src")
        if stops[-1] < rows:
            wrong(len(lengths) - 1, f"ends at row {stops[-1]}, but src has {rows} rows")

    def read_part(self, number: int) -> PartInput:
        """See ``interface.Importer``."""
        first, stop = (int(row) for row in self._first_rows[number : number + 2])
        lengths = self.part_lengths[number]
        state = self._rows("src", first, stop, STATE_DIM)
        action = self._rows("tgt", first, stop, ACTION_DIM)
        obs = np.empty((stop - first, OBS_DIM), np.float32)
        at = 0
        for name, size in STATE.items():
            obs[:, slice(*OBS_SLICES[name])] = state[:, at : at + size]
            at += size
        obs[:, slice(*OBS_SLICES[LAST_ACTION])] = previous_actions(action, lengths)
        failed = lengths < self._horizon
        columns = catalog_columns(
            int(self._first_episodes[number]),
            lengths,
            self.identity,
            robot=self._robot,
            simulator="isaacgym",
            expert="fcnet",
            success=~failed,
            terminated=failed,
            truncated=~failed,
        )
        return PartInput({"obs": obs, "action": action}, columns, {})

    def _rows(self, kind: str, first: int, stop: int, width: int) -> np.ndarray:
        # Read rather than mapped: pages of a map would count as this process's memory.
        count, offset = (stop - first) * width, first * width * _ITEM_BYTES
        rows = np.fromfile(self._paths[kind], "<f4", count, offset=offset)
        if len(rows) != count:
            refuse(self._paths[kind], kind, "became shorter while it was read")
        rows = rows.reshape(-1, width)
        check_finite(self._paths[kind], kind, rows, first)
        return rows

    def close(self) -> None:
        """See ``interface.Importer``."""


def previous_actions(action: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(T, A) the action of the step before; zeros at the first step of each episode."""
    previous = np.empty_like(action)
    previous[1:] = action[:-1]
    previous[np.cumsum(lengths) - lengths] = 0.0
    return previous


def map_name(kind: str, shape: tuple[int, ...]) -> str:
    """The file name of a memory map, which holds its shape."""
    return f"{'_'.join([kind, *map(str, shape)])}.dat"


def _find_maps(folder: Path) -> tuple[dict[str, Path], dict[str, tuple[int, ...]]]:
    """Path and shape of each memory map in a folder."""
    if not folder.is_dir():
        refuse(folder, "", "no such folder")
    paths: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.iterdir()):
        if (match := _NAME.fullmatch(path.name)) and path.is_file():
            kind = match[1]
            if kind in paths:
                refuse(folder, kind, f"there are two: {paths[kind].name} and {path.name}")
            paths[kind] = path
            shapes[kind] = tuple(int(size) for size in match[2].strip("_").split("_"))
    for kind in _KINDS:
        if kind not in paths:
            refuse(folder, kind, f"no file {kind}_<shape>.dat")
    return paths, shapes


def _schema(robot: str) -> Schema:
    return Schema(
        (
            Field(
                "obs",
                (OBS_DIM,),
                unit="as FCNet's data",
                description="observation before the step",
                slices=OBS_SLICES,
            ),
            Field("action", (ACTION_DIM,), unit="as FCNet's data", description="expert's action"),
        ),
        CONTROL_DT_S,
        robot,
        {"format": "fcnet"},
    )
