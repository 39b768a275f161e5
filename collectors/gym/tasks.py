"""D4RL's tasks in their present form, and ours.

D4RL's are Gymnasium's version 5 and Gymnasium-Robotics' version 1.

D4RL's files were recorded in Gym's version 2 on MuJoCo 2; physics and the healthy reward of the
last step have changed since. Returns are compared with returns measured here. Ours, `humanoids`,
have the same interface and are in no set of D4RL.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import mujoco

from gaitforge.collectors.gym.reach_reward import with_reach_penalty
from gaitforge.collectors.optional import load_gymnasium
from gaitforge.datasets.errors import listed
from gaitforge.datasets.formats.d4rl.tasks import TASKS as D4RL_TASKS
from gaitforge.datasets.formats.d4rl.tasks import D4rlTask

HUMANOID_DT_S = 1 / 60
"""Control step of the humanoids, Isaac Gym's."""


@dataclass(frozen=True)
class OwnTask:
    """What a task of ours has in place of D4RL's facts.

    Attributes:
        entry_point: "module:class" of its `gymnasium.Env`, whose `obs_slices` name the blocks of
            the observation; horizon: control steps after which an episode is cut off.
    """

    entry_point: str
    horizon: int
    control_dt_s: float


@dataclass(frozen=True)
class GymTask:
    """One task.

    Attributes:
        env_id: id in Gymnasium's registry; name: D4RL's name, or ours; package: the one that it
            needs, which registers D4RL's.
        reach: target of the hand's reach reward, see `reach_reward`; empty for none.
        own: facts of a task of ours; None for D4RL's.
    """

    env_id: str
    name: str
    package: str = "gymnasium"
    reach: str = ""
    own: OwnTask | None = None

    @property
    def facts(self) -> D4rlTask | OwnTask:
        """Horizon and control step."""
        return self.own or D4RL_TASKS[self.name]

    @property
    def reports_success(self) -> bool:
        """Whether the task reports success."""
        return self.package == "gymnasium_robotics"


def _humanoid(name: str) -> GymTask:
    entry_point = f"{__package__}.humanoids.{name.lower()}:Humanoid{name}"
    own = OwnTask(entry_point, 1000, HUMANOID_DT_S)
    return GymTask(f"Humanoid-{name}-v0", f"humanoid-{name.lower()}", "dm_control", own=own)


TASKS: dict[str, GymTask] = {
    task.env_id: task
    for task in (
        GymTask("HalfCheetah-v5", "halfcheetah"),
        GymTask("Hopper-v5", "hopper"),
        GymTask("Walker2d-v5", "walker2d"),
        GymTask("AdroitHandDoor-v1", "door", "gymnasium_robotics", "site S_handle"),
        GymTask("AdroitHandHammer-v1", "hammer", "gymnasium_robotics", "body Object"),
        GymTask("AdroitHandPen-v1", "pen", "gymnasium_robotics"),
        GymTask("AdroitHandRelocate-v1", "relocate", "gymnasium_robotics", "body Object"),
        *map(_humanoid, ("Mod", "Board", "Hill")),
    )
}


def find_task(env_id: str) -> GymTask:
    """A task by its environment's id; ValueError lists the known tasks."""
    if env_id not in TASKS:
        raise ValueError(f"no task {env_id!r}; allowed: {listed(TASKS)}")
    return TASKS[env_id]


def make_environment(task: GymTask) -> Any:
    """A gymnasium.Env of the task with its horizon; ValueError without its package.

    Deviations from Gymnasium-Robotics: 100 steps of the pen instead of 200, and `reach_reward`.
    """
    gymnasium = load_gymnasium("gymnasium")
    if task.own is None:
        gymnasium.register_envs(load_gymnasium(task.package))
    elif task.env_id not in gymnasium.registry:
        gymnasium.register(task.env_id, task.own.entry_point)
    # Silence warnings about newer versions and about rewards that changed between releases.
    with warnings.catch_warnings(action="ignore"), _silent_mujoco():
        env = gymnasium.make(
            task.env_id, max_episode_steps=task.facts.horizon, disable_env_checker=True
        )
        return with_reach_penalty(env, task.reach) if task.reach else env


@contextmanager
def _silent_mujoco() -> Iterator[None]:
    """Keep MuJoCo from writing MUJOCO_LOG.TXT about HalfCheetah's old MJCF style."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def package_version(task: GymTask) -> str:
    """Versions that the simulation depends on, such as "gymnasium 1.4.0, mujoco 3.17.0"."""
    return f"{task.package} {version(task.package)}, mujoco {mujoco.__version__}"
