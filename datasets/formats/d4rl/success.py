"""When an episode of a D4RL task counts as solved: one rule a family of tasks.

D4RL's files do not say it, and a terminal means a fall in one family and the goal in another.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SuccessRule:
    """Solved: at least `steps` steps have a reward of at least `reward`.

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


def _held(what: str, steps: int, reward: float) -> SuccessRule:
    words = f"{what} at more than {steps} steps, each known by a reward of {reward:g} or more"
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
