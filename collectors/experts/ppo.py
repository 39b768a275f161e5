"""Training of experts and blind policies with PPO (rsl-rl-lib), and the task that it trains on.

The training has a curriculum, randomisation and pushes. The network learns a correction to the
kinematic gait or, as a blind policy, joint targets; the critic sees more than the actor (asymmetric
actor-critic, Pinto et al., 2018).

The training task holds the curriculum of levels and the inputs of actor and critic. Every robot
keeps one terrain and has a level for each skill. The level rises after 80 % of the commanded
distance, through the passage if there is one; it falls below 40 % or after a fall (legged_gym's
rule, but relative to the command because windows are short).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from safetensors.numpy import save
from tensordict import TensorDict

from gaitforge.collectors.experts import ppo_algorithm
from gaitforge.collectors.experts import ppo_algorithm as checkpoint
from gaitforge.collectors.experts.expert import (
    FEATURE_DIM,
    drives_a_family,
    expert_features,
    load_trained,
    reading_the_body,
)
from gaitforge.collectors.experts.ppo_algorithm import (
    CRITIC,
    FEATURES,
    Networks,
    PPOSettings,
    PpoUpdate,
)
from gaitforge.collectors.experts.training_scope import (
    SKILL_SHARES,
    TERRAIN_SHARES,
    TrainingScope,
)
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.observations import POLICY_SLICES, PRIVILEGED_SLICES
from gaitforge.collectors.legged.rewards import rewards_of, track_linear_velocity
from gaitforge.collectors.physics import processor_of
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import C, GaitReference
from gaitforge.collectors.robots.robot import (
    BODY_DIM,
    DEFAULT_ROBOT,
    N_JOINTS,
    N_LEGS,
    RobotCard,
    body_vector,
    load_robots,
)
from gaitforge.collectors.rotations import lengths
from gaitforge.collectors.scenarios.randomisation import (
    DEFAULT,
    Randomisation,
    Written,
    set_randomisation,
)
from gaitforge.collectors.scenarios.skills import ALL_SKILLS, Track
from gaitforge.collectors.scenarios.terrains import N_LEVELS, difficulty
from gaitforge.collectors.simulators import check_backend
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_S, steps_in
from gaitforge.collectors.training_folder import POLICY
from gaitforge.common.files import write_bytes_durably
from gaitforge.common.limits import LATER, Positive, Range, Whole
from gaitforge.common.machine import default_threads
from gaitforge.datasets.schema import consecutive_slices

# The training task.
MAX_RESIDUAL = 6.0
_EVEN = 1.0
"""A skill is drawn in proportion to its share times this plus its rate of failure on the terrain:
cells that fail are practised more. With 0.15 standing, which rarely fails, was unlearned."""
_MEAN_RATE = 0.005
CRITIC_DIM = 1 + (1 + len(TERRAIN_SHARES) + len(SKILL_SHARES)) + N_LEGS + 1


class ExpertTask:
    """The parts of `rsl_rl.env.VecEnv` that PPO reads.

    Args:
        bodies: robots that the parallel rows take in turn; with more than one, the features hold
            their descriptors.
        tracking_weight: extra weight of `track_linear_velocity` per second.
        first_levels: starting levels are drawn below this one.
        randomisation: of the training's episodes.
        scope: terrains, skills and the actor's sight.
    """

    def __init__(
        self,
        bodies: Sequence[RobotCard],
        robots: int,
        threads: int,
        seed: int,
        tracking_weight: float = 0.0,
        first_levels: int = 4,
        randomisation: Randomisation = DEFAULT,
        scope: TrainingScope | None = None,
    ):
        scope = scope or TrainingScope()
        self._terrains, self._skills = tuple(scope.terrains), tuple(scope.skills)
        self._skill_shares = scope.skills
        self._blind = scope.blind
        self._filter = scope.action_filter
        self.num_envs = robots
        self.num_actions = N_JOINTS
        self.max_episode_length = scope.episode_steps
        self.device = "cpu"
        self.cfg: dict[str, object] = {}
        self.speed_scale = 0.0
        rows = [bodies[i % len(bodies)] for i in range(robots)] if len(bodies) > 1 else bodies
        self._env = LeggedEnvironment(
            rows, robots, threads, scope.sim, scope.episode_steps, randomisation, scope.rewards
        )
        self._gaits = [GaitReference(*robots.robots) for robots in self._env.robots_of]
        self._bodies = None
        if len(bodies) > 1:
            self._bodies = np.stack([body_vector(robot) for robot in rows])
        self._seed = seed
        self._tracking_weight = tracking_weight
        shares = np.array(list(scope.terrains.values()))
        quota = np.floor(np.cumsum(shares) * robots + 1e-9)
        places = np.minimum(np.searchsorted(quota, np.arange(robots), "right"), len(shares) - 1)
        self._terrain = places
        self._what = np.zeros((robots, 1 + len(self._terrains) + len(self._skills)))
        self._returns = np.zeros(robots)
        self.finished: list[dict[str, Any]] = []
        size = len(self._terrains), len(self._skills)
        levels = np.random.default_rng(seed).integers(0, first_levels, (robots, size[1]))
        self.begin(0, levels, np.full(size, 0.5))

    def begin(self, iteration: int, levels: np.ndarray, successes: np.ndarray) -> None:
        """Restart every robot at levels (N, skills); a resumed training draws new episodes.

        It does not report those that end within an episode's length: only falls end so early, which
        would make the learning curve dip.

        Args:
            successes: (terrains, skills) moving means of success.
        """
        self.levels, self.successes = levels.copy(), successes.copy()
        self._rng = np.random.default_rng([self._seed, iteration])
        self._unreported_steps = self.max_episode_length if iteration else 0
        ids = np.arange(self.num_envs)
        self._restart(ids)
        # Robots start at different steps, so that updates see every phase of an episode.
        early = self._rng.integers(20, self.max_episode_length, len(ids))
        self._end_at = np.where(ids % 4 == 0, self.max_episode_length, early)
        self._look(self._env.observe())

    @property
    def slices(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Field -> (start, stop) in the groups of a blind actor's observations."""
        cell = 1 + len(self._terrains) + len(self._skills)
        task_widths = {"time_left": 1, "cell": cell, "foot_force": N_LEGS, "barrier_force": 1}
        state = {name: stop - start for name, (start, stop) in PRIVILEGED_SLICES.items()}
        return {FEATURES: POLICY_SLICES, CRITIC: consecutive_slices(state | task_widths)}

    def get_observations(self) -> TensorDict:
        """{"features": (N, FEATURE_DIM or more; blind 70), "critic": CRITIC_DIM or more}."""
        groups = {FEATURES: self._features, CRITIC: self._critic_only()}
        tensors = {name: torch.from_numpy(array) for name, array in groups.items()}
        return TensorDict(tensors, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Apply actions (N, 12); see `rsl_rl.env.VecEnv.step`."""
        residual = np.clip(actions.numpy(), -MAX_RESIDUAL, MAX_RESIDUAL)
        if self._blind:
            last = self._features[:, slice(*POLICY_SLICES["last_action"])]
            residual = last + np.float32(self._filter) * (residual - last)
        transition = self._env.step(self._reference + residual)
        self._returns += transition.reward
        # Told before any robot restarts, which clears its reward. A small penalty keeps the gait
        # where it works.
        price = (0.0 if self._blind else 0.0005) * np.square(residual).sum(axis=1)
        if self._tracking_weight:
            assert self._env.view is not None, "it has just stepped"
            price -= self._tracking_weight * CONTROL_DT_S * track_linear_velocity(self._env.view)
        reward = torch.from_numpy((transition.reward - price).astype(np.float32))
        cut = ~transition.terminated & (self._env.step_count >= self._end_at)
        timed_out = transition.truncated | cut
        done = transition.terminated | timed_out
        observation = transition.observation
        if done.any():
            ids = np.flatnonzero(done)
            self._finish(ids, transition.terminated)
            self._restart(ids)
            self._end_at[ids] = self.max_episode_length
            observation = self._env.observe(ids)
        self._unreported_steps = max(0, self._unreported_steps - 1)
        self._look(observation)
        extras = {"time_outs": torch.from_numpy(timed_out.astype(np.float32))}
        observations = self.get_observations()
        ended = torch.from_numpy(done.astype(np.int64))
        return observations, reward, ended, extras

    def skill_levels(self) -> dict[str, float]:
        """Mean level of each skill, over the robots on terrains where it is trained."""
        means = {}
        for column, skill_name in enumerate(self._skills):
            skill = ALL_SKILLS[skill_name]
            rows = np.isin(
                self._terrain,
                [row for row, name in enumerate(self._terrains) if skill.commanded_on(name)],
            )
            if rows.any():
                means[skill_name] = float(self.levels[rows, column].mean())
        return means

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()

    def _look(self, observation: Observation) -> None:
        self._state = observation.privileged
        if self._blind:
            self._features = observation.policy
            self._reference = 0.0
            return
        body = 0 if self._bodies is None else BODY_DIM
        features = np.empty((self.num_envs, FEATURE_DIM + body), dtype=np.float32)
        reference = np.empty((self.num_envs, N_JOINTS), dtype=np.float32)

        def write(number: int, rows: slice) -> None:
            bodies = None if self._bodies is None else self._bodies[rows]
            robots = self._env.robots_of[number]
            seen = observation.of(rows), robots, self._gaits[number], bodies
            features[rows], reference[rows] = expert_features(*seen)

        self._env.slices.run(write)
        self._features = features
        self._reference = reference

    def _critic_only(self) -> np.ndarray:
        """(N, CRITIC_DIM) float32 for the critic only; with a blind actor after the state.

        Time left in the window, level, terrain, skill, then forces on the feet and of barriers in
        units of the weight.
        """
        state = self._env.physics.state
        weight_n = self._env.robots.weight_n
        left = 1.0 - self._env.step_count / self.max_episode_length
        return np.concatenate(
            [
                *([self._state] if self._blind else []),
                left[:, None],
                self._what,
                lengths(state.foot_force) / weight_n[:, None],
                (state.barrier_force / weight_n)[:, None],
            ],
            axis=1,
            dtype=np.float32,
            casting="same_kind",
        )

    def _restart(self, ids: np.ndarray) -> None:
        """Start the next episodes of robots `ids`, at the levels of the drawn skills."""
        offered = [self._offered(row) for row in range(len(self._terrains))]
        specs = []
        for index in ids.tolist():
            row = int(self._terrain[index])
            columns, ends = offered[row]
            # The skill that `rng.choice` of these shares gives.
            column = columns[int(ends.searchsorted(self._rng.random(), side="right"))]
            seed = int(self._rng.integers(2**62))
            cell = self._terrains[row], int(self.levels[index, column]), self._skills[column]
            specs.append(EpisodeSpec(0, *cell, seed, speed_scale=self.speed_scale))
            self._what[index] = 0.0
            self._what[index, 0] = difficulty(cell[1])
            self._what[index, [1 + row, 1 + len(self._terrains) + column]] = 1.0
        self._env.reset(ids, specs)
        self._returns[ids] = 0.0

    def _offered(self, row: int) -> tuple[list[int], np.ndarray]:
        """Columns of the skills that a terrain has, and the ends of their shares of [0, 1]."""
        columns = [
            column
            for column, name in enumerate(self._skills)
            if ALL_SKILLS[name].commanded_on(self._terrains[row])
        ]
        weights = np.array([self._skill_shares[self._skills[column]] for column in columns])
        shares = weights * (_EVEN + (1.0 - self.successes[row, columns]))
        ends = np.cumsum(shares / shares.sum())
        return columns, ends / ends[-1]

    def _finish(self, ids: np.ndarray, terminated: np.ndarray) -> None:
        """Record ended full episodes and move their robots up or down a level."""
        is_whole = terminated[ids] | (self._env.step_count[ids] >= self.max_episode_length)
        for index in ids[is_whole].tolist():
            spec = self._env.specs[index]
            assert spec is not None, "its episode has ended"
            fell = bool(terminated[index])
            column = self._skills.index(spec.skill)
            level = int(self.levels[index, column])
            if fell:
                self.levels[index, column] = max(0, level - 1)
                succeeded = mastered = False
            else:
                track = self._env.track(index)
                self.levels[index, column] = self._next_level(level, track)
                succeeded = self._env.success(index, fell, track)
                # Exploration shakes a robot that stands, so that only its falls count.
                mastered = succeeded or not track.command[C.LOCOMOTE]
            cell = int(self._terrain[index]), column
            self.successes[cell] += _MEAN_RATE * (mastered - self.successes[cell])
            if self._unreported_steps:
                continue
            self.finished.append(
                {
                    "cell": f"{spec.terrain}/{spec.skill}",
                    "return": float(self._returns[index]),
                    "success": succeeded,
                    "survived": not fell,
                }
            )

    def _next_level(self, level: int, track: Track) -> int:
        """The level after an episode without a fall; one of all after the highest."""
        commanded_m = track.commanded_distance_m()
        share = track.distance_m() / commanded_m if commanded_m > 0.5 else 1.0
        if share > 0.8 and (track.passage is None or track.passed()):
            return int(self._rng.integers(N_LEVELS)) if level == N_LEVELS - 1 else level + 1
        return max(0, level - 1) if share < 0.4 else level


# The training.
WEIGHTS = "expert.safetensors"
KEPT = "kept"
_FIXED = (
    "robot",
    "robots",
    "hidden",
    "horizon",
    "terrains",
    "skills",
    "model",
    "model_overrides",
    "action_filter_hz",
    "initial_weights",
    "episode_s",
    "rewards",
)
"""Settings that must not change when a training resumes."""
_FIRST_LEVELS = 4
"""Levels at which the robots of a new actor start: 0 to 3."""


@dataclass(frozen=True)
class ExpertTrainingConfig(PPOSettings):
    """How an expert is trained; an action unit is 0.25 rad.

    Attributes:
        robot: a robot's name, folder or card; or a folder of robots' folders, one family, for an
            expert that also reads the body.
        robots: number of parallel robots; sim: the physics back end that steps them.
        model: a network of the registry, for actor and critic of a blind policy: it sees what a
            learner sees, and its actions are joint targets. Empty for an expert, an MLP of `hidden`
            layers that sees the simulator's state and corrects the kinematic gait.
        model_overrides: settings of the model's config that differ from its preset's.
        action_filter_hz: cutoff frequency of a first-order low-pass filter of a blind policy's
            actions, part of the policy and of its exports; 0 for none (Sferrazza et al. 2024,
            "Body Transformer", Appendix A: the robot needs one).
        terrains, skills: those that are trained, see `TrainingScope.of`; empty for all.
        full_speed_steps: environment steps over which commanded speeds widen to their full range;
            with `start_from` the range is full at once.
        start_from: an expert (name or file) whose actor training starts from, with `initial_std`
            as its exploration and robots at all levels; one robot's expert may start a family's.
            Empty for an actor that leaves the gait as it is, and robots at the lower levels.
        critic_updates: first updates that train the critic alone, with `start_from` only.
        tracking_weight: extra weight of tracking the linear velocity, added to the reward's own.
        episode_s: seconds after which an episode is cut off.
        rewards: reward term -> weight per second, see `rewards.TERMS`; empty for those of data
            sets, `rewards.REWARDS`.
        randomisation: quantity -> distribution, where it is not the default; see
            `Randomisation.parsed`. Evaluations of the result have the default.
        keep_every: environment steps between half-trained experts that are saved to the folder
            `kept`, named by their steps, for data of mixed quality. 0 saves none.
    """

    robot: str = DEFAULT_ROBOT
    robots: Positive = 1024
    sim: str = "mujoco"
    model: str = ""
    model_overrides: Mapping[str, Any] = field(default_factory=dict)
    action_filter_hz: Annotated[float, Range(0.0)] = 0.0
    terrains: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    full_speed_steps: Whole = 12_000_000
    start_from: str = ""
    critic_updates: Whole = 20
    tracking_weight: Annotated[float, Range()] = 0.0
    randomisation: Written = field(default_factory=dict)
    keep_every: Whole = 0
    episode_s: Annotated[float, Range(0.5, 60.0)] = field(default=EPISODE_S, metadata=LATER)
    rewards: Mapping[str, float] = field(default_factory=dict, metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        set_randomisation(self)
        TrainingScope.of(self.terrains, self.skills)
        check_backend(self.sim)
        rewards_of(self.rewards)
        if self.model and self.start_from:
            raise ValueError(f"start_from is an expert's; training of {self.model} starts anew")
        if self.model_overrides and not self.model:
            raise ValueError("model_overrides need a model; an expert's layers are `hidden`")
        if self.action_filter_hz and not self.model:
            raise ValueError("action_filter_hz needs a model; an expert's actions follow the gait")

    @property
    def processor(self) -> str:
        """See `PPOSettings.processor`."""
        return "cuda" if self.device == "cuda" else processor_of(self.sim)

    @property
    def action_filter(self) -> float:
        """The filter's share of the newest action, 1 - exp(-2 pi f dt); 1 without a filter."""
        cutoff_hz = self.action_filter_hz or math.inf
        return 1.0 - math.exp(-2.0 * math.pi * cutoff_hz * CONTROL_DT_S)


def train_expert(
    config: ExpertTrainingConfig,
    out: Path,
    report: Callable[[dict[str, Any]], None],
    build: Callable[..., Networks] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Train an expert, or resume from the checkpoint in `out`; returns its weights and card.

    Args:
        build: makes the networks of `config.model` for the slices of the task's observations, with
            `initial_weights` and the folder `begun` of what an earlier call has trained.
        report: called after every update with its row of `history.jsonl`, see `_summary`.

    Raises:
        ValueError: a checkpoint of another configuration is in `out`.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    out.mkdir(parents=True, exist_ok=True)
    config = checkpoint.as_begun(out, config)
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.learner_threads)
    bodies = load_robots(config.robot)
    first = N_LEVELS if config.start_from else _FIRST_LEVELS
    threads = config.threads or default_threads()
    settings = config.robots, threads, config.seed, config.tracking_weight, first
    randomisation = Randomisation.parsed(config.randomisation)
    scope = TrainingScope.of(config.terrains, config.skills, blind=bool(config.model))
    scope = replace(
        scope,
        action_filter=config.action_filter,
        sim=config.sim,
        episode_steps=steps_in(config.episode_s),
        rewards=rewards_of(config.rewards),
    )
    if scope.blind and len(bodies) > 1:
        raise ValueError(f"{config.model} is trained on one robot, not on a family")
    with closing(ExpertTask(bodies, *settings, randomisation, scope)) as task:
        networks = None
        if build is not None and scope.blind:
            begun = {"initial_weights": config.initial_weights, "begun": out / POLICY}
            networks = build(task.slices, **begun)
        algorithm = ppo_algorithm.make_algorithm(config, task, networks)
        progress, extra = checkpoint.load_training(out, asdict(config), _FIXED, algorithm)
        if extra:
            levels = extra["levels"].numpy()
            successes = extra["successes"].numpy()
            task.begin(progress.iteration, levels, successes)
        elif config.start_from:
            weights = load_trained(config.start_from).weights
            if len(bodies) > 1 and not drives_a_family(weights):
                weights = reading_the_body(weights)
            checkpoint.set_actor(algorithm, weights)
        training = _Training(config, out, task, algorithm, progress, networks)
        training.set_stage()
        run = algorithm, task, config, progress, out
        ppo_algorithm.run_updates(*run, training.row, training.save, report)
    return training.place, training.card()


@dataclass
class _Training:
    """A training in progress: its state, history rows and checkpoints."""

    config: ExpertTrainingConfig
    out: Path
    task: ExpertTask
    algorithm: PPO
    progress: checkpoint.Progress
    networks: Networks | None

    def __post_init__(self) -> None:
        self._kept = self.progress.steps // max(1, self.config.keep_every)

    @property
    def place(self) -> Path:
        """Path of the trained weights or policy."""
        return self.out / (POLICY if self.networks else WEIGHTS)

    def set_stage(self) -> None:
        """Set what changes as the training goes on: whether the actor learns, and the speeds."""
        config = self.config
        done = self.progress
        alone = config.critic_updates if config.start_from else 0
        self.algorithm.get_policy().requires_grad_(done.iteration >= alone)
        widened = done.steps / max(1, config.full_speed_steps)
        self.task.speed_scale = 1.0 if config.start_from else min(1.0, widened)

    def row(self, update: PpoUpdate) -> dict[str, Any]:
        """The row of the history; saves the half-trained expert to `kept` if it is due."""
        self.set_stage()
        every = self.config.keep_every
        steps = self.progress.steps
        if every and steps // every > self._kept:
            self._kept = steps // every
            name = str(steps) if self.networks else f"{steps}.safetensors"
            self._write(self.out / KEPT / name)
            if not self.networks:
                card = json.dumps(self.card(), indent=1).encode()
                write_bytes_durably(self.out / KEPT / f"{steps}.json", card)
        return _summary(self.config, self.task, update)

    def save(self) -> None:
        """Write the weights to ship, then the checkpoint."""
        self._write(self.place)
        task = self.task
        names = ("levels", "successes")
        curriculum = {name: torch.from_numpy(getattr(task, name)) for name in names}
        config = asdict(self.config)
        checkpoint.save_training(self.out, config, self.algorithm, self.progress, curriculum)

    def _write(self, path: Path) -> None:
        actor = self.algorithm.get_policy()
        if self.networks is not None:
            self.networks.save(actor, path, self.card())
        else:
            path.parent.mkdir(exist_ok=True)
            write_bytes_durably(path, save(checkpoint.network_weights(actor)))

    def card(self) -> dict[str, Any]:
        """Card of the expert or policy, without the table of its evaluation."""
        config = self.config
        done = self.progress
        return {
            "robot": config.robot,
            "skills": list(config.skills or SKILL_SHARES),
            "terrains": list(config.terrains or TERRAIN_SHARES),
            "steps": done.steps,
            "wall_s": done.wall_s,
            "seed": config.seed,
            "training": asdict(config),
        }


def _summary(config: ExpertTrainingConfig, task: ExpertTask, done: PpoUpdate) -> dict[str, Any]:
    """An update's row of the history; means are None where no episode ended.

    "cells" has {"terrain/skill": [success, survival, episodes]}, "levels" {skill: mean level}.
    """
    finished = task.finished
    task.finished = []
    cells: dict[str, list[tuple[bool, bool]]] = {}
    for episode in finished:
        ended = episode["success"], episode["survived"]
        cells.setdefault(episode["cell"], []).append(ended)

    def mean(key: str) -> float | None:
        return float(np.mean([e[key] for e in finished])) if finished else None

    return done.row(config.steps) | {
        "return": mean("return"),
        "success": mean("success"),
        "survival": mean("survived"),
        "level": float(task.levels.mean()),
        "levels": task.skill_levels(),
        "cells": {k: [*np.mean(v, axis=0).tolist(), len(v)] for k, v in sorted(cells.items())},
    }
