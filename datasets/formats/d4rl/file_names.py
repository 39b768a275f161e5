"""Task and quality by the name of a D4RL file, or of a dataset."""

import re
from pathlib import Path

from gaitforge.datasets.formats.d4rl.tasks import TASKS

_TASK_ALIASES = {"walker": "walker2d"}

_QUALITY_ALIASES = {
    "mixed": "medium-replay",
    "demos-clipped": "human",
    "demos-bc-combined": "cloned",
    "expert-clipped": "expert",
}
"""What the files of version 0 call some datasets of MuJoCo's and Adroit's tasks."""

_KITCHEN = {
    "mini-kitchen-microwave-kettle-light-slider": "complete",
    "kitchen-microwave-kettle-light-slider": "partial",
    "kitchen-microwave-kettle-bottomburner-light": "mixed",
}
_ANT_MAZES = {"u-maze": "umaze", "big-maze": "medium", "hardest-maze": "large"}
_ANT_MAZE = re.compile(
    r"ant-maze-(u-maze|umaze|big-maze|medium|hardest-maze|large|ultra)(-eval)?"
    r"-noisy-multistart-(true|false)-multigoal-(true|false)"
)
_MAZE2D = re.compile(r"maze2d-((?:eval-)?(?:open|umaze|medium|large))(-sparse|-dense)?(-v\d+)?")
_VERSION = re.compile(r"-v\d+(?=-|$)")


def named_dataset(path: Path | str) -> tuple[str, str]:
    """Task, "" for none of `TASKS`, and quality by a file's name: ("hopper", "medium-replay")."""
    stem = Path(path).stem.lower().replace("_", "-")
    name = _VERSION.sub("", stem)
    if match := _MAZE2D.match(stem):
        return _point_maze(*match.groups(default=""))
    if match := _ANT_MAZE.match(name):
        maze, held_out, _, goals = match.groups(default="")
        maze = _ANT_MAZES.get(maze, maze)
        play = "" if maze == "umaze" else "play"
        quality = "diverse" if goals == "true" else play
        return f"antmaze-{maze}", f"{held_out}-{quality}".strip("-")
    if name in _KITCHEN:
        return "kitchen", _KITCHEN[name]
    if name.startswith("ant-maze"):
        return "", name
    for prefix in sorted([*TASKS, *_TASK_ALIASES], key=len, reverse=True):
        if name == prefix or name.startswith(f"{prefix}-"):
            quality = name[len(prefix) :].strip("-")
            task = _TASK_ALIASES.get(prefix, prefix)
            return task, quality if task == "kitchen" else _QUALITY_ALIASES.get(quality, quality)
    return "", name


def _point_maze(maze: str, reward: str, version: str) -> tuple[str, str]:
    """Only files of version 1 name it; an environment's name without a version is read as 1."""
    old = version == "-v0" or (not version and bool(reward))
    dense = "-dense" if reward == "-dense" else ""
    task = f"maze2d-{maze}{dense}"
    return f"{task}-v0" if old and f"{task}-v0" in TASKS else task, reward.strip("-")
