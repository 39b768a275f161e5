"""Closed-loop evaluation: the same held-out episodes for every policy, averaged per cell.

A cell is a terrain, a skill and a level.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.rollout import EpisodeResult, run_episodes
from gaitforge.collectors.policy import Policy
from gaitforge.collectors.scenarios.skills import matching_cells
from gaitforge.common.errors import amount
from gaitforge.common.ranges import Positive, Whole, check_ranges


@dataclass(frozen=True)
class EvaluationGrid:
    """The cells to evaluate: every level of every terrain and skill that go together.

    Level 4 is the middle one; the demo, the comparisons and `gaitforge view` show it, too.
    """

    terrains: tuple[str, ...] = ("flat", "rough")
    skills: tuple[str, ...] = ("stand", "run")
    levels: tuple[int, ...] = (4,)
    episodes: Positive = 32
    seed: Whole = 1_000_003

    def __post_init__(self) -> None:
        matching_cells(self.terrains, self.skills, self.levels)
        check_ranges(self)

    def __str__(self) -> str:
        levels = ", ".join(map(str, self.levels))
        return f"terrain level {levels} of 0 to 9, {amount(self.episodes, 'episode')} per cell"

    def specs(self) -> list[EpisodeSpec]:
        """The episodes, on held-out terrain tiles, with seeds that no collection uses."""
        cells = [
            (terrain, level, skill)
            for terrain, skill in matching_cells(self.terrains, self.skills, self.levels)
            for level in self.levels
        ]
        seeds = np.random.SeedSequence([0xE7A1, self.seed]).generate_state(
            len(cells) * self.episodes, np.uint64
        )
        halved = enumerate((seeds >> np.uint64(1)).tolist())
        return [EpisodeSpec(i, *cells[i // self.episodes], seed, True) for i, seed in halved]


def evaluate(
    policy: Policy,
    env: LeggedEnvironment,
    grid: EvaluationGrid,
    progress: Callable[[int], None] | None = None,
) -> list[list[EpisodeResult]]:
    """Run the grid's episodes; returns those of every cell, in the order of their specs."""
    cells: dict[tuple[str, str, int], list[EpisodeResult]] = {}
    for result in run_episodes(env, policy, grid.specs(), progress=progress):
        spec = result.spec
        cells.setdefault((spec.terrain, spec.skill, spec.level), []).append(result)
    # Episodes end in a different order for every policy; a fixed order keeps the means' last bit.
    return [sorted(cells[key], key=lambda r: r.spec.index) for key in sorted(cells)]


def cell_measures(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Measures of a cell's episodes beside return and success.

    vx_error is the mean |v_x error| over the last 2 s, m/s; torque_p99 and action_rate_p99 are the
    99th percentiles over all steps of the largest joint torque, Nm, and of the fastest joint
    target, rad/s; power_w is the joints' mean mechanical power.
    """
    return {
        "vx_error": float(np.mean([r.vel_x_error_ms for r in results])),
        "torque_p99": _p99([r.torque_nm for r in results]),
        "action_rate_p99": _p99([r.action_rate_rads for r in results]),
        "power_w": float(np.mean([r.power_w for r in results])),
    }


def _p99(steps: list[np.ndarray]) -> float:
    return float(np.percentile(np.concatenate(steps), 99))
