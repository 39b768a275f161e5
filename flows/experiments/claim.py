"""The plan.json of an experiment's folder, which only the same experiment may change."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gaitforge.common.limits import LATER
from gaitforge.common.locks import exclusive_lock, is_shared
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.plan import Experiment, shown
from gaitforge.flows.records.plans import PLAN, plan_from_tree
from gaitforge.flows.records.records import (
    prepare_folder,
    provenance,
    read_record,
    to_tree,
    write_record,
)
from gaitforge.flows.stages.stage import WORK_LOCK
from gaitforge.flows.stages.status import EXPERIMENT, staged_kind

Plan = TypeVar("Plan")

EVALUATE = "evaluate"
SCORING_EXPERT = "expert"
"""Fields of an experiment that stores may decide, and their names in `Claim.fitted`."""


@dataclass(frozen=True)
class Claim:
    """An experiment and the stores that it learns from, as a folder's plan.json holds them.

    Attributes:
        name: of the preset; stores: empty where the experiment collects its own.
        fitted: settings that follow from the stores and that nobody chose, such as
            "evaluate.terrains"; with other stores they follow from those.
    """

    name: str
    experiment: Experiment
    stores: tuple[str, ...] = ()
    fitted: tuple[str, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        if self.experiment.collect is not None and self.stores:
            raise ValueError(f"{self.name} collects its own episodes, and takes no store")
        if self.experiment.collect is None and not self.stores:
            raise ValueError(f"{self.name} needs a store to learn from")
        if self.experiment.corrections is not None and len(self.stores) > 1:
            raise ValueError("rounds of corrections go into one store")

    @property
    def unfitted(self) -> Experiment:
        """The experiment without what its stores decided."""
        evaluate = {
            name: value
            for name, value in self.experiment.evaluate.items()
            if f"{EVALUATE}.{name}" not in self.fitted
        }
        expert = "" if SCORING_EXPERT in self.fitted else self.experiment.expert
        return replace(self.experiment, evaluate=evaluate, expert=expert)


def claimed(path: Path) -> Claim:
    """The experiment of a folder, or of its plan's file.

    Raises:
        ValueError: there is none.
    """
    path = path / PLAN if path.is_dir() else path
    record = read_record(path)
    if record is None:
        raise ValueError(f"no plan at {path}")
    try:
        names = Claim.__dataclass_fields__
        return plan_from_tree(Claim, {name: record[name] for name in names if name in record})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not the plan of an experiment: {error}") from None


def claim(new: Claim, out: Path, write: bool = True) -> None:
    """Write the plan; see `check_grown` for what may be added to the one in the folder.

    Args:
        write: whether to write it, or only to see that it can be.

    Raises:
        ValueError: as `claim_folder`.
    """
    record = {"kind": EXPERIMENT, **to_tree(new)}
    claim_folder(out, EXPERIMENT, new, record, claimed, check_grown, write)


def claim_folder(
    out: Path,
    kind: str,
    new: Plan,
    record: Mapping[str, Any],
    read: Callable[[Path], Plan],
    check: Callable[[Plan, Plan, Path], None],
    write: bool = True,
) -> None:
    """Write the plan.json of a folder, unless it holds this plan already.

    Args:
        kind: of the plan; record: what plan.json holds of it beside its provenance.
        read: the plan of a folder; check: raises ValueError unless the new plan, the second one,
            goes on with the one in the folder.
        write: whether to write it, or only to see that it can be.

    Raises:
        ValueError: `out` cannot be written, holds another experiment, or one whose stages run.
    """
    if _is_new(out, kind, new, read, check) and write:
        prepare_folder(out)
        with exclusive_lock(out / WORK_LOCK, wait=False) as alone:
            if not alone or is_shared(out / WORK_LOCK):
                raise ValueError(
                    f"stages of another plan run in {out}; wait for them, or choose another folder"
                )
            # Another process may have written one since.
            if _is_new(out, kind, new, read, check):
                write_record(out / PLAN, {**record, **provenance()})


def _is_new(
    out: Path,
    kind: str,
    new: Plan,
    read: Callable[[Path], Plan],
    check: Callable[[Plan, Plan, Path], None],
) -> bool:
    """Whether a folder does not hold this plan yet; ValueError if it belongs to another one."""
    if not (out / PLAN).exists():
        return True
    old_kind = staged_kind(out)
    if old_kind != kind:
        holds = f"a plan of the kind {old_kind}" if old_kind else f"the {PLAN} of something else"
        raise ValueError(f"{out} holds {holds}, not of the kind {kind}; choose another folder")
    old = read(out)
    if to_tree(old) == to_tree(new):
        return False
    check(old, new, out)
    return True


def check_grown(old: Claim, new: Claim, out: Path) -> None:
    """Raise ValueError unless an experiment goes on with the one in its folder.

    Learners, sets, seeds, values of the number that varies and stores may be added to one that
    learns from stores, and its policies may be scored otherwise. What is there stays as it is: a
    training's settings and episodes. To an experiment that collects, rounds may be added.
    """
    if old.experiment.fixed or new.experiment.fixed:
        if _with_one_round(old) != _with_one_round(new):
            raise other_experiment(out, "other settings")
        return
    was = old.experiment
    now = new.experiment
    for kind in ("learners", "sets", "seeds"):
        check_kept(out, kind, getattr(was, kind), getattr(now, kind))
    if was.vary.keys() != now.vary.keys():
        raise other_experiment(out, "another number that varies")
    check_kept(out, f"values of {' '.join(was.vary)}", was.values(), now.values())
    same = ["select", "train_s", "curve", "recommended"]
    # Conditioned learners train in units of the expert's return, which an evaluation measures.
    same += ["targets", "expert"] if was.targets or now.targets else []
    for name in same:
        if to_tree(getattr(was, name)) != to_tree(getattr(now, name)):
            raise other_experiment(out, f"another {name}")
    for name, condition in was.sets.items():
        if now.sets[name] != condition:
            raise other_experiment(out, f"another set {shown(name)}")
    for learner in was.learners:
        if was.best(learner) != now.best(learner):
            raise other_experiment(out, f"another share of the best for learner {shown(learner)}")
        for value in was.values():
            recorded = was.config(learner, was.seeds[0], value).to_json()
            changed = now.config(learner, was.seeds[0], value).differences(recorded)
            if changed:
                difference = f"another {', '.join(changed)} for learner {shown(learner)}"
                raise other_experiment(out, difference)
    _check_stores(old, new, out)


def other_experiment(out: Path, what: str) -> ValueError:
    """The error that a folder belongs to another experiment."""
    return ValueError(f"{out} holds an experiment with {what}; choose another folder or remove it")


def check_kept(out: Path, kind: str, old: Iterable[object], new: Iterable[object]) -> None:
    """Raise ValueError if a plan leaves out what the plan in its folder has."""
    kept = list(new)
    for name in old:
        if name not in kept:
            raise ValueError(
                f"{out} holds an experiment that also has {shown(name)} among its {kind}; name it, "
                "too, or choose another folder"
            )


def _with_one_round(claim: Claim) -> Any:
    """A claim's JSON values with one round where the learner drives: more may be added."""
    tree = to_tree(claim)
    corrections = tree["experiment"]["corrections"]
    if corrections is not None and not corrections["driver"]:
        corrections["rounds"] = 1
    return tree


def _check_stores(old: Claim, new: Claim, out: Path) -> None:
    """Raise ValueError if a store is left out; one may have moved."""
    left = [store for store in old.stores if store not in new.stores]
    if not left:
        return
    hashes = {open_store(store).info().hash for store in new.stores}
    for store in left:
        try:
            known = {open_store(store).info().hash}
        except ValueError:  # it is not there any more
            plans = map(read_record, out.glob(f"train/*/{PLAN}"))
            known = {plan["dataset"] for plan in plans if plan and "dataset" in plan}
        if not known <= hashes:
            raise other_experiment(out, f"the store {store}")
