"""Plan of an experiment: learners × sets × seeds, a budget, and how policies are scored.

Names that a plan gives are checked: they become folders, files, stages and jobs.

`Published` is a paper's statement about learners as data. `verdicts` says whether the runs here
tell the same.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from math import comb, inf, isfinite
from typing import Any, ClassVar

import numpy as np

from gaitforge.common.limits import LATER, Positive, Share, check_ranges
from gaitforge.flows.experiments.evaluations import Evaluations, check_settings
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import digest, to_tree
from gaitforge.flows.stages.stage import Stage
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedPolicyPlan
from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.objectives import OBJECTIVES

# Names that a plan gives.
ALLOWED = "letters, digits, '_', '-' and '.', a letter, digit or '_' first"
_NAME = re.compile(r"\w[\w.-]*")
_STAGE = re.compile(r"\w[\w.-]*( \w[\w.-]*)*")
_MOST_BYTES = 180
"""Most bytes of a stage's name: a file's has at most 255, and files add to it."""


def check_name(kind: str, name: object, spaces: bool = False) -> None:
    """Raise ValueError unless a name can be that of a folder, a stage and a job.

    Args:
        kind: what it names, for the error's text; spaces: whether it may be several words.
    """
    allowed = _STAGE if spaces else _NAME
    if not isinstance(name, str) or not allowed.fullmatch(name):
        raise ValueError(f"{kind}: {shown(name)} cannot be a name; {ALLOWED}")
    if len(name.encode()) > _MOST_BYTES:
        raise ValueError(f"{kind}: {shown(name[:20])}… is longer than {_MOST_BYTES} bytes")


def shown(name: object) -> str:
    """A name in a line of text: in quotes, and what is no visible character escaped."""
    return f"'{name}'" if isinstance(name, str) and name.isprintable() else repr(name)


def file_name(text: str) -> str:
    """A text that a store holds as a name for folders: itself, or with a hash of what is lost."""
    if _NAME.fullmatch(text) and len(text.encode()) <= _MOST_BYTES // 2:
        return text
    kept = re.sub(r"[^A-Za-z0-9]+", "-", text)[:40].strip("-")
    return f"{kept or 'task'}-{digest(text)[:6]}"


def number_text(value: float) -> str:
    """A number for names: six digits where these are all of it, so that no two have one text."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def check_once(kind: str, values: Sequence[object]) -> None:
    """Raise ValueError for a value that comes twice; 1 and 1.0 are the same."""
    for k, value in enumerate(values):
        if value in values[:k]:
            raise ValueError(f"{kind}: {shown(value)} comes twice")


def check_apart(names: Iterable[tuple[str, str]]) -> None:
    """Raise ValueError if two things would have one name.

    Args:
        names: each name, and what has it in words.
    """
    known: dict[str, str] = {}
    for name, holder in names:
        if name in known:
            raise ValueError(
                f"{known[name]} and {holder} would both be named {shown(name)}; rename one of them"
            )
        known[name] = holder


def check_stages(stages: Sequence[Stage]) -> None:
    """Raise ValueError for stages whose names or files are no names, or those of another one."""
    for stage in stages:
        if not _STAGE.fullmatch(stage.name):
            raise ValueError(f"stage {shown(stage.name)} cannot be a name; {ALLOWED}")
        if len(stage.file_name.encode()) > _MOST_BYTES:
            raise ValueError(
                f"stage {shown(stage.name[:40])}… is longer than {_MOST_BYTES} bytes; give its "
                "plan shorter names"
            )
    check_apart((stage.file_name, f"stage {shown(stage.name)}") for stage in stages)
    outputs = ((str(path), f"a file of stage '{s.name}'") for s in stages for path in s.outputs)
    check_apart(outputs)


# A paper's statements about learners.
HOLDS = "holds here"
FAILS = "does not hold here"
OPEN = "cannot be told"
CHANCE = 0.05
LEAST_SEEDS = 3
"""Runs of either learner below which nothing is told, whatever the test says."""
_MOST_SPLITS = 200_000
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Published:
    """A paper's statement that one learner is ahead of another.

    Attributes:
        ahead, behind: learners of the experiment.
        source: paper, and figure or table.
        numbers: the paper's, as text; "" for a figure without any.
        measure: what is compared, the higher the better, such as "success"; "" for the score of an
            experiment on stores, or the return.
    """

    ahead: str
    behind: str
    source: str
    numbers: str = ""
    measure: str = ""


def statements(
    learner: str, others: Mapping[str, str], source: str, measure: str = ""
) -> tuple[Published, ...]:
    """Statements that a learner is ahead of others; their numbers as text."""
    return tuple(Published(learner, name, source, text, measure) for name, text in others.items())


def chance(ahead: Sequence[float], behind: Sequence[float]) -> float:
    """The p-value of a one-sided permutation test of the difference of means; never 0.

    It is the share of all ways to split the runs into groups of these sizes whose difference is at
    least the one seen. Where there are more than 200,000, so many are drawn and the split seen is
    counted with them: a drawn share alone can be 0, which no permutation test gives (Phipson and
    Smyth 2010, "Permutation P-values Should Never Be Zero"). Three runs each that are all apart
    give 0.05. A run without a finite number tells nothing: 1.
    """
    runs = np.array([*ahead, *behind], dtype=float)
    size = len(ahead)
    if not np.isfinite(runs).all():
        return 1.0
    runs /= max(np.abs(runs).max(), 1.0)  # sums stay finite
    # The runs' total is the same in every split, so a higher sum is a higher difference of means.
    least = runs[:size].sum() - 1e-9 * np.abs(runs).sum()
    if comb(len(runs), size) <= _MOST_SPLITS:
        chosen = chain.from_iterable(combinations(range(len(runs)), size))
        splits = np.fromiter(chosen, np.intp).reshape(-1, size)  # the one seen is among them
        return float(np.mean(runs[splits].sum(axis=1) >= least))
    rng = np.random.default_rng(0)
    drawn = (rng.permutation(runs)[:size].sum() for _ in range(_MOST_SPLITS))
    hits = sum(float(total) >= least for total in drawn)
    return (1 + hits) / (1 + _MOST_SPLITS)


def verdict(ahead: Sequence[float], behind: Sequence[float]) -> str:
    """Whether runs tell that the first learner is ahead, or behind, with a chance of 5 %.

    Fewer than `LEAST_SEEDS` of either tell nothing: one run beside twenty can have a low chance.
    """
    if min(len(ahead), len(behind)) < LEAST_SEEDS:
        return OPEN
    if chance(ahead, behind) <= CHANCE:
        return HOLDS
    return FAILS if chance(behind, ahead) <= CHANCE else OPEN


def verdicts(
    statements: Sequence[Published], runs: Sequence[Row], measure: str, less_is_better: bool = False
) -> Iterator[dict[str, Any]]:
    """A row for each statement whose learners have run, and each value of a number that varies.

    A seed counts with its mean over all sets.

    Args:
        measure: what statements without a measure of their own compare.
        less_is_better: whether the learner with the lower number is ahead.

    Raises:
        ValueError: runs have no such measure.
    """
    for value in dict.fromkeys(row.get("value") for row in runs):
        for statement in statements:
            pair = [
                _by_seed([row for row in runs
                          if (row["learner"], row.get("value")) == (name, value)],
                         statement.measure or measure)
                for name in (statement.ahead, statement.behind)
            ]  # fmt: skip
            if all(pair):
                higher, lower = pair[::-1] if less_is_better else pair
                yield {
                    **{name: getattr(statement, name) for name in ("ahead", "behind")},
                    **{name: getattr(statement, name) for name in ("source", "numbers", "measure")},
                    "value": value,
                    "means": [float(np.mean(values)) for values in pair],
                    "seeds": [len(values) for values in pair],
                    "chance": chance(higher, lower),
                    "verdict": verdict(higher, lower),
                }


def _by_seed(runs: Sequence[Row], measure: str) -> list[float]:
    """The mean of each seed's runs."""
    seeds = dict.fromkeys(row["seed"] for row in runs)
    measured = [{**row, **row.get("measures", {})} for row in runs]
    for row in measured:
        if not isinstance(row.get(measure), float | int):
            numbers = [name for name, value in row.items() if isinstance(value, float)]
            raise ValueError(f"runs have no measure '{measure}'; allowed: {', '.join(numbers)}")
    return [float(np.mean([r[measure] for r in measured if r["seed"] == seed])) for seed in seeds]


# The plan of an experiment.
Settings = Mapping[str, Any]
Learners = Mapping[str, Settings]
Points = Mapping[str, Learners]
"""Values of a number that varies, as text -> settings of each learner at that value."""

FIRST = "first"
"""The run of the policy that drives in the first round of corrections."""
BUDGET = "budget"
"""Name in `Experiment.vary` of what multiplies each learner's own steps, or `train_s`."""
OF_DATA = {"data": ("share", float), "episodes": ("first", int)}
"""Name in `Experiment.vary` -> field and type in `SelectPlan`: how much of a set is seen."""
_RESERVED = ("expert", FIRST)


@dataclass(frozen=True)
class Corrections:
    """Rounds of DAgger before the trainings: a policy drives, and the expert labels its states.

    Ross et al., "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
    Learning" (2011), with the deviation of `gaitforge.collectors.legged.episodes`.

    Attributes:
        collect: the episodes of a round, by the expert that labels; each round adds 1 to the seed
            of its grid.
        rounds: how many; more may be added later.
        driver: settings of the training of the policy that drives, on all episodes so far; empty
            for the experiment's own learner, which then also learns from a set for every round.
        share, stretch: as in `LeggedPolicyPlan`.
        plain: whether the expert alone also collects the same episodes, for sets of plain
            imitation beside those of the rounds.
    """

    collect: LeggedPlan = field(default_factory=LeggedPlan)
    rounds: int = 1
    driver: Settings = field(default_factory=dict)
    share: Share = LeggedPolicyPlan.share
    stretch: Positive = LeggedPolicyPlan.stretch
    plain: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.rounds < 1:
            raise ValueError(f"{self.rounds} rounds: needs at least 1")
        if self.plain and self.driver:
            raise ValueError("plain imitation stands beside the learner's own rounds: no driver")


@dataclass(frozen=True)
class DataSet:
    """Episodes of a store that learners learn from.

    Attributes:
        name: part of the names of its runs' files and stages; "" for the only set.
        condition: SQL over the episodes' columns; "" for all.
        rounds: rounds of corrections among them; None for whatever the store holds.
        plain: whether the expert alone drove in these rounds.
    """

    name: str = ""
    condition: str = ""
    rounds: int | None = None
    plain: bool = False


@dataclass(frozen=True)
class Experiment:
    """Plan of an experiment: learners, data, budget and evaluation.

    Attributes:
        learners: name -> settings of its training in place of the recommended ones; `model` is the
            name by default, `best` the share of each cell's episodes, by return, that it
            sees.
        seeds: random seeds of the trainings, a run each.
        collect: what is collected first; None where the stores exist already.
        corrections: rounds of DAgger before the trainings; None for none.
        select: the episodes that all sets are taken from.
        sets: name -> SQL condition on the episodes' columns; "" for all.
        settings: settings of all trainings, unless a learner has its own.
        recommended: whether all other settings are those recommended for the model and the
            objective, or the same for all.
        train_s: seconds of training of every run instead of its `steps`; as many steps as fit are
            measured before the first training.
        vary: a number's name -> the values that every learner has in turn: a setting of the
            training (`steps`, `model_overrides.n_modes`), "data", the share of the episodes,
            "episodes", the first ones of the set, or "budget", a factor of each learner's own
            steps or seconds. In place of the values, each value's settings of every learner,
            {"64": {"fcnet": {"window_len": 64}}}; the name is then only a title.
        tested: whether policies are also tested on held-out episodes, the same for all.
        targets: what return-conditioned learners are asked for, in units of the best return of a
            set's episodes; the first one's is the score. Empty for the evaluation's own target.
        curve: how many policies of a run are scored, evenly over its updates.
        evaluate: settings of the evaluation of each store's task, e.g. {"episodes": 20}.
        evaluations: further evaluations of each run's last policy on the same episodes, by name,
            see `gaitforge.flows.experiments.evaluations`; their numbers are measures of the run.
        expert: whose return scores 100; empty for who collects or labels, or the task's own.
        published: a paper's statements, which the runs' scores are held against.
    """

    learners: Learners = field(default_factory=lambda: {"fcnet": {}, "bot": {}})
    seeds: tuple[int, ...] = (0,)
    collect: LeggedPlan | None = None
    corrections: Corrections | None = None
    select: SelectPlan = field(default_factory=SelectPlan)
    sets: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    settings: Settings = field(default_factory=dict)
    recommended: bool = True
    train_s: float | None = None
    vary: Mapping[str, Sequence[float] | Points] = field(default_factory=dict)
    tested: bool = False
    targets: tuple[float, ...] = ()
    curve: int = 1
    evaluate: Settings = field(default_factory=dict)
    evaluations: Evaluations = field(default_factory=dict, metadata=LATER)
    expert: str = ""
    published: tuple[Published, ...] = ()
    setting_classes: ClassVar[Mapping[str, type]] = {"settings": TrainConfig}

    def __post_init__(self) -> None:
        self._check_names()
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"an experiment needs seeds, each once; got {list(self.seeds)}")
        if not all(isfinite(target) for target in self.targets):
            raise ValueError(f"targets must be finite numbers, got {list(self.targets)}")
        if self.train_s is not None and not (isfinite(self.train_s) and self.train_s > 0):
            raise ValueError(f"train_s must be above 0, got {self.train_s}")
        if self.curve < 1:
            raise ValueError(f"curve must be at least 1 policy, got {self.curve}")
        self._check_varied()
        if self.own_rounds and (len(self.learners) > 1 or len(self.seeds) > 1 or self.vary):
            raise ValueError("one learner with one seed drives in the rounds; or give a driver")
        if self.own_rounds and dict(self.sets) != {"": ""}:
            raise ValueError("sets are the rounds where the learner drives; or give a driver")
        if self.corrections is not None and self.select.saved:
            raise ValueError("a saved selection cannot grow; select by columns instead")
        self._check_learners()
        if self.corrections is not None and self.corrections.driver:
            self.config(FIRST, 0)
            if "best" in self.corrections.driver:
                raise ValueError("corrections.driver learns from all episodes: it takes no 'best'")

    def _check_names(self) -> None:
        for kind, names in (("learners", self.learners), ("sets", self.sets)):
            if not isinstance(names, Mapping) or not names:
                raise ValueError(f"an experiment needs {kind}")
            unnamed = kind == "sets" and list(names) == [""]
            for name in () if unnamed else names:
                if name in _RESERVED:
                    why = f"{' and '.join(_RESERVED)} name policies of every experiment"
                    raise ValueError(f"{kind}: '{name}' cannot be a name; {why}")
                check_name(kind, name)
        for name in self.evaluations:
            check_name("evaluations", name)
        check_settings(self.evaluations, self.sets)

    def _check_varied(self) -> None:
        """Raise ValueError unless one number varies at most, over different values."""
        for name, values in self.vary.items():
            if isinstance(values, Mapping):
                self._check_points(name, values)
                continue
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise ValueError(f"vary: {name} needs a list of numbers, not {values!r}")
            for value in values:
                if not isinstance(value, int | float) or not isfinite(value):
                    raise ValueError(f"vary: {name} needs finite numbers, got {value!r}")
            check_once(f"vary: {name}", values)
            if name == "episodes" and not all(n >= 1 and float(n).is_integer() for n in values):
                raise ValueError(f"episodes must be whole numbers from 1, got {values}")
        if len(self.vary) > 1 or not all(self.vary.values()):
            raise ValueError("one number may vary, and it needs values")
        changed = {*self.vary, *(key for point in self._points().values()
                                 for settings in point.values() for key in settings)}  # fmt: skip
        if self.train_s is not None and "steps" in changed:
            raise ValueError("steps cannot vary where train_s tells how long; vary budget")

    def _check_points(self, name: str, points: Points) -> None:
        """Raise ValueError unless every value is a number and has settings of all learners."""
        if name in (*OF_DATA, BUDGET):
            raise ValueError(f"vary: {name} needs a list of numbers, it is no title of settings")
        for value, learners in points.items():
            try:
                number = float(value)
            except ValueError:
                number = inf
            if not isfinite(number):
                raise ValueError(f"vary: {name} needs finite numbers, got {shown(value)}")
            missing = [learner for learner in self.learners if learner not in learners]
            if missing:
                raise ValueError(f"vary: {name} {value} has no settings of {shown(missing[0])}")
        check_once(f"vary: {name}", [float(value) for value in points])

    def _check_learners(self) -> None:
        held_out = set()
        for learner in self.learners:
            configs = [self.config(learner, s, v) for s in self.seeds for v in self.values()]
            self.best(learner)  # raises
            if len({config.objective for config in configs}) > 1:
                raise ValueError(f"learners: {learner}: the objective cannot vary; name learners")
            held_out |= {(config.split_seed, config.held_out_fraction) for config in configs}
        split_seed, fraction = next(iter(held_out))
        if self.tested and (len(held_out) > 1 or split_seed is None or not fraction):
            raise ValueError(
                "runs that are tested need the same held-out episodes: one split_seed and one "
                "held_out_fraction above 0 of all runs"
            )

    @property
    def fixed(self) -> bool:
        """Whether the folder belongs to this plan alone: it collects, and runs build on that."""
        return self.collect is not None or self.corrections is not None

    @property
    def scoring_expert(self) -> str:
        """The expert whose return scores 100; empty for the task's own."""
        collects = self.collect or (self.corrections and self.corrections.collect)
        return self.expert or (collects.expert if collects else "")

    @property
    def own_rounds(self) -> bool:
        """Whether the learner itself drives in the rounds of corrections."""
        return self.corrections is not None and not self.corrections.driver

    def values(self) -> Sequence[float | None]:
        """The values of the number that varies; (None,) where none does."""
        values = next(iter(self.vary.values()), (None,))
        return [*self._points()] if isinstance(values, Mapping) else values

    def _points(self) -> Mapping[float, Learners]:
        """Each value of a number that varies and its settings; none where values are a list."""
        values = next(iter(self.vary.values()), ())
        points = values if isinstance(values, Mapping) else {}
        return {_whole(float(value)): learners for value, learners in points.items()}

    def budget(self, value: float | None) -> float:
        """Factor of the steps, or of `train_s`, of a run with this value."""
        return value if BUDGET in self.vary and value is not None else 1.0

    def data_sets(self) -> list[DataSet]:
        """The sets, in order; where the learner drives, one per round, and of plain imitation."""
        if not self.own_rounds or self.corrections is None:
            return [DataSet(name, condition) for name, condition in self.sets.items()]
        sets = []
        for k in range(self.corrections.rounds + 1):
            sets.append(DataSet(f"round-{k}", rounds=k))
            if self.corrections.plain and k:
                sets.append(DataSet(f"plain-{k}", rounds=k, plain=True))
        return sets

    def config(self, learner: str, seed: int, value: float | None = None) -> TrainConfig:
        """All settings of one run's training. Raises ValueError for settings that do not exist."""
        try:
            return self._config(learner, seed, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"learners: {learner}: {error}") from None

    def _config(self, learner: str, seed: int, value: float | None) -> TrainConfig:
        learner_settings = self._own(learner)
        if "seed" in learner_settings or "seed" in self.settings:
            raise ValueError("seeds are the experiment's, not a setting")
        learner_settings.pop("best", None)
        tree = {**to_tree(self.settings), **to_tree(learner_settings)}
        names = ("model", "objective")
        basics: dict[str, Any] = {"model": learner, **{k: tree[k] for k in names if k in tree}}
        if self.recommended or self.train_s is not None:
            base = TrainConfig.recommended(**basics, seed=seed)
        else:
            base = TrainConfig(**basics, seed=seed)
        tree = {**to_tree(base), **tree}
        points = self._points()
        if points and value is not None:
            tree = _merged(tree, to_tree(points[value][learner]))
        elif value is not None:
            for name in self.vary:
                if name not in (*OF_DATA, BUDGET):
                    tree = _with_value(tree, name.split("."), _whole(value))
        config = plan_from_tree(TrainConfig, tree)
        if config.seed != seed:
            raise ValueError("seeds are the experiment's: they cannot vary")
        config = replace(config, steps=round(config.steps * self.budget(value)))
        preset(config.model, config.model_overrides)
        return self.kept(config)

    def kept(self, config: TrainConfig) -> TrainConfig:
        """A training's settings with the policies kept that `curve` asks for."""
        if self.curve > 1:
            config = replace(config, keep_every=max(1, config.steps // self.curve))
        return config

    def scored_steps(self, steps: int) -> list[int]:
        """The steps after which a finished run's policies are scored: `curve`, the last at its end.

        They are the kept ones, see `kept`, that lie evenly; a run of fewer steps has all.
        """
        every = max(1, steps // self.curve)
        earlier = [every * (k * steps // (self.curve * every)) for k in range(1, self.curve)]
        return [*dict.fromkeys(step for step in earlier if step), steps]

    def _own(self, learner: str) -> dict[str, Any]:
        driven = learner == FIRST and self.corrections is not None
        settings = (
            self.corrections.driver if driven and self.corrections else self.learners[learner]
        )
        if not isinstance(settings, Mapping):
            raise ValueError(f'settings are like {{"steps": 500}}, not {settings!r}')
        return dict(settings)

    def chosen_settings(self, learner: str) -> frozenset[str]:
        """Names of the settings that the plan gives for a learner; others have their defaults."""
        varied = {name.partition(".")[0] for name in self.vary}
        varied |= {name for point in self._points().values() for name in point.get(learner, ())}
        return frozenset({*self.settings, *self._own(learner), *varied})

    def best(self, learner: str) -> float:
        """The share of each cell's episodes that a learner sees, the best by return."""
        share = self._own(learner).get("best", 1.0)
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0.0 < share <= 1.0:
            raise ValueError(f"learners: {learner}: best needs a number in (0, 1], not {share!r}")
        return float(share)

    def asked(self, learner: str) -> tuple[float | None, ...]:
        """The targets that a learner is asked for; (None,) unless it is return-conditioned."""
        objective = self.config(learner, self.seeds[0], self.values()[0]).objective
        return (
            self.targets if self.targets and OBJECTIVES[objective].tokens == "return" else (None,)
        )


def asked_score(target: float, best: float) -> float:
    """The score that a target asks for, in units of the best score of a set's episodes.

    Of a best score below 0 the product falls as the target rises, so the target's distance to 1 is
    added there, in units of the score's size: a higher target asks for more.
    """
    return target * best if best > 0 else best + (target - 1.0) * abs(best)


def _whole(value: float) -> float:
    """A number without digits after the point as an int."""
    return int(value) if float(value).is_integer() else value


def _merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others in their place; those of a mapping one by one."""
    merged = dict(tree)
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both else value
    return merged


def _with_value(tree: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    head, *tail = path
    return {**tree, head: _with_value(tree.get(head) or {}, tail, value) if tail else value}
