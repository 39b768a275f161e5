"""The Adroit tasks' reach reward with D4RL's sign.

Door, hammer and relocate reward the hand by -0.1 times its distance in metres from what it is to
grasp (mj_envs' `hand_manipulation_suite`, which D4RL recorded). Version 1 of these tasks in
Gymnasium-Robotics, up to 1.4.2, has the sign wrong and so rewards keeping away:
https://github.com/Farama-Foundation/Gymnasium-Robotics/pull/220.
"""

from typing import Any, SupportsFloat

import numpy as np

from gaitforge.collectors.optional import load_gymnasium

WEIGHT = 0.1
PALM = "S_grasp"


def with_reach_penalty(env: Any, target: str) -> Any:
    """`env` with the distance to `target` ("site NAME" or "body NAME") as a penalty."""
    wrapper: Any = load_gymnasium("gymnasium").RewardWrapper
    kind, _, name = target.partition(" ")
    data = env.unwrapped.data

    class ReachPenalty(wrapper):
        def reward(self, reward: SupportsFloat) -> float:
            away = data.site(PALM).xpos - getattr(data, kind)(name).xpos
            return float(reward) - 2.0 * WEIGHT * float(np.linalg.norm(away))

    return ReachPenalty(env)
