"""D4RL's MuJoCo and Adroit tasks: reference scores, horizons, observations, names of files.

Scores are those of D4RL's published table (``d4rl/infos.py`` of Farama-Foundation/D4RL, the
constants REF_MIN_SCORE and REF_MAX_SCORE; Fu et al. 2020, appendix): the mean return of a random
and of an expert policy. They are the same for versions 0 to 2. Horizons are the environments'
``max_episode_steps`` there. Control steps are the simulation's step times its frame skip. Names of
the observation's fields are ours, in the order of the environments' ``_get_obs`` (Gymnasium and
Gymnasium-Robotics, whose observations are D4RL's).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from datasets.schema import consecutive_slices


@dataclass(frozen=True)
class D4rlTask:
    """One task.

    Attributes:
        random_score, expert_score: returns that count as 0 and 100.
        horizon: control steps after which an episode times out.
        control_dt_s: seconds of a control step.
        ends_at_horizon: time-outs come from the environment alone, so that one before the horizon
            means that recording stopped.
        obs_widths: field of the observation -> numbers, in order; empty where the width varies.
    """

    random_score: float
    expert_score: float
    horizon: int
    control_dt_s: float
    ends_at_horizon: bool = True
    obs_widths: Mapping[str, int] = field(default_factory=dict)

    @property
    def obs_slices(self) -> dict[str, tuple[int, int]]:
        """Field of the observation -> (start, stop)."""
        return consecutive_slices(self.obs_widths)


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
}
"""Fields of the observation and their widths; root_pos is height and pitch."""


def _widths(task: str) -> dict[str, int]:
    pairs = (each.split() for each in _OBSERVATIONS.get(task, "").split(", ") if each)
    return {name: int(width) for name, width in pairs}


_SCORES = {
    "halfcheetah": (-280.178953, 12135.0, 1000, 0.05),
    "hopper": (-20.272305, 3234.3, 1000, 0.008),
    "walker2d": (1.629008, 4592.3, 1000, 0.008),
    "ant": (-325.6, 3879.7, 1000, 0.05),
    "pen": (96.262799, 3076.8331017826877, 100, 0.01),
    "hammer": (-274.856578, 12794.134825156867, 200, 0.01),
    "door": (-56.512833, 2880.5693087298737, 200, 0.01),
    "relocate": (-6.425911, 4233.877797728884, 200, 0.01),
}
_MUJOCO = ("halfcheetah", "hopper", "walker2d", "ant")

TASKS: dict[str, D4rlTask] = {
    name: D4rlTask(*facts, ends_at_horizon=name in _MUJOCO, obs_widths=_widths(name))
    for name, facts in _SCORES.items()
}

_TASK_ALIASES = {"walker": "walker2d"}
_OTHER_TASKS = ("ant-maze",)
"""Tasks outside the table whose names begin like one in it."""

_QUALITY_ALIASES = {
    "mixed": "medium-replay",
    "demos-clipped": "human",
    "demos-bc-combined": "cloned",
    "expert-clipped": "expert",
}
"""What the files of version 0 call some datasets."""

_VERSION = re.compile(r"-v\d+(?=-|$)")

Returns = TypeVar("Returns", float, np.ndarray)


def normalised_return(task: str, returns: Returns) -> Returns:
    """D4RL's normalised score, 100 x (return - random) / (expert - random), of a task in ``TASKS``.

    Also of returns-to-go; returns are undiscounted sums of rewards.
    """
    facts = TASKS[task]
    return 100.0 * (returns - facts.random_score) / (facts.expert_score - facts.random_score)


def obs_slices(task: str, shape: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Names for an observation of one axis: the task's if the width fits, else ``state``."""
    if len(shape) != 1:
        return {}
    widths = TASKS[task].obs_widths if task in TASKS else {}
    fits = sum(widths.values()) == shape[0]
    return consecutive_slices(widths if fits else {"state": shape[0]})


def named_dataset(path: Path | str) -> tuple[str, str]:
    """Task, "" for none of ``TASKS``, and quality by a file's name: ("hopper", "medium-replay")."""
    name = _VERSION.sub("", Path(path).stem.lower().replace("_", "-"))
    if name.startswith(_OTHER_TASKS):
        return "", name
    for known in sorted([*TASKS, *_TASK_ALIASES], key=len, reverse=True):
        if name == known or name.startswith(f"{known}-"):
            quality = name[len(known) :].strip("-")
            return _TASK_ALIASES.get(known, known), _QUALITY_ALIASES.get(quality, quality)
    return "", name
