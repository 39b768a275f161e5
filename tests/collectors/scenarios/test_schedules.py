"""Schedules: what an operator commands is continuous, in its ranges, stored and repeated."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.legged.data import COLLECTION_PRESETS, CollectionGrid
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeDraws, EpisodeSpec, draw_episode
from gaitforge.collectors.legged.replaying import (
    StoredEpisode,
    replay_environment,
    replayed,
    stored_episodes,
)
from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.robots.kinematics import C
from gaitforge.collectors.scenarios.schedules import (
    CONSTANT,
    MANOEUVRES,
    Schedule,
    fitting,
    ranges_of_commands,
)
from gaitforge.collectors.scenarios.skills import N_SIGNALS, S, Track, command_ranges
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.replay import replay
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation, cells_of, driven_by
from tests.collectors.making import ROBOT, similar_robot

CELLS = CollectionGrid().cells()
SPECS = [
    (terrain, skill, manoeuvre)
    for terrain, skill in CELLS
    for manoeuvre in fitting(tuple(MANOEUVRES), terrain, skill)
]
SMALL = similar_robot(0.7)
GRID = CollectionGrid(
    terrains=("flat", "rough"),
    skills=("stand", "crawl", "run"),
    levels=(2,),
    parts=2,
    episodes_per_part=18,
    action_noise=(0.0,),
    manoeuvres=tuple(MANOEUVRES),
)
PLAN = LeggedPlan(grid=GRID, robots=18, threads=1)


def drawn(which: int, seed: int, level: int = 4) -> tuple[EpisodeDraws, Schedule, np.ndarray]:
    """An episode's draws, its schedule and its commands (T, 16)."""
    terrain, skill, manoeuvre = SPECS[which]
    spec = EpisodeSpec(0, terrain, level, skill, seed, manoeuvre=manoeuvre)
    robot = ROBOT if seed % 2 else SMALL
    draws = draw_episode(spec, robot)
    assert draws.schedule is not None
    return draws, draws.schedule, draws.schedule.commands(EPISODE_STEPS)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(SPECS) - 1), st.integers(0, 2**40))
def test_robots_stand_move_and_stand_again_without_jumps_of_what_is_ramped(
    which: int, seed: int
) -> None:
    _, schedule, commands = drawn(which, seed)
    _, walk, turn, brake, stand = schedule.starts
    assert 0 < walk <= turn < brake < stand < EPISODE_STEPS - 5
    moving = commands[:, C.LOCOMOTE]
    assert not moving[:walk].any()
    assert moving[walk:stand].all()
    assert not moving[stand:].any()
    still = [C.VEL_X, C.VEL_Y, C.YAW_RATE]
    assert not commands[:walk, still].any()
    assert not commands[stand:, still].any()
    limit = np.maximum(commands[1:, C.ACCEL_LIMIT], commands[:-1, C.ACCEL_LIMIT]) * CONTROL_DT_S
    assert (np.abs(np.diff(commands[:, C.VEL_X])) <= limit + 1e-9).all()
    assert (np.abs(np.diff(commands[:, C.BODY_HEIGHT])) <= 0.4 * CONTROL_DT_S + 1e-9).all()
    # Whatever manoeuvre is named, its leading velocity is what the columns say.
    columns = schedule.columns()
    lead = MANOEUVRES[schedule.manoeuvre].lead
    name = f"manoeuvre_{lead.name.lower()}"
    assert columns[name] == schedule.targets[2, lead] != 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(SPECS) - 1), st.integers(0, 2**40))
def test_commands_stay_in_the_ranges_that_an_export_says(which: int, seed: int) -> None:
    _, _, commands = drawn(which, seed)
    low, high = np.array(ranges_of_commands(ROBOT if seed % 2 else SMALL, tuple(MANOEUVRES))).T
    assert (commands >= low - 1e-9).all()
    assert (commands <= high + 1e-9).all()


def test_ranges_without_manoeuvres_are_the_skills() -> None:
    assert ranges_of_commands(ROBOT, (CONSTANT,)) == command_ranges(ROBOT)
    low = np.array(ranges_of_commands(ROBOT, ("backward",)))[C.VEL_X, 0]
    assert low == pytest.approx(-0.8)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(SPECS) - 1), st.integers(0, 2**40))
def test_a_schedule_changes_none_of_the_other_draws(which: int, seed: int) -> None:
    terrain, skill, manoeuvre = SPECS[which]
    spec = EpisodeSpec(0, terrain, 4, skill, seed, manoeuvre=manoeuvre)
    changing, constant = (draw_episode(s, ROBOT) for s in (spec, replace(spec, manoeuvre=CONSTANT)))
    assert constant.schedule is None
    for name in ("draws", "offset_xy", "base_vel", "observation_noise", "push_velocity"):
        np.testing.assert_array_equal(getattr(changing, name), getattr(constant, name))
    assert changing.terrain_variant == constant.terrain_variant
    assert changing.push_step == constant.push_step
    if changing.passage is None:
        np.testing.assert_array_equal(changing.command, constant.command)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 9), st.sampled_from(["crawl", "squeeze", "tilt"]))
def test_a_robot_that_follows_the_commands_passes_before_it_stands(
    seed: int, level: int, skill: str
) -> None:
    spec = EpisodeSpec(0, "flat", level, skill, seed, manoeuvre="straight")
    draws = draw_episode(spec, ROBOT)
    assert draws.schedule is not None
    assert draws.passage is not None
    speed = draws.schedule.commands(EPISODE_STEPS)[:, C.VEL_X]
    out = draws.passage.end_m + ROBOT.trunk_half_size_m[0]
    assert speed.sum() * CONTROL_DT_S >= out


def track(schedule: Schedule, share: float) -> Track:
    """An episode whose robot moves at a share of the commanded velocities, on open ground."""
    commands = schedule.commands(EPISODE_STEPS)
    values = np.zeros((EPISODE_STEPS, N_SIGNALS))
    for c, signal in ((C.VEL_X, S.VEL_X), (C.VEL_Y, S.VEL_Y), (C.YAW_RATE, S.YAW_RATE)):
        values[:, signal] = share * commands[:, c]
    return Track(values, schedule.targets[1], None, 0.3)


@pytest.mark.parametrize("name", MANOEUVRES)
def test_success_is_to_follow_and_then_to_stand(name: str) -> None:
    which = SPECS.index(("flat", "stand", name))
    for seed in range(20):
        _, schedule, _ = drawn(which, seed)
        good = track(schedule, 1.0)
        assert schedule.succeeded(good)
        assert not schedule.succeeded(track(schedule, 0.0))
        assert not schedule.succeeded(track(schedule, -1.0))
        moving = good.values.copy()
        moving[-20:, S.SPEED] = 0.5
        assert not schedule.succeeded(replace(good, values=moving))


def test_the_gait_clock_rests_while_a_robot_stands() -> None:
    env = LeggedEnvironment(ROBOT, 2, 1)
    try:
        specs = [
            EpisodeSpec(k, "flat", 0, "stand", 5, manoeuvre=m)
            for k, m in enumerate(("turn", CONSTANT))
        ]
        env.reset(np.arange(2), specs)
        draws = env.episode_draws[0]
        assert draws is not None
        assert draws.schedule is not None
        commands = draws.schedule.commands(EPISODE_STEPS + 1)
        for step in range(60):
            np.testing.assert_array_equal(env.command()[0], commands[step])
            walking = commands[step, C.LOCOMOTE] > 0
            since = (step - draws.schedule.starts[1]) * CONTROL_DT_S
            cycles = commands[step, C.GAIT_FREQUENCY] * since if walking else 0.0
            np.testing.assert_allclose(env.clock(), [cycles, 0.0], atol=1e-12)
            env.step(np.zeros((2, 12)))
        # The robot's next episode has a constant command again.
        env.reset(np.arange(1), [EpisodeSpec(3, "flat", 0, "run", 5)])
        assert env.command()[0, C.LOCOMOTE] == 1.0
        env.step(np.zeros((2, 12)))
        frequency = env.target_command[0, C.GAIT_FREQUENCY]
        assert env.clock()[0] == pytest.approx(frequency * CONTROL_DT_S)
    finally:
        env.close()


# Plans.
def test_a_grid_takes_the_manoeuvres_that_fit_in_turn() -> None:
    specs = [spec for part in GRID.part_ids("00000a") for spec in GRID.part_specs(part)]
    by_skill = {skill: {s.manoeuvre for s in specs if s.skill == skill} for skill in GRID.skills}
    assert by_skill["crawl"] == {"straight"}
    assert by_skill["run"] == {"straight", "turn"}
    assert len(by_skill["stand"]) >= 4
    evaluated = EvaluationGrid(("rough",), ("stand",), (4,), 10, manoeuvres=tuple(MANOEUVRES))
    counts = [spec.manoeuvre for spec in evaluated.specs()]
    assert {counts.count(name) for name in MANOEUVRES} == {2}
    assert all(spec.held_out for spec in evaluated.specs())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"manoeuvres": ("backwards",)}, "did you mean 'backward'"),
        ({"manoeuvres": ("backward",), "skills": ("run",)}, "constant, straight, turn"),
        ({"manoeuvres": ("sideways",), "terrains": ("stairs",), "skills": ("stand",)}, "sideways"),
        ({"manoeuvres": ()}, "none of the manoeuvres"),
    ],
)
def test_a_manoeuvre_that_is_unknown_or_fits_nowhere_is_refused(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        CollectionGrid(**values)
    with pytest.raises(ValueError, match=words):
        EvaluationGrid(**values)


def test_parts_of_constant_commands_keep_their_names() -> None:
    plan = LeggedPlan(grid=CollectionGrid())
    assert "manoeuvres" not in plan.content()
    assert PLAN.content()["manoeuvres"] == list(MANOEUVRES)


def test_the_clean_presets_have_neither_noise_nor_constant_commands() -> None:
    for size in ("1m9", "6m", "60m"):
        clean, ours = (COLLECTION_PRESETS[f"legged{kind}-{size}"] for kind in ("-clean", ""))
        assert {s.action_noise for s in clean.part_specs("00000a-00000")} == {0.0}
        assert {s.manoeuvre for s in clean.part_specs("00000a-00000")} == {*MANOEUVRES}
        assert (clean.parts, clean.episodes_per_part) == (ours.parts, ours.episodes_per_part)
    assert set(TERRAINS) == {spec.terrain for spec in clean.part_specs("00000a-00000")}


# Stores.
@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schedules") / "legged.zarr"
    collect(replace(PLAN, grid=replace(GRID, parts=1)), path, Silent())
    constant = replace(GRID, manoeuvres=(CONSTANT,), parts=1, episodes_per_part=6)
    constant = replace(PLAN, grid=constant)
    collect(constant, path, Silent())
    return path


def test_a_query_selects_by_the_schedule_and_a_replay_repeats_it(store: Path) -> None:
    episodes = open_store(store).select()
    changing = episodes.where("manoeuvre is not null and manoeuvre != ''")
    assert len(changing) == 18
    assert len(episodes) == 24
    turns = episodes.where("manoeuvre = 'turn' and abs(manoeuvre_yaw_rate) > 0.3")
    assert 0 < len(turns) < len(changing)
    for row, stop in zip(turns.episodes().to_pylist(), np.cumsum(turns.lengths), strict=True):
        commands = turns.read("obs")[stop - row["length"] : stop, -16:]
        locomote = commands[:, C.LOCOMOTE]
        assert np.flatnonzero(locomote)[0] == row["walk_step"]
        assert commands[row["manoeuvre_step"], C.YAW_RATE] == np.float32(row["manoeuvre_yaw_rate"])
    assert replay(store, 24, 0, Silent()) == []


def test_a_schedule_that_differs_from_its_seeds_is_named(store: Path) -> None:
    chosen = open_store(store).select().where("manoeuvre = 'straight'")
    chosen = chosen.with_rows(chosen.rows[:1])
    [episode] = stored_episodes(chosen)
    env = replay_environment(chosen, 1, threads=1)
    try:
        changed = StoredEpisode(**{**vars(episode), "row": {**episode.row, "brake_step": 3}})
        [(_, _, difference)] = replayed(env, [changed])
        assert difference == "brake_step of the schedule is not what its seed gives"
    finally:
        env.close()


def test_policies_are_evaluated_under_the_commands_that_they_learn_from(store: Path) -> None:
    episodes = open_store(store).select()
    changing = episodes.where("manoeuvre is not null and manoeuvre != ''")
    evaluation = LeggedEvaluation().trained_on(changing)
    assert evaluation.grid.manoeuvres == tuple(
        name
        for name in MANOEUVRES
        if name in changing.episodes("manoeuvre")["manoeuvre"].to_pylist()
    )
    assert "commands that change (straight, turn" in str(evaluation)
    assert cells_of(episodes)["manoeuvres"][0] == CONSTANT
    constant = episodes.where("manoeuvre is null or manoeuvre = ''")
    assert LeggedEvaluation().trained_on(constant).grid.manoeuvres == (CONSTANT,)


def test_corrections_have_schedules_too(store: Path, tmp_path: Path) -> None:
    grid = replace(GRID, parts=1, episodes_per_part=6, seed=9)
    plan = driven_by(replace(PLAN, grid=grid), "fcnet-aliengo", PLAN.expert, share=0.5)
    collect(plan, tmp_path / "driven.zarr", Silent())
    rows = open_store(tmp_path / "driven.zarr").select().episodes().to_pylist()
    assert all(row["manoeuvre"] for row in rows)
    assert sum(row["policy_steps"] for row in rows) > 0
    assert replay(tmp_path / "driven.zarr", 6, 0, Silent()) == []
