"""Evaluation on the tracking task as in the Body Transformer's paper.

Episodes start at the clip's start; return and length are divided by the possible steps, on training
and on validation clips (Sferrazza et al. 2024, Section 5.1).
"""

from collections.abc import Callable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from gaitforge.collectors.policy import StoredObservation, TaskPolicy
from gaitforge.common.errors import listed
from gaitforge.common.limits import Positive, Range, Whole
from gaitforge.datasets import Schema, Selection
from gaitforge.datasets.schema import consecutive_slices
from gaitforge.flows.records.part_records import plan_records
from gaitforge.flows.records.records import digest
from gaitforge.flows.tasks.evaluation import Cell, EvaluationPlan
from gaitforge.flows.tasks.policy_sources import EXPERT, EXPORTED, RUN, PolicySource
from gaitforge.learners.export.onnx_policy import read_description
from gaitforge.plugins.mocapact.format.mocapact_schema import BODY_OBSERVABLES
from gaitforge.plugins.mocapact.humanoid.clips.reference import clip_digest, clip_lengths
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet, whole_clip
from gaitforge.plugins.mocapact.humanoid.environment import TrackingEnvironment
from gaitforge.plugins.mocapact.humanoid.experts.experts import PD, load_expert
from gaitforge.plugins.mocapact.humanoid.observation import OBSERVATION_SLICES
from gaitforge.plugins.mocapact.humanoid.rollout import ClipEpisode, ClipResult, run_episode

_BODY_WIDTHS = {
    name: stop - start
    for name, (start, stop) in OBSERVATION_SLICES.items()
    if name in BODY_OBSERVABLES
}
BODY_SLICES = consecutive_slices(_BODY_WIDTHS)
"""Name -> (start, stop) of the Body Transformer's 13 observables: field `obs` of an import."""

_BODY_CHANNELS = np.concatenate([np.arange(*OBSERVATION_SLICES[name]) for name in BODY_SLICES])

TRAIN = "train"
VALIDATION = "validation"


@dataclass(frozen=True)
class HumanoidEvaluation(EvaluationPlan):
    """What to evaluate policies of the humanoid on.

    Attributes:
        reference: file with the clips.
        train, validation: clips (the whole clip), or snippets as CLIP-START-END. Deviation: the
            published evaluation stops at the end of a clip's first snippet. Without either, all
            clips are validation. Means are over the validation clips where there are some.
        episodes: of each; more than one makes sense only with noise.
        action_noise: standard deviation of the noise on executed actions; seed: of that
            noise.
        max_steps: of an episode; 0 for all of the snippet.
    """

    kind = "humanoid"
    expert = PD
    obs_slices = OBSERVATION_SLICES
    measures = ("normalised_return", "normalised_length")

    reference: str = ""
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    episodes: Positive = 1
    action_noise: Annotated[float, Range(0)] = 0.0
    max_steps: Whole = 0
    seed: Whole = 1_000_003

    def __post_init__(self) -> None:
        super().__post_init__()
        names = (*self.train, *self.validation)
        if len(set(names)) != len(names):
            raise ValueError("an evaluation needs each clip once")

    def __str__(self) -> str:
        return f"the clips of {self.reference}"

    def cell_groups(self) -> tuple[str, ...]:
        """See `EvaluationPlan.cell_groups`."""
        validates = self.validation or not self.train
        return (TRAIN,) * bool(self.train) + (VALIDATION,) * bool(validates)

    def snippets(self) -> list[tuple[str, Snippet]]:
        """(TRAIN or VALIDATION, snippet) of every snippet.

        Raises:
            ValueError: no reference file, or no such clip.
        """
        if not self.reference:
            raise ValueError("needs the file with the clips: --set reference=clips.h5")
        frames = clip_lengths(Path(self.reference))
        validation = self.validation if self.train or self.validation else tuple(frames)

        def parsed(name: str) -> Snippet:
            return whole_clip(name, frames[name]) if name in frames else Snippet.parse(name)

        groups = {TRAIN: self.train, VALIDATION: validation}
        return [(group, parsed(name)) for group, names in groups.items() for name in names]

    def fitted(self, among: Selection, learned: Sequence[Selection]) -> dict[str, Any]:
        """See `EvaluationPlan.fitted`: validation is on the snippets that no set has.

        Raises:
            ValueError: clips or snippets of `validation` are in a set.
        """
        seen = {snippet.name for selection in learned for snippet in _stored_snippets(selection)}
        clips = {snippet.clip for selection in learned for snippet in _stored_snippets(selection)}
        if both := sorted((clips | seen) & {*self.validation}):
            raise ValueError(f"a set has {listed(both)}, which is for validation; leave it out")
        files = [record["plan"].get("reference") for record in plan_records(among.store.address)]
        settings = {"reference": next(filter(None, files), "")}
        if self.train or self.validation:
            return settings
        every = {snippet.name for snippet in _stored_snippets(among)}
        return settings | {"train": tuple(sorted(seen)), "validation": tuple(sorted(every - seen))}

    def versions(self) -> dict[str, str]:
        """See `EvaluationPlan.versions`."""
        clips = {snippet.clip for _, snippet in self.snippets()}
        return {"clips": digest({clip: clip_digest(Path(self.reference), clip) for clip in clips})}

    def expert_hash(self, name: str) -> str:
        """See `EvaluationPlan.expert_hash`."""
        return digest([load_expert(name, snippet).policy.hash for _, snippet in self.snippets()])

    def work(self) -> int:
        """See `EvaluationPlan.work`."""
        possible = [snippet.steps for _, snippet in self.snippets()]
        return self.episodes * sum(min(steps, self.max_steps or steps) for steps in possible)

    def roll_out(
        self, source: PolicySource, advance: Callable[[int], None]
    ) -> tuple[list[Cell], int]:
        """See `EvaluationPlan.roll_out`: a cell a snippet."""
        grouped = self.snippets()
        snippets = [snippet for _, snippet in grouped]
        drawn = np.random.SeedSequence([0xE7A1, self.seed]).generate_state(self.episodes)
        noise = self.action_noise
        most = self.max_steps
        several = len(snippets) if source.kind == EXPERT else 1
        policies = [self.load(source, 1, index) for index in range(several)]
        cells = []
        with closing(TrackingEnvironment(Path(self.reference), snippets)) as env:
            for index, (group, snippet) in enumerate(grouped):
                specs = [
                    ClipEpisode(i, index, snippet.start, True, noise, seed, most)
                    for i, seed in enumerate(drawn.tolist())
                ]
                policy = policies[index % several][0]
                results = [run_episode(env, policy, spec, advance) for spec in specs]
                where = {"group": group, "snippet": snippet.name}
                beside = group == TRAIN and len(self.train) < len(grouped)
                cells.append(Cell(where, results, _measures(results), beside))
        return cells, policies[0][1]

    def observations(self, source: PolicySource) -> list[StoredObservation]:
        """See `EvaluationPlan.observations`."""
        snippets = [snippet for _, snippet in self.snippets()[:1]]
        with closing(TrackingEnvironment(Path(self.reference), snippets)) as env:
            return [StoredObservation(env.reset(0)[None], np.zeros(1, np.float32))]

    def load(self, source: PolicySource, robots: int, snippet: int = 0) -> tuple[TaskPolicy, int]:
        """See `EvaluationPlan.load`; the expert of one of the snippets, too.

        A policy that learned from MoCapAct's files as they are imported by default reads the 13
        observables of `BODY_SLICES` alone.
        """
        if source.kind == EXPERT:
            return load_expert(source.place, self.snippets()[snippet][1]).policy, 0
        if _read_names(source) != BODY_SLICES.keys() or isinstance(self, BodyEvaluation):
            return super().load(source, robots)
        policy, parameters = BodyEvaluation(**vars(self)).load(source, robots)
        return BodyPolicy(policy), parameters

    @classmethod
    def of_store(cls, schema: Schema) -> Self | None:
        """See `EvaluationPlan.of_store`: with all observables, or the body's."""
        return cls() if schema.field("obs").slices in (OBSERVATION_SLICES, BODY_SLICES) else None


@dataclass(frozen=True)
class BodyEvaluation(HumanoidEvaluation):
    """The evaluation of policies that read the body's observables alone."""

    obs_slices = BODY_SLICES


class BodyPolicy:
    """A policy of the body's observables, given all of them."""

    def __init__(self, policy: TaskPolicy):
        self._policy = policy

    def reset(self, ids: np.ndarray) -> None:
        """See `TaskPolicy.reset`."""
        self._policy.reset(ids)

    def act(self, observation: StoredObservation) -> np.ndarray:
        """See `TaskPolicy.act`."""
        seen = observation.policy[:, _BODY_CHANNELS]
        return self._policy.act(StoredObservation(seen, observation.reward))


def _read_names(source: PolicySource) -> Set[str]:
    """The names of what a trained or exported policy reads; none of another kind of policy."""
    if source.kind == RUN:
        return source.network(None).layout.stored_slices.keys()
    if source.kind == EXPORTED:
        return read_description(source.folder)["observation"]["fields"].keys()
    return frozenset()


def _stored_snippets(selection: Selection) -> set[Snippet]:
    """The snippets of a selection's episodes; imported stores name clip and frames alone."""
    table = selection.episodes("clip", "snippet_start", "snippet_end")
    rows = zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
    return {Snippet(str(clip), start, end) for clip, start, end in set(rows)}


def _measures(results: Sequence[ClipResult]) -> dict[str, float]:
    names = HumanoidEvaluation.measures
    return {name: float(np.mean([getattr(result, name) for result in results])) for name in names}
