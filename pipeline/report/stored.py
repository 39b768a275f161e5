"""Stored legged episodes as contact sheets: simulated again from seed and actions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from collectors.legged.environment import LeggedEnvironment
from collectors.legged.episodes import EpisodeSpec
from collectors.legged.observations import OBS_DIM, POLICY_SLICES
from collectors.legged.rollout import EpisodeResult, run_episodes
from collectors.policies import Observation
from collectors.rendering.rendering import RenderingError
from collectors.robots.robot import N_JOINTS, RobotCard, load_robot
from datasets import Schema, Selection
from datasets.catalog.listing import episode_name
from pipeline.report.pictures import Take, draw_sheets

STORED_FRAMES = 4
_SPEC = ("episode", "terrain", "level", "skill", "seed")
_LAST_ACTION = slice(*POLICY_SLICES["last_action"])


class _Playback:
    """Plays the executed actions (T, 12) of one episode after the other on one robot."""

    name = "playback"

    def __init__(self, episodes: Sequence[np.ndarray]) -> None:
        self._episodes = iter(episodes)
        self._actions: Iterator[np.ndarray] = iter(())

    def reset(self, ids: np.ndarray) -> None:
        if len(ids):
            self._actions = iter(next(self._episodes))

    def act(self, observation: Observation) -> np.ndarray:
        """(1, 12) the next action; zeros where an episode does not end as stored."""
        return next(self._actions, np.zeros(N_JOINTS, np.float32))[None]


def replayed(selection: Selection, indices: Sequence[int]) -> tuple[list[EpisodeResult], RobotCard]:
    """Episodes of a selection simulated again and recorded, with the success that is stored.

    Raises:
        RenderingError: not the legged task's own episodes, or they do not repeat here.
    """
    schema, there = selection.store.schema, selection.catalog.column_names
    if not {"terrain", "skill", "action_noise"} <= {*there} or not _is_legged(schema):
        raise RenderingError("only episodes that gaitforge collected with legged robots are drawn")
    rows = selection.catalog.rows(selection.rows[list(indices)]).to_pylist()
    stored = [selection.episode(index) for index in indices]
    # Executed actions hold their noise and another driver's already.
    specs = [EpisodeSpec(*(row[name] for name in _SPEC)) for row in rows]
    try:
        robot = load_robot(schema.robot)
        env = LeggedEnvironment(robot, 1, 1)
    except ValueError as error:
        raise RenderingError(f"the episodes cannot be simulated here: {error}") from None
    try:
        policy = _Playback([_executed(arrays) for arrays in stored])
        results = list(run_episodes(env, policy, specs, record=True))
    finally:
        env.close()
    for arrays, result in zip(stored, results, strict=True):
        if result.record is None or not np.array_equal(result.record.obs, arrays["obs"]):
            raise RenderingError("the episodes do not repeat here bit for bit")
    pairs = zip(results, rows, strict=True)
    return [replace(result, success=row["success"]) for result, row in pairs], robot


def _is_legged(schema: Schema) -> bool:
    widths = {field.name: field.shape for field in schema.fields}
    return widths.get("obs") == (OBS_DIM,) and widths.get("action") == (N_JOINTS,)


def _executed(stored: dict[str, np.ndarray]) -> np.ndarray:
    """(T, 12) the actions that the observation after each step reports."""
    after = np.concatenate([stored["obs"][1:], stored["final_obs"][None]])
    return after[:, _LAST_ACTION]


def stored_takes(selection: Selection) -> tuple[list[Take], RobotCard]:
    """A stored episode a skill, of median return; see `replayed`."""
    if "skill" not in selection.catalog.column_names:
        raise RenderingError("only episodes that gaitforge collected with legged robots are drawn")
    tallies, indices = _typical(selection)
    results, robot = replayed(selection, indices)
    ids = selection.episode_ids()
    takes = [
        Take(result, *tally, episode_name(int(ids[index])))
        for result, tally, index in zip(results, tallies, indices, strict=True)
    ]
    return takes, robot


def _typical(selection: Selection) -> tuple[list[tuple[int, int]], list[int]]:
    """Per skill: (successes, episodes), and which episode of no other driver has median return."""
    names = [name for name in ("policy_hash",) if name in selection.catalog.column_names]
    columns = selection.catalog.rows(
        selection.rows, ["skill", "return", "success", "expert_hash", *names]
    )
    rows = columns.to_pylist()
    found: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if row.get("policy_hash") in (None, row["expert_hash"]):
            found.setdefault(row["skill"], []).append(i)
    tallies, chosen = [], []
    for _, mine in sorted(found.items()):
        mine.sort(key=lambda i: rows[i]["return"])
        tallies.append((sum(rows[i]["success"] for i in mine), len(mine)))
        chosen.append(mine[len(mine) // 2])
    return tallies, chosen


def draw_stored(selection: Selection, folder: Path) -> list[dict[str, object]]:
    """Draw a sheet of a typical stored episode a skill; a record of each, with its file's name.

    Raises:
        RenderingError: see `replayed`, or MuJoCo cannot draw here.
    """
    takes, robot = stored_takes(selection)
    names = [f"{take.result.spec.skill}.png" for take in takes]
    sheets = draw_sheets(folder, takes, names, robot, STORED_FRAMES)
    return [{**sheet, "episode": sheet["policy"]} for sheet in sheets]
