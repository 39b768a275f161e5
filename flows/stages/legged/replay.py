"""Replay of legged episodes from their seeds, stored draws and stored actions."""

from contextlib import closing
from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.legged.replaying import (
    by_robot,
    replay_environment,
    replayed,
    simulator_of_selection,
    stored_episodes,
)
from gaitforge.common.errors import amount
from gaitforge.datasets import Selection
from gaitforge.datasets.edits.cutting import pieces_of
from gaitforge.flows.progress import Reporter

ROBOTS = 64


@dataclass(frozen=True)
class ReplayFault:
    """An episode that did not repeat, and the first field and step that differ."""

    part: str
    episode: int
    what: str

    def __str__(self) -> str:
        return f"part {self.part}: episode {self.episode}: {self.what}"


def whole_episodes(selection: Selection, reporter: Reporter) -> Selection:
    """The selection without pieces of episodes, which is said; ValueError if nothing is left."""
    pieces = pieces_of(selection)
    if not pieces.any():
        return selection
    count = amount(int(pieces.sum()), "piece")
    why = "of episodes that were cut, which cannot be simulated again"
    if pieces.all():
        raise ValueError(f"{selection.store.address} holds only {count} {why}")
    reporter.say(f"left out: {count} {why}")
    return selection.with_rows(selection.rows[~pieces])


def replay_legged(
    selection: Selection,
    count: int,
    seed: int,
    reporter: Reporter,
    robot: str = "",
    version: str = "",
) -> list[ReplayFault]:
    """See `gaitforge.flows.stages.replay.replay`."""
    selection = whole_episodes(selection, reporter)
    if not version:
        simulator_of_selection(selection)  # raises for several, whatever the sample has
    count = min(count, len(selection))
    sample = np.sort(np.random.default_rng(seed).choice(len(selection), count, replace=False))
    selection = selection.with_rows(selection.rows[sample])
    if version:
        selection = selection.select(simulator_version=version)
    faults = []
    with reporter.step("replay", selection.steps, "step") as advance:
        for robot_selection in by_robot(selection):
            env = replay_environment(
                robot_selection, min(ROBOTS, max(len(robot_selection), 1)), robot
            )
            with closing(env):
                for first in range(0, len(robot_selection), env.num_robots):
                    rows = robot_selection.rows[first : first + env.num_robots]
                    episodes = stored_episodes(robot_selection.with_rows(rows))
                    for episode, _, text in replayed(env, episodes, None, lambda n: advance(n, "")):
                        if text:
                            part = episode.row["part"]
                            number = episode.row["episode"]
                            faults.append(ReplayFault(part, number, text))
    return sorted(faults, key=lambda fault: (fault.part, fault.episode))
