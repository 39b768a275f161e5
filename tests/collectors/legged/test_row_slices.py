"""The task in slices of rows by threads gives the same bits for any number of threads."""

from contextlib import closing
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors import row_slices
from gaitforge.collectors.experts.ppo import ExpertTask
from gaitforge.collectors.experts.training_scope import TrainingScope
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.physics.mujoco.backend import MujocoBackend
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard
from gaitforge.collectors.row_slices import RowSlices
from gaitforge.collectors.scenarios.randomisation import Randomisation
from gaitforge.collectors.scenarios.schedules import CONSTANT, MANOEUVRES, fitting
from gaitforge.collectors.scenarios.skills import SKILLS, matching_cells
from gaitforge.collectors.scenarios.terrains import TERRAINS, TerrainBatch, make_tile
from tests.collectors.making import ROBOT
from tests.collectors.robots.robot_folders import family_of

SMALL = 2
"""Rows of a slice, at least, in these tests."""
STEPS = 8
CELLS = matching_cells(tuple(TERRAINS), tuple(SKILLS), tuple(range(10)))
RANDOMISATIONS = (
    {},
    {"preset": "heavy"},
    {
        "observation_delay_steps": "0:5",
        "push_chance": 1,
        "push_interval_s": "0.04:0.2",
        "patch_start_m": "0:0.05",
        "sensor_noise": "choice:0:1:2",
    },
)


def episodes(rng: np.random.Generator, count: int, changing: bool) -> list[EpisodeSpec]:
    """Any cells, seeds and strengths of the action noise; commands that change if `changing`."""
    specs = []
    for index in range(count):
        terrain, skill = CELLS[rng.integers(len(CELLS))]
        names = fitting((CONSTANT, *MANOEUVRES), terrain, skill) if changing else [CONSTANT]
        level = int(rng.integers(10))
        spec = EpisodeSpec(index, terrain, level, skill, int(rng.integers(2**62)))
        noise = float(rng.random())
        specs.append(replace(spec, action_noise=noise, manoeuvre=str(rng.choice(names))))
    return specs


def walk(threads: int, rows: int, seed: int, options: int, changing: bool) -> list[np.ndarray]:
    """What steps of N robots give, of which some start anew on the way."""
    rng = np.random.default_rng(seed)
    randomisation = Randomisation.parsed(RANDOMISATIONS[options])
    values = []
    with (
        patch.object(row_slices, "LEAST_ROWS", SMALL),
        patch.object(MujocoBackend, "processor", "cuda"),  # it leaves the threads to the task
        closing(LeggedEnvironment(ROBOT, rows, threads, randomisation=randomisation)) as env,
    ):
        assert len(env.slices.parts) == max(1, min(threads, rows // SMALL))
        env.reset(np.arange(rows), episodes(rng, rows, changing))
        observation = env.observe()
        for step in range(STEPS):
            values += [observation.policy, observation.privileged, observation.command]
            values += [observation.clock, observation.heights(np.array([[0.2, -0.1]]))]
            action = rng.normal(0, 0.5, (rows, N_JOINTS)) + env.action_noise()
            done = env.step(action.astype(np.float32))
            observation = done.observation
            values += [done.reward.copy(), done.terminated, done.truncated]
            if step % 4 == 3:
                started = np.flatnonzero(rng.random(rows) < 0.4)
                values += [env.track(index).values for index in started.tolist()]
                before = observation.policy.copy()
                env.reset(started, episodes(rng, len(started), changing))
                ended = observation
                observation = env.observe(started)
                np.testing.assert_array_equal(ended.policy, before)
                whole = env.observe()
                np.testing.assert_array_equal(observation.policy, whole.policy)
                np.testing.assert_array_equal(observation.privileged, whole.privileged)
    return values


@settings(max_examples=6)
@given(
    st.integers(1, 9),
    st.integers(2, 4),
    st.integers(0, 1000),
    st.sampled_from(range(len(RANDOMISATIONS))),
    st.booleans(),
)
def test_any_number_of_threads_gives_the_same_bits(
    rows: int, threads: int, seed: int, options: int, changing: bool
) -> None:
    alone = walk(1, rows, seed, options, changing)
    together = walk(threads, rows, seed, options, changing)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> list[RobotCard]:
    return family_of(ROBOT, 2, tmp_path_factory.mktemp("family"))


def train(bodies: list[RobotCard], threads: int, scope: TrainingScope) -> list[np.ndarray]:
    """What PPO sees of some steps of a curriculum with short episodes."""
    generator = torch.Generator().manual_seed(0)
    values = []
    with (
        patch.object(row_slices, "LEAST_ROWS", SMALL),
        patch.object(MujocoBackend, "processor", "cuda"),  # it leaves the threads to the task
        closing(ExpertTask(bodies, 6, threads, 1, first_levels=10, scope=scope)) as task,
    ):
        for _ in range(scope.episode_steps + 1):
            actions = torch.randn((6, N_JOINTS), generator=generator)
            seen, reward, ended, _ = task.step(actions)
            values += [tensor.numpy() for tensor in (*seen.values(), reward, ended)]
            values += [task.levels.copy(), task.successes.copy()]
        assert task.finished
    return values


@pytest.mark.parametrize("blind", [False, True])
def test_any_number_of_threads_trains_on_the_same_bits(
    family: list[RobotCard], blind: bool
) -> None:
    scope = replace(TrainingScope.of((), (), blind), episode_steps=25, action_filter=0.6)
    bodies = [ROBOT] if blind else family
    for one, other in zip(train(bodies, 1, scope), train(bodies, 3, scope), strict=True):
        np.testing.assert_array_equal(one, other)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=20))
def test_robots_stand_on_the_tile_that_they_were_put_on(moves: list[tuple[int, int]]) -> None:
    tiles = [make_tile("rough", 5, variant) for variant in range(4)]
    batch = TerrainBatch(3)
    expected = {}
    for robot, variant in moves:
        batch.set(robot, tiles[variant])
        expected[robot] = tiles[variant]
        for index, tile in expected.items():
            heights = batch.heights[batch.slot[index]]
            np.testing.assert_array_equal(heights, tile.heights.ravel())


def test_slices_hold_each_row_once_and_tell_what_failed() -> None:
    slices = RowSlices(4 * row_slices.LEAST_ROWS + 1, 3)
    counts = np.zeros(4 * row_slices.LEAST_ROWS + 1)

    def count(number: int, rows: slice) -> None:
        counts[rows] += 1
        if number == 2:
            raise ValueError("the last slice")

    with closing(slices), pytest.raises(ValueError, match="the last slice"):
        slices.run(count)
    assert len(slices.parts) == 3
    assert (counts == 1).all()
