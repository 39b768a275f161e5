"""Specifications and random draws of episodes, and policies that drive for stretches of them.

All draws follow from the episode's seed.

A policy may drive in place of the recorded one, for stretches drawn from the episode's seed. This
is DAgger (Ross et al., "A Reduction of Imitation Learning and Structured Prediction to No-Regret
Online Learning", 2011): the learner visits its own states and the expert says what it would do
there. Deviation: the paper draws who drives for every step; here it is drawn for a stretch of
steps (docs/howto/corrections.md says why).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gaitforge.collectors.legged.observations import NOISE_DIM
from gaitforge.collectors.policy import Observation, Policy, actions_of
from gaitforge.collectors.robots.kinematics import command_scale
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard
from gaitforge.collectors.scenarios.randomisation import (
    DEFAULT,
    DRAW_INDEX,
    DRAWS,
    N_STANDARD,
    Randomisation,
)
from gaitforge.collectors.scenarios.schedules import (
    CONSTANT,
    STEPS_TO_PASS,
    Schedule,
    check_manoeuvres,
    draw_schedule,
    in_time,
)
from gaitforge.collectors.scenarios.skills import ALL_SKILLS, check_skill
from gaitforge.collectors.scenarios.terrains import Passage, check_level, check_terrain
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.kernels import compiled
from gaitforge.common.seeding import generators

# Specifications and draws.
TRAIN_VARIANTS = (0, 8)
HELD_OUT_VARIANTS = (1000, 1008)
"""Half-open ranges of tile variants: evaluation never uses a tile of the collection."""

ACTION_NOISE_CORRELATION = 0.9
"""Between steps; a time constant of 0.2 s at 50 Hz, since a learner's errors persist, too."""

PUSH_STEPS = (25, 100)
"""The first push is early enough to recover."""
_USUAL_CHANCE = DRAWS[DRAW_INDEX["push_chance"]].default.low
_PUSHES = 0x9054
_START_WIDTHS = (1, 2, 6, N_JOINTS)
"""Numbers of yaw, place, velocity and joints."""
_PLACE_HALVES = (np.pi, 0.3, 0.3)
_START_HALVES = ("start_speed", "start_joint_rad")
"""Yaw in rad and place in m, then velocity and joints, lie between minus and plus these."""


@dataclass(frozen=True)
class EpisodeSpec:
    """An episode's cell and seed.

    Attributes:
        index: unique in its plan.
        held_out: use the tiles kept for evaluation.
        action_noise: standard deviation of the noise on executed actions, action units.
        speed_scale: shrinks commanded speeds (training curriculum).
        manoeuvre: of a command that changes, see `schedules`; "constant" for one that does not.
        repeated_noise: standard deviation of noise that repeated actions have already. It is not
            drawn again, but success is judged by it.
    """

    index: int
    terrain: str
    level: int
    skill: str
    seed: int
    held_out: bool = False
    action_noise: float = 0.0
    speed_scale: float = 1.0
    manoeuvre: str = CONSTANT
    repeated_noise: float = 0.0

    def __post_init__(self) -> None:
        check_terrain(self.terrain)
        check_skill(self.skill)
        check_level(self.level)
        if self.manoeuvre != CONSTANT:
            check_manoeuvres([self.manoeuvre], [(self.terrain, self.skill)])

    @classmethod
    def of_row(cls, row: Mapping[str, Any], noise: bool = True) -> Self:
        """The specification of a catalog's row; the tile's number says whether it is held out.

        noise: keep the action noise; without it the other draws are the same.
        """
        variant = row.get("terrain_variant", TRAIN_VARIANTS[0])
        return cls(
            *(row[name] for name in ("episode", "terrain", "level", "skill", "seed")),
            held_out=HELD_OUT_VARIANTS[0] <= variant < HELD_OUT_VARIANTS[1],
            action_noise=row.get("action_noise", 0.0) if noise else 0.0,
            manoeuvre=row.get("manoeuvre") or CONSTANT,
        )


@dataclass(frozen=True)
class EpisodeDraws:
    """Everything random in an episode.

    Attributes:
        command: (16,) the skill's target command; schedule: of a command that changes, else None.
        draws: (N_DRAWS,) those of the domain randomisation.
        passage: what stands on the track, None on open ground.
        terrain_variant: which tile of the terrain and level.
        yaw, offset_xy, base_vel (6,), joint_offset (12,): the start.
        push_step: control step of the push, -1 without one; push_velocity (2,) in m/s.
        observation_noise: (steps + 1, NOISE_DIM) float32 in [-1, 1].
        action_noise: (steps, 12) float32, already scaled.
    """

    command: np.ndarray
    draws: np.ndarray
    passage: Passage | None
    terrain_variant: int
    yaw: float
    offset_xy: np.ndarray
    base_vel: np.ndarray
    joint_offset: np.ndarray
    push_step: int
    push_velocity: np.ndarray
    observation_noise: np.ndarray
    action_noise: np.ndarray
    schedule: Schedule | None = None


def draw_episode(
    spec: EpisodeSpec,
    robot: RobotCard,
    steps: int = EPISODE_STEPS,
    randomisation: Randomisation = DEFAULT,
) -> EpisodeDraws:
    """Draw an episode; a pure function of its arguments.

    Another randomisation changes nothing but what its draws say: commands, tiles, noise and the
    pushes of episodes that had one before stay.
    """
    return draw_episodes([spec], [robot], steps, randomisation)[0]


def draw_episodes(
    specs: Sequence[EpisodeSpec],
    robots: Sequence[RobotCard],
    steps: int = EPISODE_STEPS,
    randomisation: Randomisation = DEFAULT,
    realised: Callable[[np.ndarray], np.ndarray] = lambda draws: draws,
) -> list[EpisodeDraws]:
    """Draw episodes, each as `draw_episode` does, from the generator of its seed.

    Args:
        robots: of each episode.
        realised: see `PhysicsBackend.realised`.
    """
    begun, units = _begin(specs, robots, steps)
    draws = randomisation.values(units, [spec.seed for spec in specs], robots)
    starts = np.empty((len(specs), sum(_START_WIDTHS)))
    pushes = np.empty((len(specs), 2))
    chances = draws[:, DRAW_INDEX["push_chance"]].tolist()
    later = [
        _draw_later(row, start, push, chance, steps)
        for row, start, push, chance in zip(begun, starts, pushes, chances, strict=True)
    ]
    # The numbers of `rng.uniform` from -half to half.
    half = draws[:, [DRAW_INDEX[name] for name in _START_HALVES]].repeat(_START_WIDTHS[2:], axis=1)
    half = np.concatenate([np.tile(_PLACE_HALVES, (len(specs), 1)), half], axis=1)
    starts = -half + 2 * half * starts
    push_ms = draws[:, [DRAW_INDEX["push_speed_ms"]]]
    pushes = -push_ms + 2 * push_ms * pushes
    rows = zip(begun, later, realised(draws), starts, starts[:, 0].tolist(), pushes, strict=True)
    return [
        EpisodeDraws(
            row.command,
            real,
            row.passage,
            variant,
            yaw,
            start[1:3],
            start[3:9],
            start[9:],
            push_step,
            push,
            noise,
            action_noise,
            row.schedule,
        )
        for row, (variant, push_step, noise, action_noise), real, start, yaw, push in rows
    ]


@dataclass(frozen=True)
class _Begun:
    """An episode whose command, passage and standard draws are drawn from `rng`."""

    spec: EpisodeSpec
    rng: np.random.Generator
    chance: float
    passage: Passage | None
    command: np.ndarray
    schedule: Schedule | None


def _begin(
    specs: Sequence[EpisodeSpec], robots: Sequence[RobotCard], steps: int
) -> tuple[list[_Begun], np.ndarray]:
    """What is drawn first of episodes, and uniform numbers (K, N_STANDARD) of standard draws."""
    scales = {id(robot): command_scale(robot) for robot in {id(r): r for r in robots}.values()}
    begun: list[_Begun] = []
    units = np.empty((len(specs), N_STANDARD))
    rngs = generators([spec.seed for spec in specs])
    for k, (spec, robot, rng) in enumerate(zip(specs, robots, rngs, strict=True)):
        chance = rng.random()
        skill = ALL_SKILLS[spec.skill]
        command = skill.draw_unscaled(rng, spec.speed_scale) * scales[id(robot)]
        walking = steps
        if spec.manoeuvre != CONSTANT:
            command = in_time(command, skill, spec.terrain, robot)
            walking = STEPS_TO_PASS
        track = spec.terrain, spec.level, command, rng, robot, walking
        passage, command = skill.draw_passage(*track)
        rng.random(out=units[k])
        schedule = None
        if spec.manoeuvre != CONSTANT:
            walk = passage is not None, command, robot
            schedule = draw_schedule(spec.manoeuvre, skill, *walk, spec.seed)
        begun.append(_Begun(spec, rng, chance, passage, command, schedule))
    return begun, units


def _draw_later(
    begun: _Begun, start: np.ndarray, push: np.ndarray, push_chance: float, steps: int
) -> tuple[int, int, np.ndarray, np.ndarray]:
    """The tile's variant, the step of the push, and noise on observations and actions.

    Writes uniform numbers in [0, 1) of start (21,) and push (2,).
    """
    rng = begun.rng
    low, high = HELD_OUT_VARIANTS if begun.spec.held_out else TRAIN_VARIANTS
    variant = int(rng.integers(low, high))
    rng.random(out=start)
    push_step = _push_step(rng, begun.spec.seed, begun.chance, push_chance)
    rng.random(out=push)
    noise = rng.random((steps + 1, NOISE_DIM), dtype=np.float32)
    noise *= 2
    noise -= 1
    return variant, push_step, noise, _action_noise(rng, begun.spec.action_noise, steps)


def _push_step(rng: np.random.Generator, seed: int, chance: float, threshold: float) -> int:
    """The step of the first push, -1 for none; `rng` ends in the same state for any threshold."""
    step = int(rng.integers(*PUSH_STEPS)) if chance < _USUAL_CHANCE else -1
    if chance >= threshold:
        return -1
    return step if step >= 0 else int(np.random.default_rng([_PUSHES, seed]).integers(*PUSH_STEPS))


def _action_noise(rng: np.random.Generator, deviation: float, steps: int) -> np.ndarray:
    """(steps, 12) float32 first-order autoregressive noise; the last draw of an episode."""
    if not deviation:
        return np.zeros((steps, N_JOINTS), np.float32)
    noise = rng.standard_normal((steps, N_JOINTS), dtype=np.float32)
    correlation = np.float32(ACTION_NOISE_CORRELATION)
    noise[1:] *= np.sqrt(1 - correlation * correlation)
    _accumulate(noise, correlation)
    return deviation * noise


@compiled
def _accumulate(values: np.ndarray, correlation: float) -> None:
    """values[t] += correlation * values[t - 1], for (T, K)."""
    for row in range(1, values.shape[0]):
        for k in range(values.shape[1]):
            values[row, k] += correlation * values[row - 1, k]


# Policies that drive for stretches.
_TURNS = 0xDA66


def driven_steps(seed: int, share: float, stretch: int, steps: int = EPISODE_STEPS) -> np.ndarray:
    """(steps,) whether the policy drives; each stretch of an episode is drawn on its own."""
    turns = np.random.default_rng([_TURNS, seed]).random(-(-steps // stretch)) < share
    return np.repeat(turns, stretch)[:steps]


class Driver:
    """A policy whose actions are executed in place of the recorded ones, by `driven_steps`.

    Args:
        policy: acts for `robots` robots; it sees every step, also those it does not drive.
        share: share of the stretches that it drives; stretch: control steps of each.
    """

    def __init__(self, policy: Policy, robots: int, share: float, stretch: int):
        self._policy = policy
        self._share = share
        self._stretch = stretch
        self._driven = np.zeros((robots, EPISODE_STEPS), dtype=bool)
        self._rows = np.arange(robots)

    def reset(self, ids: np.ndarray, specs: list[EpisodeSpec]) -> None:
        """Robots `ids` start these episodes."""
        self._policy.reset(ids)
        for index, spec in zip(ids.tolist(), specs, strict=True):
            self._driven[index] = driven_steps(spec.seed, self._share, self._stretch)

    def replaced(
        self, action: np.ndarray, observation: Observation, step: np.ndarray
    ) -> np.ndarray:
        """(N, 12) `action`, or the policy's where it drives at the episodes' `step` (N,)."""
        driven = self._driven[self._rows, np.minimum(step, EPISODE_STEPS - 1)]
        own_action = actions_of(self._policy, observation, N_JOINTS)
        return np.where(driven[:, None], own_action, action)
