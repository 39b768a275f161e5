"""D4RL's tasks in their present form, and ours.

D4RL's are Gymnasium's version 5 and Gymnasium-Robotics' version 1.

D4RL's files were recorded in Gym's version 2 on MuJoCo 2; physics and the healthy reward of the
last step have changed since. Returns are compared with returns measured here. Ours, `humanoids`,
have the same interface and are in no set of D4RL.
"""

import ctypes
import hashlib
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, SupportsFloat

import mujoco
import numpy as np

from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import module_version
from gaitforge.common.files import sha256_file
from gaitforge.common.trust import UntrustedCodeError, pieces
from gaitforge.plugins.gym.d4rl.d4rl_tasks import TASKS as D4RL_TASKS
from gaitforge.plugins.gym.d4rl.d4rl_tasks import D4rlTask
from gaitforge.plugins.gym.environments.environment_id import EnvironmentId
from gaitforge.plugins.gym.environments.spaces import ActionCode, Flattening, load_gymnasium

HUMANOID_DT_S = 1 / 60
"""Control step of the humanoids, Isaac Gym's."""

_PRINTING = threading.RLock()
"""Held while standard output leads elsewhere."""


@dataclass(frozen=True)
class OwnTask:
    """Facts of a task that is not D4RL's.

    Attributes:
        entry_point: "module:class" of the `gymnasium.Env` of a task of ours; empty for others'.
        horizon: control steps after which an episode is cut off.
        settings: how an environment of others is made; None for a task of ours.
        modules: those of its maker and of each of its wrappers, of an environment of others.
    """

    entry_point: str
    horizon: int
    control_dt_s: float
    settings: EnvironmentId | None = None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class GymTask:
    """One task.

    Attributes:
        env_id: id in Gymnasium's registry, or the text of an `EnvironmentId`.
        name: D4RL's name, or ours; package: the one that it needs, which registers D4RL's.
        reach: target of the hand's reach reward, see `with_reach_penalty`; empty for none.
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
    def settings(self) -> EnvironmentId | None:
        """How an environment of others is made; None for D4RL's and ours."""
        return self.own.settings if self.own else None

    @property
    def reports_success(self) -> bool:
        """Whether the task reports success; else it is that no failure ended the episode."""
        return self.settings is not None or self.package == "gymnasium_robotics"


def _humanoid(name: str) -> GymTask:
    entry_point = f"{__package__}.humanoids:Humanoid{name}"
    own_task = OwnTask(entry_point, 1000, HUMANOID_DT_S)
    return GymTask(f"Humanoid-{name}-v0", f"humanoid-{name.lower()}", "dm_control", own=own_task)


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
    """A task by its environment's id: one of `TASKS`, or any other, see `EnvironmentId`.

    Of "module:ID" the module is imported first, which registers the environment.

    Raises:
        UntrustedCodeError: it names code that the user did not name; nothing was imported.
        ValueError: no such environment, or one whose spaces or time limit do not fit.
    """
    if env_id in TASKS:
        return TASKS[env_id]
    settings = EnvironmentId.parse(env_id)
    settings.check_trusted()
    return _task_of(str(settings))


def check_task(env_id: str) -> None:
    """Raise ValueError where there is no such environment.

    One of code that the user did not name is not looked at: it may be read, and not made.
    """
    with suppress(UntrustedCodeError):
        find_task(env_id)


@cache
def _task_of(env_id: str) -> GymTask:
    settings = EnvironmentId.parse(env_id)
    name = re.sub(r"[^\w.-]+", "-", settings.place).lower()
    taken = name in {task.name for task in TASKS.values()}  # "hopper" is no Hopper-v5
    if taken or env_id != settings.place:  # two of one place have two names
        name += f"-{hashlib.sha256(env_id.encode()).hexdigest()[:6]}"
    horizon = settings.max_steps or _registered_horizon(settings)
    own_task = OwnTask("", horizon, 1.0, settings)
    env = make_environment(GymTask(env_id, name, own=own_task))
    package = type(env.unwrapped).__module__.partition(".")[0]
    own_task = replace(own_task, control_dt_s=_control_dt_s(env), modules=_modules(env, settings))
    env.close()
    return GymTask(env_id, name, package, own=own_task)


def _registered_horizon(settings: EnvironmentId) -> int:
    """Time limit of an environment in the registry; ValueError for none."""
    spec = _made_by(settings)[1]
    horizon = None if spec is None else spec.max_episode_steps
    if horizon is None:
        raise ValueError(
            f"{settings.place} has no time limit: give one with --max-steps, or in an id as "
            f"{settings.place},max_steps=1000"
        )
    return horizon


def _made_by(settings: EnvironmentId) -> tuple[Callable[..., Any], Any]:
    """The environment's factory, and its registry entry; None for a function."""
    gymnasium = load_gymnasium("gymnasium")
    module, _, name = settings.place.rpartition(":")
    try:
        with _quiet():
            member = getattr(import_module(module), name, None) if module else None
            if callable(member):
                return member, None
            return partial(gymnasium.make, name), gymnasium.spec(name)
    except Exception as error:  # of whatever kind: it is others' code
        reason = (str(error) or repr(error)).splitlines()[0]
        ids = (
            "or an id of Gymnasium's registry, as module:ID if a module registers it, "
            "or module:function"
        )
        raise ValueError(
            f"no task {settings.place!r} ({reason}); {names_allowed(settings.place, TASKS, ids)}"
        ) from None


def _modules(env: Any, settings: EnvironmentId) -> tuple[str, ...]:
    """The modules of an environment, its maker and its wrappers, without Gymnasium's wrappers."""
    modules = [name.rpartition(":")[0] for name in settings.code]
    while env is not env.unwrapped:
        modules.append(type(env).__module__)
        env = env.env
    packages = dict.fromkeys(name.partition(".")[0] for name in modules)
    return tuple(name for name in packages if name not in ("gaitforge", "gymnasium"))


def _control_dt_s(env: Any) -> float:
    """Seconds of a control step: `dt`, or else one frame's; 1 where neither is known."""
    try:
        frames_per_s = (env.metadata or {}).get("render_fps") or 1.0
        seconds = float(getattr(env.unwrapped, "dt", 1.0 / frames_per_s))
    except Exception:  # of whatever kind: it is others' code
        return 1.0
    return seconds if isfinite(seconds) and seconds > 0 else 1.0


def make_environment(task: GymTask) -> Any:
    """A gymnasium.Env of the task with its horizon; ValueError without its package.

    Deviations from Gymnasium-Robotics: 100 steps of the pen instead of 200, and
    `with_reach_penalty`.
    """
    gymnasium = load_gymnasium("gymnasium")
    if task.own is not None and task.own.settings is not None:
        return _own_environment(gymnasium, task.own.settings, task.own.horizon)
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


def _own_environment(gymnasium: Any, settings: EnvironmentId, horizon: int) -> Any:
    """An environment with its wrappers, its observations and actions as vectors."""
    settings.check_trusted()
    name = settings.place
    arguments = dict(settings.make)
    maker, spec = _made_by(settings)
    if spec is None:
        env = gymnasium.wrappers.TimeLimit(_made(settings, maker, **arguments), horizon)
    else:
        limits = {"max_episode_steps": horizon, "disable_env_checker": True}
        env = _made(settings, maker, **{**limits, **arguments})
    for wrapper in settings.wrappers:
        env = _made(settings, _wrapped, wrapper, env)
    flattening = Flattening(env.observation_space, name)
    code = ActionCode(env.action_space, name)
    seen = gymnasium.spaces.Box(-np.inf, np.inf, (flattening.obs_dim,), np.float32)
    act = gymnasium.spaces.Box(-1.0, 1.0, (code.act_dim,), np.float32)
    env = gymnasium.wrappers.TransformObservation(env, flattening, seen)
    return gymnasium.wrappers.TransformAction(env, code, act)


def _wrapped(wrapper: str, env: Any) -> Any:
    module, _, member = wrapper.partition(":")
    return getattr(import_module(module), member)(env)


def _made(settings: EnvironmentId, maker: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a user's factory or wrapper; ValueError if it fails or makes no environment."""
    try:
        with _quiet():
            env = maker(*args, **kwargs)
    except Exception as error:  # of whatever kind: it is others' code
        raise ValueError(f"{settings} cannot be made: {failure(error)}") from error
    if not isinstance(env, load_gymnasium("gymnasium").Env):
        raise ValueError(
            f"{settings} is a {type(env).__name__}, not a single gymnasium.Env; vectors of them "
            "are not used, --processes collects side by side"
        )
    return env


def failure(error: Exception) -> str:
    """An exception of a user's code in one line, with the place where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    reason = " ".join(repr(error).split())
    return f"{reason} at {Path(frame.filename).name}:{frame.lineno}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Send what others' packages print to standard error: a command's JSON is on the output.

    Simulators in C print past `sys.stdout`. Warnings, e.g. of newer versions, are dropped.
    """
    flush = ctypes.CDLL(None).fflush
    with _PRINTING, warnings.catch_warnings(action="ignore"), _silent_mujoco():
        sys.stdout.flush()
        flush(None)
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            flush(None)
            os.dup2(kept, 1)
            os.close(kept)


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
    """Versions that the simulation depends on, such as "gymnasium 1.4.0, mujoco 3.17.0".

    Code that no package brings has a hash of its files as its version, see `own_code`, and so have
    files that the environment's settings name.
    """
    modules = dict.fromkeys([task.package, *(task.own.modules if task.own else ())])
    words = [f"{name} {module_version(name)}" for name in modules]
    for text in task.settings.texts if task.settings else ():
        if pieces(text) and Path(text).is_file():
            words.append(f"{Path(text).name} {sha256_file(Path(text))[:8]}")
    return ", ".join([*words, f"mujoco {mujoco.__version__}"])


# Door, hammer and relocate reward the hand by -0.1 times its distance in metres from what it is to
# grasp (mj_envs' `hand_manipulation_suite`, which D4RL recorded). Version 1 of these tasks in
# Gymnasium-Robotics, up to 1.4.2, has the sign wrong and so rewards keeping away:
# https://github.com/Farama-Foundation/Gymnasium-Robotics/pull/220.
WEIGHT = 0.1
PALM = "S_grasp"


def with_reach_penalty(env: Any, target: str) -> Any:
    """`env` with D4RL's sign of the reach reward: the distance to `target` is a penalty.

    Args:
        target: "site NAME" or "body NAME".
    """
    wrapper: Any = load_gymnasium("gymnasium").RewardWrapper
    kind, _, name = target.partition(" ")
    data = env.unwrapped.data

    class ReachPenalty(wrapper):
        def reward(self, reward: SupportsFloat) -> float:
            away = data.site(PALM).xpos - getattr(data, kind)(name).xpos
            return float(reward) - 2.0 * WEIGHT * float(np.linalg.norm(away))

    return ReachPenalty(env)
