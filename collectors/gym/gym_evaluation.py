"""Closed-loop evaluation on a task: the same starts for every policy, N parallel environments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.policy import TaskPolicy, tell_executed

DEFAULT_SEED = 1_000_003
_STREAM = 0xE7A1  # separates evaluation's seeds from those of a collection


@dataclass
class TaskEpisode:
    """One evaluated episode.

    Attributes:
        episode_return: undiscounted sum of the rewards; length: control steps.
        success: the task reported it on some step; of tasks that report none (HalfCheetah, Hopper,
            Walker2d, our humanoids), that the episode did not terminate, as in imported D4RL files.
        success_known: False for an environment of others that said nothing.
        terminated: it ended before the horizon, in a failure or a goal.
    """

    seed: int
    episode_return: float = 0.0
    length: int = 0
    success: bool = False
    success_known: bool = False
    terminated: bool = False


def evaluation_seeds(episodes: int, seed: int = DEFAULT_SEED) -> list[int]:
    """Seeds that no collection uses; those of fewer episodes are a prefix."""
    if episodes < 1 or seed < 0:
        raise ValueError(f"need at least 1 episode, got {episodes}, and a seed >= 0, got {seed}")
    drawn = np.random.SeedSequence([_STREAM, seed]).generate_state(episodes, np.uint64)
    return (drawn >> np.uint64(1)).tolist()


def evaluate(
    policy: TaskPolicy,
    batch: TaskBatch,
    seeds: Sequence[int],
    progress: Callable[[int], None] | None = None,
) -> list[TaskEpisode]:
    """Run one episode per seed, returned in the seeds' order; free environments take the next seed.

    The policy acts on all rows at once, also on idle ones. Actions are clipped to [-1, 1].

    Args:
        progress: called with the number of episodes that ended since its last call.
    """
    episodes = [TaskEpisode(seed) for seed in seeds]
    waiting = iter(episodes)
    running: dict[int, TaskEpisode] = {}

    def start(free: Sequence[int]) -> None:
        """Begin the next waiting episodes in free environments."""
        started = dict(zip(free, waiting, strict=False))
        if started:
            running.update(started)
            batch.reset(list(started), [episode.seed for episode in started.values()])
            policy.reset(np.array(list(started), dtype=np.int64))

    start(range(len(batch)))
    while running:
        ids = sorted(running)
        actions = batch.executed(np.clip(policy.act(batch.observation), -1.0, 1.0))
        tell_executed(policy, actions)
        step = batch.step(ids, actions[ids])
        ended = []
        for row, index in enumerate(ids):
            episode = running[index]
            episode.episode_return += float(step.reward[row])
            episode.length += 1
            episode.success |= bool(step.success[row])
            episode.success_known |= bool(step.success_known[row])
            episode.terminated = bool(step.terminated[row])
            if step.terminated[row] or step.truncated[row]:
                if not batch.task.reports_success:
                    episode.success |= not episode.terminated
                    episode.success_known = True
                del running[index]
                ended.append(index)
        if ended:
            start(ended)
            if progress is not None:
                progress(len(ended))
    return episodes
