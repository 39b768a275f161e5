"""Interface of a task's evaluation of policies, and the record that every evaluation leaves.

`gaitforge.flows.stages.evaluate` runs an evaluation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, isclose, isfinite
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from gaitforge.collectors.policy import StoredObservation
from gaitforge.common.errors import listed
from gaitforge.common.extensions import module_version
from gaitforge.common.limits import Range, Whole, check_ranges
from gaitforge.datasets import Schema, Selection
from gaitforge.datasets.layout import ROOT_FILE
from gaitforge.flows.intervals import (
    Interval,
    combined_interval,
    mean_interval,
    success_interval,
)
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.flows.tasks.policy_sources import (
    CLASS,
    EXPERT,
    EXPORTED,
    RUN,
    PolicySource,
    data_of,
    is_run,
    named_source,
    observed,
)
from gaitforge.learners.checkpoint import (
    check_layout,
)
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.export.onnx_policy import read_description
from gaitforge.learners.export.policy_formats import policy_runtime
from gaitforge.learners.models.registry import count_parameters
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import OF_RETURNS


@dataclass(frozen=True)
class References:
    """Returns that score 0 and 100, and their source in words."""

    zero: float
    hundred: float
    source: str = "measured"

    def __post_init__(self) -> None:
        if not (isfinite(self.zero) and isfinite(self.hundred) and self.hundred > self.zero):
            raise ValueError(
                f"the return {self.hundred} that scores 100 is not above {self.zero}, which "
                "scores 0: returns cannot be scored by them"
            )

    def score(self, value: float) -> float:
        """100 x (return - zero) / (hundred - zero)."""
        return 100.0 * (value - self.zero) / (self.hundred - self.zero)

    def scores(self, returns: Interval) -> Interval:
        """The scores of an interval's ends."""
        return self.score(returns[0]), self.score(returns[1])


@dataclass(frozen=True)
class Cell:
    """Episodes that are averaged together.

    Attributes:
        where: columns that name the cell, such as terrain and skill; empty for a single cell.
        episodes: in the order of their seeds, with `episode_return`, `length` in control steps,
            `success` and `terminated`, which a time limit is not.
        measures: means of the task's own, such as the speed error.
        beside: whether it is only told, and not one of those that the plan's means are over.
    """

    where: Mapping[str, object]
    episodes: Sequence[Any]
    measures: Mapping[str, float] = field(default_factory=dict)
    beside: bool = False

    def row(self, policy: str) -> dict[str, Any]:
        """The cell as JSON values: what names it, its means and their 95 % intervals."""
        returns = [float(episode.episode_return) for episode in self.episodes]
        successes = [bool(episode.success) for episode in self.episodes]
        row = {
            "policy": policy,
            **self.where,
            "return": float(np.mean(returns)),
            "return_ci95": mean_interval(returns),
            "success": float(np.mean(successes)),
            "success_ci95": success_interval(sum(successes), len(successes)),
            "survival": float(np.mean([not episode.terminated for episode in self.episodes])),
            "length": float(np.mean([episode.length for episode in self.episodes])),
            "episodes": len(self.episodes),
            **self.measures,
        }
        return to_tree(row)


@dataclass(frozen=True)
class PolicyMeasures:
    """Means over cells of equal weight, with 95 % intervals; latency of one robot on one thread.

    Attributes:
        return_: sum of an episode's rewards; survival: share of episodes that did not terminate.
        length: control steps of an episode.
        score: see `References`; None without them.
    """

    return_: float
    return_ci95: Interval | None = field(default=None, kw_only=True)
    success: float
    success_ci95: Interval | None = field(default=None, kw_only=True)
    survival: float
    length: float
    score: float | None = field(default=None, kw_only=True)
    score_ci95: Interval | None = field(default=None, kw_only=True)
    parameters: int
    latency_us_median: float
    latency_us_p99: float


@dataclass(frozen=True)
class PolicyEvaluation(PolicyMeasures):
    """The measures of a policy on a task.

    Attributes:
        task: the task's name; references: what scores 0 and 100.
        episodes, steps: in all cells together.
        cells: their rows, see `Cell.row`; returns: of every cell's episodes.
    """

    task: str
    policy: str
    episodes: int
    steps: int
    wall_s: float
    steps_per_s: float
    cells: tuple[Mapping[str, Any], ...]
    returns: tuple[tuple[float, ...], ...]
    references: References | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan(ABC):
    """What to evaluate on: a frozen dataclass that survives JSON and refuses bad values.

    Attributes:
        kind: the task's name in `gaitforge.flows.tasks.registry`.
        expert: name of the policy that scores 100; baseline: name of the one that scores 0, empty
            where a return of 0 does.
        unit: of progress; obs_slices: blocks of the observation that trained policies must read;
            None for any.
        action_limit: trained policies' actions are clipped to it.
        falls: whether an episode that terminates is a fall, so that people read of survival.
        measures: the cells' own measures that an experiment tells, of each "group" of cells.
        return_target: of a return-conditioned policy, in units of the return that scores 100, or
            without references of the return that it was trained with.
        references: the returns that score 0 and 100.
        guidance: how strongly a policy that also acts without a condition follows it, see
            `LearnedPolicy`.
        reset_every: control steps after which a trained policy's memory is cleared; 0 for never.
    """

    kind: ClassVar[str]
    expert: ClassVar[str]
    baseline: ClassVar[str] = ""
    unit: ClassVar[str] = "step"
    obs_slices: ClassVar[Mapping[str, tuple[int, int]] | None] = None
    action_limit: ClassVar[float] = inf
    falls: ClassVar[bool] = False
    measures: ClassVar[tuple[str, ...]] = ()

    return_target: Annotated[float, Range()] = 1.0
    references: References | None = None
    reset_every: Whole = 0
    guidance: Annotated[float, Range()] = 1.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def __str__(self) -> str:
        usual = {field.name: field.default for field in fields(EvaluationPlan)}
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        told = [
            f"{name.replace('_', ' ')} {_in_words(value)}"
            for name, value in values.items()
            if _in_words(value) and (name not in usual or value != usual[name])
        ]
        return ": ".join(filter(None, [f"task {self.name}", ", ".join(told)]))

    @property
    def largest_return(self) -> float:
        """The largest that an episode can have, infinity where unknown; intervals end there."""
        return inf

    @property
    def name(self) -> str:
        """The task's name in tables and file names."""
        return self.kind.partition(":")[0]

    def cell_groups(self) -> tuple[str, ...] | None:
        """Names of the groups of cells, ("",) for a single one; None where only the cells tell."""
        return None

    @classmethod
    def of_store(cls, schema: Schema) -> Self | None:
        """The plan for policies that learn from such a store; None for another task's store."""
        return cls() if schema.field("obs").slices == cls.obs_slices else None

    @classmethod
    def of_run(cls, tree: Mapping[str, Any], run: Path) -> Self:
        """The plan that a run, or its export, has kept as JSON values."""
        return plan_from_tree(cls, tree)

    def of_plans(self, plans: Sequence[CollectionPlan]) -> Self:
        """The plan for policies that learn from what these plans collected.

        Raises:
            ValueError: what a plan names is not here any more.
        """
        return self

    def check_code(self) -> None:
        """Raise UntrustedCodeError if the plan names code that the user did not name."""
        return

    def fitted(self, among: Selection, learned: Sequence[Selection]) -> Mapping[str, Any]:
        """Settings for policies that learn from some sets of episodes `among` a store's."""
        return {}

    def scoring_expert(self, among: Selection) -> str:
        """The policy that scores 100 where an experiment names none; "" for the task's own."""
        return ""

    def trained_on(self, selection: Selection) -> Self:
        """The plan on the cells of the episodes that a policy learns from."""
        return self

    def collecting_expert(self, selection: Selection) -> str:
        """The policy that collected most of the episodes, where known; else one that scores 100."""
        return self.scoring_expert(selection) or self.expert

    def undriven(self) -> Self:
        """The plan without settings of how a trained policy is driven."""
        usual = {field.name: field.default for field in fields(EvaluationPlan)}
        return replace(self, **{name: usual[name] for name in OF_THE_POLICY})

    def comparable(self, source: PolicySource) -> Self:
        """The plan for other policies on the same episodes, without a trained policy's settings."""
        return self.undriven()

    def usual_expert(self) -> str:
        """The expert that a policy is compared with where its record names none."""
        return self.expert

    def content(self) -> Mapping[str, str]:
        """Versions and hashes of what the episodes depend on, besides plan, policy and `versions`.

        A kept evaluation that is shared by several runs is used only where they are the same.
        """
        return {"code": module_version(type(self).__module__)}

    @abstractmethod
    def expert_hash(self, name: str) -> str:
        """Hash of the expert or baseline. Raises ValueError where there is none."""

    @abstractmethod
    def work(self) -> int:
        """Units of progress of all episodes, at most."""

    @abstractmethod
    def roll_out(
        self, source: PolicySource, advance: Callable[[int], None]
    ) -> tuple[list[Cell], int]:
        """Run all episodes: the cells, and the policy's number of parameters.

        Raises:
            ValueError: no such policy, or one of another task.
        """

    @abstractmethod
    def observations(self, source: PolicySource) -> Sequence[StoredObservation]:
        """Observations of one robot, to time a policy on."""

    def versions(self) -> Mapping[str, str]:
        """Versions that the results depend on, besides plan and policy."""
        return {}

    def known_references(self) -> References | None:
        """The plan's references, or those that the task has without evaluating anything."""
        return self.references

    def source(self, policy: str, which: str = "last") -> PolicySource:
        """The policy of a folder, file or "module:Class", or else an expert or baseline by name."""
        path = Path(policy)
        if (path / ROOT_FILE).is_file():
            makes = f"`gaitforge train {policy} --out RUN` makes one"
            raise ValueError(f"{policy} is a store, not a policy; {makes}")
        lost = len(path.parts) > 1 and not path.exists() and "," not in policy
        if ":" in policy or is_run(path) or path.suffix == ".onnx" or lost:
            return named_source(policy, which)
        return PolicySource(Path(policy).stem, EXPERT, policy)

    def load(self, source: PolicySource, robots: int) -> tuple[Any, int]:
        """A trained policy, or one of a user's class, for a number of robots; its parameters.

        Raises:
            ValueError: no such policy, or one that the task cannot run.
        """
        if source.kind == CLASS:
            return source.policy_class()(robots), 0
        if source.kind == EXPORTED:
            exported = self._exported(source, robots)
            return exported, exported.parameters
        if source.kind != RUN:
            raise ValueError(f"{source.place} is no training run, which task {self.kind} needs")
        network = source.network(None)
        self._check_observed(source, network)
        return self.driven(source, network, robots), count_parameters(network)

    def _check_observed(self, source: PolicySource, network: PolicyNetwork) -> None:
        """Raise ValueError unless the task gives what a network reads."""
        if self.obs_slices is None:
            return
        if network.layout.stored_slices.keys() != self.obs_slices.keys():
            raise ValueError(
                f"{source.place} was trained on {data_of(source.folder)} and reads "
                f"{observed(network)}; the task {self.name} gives {listed(self.obs_slices)}; "
                "--task names another task"
            )
        check_layout(network.layout, self.obs_slices, source.place)

    def _exported(self, source: PolicySource, robots: int) -> Any:
        """An exported policy for a number of robots.

        Raises:
            ValueError: it has no such checkpoint or setting, or reads another observation.
        """
        if source.which != "last":
            raise ValueError(f"{source.place} is an exported policy, which has no other checkpoint")
        if self.guidance != 1.0:
            raise ValueError(f"{source.place} is an exported policy, which follows no guidance")
        description = read_description(source.folder)
        target = self.return_target
        references = self.known_references()
        returns = description["return_to_go"]
        labels = (description["target"] or {}).get("labels", ())
        if references is not None and not {*OF_RETURNS[1:]}.isdisjoint(labels):
            raise ValueError(
                f"{source.place} is asked for {listed(labels)} in units of its training, not of "
                f"the return that scores 100 on {self.name}; evaluate the run instead"
            )
        if references is not None and returns is not None:
            zero = returns["zero_return"]
            ratio = (references.hundred - zero) / (returns["expert_return"] - zero)
            if labels and not isclose(ratio, 1.0, rel_tol=_SAME_RETURN):
                raise ValueError(
                    f"{source.place} is asked by one number for {listed(labels)}, and a return in "
                    f"units of its training, not of the return that scores 100 on {self.name}; "
                    "evaluate the run instead"
                )
            target *= ratio
        runtime = policy_runtime(source.runtime)
        policy = runtime.open(source.folder, robots, source.name, target, self.action_limit)
        fields = description["observation"]["fields"]
        slices = {field: (bounds["start"], bounds["stop"]) for field, bounds in fields.items()}
        if self.obs_slices is not None and slices != dict(self.obs_slices):
            raise ValueError(
                f"{source.place} reads another observation than the task {self.name} gives: "
                f"{listed(slices)}"
            )
        return policy

    def driven(self, source: PolicySource, network: PolicyNetwork, robots: int) -> LearnedPolicy:
        """A trained network as a policy for a number of robots."""
        target = self.return_target
        references = self.known_references()
        targets = dict.fromkeys(network.condition.labels, target)
        if references is not None:
            expert = references.hundred - network.return_at(0.0)
            for name in OF_RETURNS:
                targets[name] = target * expert / float(network.return_scale)
        return LearnedPolicy(
            network,
            robots,
            source.name,
            targets,
            action_limit=self.action_limit,
            reset_every=self.reset_every,
            guidance=self.guidance if network.conditioned else 1.0,
        )

    def key(self, source: PolicySource) -> dict[str, str]:
        """Hashes of the policy's weights, and versions of the simulation.

        Raises:
            ValueError: no such policy.
        """
        weights = self.expert_hash(source.place) if source.kind == EXPERT else source.key()
        return {"weights": weights, **self.versions()}


_SAME_RETURN = 1e-6
"""Largest relative difference of equal returns: an export's are rounded to float32."""
_MEANS = ("return", "success", "survival", "length")
OF_THE_POLICY = ("return_target", "reset_every", "guidance")
"""Settings of how a trained policy is driven; all others say which episodes there are."""


def _in_words(value: object) -> str:
    """A setting's value as text; "" for none."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(entry)}" for name, entry in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(map(_in_words, value))
    return "" if value is None else str(value)


def _up_to(most: float, limits: Interval | None) -> Interval | None:
    """An interval that ends at the largest possible value at the latest."""
    return limits and (limits[0], min(limits[1], most))


def measured(
    source: PolicySource,
    plan: EvaluationPlan,
    cells: Sequence[Cell],
    parameters: int,
    wall_s: float,
    latency_us: tuple[float, float],
) -> PolicyEvaluation:
    """The record of a plan's episodes."""
    rows = [cell.row(source.name) for cell in cells]
    most = plan.largest_return
    references = plan.known_references()
    counted = [row for row, cell in zip(rows, cells, strict=True) if not cell.beside]
    means = {name: float(np.mean([row[name] for row in counted])) for name in _MEANS}
    return_ = means.pop("return")
    low_high, success_ci95 = (
        combined_interval([row[name] for row in counted], [row[f"{name}_ci95"] for row in counted])
        for name in ("return", "success")
    )
    low_high = _up_to(most, low_high)
    rows = [to_tree({**row, "return_ci95": _up_to(most, row["return_ci95"])}) for row in rows]
    episodes = [episode for cell in cells for episode in cell.episodes]
    steps = sum(episode.length for episode in episodes)
    return PolicyEvaluation(
        return_=return_,
        **means,
        return_ci95=low_high,
        success_ci95=success_ci95,
        score=references.score(return_) if references else None,
        score_ci95=references.scores(low_high) if references and low_high else None,
        parameters=parameters,
        latency_us_median=latency_us[0],
        latency_us_p99=latency_us[1],
        task=plan.kind,
        policy=source.name,
        episodes=len(episodes),
        steps=steps,
        wall_s=wall_s,
        steps_per_s=steps / wall_s,
        cells=tuple(rows),
        returns=tuple(
            tuple(float(episode.episode_return) for episode in cell.episodes) for cell in cells
        ),
        references=references,
    )
