"""Stored episodes of a page: simulated again where that is exact, or drawn from their states."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collectors.legged.environment import LeggedEnvironment
from collectors.legged.observations import POLICY_SLICES
from collectors.physics import availability, is_exact
from collectors.robots.commands import C
from collectors.robots.robot import RobotCard, load_robot
from collectors.rotations import yaw_of
from collectors.timing import CONTROL_DT_S
from datasets import Selection
from datasets.errors import amount
from flows.progress import Reporter
from pipeline.view.recording import (
    REWARD,
    VELOCITY,
    Playback,
    Recording,
    joint_charts,
    record,
    recorded_charts,
)
from pipeline.view.show import MOST_PARALLEL, Show, spec_of, viewed

NEEDED = ("terrain", "level", "skill", "seed", "terrain_variant", "simulator", "simulator_version")
_LAST_ACTION, _COMMAND = (slice(*POLICY_SLICES[name]) for name in ("last_action", "command"))


def spread_over_returns(selection: Selection, count: int) -> Selection:
    """So many episodes of a selection, the worst, the best and evenly ranked ones between."""
    if len(selection) <= count:
        return selection
    order = np.argsort(selection.episodes()["return"].to_numpy(), kind="stable")
    ranks = np.linspace(0, len(order) - 1, count).round().astype(np.int64)
    return selection.with_rows(np.sort(selection.rows[order[ranks]]))


def stored_show(selection: Selection, reporter: Reporter, robot: str = "") -> Show:
    """Stored legged episodes: simulated again, or drawn from their stored states.

    Args:
        robot: a name or path; empty for the store's own.

    Raises:
        ValueError: no legged episodes, or neither way is open.
    """
    store = selection.store
    columns = selection.catalog.column_names
    if missing := [name for name in NEEDED if name not in columns]:
        raise ValueError(
            f"{store.address} has no column {missing[0]}: view shows stores of the legged task"
        )
    card = load_robot(robot or store.schema.robot)
    rows = selection.episodes().to_pylist()
    why_not = _why_no_replay(selection, rows)
    has_state = any(field.name == "state" for field in store.schema.fields)
    if not why_not:
        recordings, unequal = _replayed(selection, rows, card, reporter)
        note = unequal and f"{amount(unequal, 'episode')} came out otherwise than stored."
        charts = recorded_charts(card)
    elif has_state:
        recordings = [_from_state(selection.episode(k)) for k in range(len(rows))]
        note = f"Drawn from stored states, without torques and reward terms: {why_not}."
        charts = (VELOCITY, REWARD, joint_charts(card)[0])
    else:
        raise ValueError(
            f"{store.address} can neither be simulated again ({why_not}) nor has it the field "
            "state, which gaitforge collect --state stores"
        )
    episodes = [viewed(row, each, card) for row, each in zip(rows, recordings, strict=True)]
    return Show(Path(store.address).name, card, charts, tuple(episodes), note or "")


def _why_no_replay(selection: Selection, rows: Sequence[dict[str, Any]]) -> str:
    simulators = sorted({(row["simulator"], row["simulator_version"]) for row in rows})
    fields = selection.store.schema.fields
    if missing := {"obs", "action", "reward", "final_obs"} - {field.name for field in fields}:
        return f"it has no field {min(missing)}"
    if any(field.dtype == "float16" for field in fields):
        return "it holds half floats"
    if len(simulators) > 1:
        return "it was made by more than one simulator"
    name, version = simulators[0]
    if not is_exact(name):
        return f"{name} repeats no episode bit for bit"
    here = availability(name)
    if not here.available or here.version != version:
        return f"it was made by {name} {version}, and here is {here.version or here.why_not}"
    return ""


def _replayed(
    selection: Selection, rows: Sequence[dict[str, Any]], card: RobotCard, reporter: Reporter
) -> tuple[list[Recording], int]:
    """The recordings in the order of the rows, and how many returns differ from the stored ones."""
    stored = [selection.episode(k) for k in range(len(rows))]
    executed = {k: _executed(fields) for k, fields in enumerate(stored)}
    # Executed actions hold their noise already.
    specs = [replace(spec_of(row), index=k, action_noise=0.0) for k, row in enumerate(rows)]
    env = LeggedEnvironment(card, min(MOST_PARALLEL, len(rows)), backend=rows[0]["simulator"])
    found: dict[int, Recording] = {}
    unequal = 0
    try:
        with reporter.step("replay", sum(row["length"] for row in rows), "step") as advance:
            playback = Playback(env, executed)
            for result, recording in record(env, playback, specs, lambda n: advance(n, "")):
                k = result.spec.index
                found[k] = recording
                assert result.record is not None, "the episode was run to be recorded"
                unequal += not np.array_equal(result.record.reward, stored[k]["reward"])
    finally:
        env.close()
    return [found[k] for k in range(len(rows))], unequal


def _executed(stored: dict[str, np.ndarray]) -> np.ndarray:
    """(T, 12) what was executed, noise and another driver's actions included, clipped."""
    after = np.concatenate([stored["obs"][1:], stored["final_obs"][None]])
    return after[:, _LAST_ACTION]


def _from_state(stored: dict[str, np.ndarray]) -> Recording:
    """The curves `VELOCITY`, `REWARD` and actions from stored fields; speeds are differences."""
    state = stored["state"].astype(np.float64)
    command = stored["obs"][:, _COMMAND]
    yaw = yaw_of(state[:, 3:7])
    change = np.diff(state[:, :2], axis=0, append=state[-1:, :2]) / CONTROL_DT_S
    ahead = np.cos(yaw) * change[:, 0] + np.sin(yaw) * change[:, 1]
    left = -np.sin(yaw) * change[:, 0] + np.cos(yaw) * change[:, 1]
    velocity = [command[:, C.VEL_X], ahead, command[:, C.VEL_Y], left]
    columns = [*velocity, stored["reward"], *_executed(stored).T]
    return Recording(state, np.stack(columns, axis=1), "")
