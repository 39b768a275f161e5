"""The ranges of the command hold every command that an episode puts in force."""

import numpy as np
import pytest

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec, draw_episode
from gaitforge.collectors.robots.kinematics import N_COMMANDS, C, ramped
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.skills import SKILLS, command_ranges
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import CONTROL_DT_S
from tests.collectors.making import ROBOT, similar_robot

TIMES_S = np.arange(0, 192, 8) * CONTROL_DT_S


def in_force(robot: RobotCard) -> np.ndarray:
    """(K, 16) ramped commands of many episodes, steering apart."""
    rows = []
    for name, skill in SKILLS.items():
        for terrain in filter(skill.commanded_on, TERRAINS):
            for seed in range(40):
                drawn = draw_episode(EpisodeSpec(seed, terrain, seed % 10, name, seed), robot)
                rows.append(ramped(np.tile(drawn.command, (len(TIMES_S), 1)), TIMES_S))
    return np.concatenate(rows)


@pytest.mark.parametrize("robot", [ROBOT, similar_robot(0.7)], ids=["aliengo", "smaller"])
def test_every_command_lies_within_and_comes_near_the_ends(robot: RobotCard) -> None:
    low, high = np.array(command_ranges(robot)).T
    seen = in_force(robot)
    assert low.shape == (N_COMMANDS,)
    assert (seen >= low - 1e-9).all()
    assert (seen <= high + 1e-9).all()
    steered = [C.VEL_Y, C.YAW_RATE]
    rest = np.setdiff1d(np.arange(N_COMMANDS), steered)
    width = np.maximum(high - low, 1e-9)
    assert ((seen.min(0) - low)[rest] <= 0.2 * width[rest]).all()
    assert ((high - seen.max(0))[rest] <= 0.2 * width[rest]).all()


def test_steering_stays_within() -> None:
    env = LeggedEnvironment(ROBOT, 4, 1)
    try:
        env.reset(np.arange(4), [EpisodeSpec(k, "flat", 5, "squeeze", k) for k in range(4)])
        low, high = np.array(command_ranges(ROBOT)).T
        for _ in range(60):
            env.step(np.zeros((4, 12)))
            assert (env.command() >= low - 1e-9).all()
            assert (env.command() <= high + 1e-9).all()
    finally:
        env.close()
