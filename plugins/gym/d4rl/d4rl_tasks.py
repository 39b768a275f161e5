"""D4RL's tasks: reference scores, horizons, success rules, observations, names of files.

Scores are the mean return of a random and of an expert policy: the constants REF_MIN_SCORE and
REF_MAX_SCORE of `d4rl/infos.py` of Farama-Foundation/D4RL (Fu et al. 2020, appendix), which are
the same for versions 0 to 2 but for the mazes of a point. Those that are not there (version 0 and
the evaluation mazes of maze2d) and the horizons, `max_episode_steps`, are those of the
registrations in `d4rl/*/__init__.py`. Control steps are the simulation's step times its frame
skip. Names of the observation's fields are ours, in the order of the environments' `_get_obs`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gaitforge.datasets.formats.sources import episode_returns
from gaitforge.datasets.schema import consecutive_slices


@dataclass(frozen=True)
class SuccessRule:
    """When an episode counts as solved: at least `steps` steps have a reward of at least `reward`.

    D4RL's files do not say it, and a terminal means a fall in one family of tasks and the goal in
    another.

    Attributes:
        words: the rule for people.
        reward: None for success by not terminating.
        terminal_solves: whether a terminal is success too.
    """

    words: str
    reward: float | None = None
    steps: int = 1
    terminal_solves: bool = False

    def solved(
        self, rewards: np.ndarray, lengths: np.ndarray, terminated: np.ndarray
    ) -> np.ndarray:
        """(E,) bool for episodes of `lengths` (E,) with `rewards` (T,), end to end."""
        if self.reward is None:
            return ~terminated
        reached = np.add.reduceat(rewards >= self.reward, np.cumsum(lengths) - lengths, dtype=int)
        return (reached >= self.steps) | (terminated & self.terminal_solves)


LOCOMOTION = SuccessRule("the episode did not terminate, which is a fall")
ANTMAZE = SuccessRule(
    "a terminal or a reward of 1, both of which mean the goal", 1.0, terminal_solves=True
)
"""`d4rl/locomotion/goal_reaching_env.py`; `scripts/generation/relabel_antmaze_rewards.py`."""

KITCHEN = SuccessRule(
    "a reward of 4: all four subtasks done at one step; each demonstration ends by a terminal, "
    "solved or not",
    4.0,
)
"""`scripts/generation/generate_kitchen_datasets.py`: the reward of a step is the number of
subtasks that are done at it, because REMOVE_TASKS_WHEN_COMPLETE is off."""

MAZE2D = SuccessRule(
    "a reward of exp(-0.5) or more, sparse or dense: within 0.5 m of the goal", math.exp(-0.5)
)
"""`d4rl/pointmaze/maze_model.py`: the reward is exp(-distance), or 1 within 0.5."""


def _held(goal: str, steps: int, reward: float) -> SuccessRule:
    words = f"{goal} at more than {steps} steps, each known by a reward of {reward:g} or more"
    return SuccessRule(words, reward, steps + 1)


ADROIT = {
    "pen": _held("pen within 0.075 m and 18 degrees of its target", 20, 20.0),
    "hammer": _held("nail within 0.01 m of its goal", 25, 50.0),
    "door": _held("door open by 1.35 rad", 25, 15.0),
    "relocate": _held("ball within 0.1 m of its target", 25, 5.0),
}
"""`evaluate_success` in `d4rl/hand_manipulation_suite/*_v0.py`. Files lack `goal_achieved`,
but the reward shows it: the bonus for it is far larger than all that a step without it can get (pen
60 to 1 + 10, hammer 100 to 2 + 25, door 20 to 2 + 8, relocate 10 to 1); the limit is between."""

UNKNOWN = SuccessRule("the episode did not terminate, as the task's own rule is unknown")


LAST_STEP = 1
"""A time-out counts as the horizon up to one step early, as some files end there."""


@dataclass(frozen=True)
class D4rlTask:
    """One task.

    Attributes:
        random_score, expert_score: returns that count as 0 and 100.
        horizon: control steps after which an episode times out.
        control_dt_s: seconds of a control step.
        success: which episodes solved it.
        obs_widths: field of the observation -> numbers, in order; empty where the width varies.
    """

    random_score: float
    expert_score: float
    horizon: int
    control_dt_s: float
    success: SuccessRule
    obs_widths: Mapping[str, int] = field(default_factory=dict)

    @property
    def obs_slices(self) -> dict[str, tuple[int, int]]:
        """Field of the observation -> (start, stop)."""
        return consecutive_slices(self.obs_widths)

    @property
    def ends_at_horizon(self) -> bool:
        """Whether a time-out before the horizon means that recording stopped."""
        return self.success is LOCOMOTION

    @property
    def is_kitchen(self) -> bool:
        """Whether only terminals end a file's episodes, however long they are.

        The rewards of such a task count at every step what the reference scores count once.
        """
        return self.success is KITCHEN


_OBSERVATIONS = {
    "hopper": "root_pos 2, joint_pos 3, root_vel 3, joint_vel 3",
    "halfcheetah": "root_pos 2, joint_pos 6, root_vel 3, joint_vel 6",
    "walker2d": "root_pos 2, joint_pos 6, root_vel 3, joint_vel 6",
    "pen": "joint_pos 24, object_pos 3, object_vel 6, object_rot 3, target_rot 3, "
    "object_to_target_pos 3, object_to_target_rot 3",
    "hammer": "joint_pos 26, nail_displacement 1, hammer_vel 6, palm_pos 3, hammer_pos 3, "
    "hammer_rot 3, nail_pos 3, nail_impact 1",
    "door": "joint_pos 27, latch_pos 1, door_hinge_pos 1, palm_pos 3, handle_pos 3, "
    "palm_to_handle 3, door_open 1",
    "relocate": "joint_pos 30, palm_to_ball 3, palm_to_target 3, ball_to_target 3",
    "antmaze": "root_pos 3, root_quat 4, joint_pos 8, root_vel 6, joint_vel 8",
    "kitchen": "joint_pos 9, object_pos 21, goal 30",
    "maze2d": "pos 2, vel 2",
}
"""Task or family -> fields of the observation and their widths; root_pos is height and pitch, of
antmaze x, y, z."""


def _widths(task: str) -> dict[str, int]:
    words = _OBSERVATIONS.get(task.partition("-")[0], "").replace(",", "").split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


_MUJOCO = {
    "halfcheetah": (-280.178953, 12135.0, 1000, 0.05),
    "hopper": (-20.272305, 3234.3, 1000, 0.008),
    "walker2d": (1.629008, 4592.3, 1000, 0.008),
    "ant": (-325.6, 3879.7, 1000, 0.05),
}
_ADROIT = {
    "pen": (96.262799, 3076.8331017826877, 100, 0.01),
    "hammer": (-274.856578, 12794.134825156867, 200, 0.01),
    "door": (-56.512833, 2880.5693087298737, 200, 0.01),
    "relocate": (-6.425911, 4233.877797728884, 200, 0.01),
}
_ANTMAZE_HORIZONS = {"umaze": 700, "medium": 1000, "large": 1000, "ultra": 2000}
_MAZE2D = {
    "open": (0.01, 20.66, 150),
    "open-dense": (11.17817, 27.166538620695782, 150),
    "umaze": (23.85, 161.86, 300),
    "umaze-dense": (68.537689, 193.66285642381482, 300),
    "medium": (13.13, 277.39, 600),
    "medium-dense": (44.264742, 297.4552547777125, 600),
    "large": (6.7, 273.99, 800),
    "large-dense": (30.569041, 303.4857382709002, 800),
    "umaze-v0": (0.94, 62.6, 150),
    "umaze-dense-v0": (23.249793, 81.78995240126592, 150),
    "medium-v0": (5.77, 85.14, 250),
    "medium-dense-v0": (19.477620, 96.03474232952358, 250),
    "large-v0": (4.83, 191.99, 600),
    "large-dense-v0": (27.388310, 215.09965671563742, 600),
    "eval-umaze": (36.63, 141.4, 300),
    "eval-umaze-dense": (56.95455, 178.21373133248397, 300),
    "eval-medium": (13.07, 204.93, 600),
    "eval-medium-dense": (42.28578, 235.5658957482388, 600),
    "eval-large": (16.4, 302.22, 800),
    "eval-large-dense": (56.95455, 326.09647655082637, 800),
}
"""Maze -> scores and horizon: of version 1, of `open` version 0."""

_FACTS: dict[str, tuple[float, float, int, float, SuccessRule]] = {
    **{name: (*facts, LOCOMOTION) for name, facts in _MUJOCO.items()},
    **{name: (*facts, ADROIT[name]) for name, facts in _ADROIT.items()},
    **{f"antmaze-{maze}": (0.0, 1.0, n, 0.1, ANTMAZE) for maze, n in _ANTMAZE_HORIZONS.items()},
    "kitchen": (0.0, 4.0, 280, 0.08, KITCHEN),
    **{f"maze2d-{maze}": (*facts, 0.01, MAZE2D) for maze, facts in _MAZE2D.items()},
}
TASKS = {name: D4rlTask(*facts, _widths(name)) for name, facts in _FACTS.items()}

Returns = TypeVar("Returns", float, np.ndarray)


def normalised_return(task: str, returns: Returns) -> Returns:
    """D4RL's normalised score, 100 x (return - random) / (expert - random), of a task in `TASKS`.

    Also of returns-to-go; returns are undiscounted sums of rewards.
    """
    facts = TASKS[task]
    return 100.0 * (returns - facts.random_score) / (facts.expert_score - facts.random_score)


def task_columns(
    task: str,
    quality: str,
    rewards: np.ndarray,
    lengths: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    reward_error: float = 0.0,
) -> dict[str, Any]:
    """Catalog columns of a task's episodes of `lengths` (E,), with rewards (T,) end to end.

    Args:
        task: "" for an unknown one, or one that is not in `TASKS`.
        reward_error: the most by which `rewards` lie below those that the task gave.
    """
    facts = TASKS.get(task)
    returns = episode_returns(rewards, lengths)
    rule = facts.success if facts else UNKNOWN
    columns: dict[str, Any] = {
        "task": task or "unknown",
        "quality": quality,
        "robot": task or "unknown",
        "expert": quality,
        "return": returns,
        "success": rule.solved(rewards + reward_error, lengths, terminated),
        "terminated": terminated,
        "truncated": truncated,
    }
    if facts is not None:
        columns["simulator"] = "mujoco"
        if not facts.is_kitchen:
            columns["normalised_return"] = normalised_return(task, returns)
    return columns


def obs_slices(task: str, shape: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Names for an observation of one axis: the task's if the width fits, else `state`."""
    if len(shape) != 1:
        return {}
    widths = TASKS[task].obs_widths if task in TASKS else {}
    fits = sum(widths.values()) == shape[0]
    return consecutive_slices(widths if fits else {"state": shape[0]})


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
