"""FCNet's published quadruped data: three flat memory maps.

    src_<steps>_58.dat    float32 (steps, 58): the state, command last, without the last action
    tgt_<steps>_12.dat    float32 (steps, 12): the expert's action
    meta_<episodes>.dat   int32 (episodes,): steps of each episode, end to end

The names hold the shapes. There are no rewards, final observations or endings.

Its maps of D4RL's tasks have the same form, in a folder <task>_<quality>_<episodes>_<longest>:

    src_<steps>_<1 + D>.dat   the return-to-go, normalised by D4RL's scores to 0 .. 1, and the state
    tgt_<steps>_<A>.dat       the action
"""

from collections.abc import Mapping

import numpy as np

from gaitforge.datasets.schema import TASK_AND_QUALITY, Field, Schema, consecutive_slices
from gaitforge.plugins.gym.d4rl.d4rl_tasks import D4rlTask, obs_slices

STATE = {
    "projected_gravity": 3,
    "joint_vel": 12,
    "sin_joint_pos": 12,
    "cos_joint_pos": 12,
    "base_ang_vel_body": 3,
    "command": 16,
}
"""Channels of `src` in order, named as the slices of our observation."""

LAST_ACTION = "last_action"
COMMAND = "command"
STATE_DIM = sum(STATE.values())
ACTION_DIM = 12
OBS_DIM = STATE_DIM + ACTION_DIM

Slices = Mapping[str, tuple[int, int]]
STATE_SLICES = consecutive_slices(STATE)
_SENSED = {name: size for name, size in STATE.items() if name != COMMAND}
OBS_SLICES = consecutive_slices({**_SENSED, LAST_ACTION: ACTION_DIM, COMMAND: STATE[COMMAND]})
"""Name -> (start, stop) in the imported observation: the paper's order, last action before the
command."""

CONTROL_DT_S = 0.02


def store_schema(robot: str) -> Schema:
    """The schema of an imported store."""
    unit = "as FCNet's data"
    text = "observation before the step"
    obs = Field("obs", (OBS_DIM,), unit=unit, description=text, slices=OBS_SLICES)
    action = Field("action", (ACTION_DIM,), unit=unit, description="expert's action")
    return Schema((obs, action), CONTROL_DT_S, robot, {"format": "fcnet"})


RETURN_TO_GO = "normalised_return_to_go"


def d4rl_schema(task: str, facts: D4rlTask, state_dim: int, action_dim: int) -> Schema:
    """The schema of a store of a D4RL task."""
    fields = (
        Field(
            "obs",
            (state_dim,),
            description="src of FCNet, but for its first column",
            slices=obs_slices(task, (state_dim,)),
        ),
        Field("action", (action_dim,), description="tgt of FCNet"),
        Field("reward", description="from the differences of the normalised return-to-go"),
        Field(RETURN_TO_GO, description="first column of FCNet's src; 1 is the expert's return"),
    )
    scores = {"random": facts.random_score, "expert": facts.expert_score}
    attributes = {"task": task, "format": "fcnet", "reference_returns": scores}
    return Schema(fields, facts.control_dt_s, task, attributes, TASK_AND_QUALITY)


def rewards_of(returns_to_go: np.ndarray, lengths: np.ndarray, facts: D4rlTask) -> np.ndarray:
    """(T,) float32 rewards of episodes of `lengths` (E,) from FCNet's normalised column (T,).

    The column is (R - random) / (expert - random) of the return-to-go R, so the last step of an
    episode holds its own reward.
    """
    scale = facts.expert_score - facts.random_score
    returns = returns_to_go.astype(np.float64) * scale + facts.random_score
    following = np.append(returns[1:], 0.0)
    following[np.cumsum(lengths) - 1] = 0.0
    return (returns - following).astype(np.float32)


def observation(
    state: np.ndarray, slices: Slices, action: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """(T, OBS_DIM) the imported observation, with the last actions of episodes of `lengths`.

    `state` (T, D) holds the channels of `STATE` at `slices`; `action` is (T, ACTION_DIM).
    """
    obs = np.empty((len(state), OBS_DIM), np.float32)
    for name in STATE:
        obs[:, slice(*OBS_SLICES[name])] = state[:, slice(*slices[name])]
    obs[:, slice(*OBS_SLICES[LAST_ACTION])] = previous_actions(action, lengths)
    return obs


def previous_actions(action: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(T, A) the action of the step before; zeros at the first step of each episode."""
    previous = np.empty_like(action)
    previous[1:] = action[:-1]
    previous[np.cumsum(lengths) - lengths] = 0.0
    return previous


def map_name(kind: str, *shape: int) -> str:
    """The file name of a memory map."""
    return f"{'_'.join([kind, *map(str, shape)])}.dat"
