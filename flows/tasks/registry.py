"""The tasks by name. A plan's module is imported when it is needed: each brings a simulator."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import (
    extension,
    extension_names,
    named_extension,
    own_function,
)
from gaitforge.common.trust import UntrustedCodeError, naming
from gaitforge.flows.records.part_records import PlanRecord, plan_records
from gaitforge.flows.records.plans import PLAN, plan_from_tree
from gaitforge.flows.records.records import run_record
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.learners.run_files import run_folder

if TYPE_CHECKING:
    from gaitforge.datasets import Store
    from gaitforge.flows.tasks.evaluation import EvaluationPlan


LEGGED = "legged"
LEGGED_POLICY = "legged-policy"
TASKS = {
    LEGGED: "gaitforge.flows.tasks.legged:LeggedPlan",
    LEGGED_POLICY: "gaitforge.flows.tasks.legged_evaluation:LeggedPolicyPlan",
}
"""Task -> "module:class" of its plan. Any other "module:class" is a task, too, and so are other
packages' extensions."""


def collection_plan(kind: str, tree: object) -> CollectionPlan:
    """A task's plan from its JSON values; absent ones have their defaults.

    Raises:
        ValueError: no such task, or values that are not those of its plan.
    """
    return plan_from_tree(_plan_class(kind), tree)


def _plan_class(kind: str) -> type[CollectionPlan]:
    if not isinstance(kind, str):  # a record may hold anything
        raise ValueError(f"a task needs a name, not {kind!r}")
    if kind in TASKS:
        return cast(type[CollectionPlan], own_function(TASKS[kind], "task"))
    packaged = named_extension("task", kind) if ":" in kind else extension("task", kind)
    if packaged is None:
        names = dict.fromkeys([*TASKS, *extension_names("task")])
        raise ValueError(f"unknown task '{kind}'; {names_allowed(kind, names, 'or module:Plan')}")
    plan = packaged.load()
    if not (isinstance(plan, type) and issubclass(plan, CollectionPlan)):
        raise ValueError(f"{packaged.where} is not a CollectionPlan, but {packaged.path}")
    if ":" not in kind and plan.kind not in (kind, packaged.path):
        raise ValueError(f"{packaged.where} calls itself '{plan.kind}'; its kind must be '{kind}'")
    return plan


def evaluation_class(kind: str) -> "type[EvaluationPlan]":
    """The class of a task's evaluation plan.

    Raises:
        ValueError: no such task, or one on which no policy is evaluated.
    """
    path = _plan_class(kind).evaluation
    if not path:
        raise ValueError(f"no policy is evaluated on task '{kind}'")
    return cast("type[EvaluationPlan]", own_function(path, "evaluation"))


def evaluation_of(store: "Store") -> "EvaluationPlan | None":
    """The evaluation of policies that learn from a store; None for a store of no known task.

    A collected store's records name its task; an imported store is recognised by its schema, and so
    is one whose records name code that the user did not name, or that is not here.

    Raises:
        UntrustedCodeError: the records name such code, and no task of ours has this schema.
    """
    records = plan_records(store.address)
    untrusted: UntrustedCodeError | None = None
    recorded = (record["kind"] for record in records)
    for kind in dict.fromkeys([*recorded, *TASKS, *extension_names("task")]):
        try:
            with naming(store.address):
                plan = evaluation_class(kind).of_store(store.schema)
        except UntrustedCodeError as error:
            untrusted = untrusted or error
            continue
        except ValueError:  # no evaluation, or a user's module that is not here
            continue
        if plan is not None:
            with suppress(ValueError):  # a robot or expert that is not here any more
                return plan.of_plans([recorded_plan(record) for record in records])
            return plan
    if untrusted is not None:
        raise untrusted
    return None


def run_evaluation(run: Path) -> "EvaluationPlan | None":
    """The evaluation that suits a run or its export, as its store's task gave it, or None."""
    record = run_record(run)
    if not record.get("task"):
        return None
    folder = run_folder(run)
    if "evaluation" not in record:
        raise ValueError(f"{folder / PLAN} lacks 'evaluation'")
    with naming(folder):
        return evaluation_class(record["task"]).of_run(record["evaluation"], folder)


def recorded_plan(record: PlanRecord) -> CollectionPlan:
    """The plan of a store's record.

    Raises:
        ValueError: as `collection_plan`.
    """
    return collection_plan(record["kind"], record["plan"])
