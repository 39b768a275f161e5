"""Import of FCNet's memory maps, which `fcnet_schema.py` describes.

Of quadrupeds, the last action in the observation is rebuilt from the actions. The data were
collected to a fixed length, so the longest episodes count as timed out and shorter ones as failed.
Maps of D4RL's tasks are known by their widths, and give the rewards too.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.protocol import Carried, Importer, PartInput
from gaitforge.datasets.formats.sources import (
    Span,
    check_finite,
    check_option,
    cut_parts,
    identity,
    refuse,
    refuse_unreadable,
)
from gaitforge.plugins.gym.d4rl.d4rl_tasks import (
    LAST_STEP,
    TASKS,
    D4rlTask,
    named_dataset,
    task_columns,
)
from gaitforge.plugins.gym.fcnet import fcnet_schema as layout

_KINDS = ("src", "tgt", "meta")
_NAME = re.compile(r"(src|tgt|meta)((?:_\d+)+)\.dat")
_COUNTS = re.compile(r"_\d+_\d+$")
_ITEM_BYTES = 4
_REWARD_ERROR = 1e-3
"""Most by which rewards lie below the task's own; success rules compare them with limits."""


@dataclass(frozen=True)
class FcnetOptions:
    """How a folder is read.

    Attributes:
        robot: whose joints the channels are.
        horizon: steps of an episode that timed out; 0 for the longest in the data, or the task's
            (of MuJoCo's, or one less, see `d4rl_tasks.LAST_STEP`).
        task, quality: of maps of a D4RL task; empty: from the folder's name.
    """

    robot: str = "aliengo"
    horizon: int = 0
    task: str = field(default="", repr=False)  # the digest holds the resolved names
    quality: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_option("horizon", self.horizon, "steps", int)
        if not self.robot:
            raise DatasetError("option robot needs a name")


class FcnetImporter(Importer):
    """See `protocol.Importer`."""

    Options = FcnetOptions

    def __init__(self, source: str, options: FcnetOptions) -> None:
        self._paths, self._shapes = _find_maps(Path(source))
        widths = self._shapes["src"][1:], self._shapes["tgt"][1:]
        of_d4rl = widths != ((layout.STATE_DIM,), (layout.ACTION_DIM,))
        self._check_shapes(of_d4rl)
        meta = self._paths["meta"]
        lengths = np.fromfile(meta, "<i4").astype(np.int64)
        _check_lengths(meta, lengths, self._shapes["src"][0])
        self._facts: D4rlTask | None = None
        self.files = [self._paths[kind] for kind in _KINDS]
        if of_d4rl:
            self._describe_task(Path(source), options)
            self.identity = identity(self.files, (options, self._task, self._quality))
        elif options.task or options.quality:
            refuse(source, "", "options task and quality are for maps of D4RL's tasks")
        else:
            self._horizon = options.horizon or int(lengths.max())
            self.schema = layout.store_schema(options.robot)
            self.identity = identity(self.files, options)
        advice = "cut it into several in meta"
        self.parts = cut_parts(meta, "meta", lengths, self.schema.fields, advice)
        self.carried = self._carried()

    @classmethod
    def recognises(cls, source: Path) -> bool:
        """See `protocol.Importer`."""
        return any(any(source.glob(f"{kind}_*.dat")) for kind in _KINDS)

    def _describe_task(self, folder: Path, options: FcnetOptions) -> None:
        """Set what maps of a D4RL task hold, which are 2 columns of `src` or more."""
        task, quality = named_dataset(_COUNTS.sub("", folder.resolve().name))
        self._task = options.task or task
        self._quality = options.quality or quality
        if self._task not in TASKS:
            problem = f"the maps are not of a quadruped ({layout.STATE_DIM} and {layout.ACTION_DIM}"
            problem += " columns), and the folder's name names no task of D4RL"
            refuse(folder, "", f"{problem}: give task=, one of {listed(TASKS)}")
        self._facts = facts = TASKS[self._task]
        early = LAST_STEP if facts.ends_at_horizon else 0
        self._horizon = options.horizon or facts.horizon - early
        state = self._shapes["src"][1] - 1
        action = self._shapes["tgt"][1]
        self.schema = layout.d4rl_schema(self._task, facts, state, action)

    def _carried(self) -> Carried:
        timed_out = f"episodes of {self._horizon} steps or more timed out, shorter ones"
        if self._facts is not None:
            notes = (
                f"{timed_out} terminated: the maps do not tell",
                f"success: {self._facts.success.words}",
                "rewards are differences of float32 returns-to-go, exact to about 1e-7 of these",
            )
            kept = f"src -> {layout.RETURN_TO_GO}, reward and obs", "tgt -> action"
            return Carried(kept=kept, notes=notes)
        return Carried(
            kept=("src -> obs, by the channels' names", "tgt -> action, and last_action of obs"),
            notes=(
                f"{timed_out} failed",
                "no rewards: the catalog's returns are 0 and mean nothing",
                "joints, commands and scales are taken to be ours; the files do not name them",
            ),
        )

    def _check_shapes(self, of_d4rl: bool) -> None:
        shapes = self._shapes
        steps = self._shapes["src"][0]
        state = (steps, layout.STATE_DIM)
        action = (steps, layout.ACTION_DIM)
        if of_d4rl and len(shapes["src"]) == len(shapes["tgt"]) == 2:
            state = (steps, max(2, shapes["src"][1]))
            action = (steps, max(1, shapes["tgt"][1]))
        for kind, expected_shape in zip(_KINDS, (state, action, shapes["meta"][:1]), strict=True):
            path = self._paths[kind]
            shape = shapes[kind]
            if shape[0] == 0:
                refuse(path, kind, "has no rows")
            if shape != expected_shape:
                refuse(path, kind, f"shape {shape} in its name must be {expected_shape}")
            size = path.stat().st_size
            expected = _ITEM_BYTES * int(np.prod(shape))
            if size != expected:
                problem = f"it has {size} bytes, its name says {expected}"
                refuse_unreadable(path, f"a memory map of shape {shape}", problem)

    def read_part(self, part: Span) -> PartInput:
        """See `protocol.Importer`."""
        state = self._rows("src", part)
        action = self._rows("tgt", part)
        facts = self._facts
        if facts is None:
            obs = layout.observation(state, layout.STATE_SLICES, action, part.lengths)
            failed = part.lengths < self._horizon
            columns = self.catalog(
                part,
                robot=self.schema.robot,
                simulator="isaacgym",
                expert="fcnet",
                success=~failed,
                terminated=failed,
                truncated=~failed,
            )
            return PartInput({"obs": obs, "action": action}, columns)
        rewards = layout.rewards_of(state[:, 0], part.lengths, facts)
        timed_out = (part.lengths >= self._horizon) & (not facts.is_kitchen)
        known = self._task, self._quality, rewards, part.lengths
        columns = task_columns(*known, ~timed_out, timed_out, _REWARD_ERROR)
        arrays = {
            "obs": np.ascontiguousarray(state[:, 1:]),
            "action": action,
            "reward": rewards,
            layout.RETURN_TO_GO: np.ascontiguousarray(state[:, 0]),
        }
        return PartInput(arrays, self.catalog(part, **columns))

    def _rows(self, kind: str, part: Span) -> np.ndarray:
        # Read rather than mapped: pages of a map would count as this process's memory.
        path = self._paths[kind]
        width = self._shapes[kind][1]
        offset = part.first_step * width * _ITEM_BYTES
        count = part.n_steps * width
        values = np.fromfile(path, "<f4", count, offset=offset)
        if len(values) != count:
            refuse(path, kind, "became shorter while it was read")
        values = values.reshape(-1, width)
        check_finite(path, kind, values, part.first_step)
        return values


def _check_lengths(path: Path, lengths: np.ndarray, rows: int) -> None:
    """Refuse lengths below 1, or that do not sum to the rows."""
    stops = np.cumsum(lengths)
    if lengths.min() < 1:
        episode = int(np.argmin(lengths))
        problem = f"has {lengths[episode]} steps; at least 1 is needed"
    elif stops[-1] > rows:
        episode = int(np.searchsorted(stops, rows, side="right"))
        problem = f"of {lengths[episode]} steps goes beyond the {rows} rows of src"
    elif stops[-1] < rows:
        episode = len(lengths) - 1
        problem = f"ends at row {stops[-1]}, but src has {rows} rows"
    else:
        return
    refuse(path, "meta", f"episode {episode} {problem}")


def _find_maps(folder: Path) -> tuple[dict[str, Path], dict[str, tuple[int, ...]]]:
    """Kind -> path, and kind -> shape, of the memory maps in a folder."""
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
