"""Demonstrations: episodes of a planner (MPPI) that a training clones.

A policy can only clone episodes that are alike: planned independently, they grip in as many ways as
there are episodes, and the mean of these does nothing. So a reference is searched for first: some
episodes are planned each with its own noise, as many more follow the best so far, and the best of
all is the reference. All others stay close to its actions, with its noise, until it has settled in
success, and from then on to the mean of its last actions. Starts are spread over the task's.
"""

import io
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from gaitforge.common.files import write_bytes_durably
from gaitforge.plugins.gym.environments.tasks import find_task
from recipes.adroit.config import AdroitConfig
from recipes.adroit.mppi import Planner, Reference
from recipes.adroit.objectives import OBJECTIVES
from recipes.adroit.observation_scale import ObservationScale

FILE = "demonstrations.npz"
"""In a training's folder: the arrays of `Demonstrations`, and `settings` as JSON text."""

_SETTLING = 30
"""Steps after a reference's first success until the hand is where it can stay."""

_LEAST_SHARE = 0.5
"""Of the reference's return, that an episode needs to count."""

_STARTS = 16
"""Drawn for every demonstration, to choose one."""

MOST_ATTEMPTS = 3
"""Per wanted episode, before the planner counts as unfit for the task."""


@dataclass(frozen=True)
class Demonstrations:
    """N episodes of T steps, the reference first.

    obs (N, T, Do), action (N, T, A) and reward (N, T), all float32.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray


@dataclass(frozen=True)
class Episode:
    """A planned episode: seeds of its start and of its plans' noise, and (T, …) of its steps.

    final_obs: (Do,) after the last step.
    """

    seed: int
    noise: int
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    success: np.ndarray
    final_obs: np.ndarray

    @property
    def total(self) -> float:
        """The episode's return."""
        return float(self.reward.sum())


def planned_episodes(config: AdroitConfig) -> int:
    """Episodes to plan, if every one that follows the reference succeeds."""
    return 2 * config.free_demonstrations + config.demonstrations - 1


def demonstrate(
    config: AdroitConfig, out: Path, progress: Callable[[int, str], None] = lambda n, note: None
) -> Demonstrations:
    """The demonstrations in `out`, planned if none are there.

    Args:
        progress: called after every attempt with how many of `planned_episodes` it made, 0 or 1,
            and its return as text.

    Raises:
        ValueError: those in `out` have other settings, or too many attempts failed.
    """
    names = ("env", "seed", "demonstrations", "free_demonstrations", "planner")
    settings = json.dumps({name: asdict(config)[name] for name in names})
    if (out / FILE).exists():
        with np.load(out / FILE) as stored:
            if str(stored["settings"]) != settings:
                raise ValueError(
                    f"{out} has demonstrations of other settings; choose another folder"
                )
            return Demonstrations(stored["obs"], stored["action"], stored["reward"])
    episodes = planned(config, progress)
    found = Demonstrations(
        *(
            np.stack([getattr(each, name) for each in episodes]).astype(np.float32)
            for name in ("obs", "action", "reward")
        )
    )
    content = io.BytesIO()
    np.savez(content, settings=settings, **vars(found))
    out.mkdir(parents=True, exist_ok=True)
    write_bytes_durably(out / FILE, content.getvalue())
    return found


def planned(config: AdroitConfig, progress: Callable[[int, str], None]) -> list[Episode]:
    """The demonstrations' episodes, the reference first; arguments and errors as `demonstrate`."""
    task = find_task(config.env)
    objective = OBJECTIVES[config.env]
    with closing(Planner(task, objective, config.planner, config.threads)) as planner:
        return _plan(config, planner, progress)


def _plan(
    config: AdroitConfig, planner: Planner, progress: Callable[[int, str], None]
) -> list[Episode]:
    """The reference and those that follow it well enough."""
    best = None
    searched = 2 * config.free_demonstrations
    for number in range(searched):
        seed, noise = (int(draw) for draw in _random(config, number).integers(2**31, size=2))
        follows = planner.no_reference(noise)
        if best is not None and number >= config.free_demonstrations:
            follows = to_follow(planner, best)
        tried = play(planner, seed, follows)
        if tried.success[-1] and (best is None or tried.total > best.total):
            best = tried
        progress(1, f"return {tried.total:,.0f}")
    if best is None:
        raise ValueError(
            f"none of {searched} planned episodes of {config.env} succeeded; raise planner.samples"
        )
    episodes = [best]
    follows = to_follow(planner, best)
    for number in range(searched, MOST_ATTEMPTS * planned_episodes(config)):
        if len(episodes) == config.demonstrations:
            break
        seed = _least_known_start(planner, episodes, _random(config, number))
        tried = play(planner, seed, follows)
        counts = bool(tried.success[-1]) and tried.total > _LEAST_SHARE * best.total
        episodes += [tried] if counts else []
        progress(int(counts), f"return {tried.total:,.0f}")
    if len(episodes) < config.demonstrations:
        raise ValueError(
            f"only {len(episodes)} planned episodes of {config.env} count; raise planner.samples"
        )
    return episodes


def _random(config: AdroitConfig, number: int) -> np.random.Generator:
    return np.random.default_rng([0xDE3, config.seed, number])


def play(planner: Planner, seed: int, reference: Reference) -> Episode:
    """An episode of the planner, to the task's horizon."""
    rows = []
    obs = planner.reset(seed, reference)
    for _ in range(planner.horizon):
        action = planner.act()
        following, reward, _, _, info = planner.env.step(action)
        rows.append((obs, action, float(reward), bool(info["success"])))
        obs = following
    return Episode(seed, reference.noise, *map(np.array, zip(*rows, strict=True)), final_obs=obs)


def _least_known_start(planner: Planner, episodes: list[Episode], rng: np.random.Generator) -> int:
    """The seed, of `_STARTS`, whose start is least like those of the episodes so far.

    A few dozen independent starts would leave whole regions out.
    """
    rng.integers(2**31, size=2)  # which an attempt without a reference draws
    seeds = [int(draw) for draw in rng.integers(2**31, size=_STARTS)]
    seen = np.stack([planner.env.reset(seed=seed)[0] for seed in seeds])
    scale = ObservationScale.of(seen)
    known = np.stack([each.obs[0] for each in episodes])
    starts, known = (scale(torch.from_numpy(each).float()) for each in (seen, known))
    return seeds[int(torch.cdist(starts, known).amin(1).argmax())]


def to_follow(planner: Planner, best: Episode) -> Reference:
    """The reference: the best episode until it has settled, and its distances by replaying it."""
    planner.reset(best.seed, planner.no_reference(0))
    distances = []
    for action in best.action:
        distances.append(planner.distance())
        planner.env.step(action)
    settling = int(best.success.argmax())
    settled = settling + _SETTLING
    far = np.array(distances)
    last = best.action[settling:settled].mean(0, keepdims=True)
    return Reference(
        np.concatenate([best.action[:settled], last]),
        np.append(far[:settled], far[settling:settled].max()),
        best.noise,
    )
