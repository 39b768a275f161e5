"""A policy that never moves."""

import numpy as np

from gaitforge.collectors.policy import Memoryless, Observation
from gaitforge.collectors.robots.robot import N_JOINTS

STILL = "tests.flows.experiments.still:Still"
"""Its name on the command line."""


class Still(Memoryless):
    """Holds the default pose."""

    name = "Still"

    def __init__(self, robots: int) -> None:
        self._robots = robots

    def act(self, observation: Observation) -> np.ndarray:
        return np.zeros((self._robots, N_JOINTS), np.float32)
