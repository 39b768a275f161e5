"""Warnings about a user's environment before a collection."""

from contextlib import closing

import numpy as np

from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.common.errors import listed

_SEED = 0
_STEPS = 20


def notes(env_id: str) -> list[str]:
    """Warnings: fields that a store will lack, and seeds that repeat no episode; none for ours.

    Raises:
        ValueError: no such environment, or one that fails.
    """
    task = find_task(env_id)
    if task.settings is None:
        return []
    with closing(TaskBatch(task, 2)) as batch:
        lines = []
        if batch.left_out:
            lines.append(f"the observation is stored without {listed(batch.left_out)}")
        where, success_known = _tried(batch)
        if where:
            lines.append(
                f"episodes of {task.settings.place} are no function of their seed: {where} of two "
                "with the same seed differs; draw all that is random from self.np_random, or "
                "verify --replay will find differences"
            )
        elif (name := task.settings.success) and not success_known:
            lines.append(
                f"none of the first steps had '{name}' in its info: success is unknown of episodes "
                "without it"
            )
    return lines


def _tried(batch: TaskBatch) -> tuple[str, bool]:
    """Run a short episode twice and compare.

    Returns:
        Where the runs first differ, one of them after another episode, or nothing; and whether a
        step said if the episode succeeded.
    """
    known = False
    rng = np.random.default_rng(_SEED)
    actions = rng.uniform(-1.0, 1.0, (_STEPS, 1, batch.act_dim)).astype(np.float32)
    batch.reset([0], [_SEED + 1])
    for action in actions[:3]:
        if batch.step([0], action).terminated:
            break
    batch.reset([0, 1], [_SEED, _SEED])
    for number, action in enumerate(actions):
        first, second = batch.observation.policy
        if not np.array_equal(first, second):
            return f"the observation before step {number}", known
        step = batch.step([0, 1], np.repeat(action, 2, axis=0))
        known |= bool(step.success_known.any())
        if step.reward[0] != step.reward[1] or step.terminated[0] != step.terminated[1]:
            return f"the outcome of step {number}", known
        if (step.terminated | step.truncated).any():
            break
    return "", known
