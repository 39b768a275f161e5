"""Evaluation on the tracking task as in the Body Transformer's paper.

Episodes start at the clip's start; return and length are divided by the possible steps, on training
and on validation clips (Sferrazza et al. 2024, Section 5.1).
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from gaitforge.collectors.humanoid.clips.reference import clip_digest, clip_lengths
from gaitforge.collectors.humanoid.clips.snippets import Snippet, whole_clip
from gaitforge.collectors.humanoid.environment import TrackingEnvironment
from gaitforge.collectors.humanoid.experts.experts import PD, load_expert
from gaitforge.collectors.humanoid.observation import OBSERVATION_SLICES
from gaitforge.collectors.humanoid.rollout import EpisodeSpec, run_episode
from gaitforge.collectors.policies import TaskPolicy
from gaitforge.datasets.files import sha256_file
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import digest, kept_evaluation
from gaitforge.learners.checkpoint import checkpoint_path, load_policy
from gaitforge.learners.deploy.control import LearnedPolicy


@dataclass(frozen=True)
class HumanoidSource:
    """A policy: of a training run's folder, or an expert ("pd", or a folder of experts).

    `which` checkpoint of a run: "last", or "best" by validation loss.
    """

    name: str
    run: Path | None = None
    expert: str = PD
    which: str = "last"

    def load(self, snippets: Sequence[Snippet]) -> list[TaskPolicy]:
        """A policy for each snippet; ValueError if there is none or it reads other observations."""
        if self.run is None:
            return [load_expert(self.expert, snippet).policy for snippet in snippets]
        network = load_policy(self.run, obs_slices=OBSERVATION_SLICES, which=self.which)
        return [LearnedPolicy(network, 1, self.name)] * len(snippets)

    def key(self, snippets: Sequence[Snippet]) -> str:
        """Changes whenever the weights that track one of the snippets do."""
        if self.run is None:
            return digest([load_expert(self.expert, snippet).policy.hash for snippet in snippets])
        return sha256_file(checkpoint_path(self.run, self.which))[:16]


@dataclass(frozen=True)
class Rollouts:
    """The episodes of every snippet, all from its start.

    Attributes:
        episodes: a snippet; more than one makes sense only with noise.
        action_noise: standard deviation of the noise on executed actions; seed: of it.
        max_steps: of an episode; 0 for all of the snippet.
    """

    episodes: int = 1
    action_noise: float = 0.0
    max_steps: int = 0
    seed: int = 1_000_003

    def __post_init__(self) -> None:
        if self.episodes < 1 or min(self.action_noise, self.max_steps, self.seed) < 0:
            raise ValueError(
                f"episodes must be at least 1, got {self.episodes}; action_noise, max_steps and "
                "seed must not be negative"
            )

    def steps_at_most(self, snippet: Snippet) -> int:
        """Steps of all episodes of a snippet when none ends early."""
        return self.episodes * min(snippet.steps, self.max_steps or snippet.steps)


@dataclass(frozen=True)
class HumanoidEvaluationPlan:
    """What to evaluate on.

    Attributes:
        reference: file with the clips.
        train, validation: clips (the whole clip), or snippets as CLIP-START-END. Deviation: the
            published evaluation stops at the end of a clip's first snippet.
        rollouts: the episodes of each.
    """

    reference: str
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    rollouts: Rollouts = field(default_factory=Rollouts)

    def __post_init__(self) -> None:
        names = (*self.train, *self.validation)
        if not names or len(set(names)) != len(names):
            raise ValueError("an evaluation needs at least one clip, each of them once")

    def snippets(self) -> dict[str, list[Snippet]]:
        """{"train", "validation"} -> snippets."""
        frames = clip_lengths(Path(self.reference))

        def parsed(name: str) -> Snippet:
            return whole_clip(name, frames[name]) if name in frames else Snippet.parse(name)

        groups = {"train": self.train, "validation": self.validation}
        return {group: [parsed(name) for name in names] for group, names in groups.items()}


@dataclass(frozen=True)
class SnippetScore:
    """A policy on one snippet: means over its episodes; early: share that ended early."""

    policy: str
    snippet: str
    episodes: int
    normalised_return: float
    normalised_length: float
    early: float
    steps: int
    steps_per_s: float


@dataclass(frozen=True)
class GroupedScore(SnippetScore):
    """The score of one of the plan's snippets, "train" or "validation"."""

    group: str


@dataclass(frozen=True)
class GroupScore:
    """Means over a group's snippets, each counting the same."""

    normalised_return: float
    normalised_length: float
    early: float
    snippets: int


@dataclass(frozen=True)
class HumanoidEvaluation:
    """A policy on every snippet; a group without clips has no means."""

    policy: str
    train: GroupScore | None
    validation: GroupScore | None
    snippets: tuple[GroupedScore, ...]


def evaluate_snippets(
    source: HumanoidSource,
    reference: Path,
    snippets: Sequence[Snippet],
    rollouts: Rollouts,
    reporter: Reporter,
) -> list[SnippetScore]:
    """Run episodes from the start of every snippet in dm_control's environment.

    Raises:
        ValueError: as `HumanoidSource.load` and `TrackingEnvironment`.
    """
    total = sum(rollouts.steps_at_most(snippet) for snippet in snippets)
    policies = source.load(snippets)
    with (
        closing(TrackingEnvironment(reference, snippets)) as env,
        reporter.step(f"evaluate {source.name}", total, "step") as advance,
    ):
        return [
            _score(source.name, policy, env, index, rollouts, lambda steps: advance(steps, ""))
            for index, policy in enumerate(policies)
        ]


def _score(
    name: str,
    policy: TaskPolicy,
    env: TrackingEnvironment,
    index: int,
    rollouts: Rollouts,
    progress: Callable[[int], None],
) -> SnippetScore:
    snippet, noise, most = env.snippets[index], rollouts.action_noise, rollouts.max_steps
    seeds = np.random.SeedSequence([0xE7A1, rollouts.seed]).generate_state(rollouts.episodes)
    started = time.perf_counter()
    results = []
    for i, seed in enumerate(seeds.tolist()):
        spec = EpisodeSpec(i, index, snippet.start, action_noise=noise, seed=seed, max_steps=most)
        results.append(run_episode(env, policy, spec, progress))
    steps = sum(result.length for result in results)
    return SnippetScore(
        policy=name,
        snippet=snippet.name,
        episodes=len(results),
        normalised_return=float(np.mean([r.normalised_return for r in results])),
        normalised_length=float(np.mean([r.normalised_length for r in results])),
        early=float(np.mean([r.terminated for r in results])),
        steps=steps,
        steps_per_s=steps / (time.perf_counter() - started),
    )


def evaluate_humanoid(
    source: HumanoidSource,
    plan: HumanoidEvaluationPlan,
    reporter: Reporter,
    path: Path | None = None,
) -> HumanoidEvaluation:
    """Scores on every snippet, unless `path` already holds that evaluation."""
    snippets = [snippet for group in plan.snippets().values() for snippet in group]
    clips = {snippet.clip: clip_digest(Path(plan.reference), snippet.clip) for snippet in snippets}
    key = {"clips": digest(clips), "weights": source.key(snippets)}
    work = partial(_evaluated, source, plan, reporter)
    return kept_evaluation(path, plan, key, HumanoidEvaluation, work)


def _evaluated(
    source: HumanoidSource, plan: HumanoidEvaluationPlan, reporter: Reporter
) -> HumanoidEvaluation:
    groups = {
        group: evaluate_snippets(source, Path(plan.reference), found, plan.rollouts, reporter)
        for group, found in plan.snippets().items()
        if found
    }
    means = {group: _means(scores) for group, scores in groups.items()}
    rows = [GroupedScore(**vars(each), group=group) for group in groups for each in groups[group]]
    return HumanoidEvaluation(source.name, means.get("train"), means.get("validation"), tuple(rows))


def _means(scores: Sequence[SnippetScore]) -> GroupScore:
    names = ("normalised_return", "normalised_length", "early")
    means = (float(np.mean([getattr(each, name) for each in scores])) for name in names)
    return GroupScore(*means, snippets=len(scores))
