"""The tasks by name. A plan's module is imported when it is needed: each brings a simulator."""

from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gaitforge.datasets.errors import listed
from gaitforge.flows.functions import named_function
from gaitforge.flows.records.part_records import PlanRecord, plan_records
from gaitforge.flows.records.plans import PLAN, plan_from_tree
from gaitforge.flows.records.records import read_record
from gaitforge.flows.tasks.interface import CollectionPlan

if TYPE_CHECKING:
    from gaitforge.datasets import Store
    from gaitforge.flows.tasks.evaluation import EvaluationPlan

LEGGED, LEGGED_POLICY = "legged", "legged-policy"
TASKS = {
    LEGGED: "gaitforge.flows.tasks.legged:LeggedPlan",
    "gym": "gaitforge.flows.tasks.gym:GymPlan",
    "humanoid": "gaitforge.flows.tasks.humanoid:HumanoidPlan",
    LEGGED_POLICY: "gaitforge.flows.tasks.legged_policy:LeggedPolicyPlan",
    "counterfactual": "gaitforge.flows.tasks.stored.counterfactual:CounterfactualPlan",
    "derive": "gaitforge.flows.tasks.stored.derive:DerivePlan",
    "relabel": "gaitforge.flows.tasks.stored.relabel:RelabelPlan",
}
"""Task -> "module:class" of its plan; any other "module:class" is a task, too."""

GROUP = "gaitforge.tasks"
"""Group of the entry points by which other packages name their tasks."""


def collection_plan(kind: str, tree: object) -> CollectionPlan:
    """A task's plan from its JSON values; absent ones have their defaults.

    Raises:
        ValueError: no such task, or values that are not those of its plan.
    """
    return plan_from_tree(_plan_class(kind), tree)


def _plan_class(kind: str) -> type[CollectionPlan]:
    if kind in TASKS or ":" in kind:
        return cast(type[CollectionPlan], named_function(TASKS.get(kind, kind), "task"))
    known = entry_points(group=GROUP)
    entries = list(dict.fromkeys(known.select(name=kind)))
    if len(entries) == 1:
        return _packaged_plan(entries[0])
    if entries:
        packages = listed(_package(entry) for entry in entries)
        raise ValueError(f"the packages {packages} each have a task '{kind}'; name it module:Plan")
    allowed = ", ".join(dict.fromkeys([*TASKS, *sorted(known.names)]))
    raise ValueError(f"unknown task '{kind}'; allowed: {allowed}, or module:Plan")


def _packaged_plan(entry: EntryPoint) -> type[CollectionPlan]:
    """The plan's class of another package's task."""
    where = f"task '{entry.name}' of the package {_package(entry)}"
    try:
        plan = entry.load()
    except Exception as error:  # of whatever kind: it is others' code
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{where} cannot be loaded: {reason}") from error
    if not (isinstance(plan, type) and issubclass(plan, CollectionPlan)):
        raise ValueError(f"{where} is not a CollectionPlan, but {entry.value}")
    if plan.kind not in (entry.name, entry.value):
        raise ValueError(f"{where} calls itself '{plan.kind}'; its kind must be '{entry.name}'")
    return plan


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "of no name"


def evaluation_class(kind: str) -> "type[EvaluationPlan]":
    """The class of a task's evaluation plan.

    Raises:
        ValueError: no such task, or one on which no policy is evaluated.
    """
    path = _plan_class(kind).evaluation
    if not path:
        raise ValueError(f"no policy is evaluated on task '{kind}'")
    return cast("type[EvaluationPlan]", named_function(path, "evaluation"))


def evaluation_of(store: "Store") -> "EvaluationPlan | None":
    """The evaluation of policies that learn from a store; None for a store of no known task.

    A collected store's records name its task; an imported store is recognised by its schema.
    """
    kinds = dict.fromkeys([*(each["kind"] for each in plan_records(store.address)), *TASKS])
    for kind in kinds:
        with suppress(ValueError):  # no evaluation, or a user's module that is not here
            if (plan := evaluation_class(kind).of_store(store.schema)) is not None:
                return plan
    return None


def run_evaluation(run: Path) -> "EvaluationPlan | None":
    """The evaluation that suits a training run, as its store's task gave it; None where unknown."""
    record = read_record(run / PLAN) or {}
    if not record.get("task"):
        return None
    return plan_from_tree(evaluation_class(record["task"]), record["evaluation"])


def recorded_plan(record: PlanRecord) -> CollectionPlan:
    """The plan of a store's record.

    Raises:
        ValueError: as `collection_plan`.
    """
    return collection_plan(record["kind"], record["plan"])
