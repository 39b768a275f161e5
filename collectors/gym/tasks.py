"""D4RL's tasks in their present form: Gymnasium's version 5, Gymnasium-Robotics' version 1.

D4RL's files were recorded in Gym's version 2 on MuJoCo 2; physics and the healthy reward of the
last step have changed since. Returns are compared with returns measured here.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mujoco

from gaitforge.collectors.gym.reach_reward import with_reach_penalty
from gaitforge.collectors.optional import load_gymnasium
from gaitforge.datasets.errors import listed
from gaitforge.datasets.formats.d4rl.tasks import TASKS as D4RL_TASKS
from gaitforge.datasets.formats.d4rl.tasks import D4rlTask


@dataclass(frozen=True)
class GymTask:
    """One task.

    Attributes:
        env_id: id in Gymnasium's registry; name: D4RL's name; package: the one that registers it.
        reach: target of the hand's reach reward, see `reach_reward`; empty for none.
    """

    env_id: str
    name: str
    package: str = "gymnasium"
    reach: str = ""

    @property
    def facts(self) -> D4rlTask:
        """Horizon, control step and D4RL's reference returns."""
        return D4RL_TASKS[self.name]

    @property
    def reports_success(self) -> bool:
        """Whether the task reports success."""
        return self.package == "gymnasium_robotics"


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
    )
}


def find_task(env_id: str) -> GymTask:
    """A task by its environment's id; ValueError lists the known tasks."""
    if env_id not in TASKS:
        raise ValueError(f"no task {env_id!r}; allowed: {listed(TASKS)}")
    return TASKS[env_id]


def make_environment(task: GymTask) -> Any:
    """A gymnasium.Env of the task with D4RL's horizon; ValueError without its package.

    Deviations from Gymnasium-Robotics: 100 steps of the pen instead of 200, and `reach_reward`.
    """
    gymnasium = load_gymnasium("gymnasium")
    gymnasium.register_envs(load_gymnasium(task.package))
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
    package = load_gymnasium(task.package)
    return f"{task.package} {package.__version__}, mujoco {mujoco.__version__}"
