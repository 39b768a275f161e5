"""Stored episodes of a page: simulated again where that is exact, or drawn from their states."""

from contextlib import closing
from pathlib import Path

import numpy as np

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.legged.replaying import (
    Executed,
    replay_environment,
    robot_of_selection,
    stored_episodes,
    stored_randomisation,
)
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.collectors.rotations import yaw_of
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.common.errors import amount
from gaitforge.datasets import Selection
from gaitforge.flows.progress import Reporter
from gaitforge.pipeline.view.recording import (
    REWARD,
    VELOCITY,
    Recording,
    joint_charts,
    record,
    recorded_charts,
)
from gaitforge.pipeline.view.show import MOST_PARALLEL, NothingToShow, Show, viewed

NEEDED = ("terrain", "level", "skill", "seed", "terrain_variant", "simulator", "simulator_version")
_LAST_ACTION, _COMMAND = (slice(*POLICY_SLICES[name]) for name in ("last_action", "command"))


def spread_over_returns(selection: Selection, count: int) -> Selection:
    """`count` episodes of a selection: the worst, the best and evenly ranked ones between."""
    if len(selection) <= count:
        return selection
    order = np.argsort(selection.episodes("return")["return"].to_numpy(), kind="stable")
    ranks = np.linspace(0, len(order) - 1, count).round().astype(np.int64)
    return selection.with_rows(np.sort(selection.rows[order[ranks]]))


def stored_show(selection: Selection, reporter: Reporter, robot: str = "") -> Show:
    """Stored legged episodes: simulated again, or drawn from their stored states.

    Args:
        robot: a name or path; empty for the store's own.

    Raises:
        NothingToShow: no legged episodes, or neither of the two is possible.
    """
    store = selection.store
    columns = selection.catalog.column_names
    if missing := [name for name in NEEDED if name not in columns]:
        raise NothingToShow(
            f"{store.address} has no column {missing[0]}: view shows stores of the legged task"
        )
    card = load_robot(robot) if robot else robot_of_selection(selection)
    rows = selection.episodes().to_pylist()
    try:
        env = replay_environment(selection, min(MOST_PARALLEL, len(rows)), str(card.path))
    except ValueError as error:
        if "state" not in selection.store.schema.names():
            raise NothingToShow(
                f"{store.address} can neither be simulated again ({error}) nor has it the field "
                "state, which gaitforge collect --state stores"
            ) from None
        recordings = [_from_state(selection.episode(k)) for k in range(len(rows))]
        note = f"Drawn from stored states, without torques and reward terms: {error}."
        charts = (VELOCITY, REWARD, joint_charts(card)[0])
    else:
        recordings, unequal = _replayed(selection, env, reporter)
        note = unequal and f"{amount(unequal, 'episode')} came out otherwise than stored."
        charts = recorded_charts(card)
    episodes = [
        viewed(row, recording, card) for row, recording in zip(rows, recordings, strict=True)
    ]
    name = Path(store.address).name
    draws = stored_randomisation(store.schema).written()
    return Show(name, card, charts, tuple(episodes), note or "", randomisation=draws)


def _replayed(
    selection: Selection, env: LeggedEnvironment, reporter: Reporter
) -> tuple[list[Recording], int]:
    """The recordings in the order of the rows, and how many differ from what is stored."""
    episodes = {episode.row["episode"]: episode for episode in stored_episodes(selection)}
    specs = [episode.spec(noise=False) for episode in episodes.values()]
    recordings: dict[int, Recording] = {}
    unequal = 0
    with closing(env), reporter.step("replay", selection.steps, "step") as advance:
        policy = Executed(env, episodes)
        for result, recording in record(env, policy, specs, lambda n: advance(n, "")):
            k = result.spec.index
            recordings[k] = recording
            unequal += bool(episodes[k].difference(result, env.robot))
    return [recordings[k] for k in episodes], unequal


def _from_state(stored: dict[str, np.ndarray]) -> Recording:
    """The curves `VELOCITY`, `REWARD` and actions from stored fields; speeds are differences."""
    state = stored["state"].astype(np.float64)
    command = stored["obs"][:, _COMMAND]
    yaw = yaw_of(state[:, 3:7])
    change = np.diff(state[:, :2], axis=0, append=state[-1:, :2]) / CONTROL_DT_S
    ahead = np.cos(yaw) * change[:, 0] + np.sin(yaw) * change[:, 1]
    left = -np.sin(yaw) * change[:, 0] + np.cos(yaw) * change[:, 1]
    velocity = [command[:, C.VEL_X], ahead, command[:, C.VEL_Y], left]
    after = np.concatenate([stored["obs"][1:], stored["final_obs"][None]])
    columns = [*velocity, stored["reward"], *after[:, _LAST_ACTION].T]
    return Recording(state, np.stack(columns, axis=1), "")
