"""A Gymnasium task's episodes in a store: schema, arrays and catalog, like an imported D4RL file.

Beyond D4RL's files: named slices of the observation, the final observation, and optionally the
simulator's state in float64, from which episodes can be stepped again (a replay buffer has none).
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.common.errors import listed
from gaitforge.datasets import Field, Schema
from gaitforge.datasets.formats.sources import catalog_columns
from gaitforge.datasets.schema import TASK_AND_QUALITY
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import GymTask, find_task, package_version
from gaitforge.plugins.gym.episodes import Episode
from gaitforge.plugins.gym.experts import (
    RECIPE,
    GymExpert,
    Recipe,
    load_gym_expert,
    read_recipe,
)
from gaitforge.plugins.gym.training.records import ReplayReader, read_training

RANDOM = "random"
MEDIUM = "medium"
MEDIUM_REPLAY = "medium-replay"
EXPERT = "expert"
QUALITIES = (RANDOM, MEDIUM, MEDIUM_REPLAY, EXPERT)
"""D4RL's sets; its medium-expert is the selection of two of them."""

SUCCESS_KNOWN = "success_known"

_TRAIN = "only a training of your own has one: gaitforge expert train --env"

_REPLAYED = ("obs", "action", "log_prob", "reward")

INFOS = {"info_action_log_probs": "log_prob", "info_qpos": "qpos", "info_qvel": "qvel"}
"""Field of an imported D4RL file -> attribute of `Episode`, where the names differ."""


def gym_schema(env: TaskBatch, recipe: Recipe | None, physics: bool) -> Schema:
    """The schema of a task's store, with the simulator's state if `physics`.

    Args:
        recipe: of the policies, whose returns are kept; None for a policy without one.
    """
    task = env.task
    named: dict[str, Any] = {"slices": env.obs_slices}
    attributes: dict[str, Any] = {"task": task.name, "env": task.env_id, "format": "gymnasium"}
    if recipe is not None:
        returns = {"random": recipe.random_return, "expert": recipe.expert_return}
        attributes["reference_returns"] = returns
    coded = "-1 and 1 are the ends of the actuator's range"
    density = "the action"
    if env.choices:
        attributes["choices"] = list(env.choices)
        coded = "of each discrete action's choices 1 for the one taken, -1 for the others"
        density = "the scores whose highest was taken"
    seen = "observation before the step"
    if env.left_out:
        seen += f", without {listed(env.left_out)}"
    fields = [
        Field("obs", (env.obs_dim,), description=seen, **named),
        Field("action", (env.act_dim,), description=coded),
        Field("reward", description="of the step"),
        Field("info_action_log_probs", description=f"log-density of {density}, in nats"),
    ]
    if physics:
        qpos, qvel = env.physics(0)
        text = "generalised {} of MuJoCo before the step"
        fields += [
            Field("info_qpos", qpos.shape, "float64", "SI", text.format("positions")),
            Field("info_qvel", qvel.shape, "float64", "SI", text.format("velocities")),
        ]
    text = "observation after the episode's last step"
    fields.append(Field("final_obs", (env.obs_dim,), description=text, per="episode", **named))
    return Schema(
        fields=tuple(fields),
        control_dt_s=task.facts.control_dt_s,
        robot=task.name,
        attributes=attributes,
        group_by=TASK_AND_QUALITY,
    )


def quality_actor(policies: Path, quality: str) -> GymExpert:
    """The policy of a quality, for medium-replay the medium policy; ValueError if it is missing."""
    return load_gym_expert(policies, "medium" if quality in (MEDIUM, MEDIUM_REPLAY) else "expert")


def open_replay(folder: Path, env: str, rows: int = 0) -> ReplayReader:
    """The first rows of a training's replay buffer.

    Args:
        folder: folder of a training, finished or not; env: its environment.
        rows: number of rows; 0 for those until the medium policy, or all of an unfinished training.

    Raises:
        ValueError: no buffer, one of another environment, or a shorter one.
    """
    training = read_training(folder)
    recipe = read_recipe(folder) if (folder / RECIPE).is_file() else None
    if training is not None:
        of = training.config["env"]
        trained = training.steps
    elif recipe is not None:
        of = recipe.env
        trained = recipe.replay_rows
    else:
        raise ValueError(f"no training in {folder}, and no replay buffer; {_TRAIN}")
    if of != env:
        raise ValueError(f"the replay buffer in {folder} is of {of}, not of {env}")
    rows = rows or (trained if recipe is None else recipe.replay_rows)
    if rows > trained:
        raise ValueError(
            f"the replay buffer in {folder} has {trained:,} rows, not {rows:,}; "
            "train for more steps"
        )
    with closing(TaskBatch(find_task(env), 1)) as batch:
        return ReplayReader(folder, rows, batch.obs_dim, batch.act_dim)


def replayed_episodes(reader: ReplayReader, first: int, stop: int) -> list[Episode]:
    """Episodes [first, stop) of the replay buffer; their success is unknown."""
    spans = reader.episodes(reader.rows)
    starts = spans.starts[first:stop]
    stops = (spans.starts + spans.lengths)[first:stop]
    rows = reader.read(int(starts[0]), int(stops[-1]))
    episodes = []
    for k, (begin, end) in enumerate(zip(starts - starts[0], stops - starts[0], strict=True)):
        span = slice(int(begin), int(end))
        arrays: dict[str, Any] = {name: rows[name][span] for name in _REPLAYED}
        episodes.append(
            Episode(
                seed=-1,
                final_obs=rows["next_obs"][span.stop - 1],
                **arrays,
                terminated=bool(spans.terminated[first + k]),
                truncated=bool(spans.truncated[first + k]),
            )
        )
    return episodes


def simulator_of(task: GymTask) -> tuple[str, str]:
    """Name and version of the simulator of a task's episodes, as their catalog has them."""
    return task.package if task.settings else "mujoco", package_version(task)


def part_catalog(
    episodes: Sequence[Episode],
    task: GymTask,
    recipe: Recipe | None,
    quality: str,
    expert_hash: str,
    content: str,
) -> dict[str, Any]:
    """Catalog columns of a part, named as in an imported D4RL file.

    Success is what the Adroit tasks and others' environments reported at any step, and elsewhere
    that the episode did not terminate. Where it is unknown, as in a replay buffer, it is False, and
    so is the column `SUCCESS_KNOWN`.

    Args:
        content: hexadecimal digits that identify the part in its store.
    """
    terminated = np.array([episode.terminated for episode in episodes])
    success: dict[str, Any] = {"success": ~terminated}
    if task.reports_success:
        success["success"] = np.array([bool(episode.success) for episode in episodes])
        success[SUCCESS_KNOWN] = np.array([episode.success is not None for episode in episodes])
    simulator, version = simulator_of(task)
    returns = np.array([episode.reward.sum(dtype=np.float64) for episode in episodes])
    measured = {"return": returns}
    if recipe is not None:
        measured["normalised_return"] = recipe.normalised(returns)
    return catalog_columns(
        0,
        np.array([episode.length for episode in episodes]),
        content,
        TASK_AND_QUALITY,
        seed=[episode.seed for episode in episodes],
        task=task.name,
        quality=quality,
        robot=task.name,
        simulator=simulator,
        simulator_version=version,
        expert=quality,
        expert_hash=expert_hash,
        terminated=terminated,
        truncated=np.array([episode.truncated for episode in episodes]),
        **success,
        **measured,
    )
