"""D4RL's tasks in their present form, and ours.

D4RL's are Gymnasium's version 5 and Gymnasium-Robotics' version 1.

D4RL's files were recorded in Gym's version 2 on MuJoCo 2; physics and the healthy reward of the
last step have changed since. Returns are compared with returns measured here. Ours, `humanoids`,
have the same interface and are in no set of D4RL.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.gym.reach_reward import with_reach_penalty
from gaitforge.collectors.optional import load_gymnasium
from gaitforge.datasets.errors import listed
from gaitforge.datasets.formats.d4rl.tasks import TASKS as D4RL_TASKS
from gaitforge.datasets.formats.d4rl.tasks import D4rlTask
from gaitforge.datasets.schema import consecutive_slices

HUMANOID_DT_S = 1 / 60
"""Control step of the humanoids, Isaac Gym's."""


@dataclass(frozen=True)
class OwnTask:
    """What a task has in place of D4RL's facts.

    Attributes:
        entry_point: "module:class" of the `gymnasium.Env` of a task of ours; empty for one that is
            in Gymnasium's registry. horizon: control steps after which an episode is cut off.
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
        own: facts of any other task than D4RL's.
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


@cache
def find_task(env_id: str) -> GymTask:
    """A task by its environment's id: one of `TASKS`, or any other one of Gymnasium's registry.

    Of "module:ID" the module is imported first, which registers the environment.

    Raises:
        ValueError: no such environment, or one whose spaces or time limit do not fit.
    """
    if env_id in TASKS:
        return TASKS[env_id]
    gymnasium = load_gymnasium("gymnasium")
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        horizon = gymnasium.spec(name).max_episode_steps
    except (ImportError, gymnasium.error.Error) as error:
        raise ValueError(
            f"no task {env_id!r} ({str(error).splitlines()[0]}); allowed: {listed(TASKS)}, or an "
            "id of Gymnasium's registry, as module:ID if a module registers it"
        ) from None
    if horizon is None:
        raise ValueError(f"{env_id} has no time limit; register it with max_episode_steps")
    short = re.sub(r"[^\w.-]+", "-", env_id).lower()
    try:
        env = make_environment(GymTask(env_id, short, own=OwnTask("", horizon, 1.0)))
    except ValueError:
        raise
    except Exception as error:  # of whatever kind: it is others' code
        raise ValueError(f"{env_id} cannot be made: {error!r}") from error
    frames_per_s = env.metadata.get("render_fps") or 1.0
    control_dt_s = float(getattr(env.unwrapped, "dt", 1.0 / frames_per_s))
    env.close()
    return GymTask(env_id, short, own=OwnTask("", horizon, control_dt_s))


def make_environment(task: GymTask) -> Any:
    """A gymnasium.Env of the task with its horizon; ValueError without its package.

    Deviations from Gymnasium-Robotics: 100 steps of the pen instead of 200, and `reach_reward`.
    """
    gymnasium = load_gymnasium("gymnasium")
    if task.own is None:
        gymnasium.register_envs(load_gymnasium(task.package))
    elif task.own.entry_point and task.env_id not in gymnasium.registry:
        gymnasium.register(task.env_id, task.own.entry_point)
    # Silence warnings about newer versions and about rewards that changed between releases.
    with warnings.catch_warnings(action="ignore"), _silent_mujoco():
        env = gymnasium.make(
            task.env_id, max_episode_steps=task.facts.horizon, disable_env_checker=True
        )
    if task.own is not None and not task.own.entry_point:
        return _boxed(gymnasium, env)
    return with_reach_penalty(env, task.reach) if task.reach else env


def _boxed(gymnasium: Any, env: Any) -> Any:
    """An environment with its observations as one vector, and actions as one from -1 to 1.

    Of n discrete actions the vector has a score each, and the highest is taken.

    Raises:
        ValueError: observations without a fixed size, or an action of several axes,
            without bounds, or of several parts.
    """
    spaces, wrappers, name = gymnasium.spaces, gymnasium.wrappers, env.spec.id
    seen, acts = env.observation_space, env.action_space
    if not seen.is_np_flattenable:
        raise ValueError(f"{name} observes {seen}, which has no fixed size")
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
        env = wrappers.FlattenObservation(env)
    if isinstance(acts, spaces.Discrete):
        scores = spaces.Box(-1.0, 1.0, (int(acts.n),), np.float32)
        return wrappers.TransformAction(env, lambda x: acts.start + np.argmax(x), scores)
    if not isinstance(acts, spaces.Box) or len(acts.shape) != 1 or not acts.is_bounded():
        raise ValueError(
            f"{name} has the actions {acts}; allowed: Discrete, and a bounded Box of one axis"
        )
    if not (np.all(acts.low == -1.0) and np.all(acts.high == 1.0)):
        env = wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    return env


def observed_fields(env: Any) -> dict[str, tuple[int, int]]:
    """Field of the observation -> (start, stop): the names of a Dict, or else one field."""
    named = getattr(env.unwrapped, "obs_slices", None)
    if named is not None:
        return dict(named)
    gymnasium, whole = load_gymnasium("gymnasium"), env.observation_space
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.FlattenObservation):
            whole = env.env.observation_space
        env = env.env
    parts = whole.spaces if isinstance(whole, gymnasium.spaces.Dict) else {"state": whole}
    flatdim = gymnasium.spaces.flatdim
    return consecutive_slices({key: int(flatdim(part)) for key, part in parts.items()})


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
