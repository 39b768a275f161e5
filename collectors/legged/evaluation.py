"""Closed-loop evaluation: the same held-out episodes for every policy, averaged per cell.

A cell is a terrain, a skill and a level.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.legged.environment import LeggedEnvironment
from collectors.legged.episodes import EpisodeSpec
from collectors.legged.rollout import EpisodeResult, run_episodes
from collectors.policies import Policy
from collectors.scenarios.skills import matching_cells


@dataclass(frozen=True)
class EvaluationGrid:
    """The cells to evaluate: every level of every terrain and skill that go together."""

    terrains: tuple[str, ...] = ("flat", "rough")
    skills: tuple[str, ...] = ("stand", "run")
    levels: tuple[int, ...] = (2,)
    episodes: int = 32
    seed: int = 1_000_003

    def __post_init__(self) -> None:
        matching_cells(self.terrains, self.skills, self.levels)
        if self.episodes < 1:
            raise ValueError(f"{self.episodes} episodes per cell; at least 1 is needed")
        if self.seed < 0:
            raise ValueError(f"the seed is {self.seed}; it has to be at least 0")

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


@dataclass(frozen=True)
class CellResult:
    """Means of one policy in one cell; `return_` is "return" in files.

    vx_error is the mean |v_x error| over the last 2 s, m/s; torque_p99 and action_rate_p99 the 99th
    percentiles over all steps of the largest joint torque, Nm, and the fastest joint target, rad/s.
    """

    policy: str
    terrain: str
    skill: str
    level: int
    return_: float
    success: float
    survival: float
    episodes: int
    vx_error: float
    torque_p99: float
    action_rate_p99: float


def evaluate(
    policy: Policy,
    env: LeggedEnvironment,
    grid: EvaluationGrid,
    progress: Callable[[int], None] | None = None,
) -> list[CellResult]:
    """Run the grid's episodes; returns one result per cell."""
    cells: dict[tuple[str, str, int], list[EpisodeResult]] = {}
    for result in run_episodes(env, policy, grid.specs(), progress=progress):
        spec = result.spec
        cells.setdefault((spec.terrain, spec.skill, spec.level), []).append(result)
    return [_sum_up(policy.name, *key, results) for key, results in sorted(cells.items())]


def _sum_up(
    policy: str, terrain: str, skill: str, level: int, results: Sequence[EpisodeResult]
) -> CellResult:
    # Episodes end in another order for every policy; fixed order keeps the last bit of the means.
    ordered = sorted(results, key=lambda r: r.spec.index)
    return CellResult(
        policy=policy,
        terrain=terrain,
        skill=skill,
        level=level,
        return_=float(np.mean([r.episode_return for r in ordered])),
        success=float(np.mean([r.success for r in ordered])),
        survival=float(np.mean([not r.terminated for r in ordered])),
        episodes=len(ordered),
        vx_error=float(np.mean([r.vel_x_error_ms for r in ordered])),
        torque_p99=_p99([r.torque_nm for r in ordered]),
        action_rate_p99=_p99([r.action_rate_rads for r in ordered]),
    )


def _p99(steps: list[np.ndarray]) -> float:
    return float(np.percentile(np.concatenate(steps), 99))
