"""The Adroit tasks' reward for reaching, with the sign that D4RL's has.

Door, hammer and relocate reward the hand for being near what it is to take, by -0.1 times their
distance in metres (mj_envs' `hand_manipulation_suite`, which D4RL recorded). Version 1 of these
tasks in Gymnasium-Robotics, up to 1.4.2, adds that term where it should take it away, and so
rewards keeping off: https://github.com/Farama-Foundation/Gymnasium-Robotics/pull/220. A policy that
is trained by such a reward alone never learns the task, and a random one on relocate returns about
+6 where D4RL's table has -6.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np

from collectors.gym.optional import load_package

WEIGHT = 0.1
PALM = "S_grasp"


def with_reach_penalty(env: Any, target: str) -> Any:
    """A gymnasium.Env like `env`, whose term for reaching is a penalty of the distance.

    Args:
        env: version 1 of an Adroit task.
        target: of the hand, as "site NAME" or "body NAME" of MuJoCo's model.
    """
    wrapper: Any = load_package("gymnasium").RewardWrapper
    kind, _, name = target.partition(" ")
    data = env.unwrapped.data

    class ReachPenalty(wrapper):
        def reward(self, reward: SupportsFloat) -> float:
            away = data.site(PALM).xpos - getattr(data, kind)(name).xpos
            return float(reward) - 2.0 * WEIGHT * float(np.linalg.norm(away))

    return ReachPenalty(env)
