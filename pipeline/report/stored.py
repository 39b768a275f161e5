"""Stored legged episodes as contact sheets: simulated again from seed and actions."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from collectors.legged.replaying import replay_environment, replayed, stored_episodes
from collectors.legged.rollout import EpisodeResult
from collectors.rendering.rendering import RenderingError
from collectors.robots.robot import RobotCard
from datasets import Selection
from datasets.catalog.listing import episode_name
from pipeline.report.pictures import Take, draw_sheets

STORED_FRAMES = 4


def _replayed(
    selection: Selection, indices: Sequence[int]
) -> tuple[list[EpisodeResult], RobotCard]:
    """Episodes of a selection simulated again and recorded, with the success that is stored."""
    chosen = selection.with_rows(np.sort(selection.rows[list(indices)]))
    try:
        env = replay_environment(chosen, len(chosen))
    except ValueError as error:
        why = str(error).replace(selection.store.address, "the store")
        raise RenderingError(f"the episodes cannot be simulated here: {why}") from None
    found = {}
    try:
        for episode, result, difference in replayed(env, stored_episodes(chosen)):
            if difference:
                raise RenderingError("the episodes do not repeat here bit for bit")
            row = episode.row
            found[row["episode"]] = replace(result, success=row["success"])
    finally:
        env.close()
    return [found[each] for each in selection.episode_ids()[list(indices)].tolist()], env.robot


def stored_takes(selection: Selection) -> tuple[list[Take], RobotCard]:
    """A stored episode a skill, of median return.

    Raises:
        RenderingError: not the legged task's own episodes, or they do not repeat here.
    """
    if "skill" not in selection.catalog.column_names:
        raise RenderingError("only episodes that gaitforge collected with legged robots are drawn")
    tallies, indices = _typical(selection)
    results, robot = _replayed(selection, indices)
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
        RenderingError: see `stored_takes`, or MuJoCo cannot draw here.
    """
    takes, robot = stored_takes(selection)
    names = [f"{take.result.spec.skill}.png" for take in takes]
    sheets = draw_sheets(folder, takes, names, robot, STORED_FRAMES)
    return [{**sheet, "episode": sheet["policy"]} for sheet in sheets]
