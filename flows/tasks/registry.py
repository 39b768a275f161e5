"""The tasks by name. A plan's module is imported when it is needed: each brings a simulator."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.tasks.interface import CollectionPlan

LEGGED, LEGGED_POLICY = "legged", "legged-policy"
TASKS = {
    LEGGED: "gaitforge.flows.tasks.legged:LeggedPlan",
    "gym": "gaitforge.flows.tasks.gym:GymPlan",
    "humanoid": "gaitforge.flows.tasks.humanoid:HumanoidPlan",
    LEGGED_POLICY: "gaitforge.flows.tasks.legged_policy:LeggedPolicyPlan",
    "derive": "gaitforge.flows.tasks.derive:DerivePlan",
    "relabel": "gaitforge.flows.tasks.relabel:RelabelPlan",
}
"""Task -> "module:class" of its plan."""


def collection_plan(kind: str, tree: Any) -> CollectionPlan:
    """A task's plan from its JSON values.

    Raises:
        ValueError: no such task, or values that are not those of its plan.
    """
    if kind not in TASKS:
        raise ValueError(f"unknown task '{kind}'; allowed: {', '.join(TASKS)}")
    module, name = TASKS[kind].split(":")
    return plan_from_tree(getattr(import_module(module), name), tree)


def recorded_plan(record: Mapping[str, Any]) -> CollectionPlan:
    """The plan of a record that a collection or a Slurm job left.

    Raises:
        ValueError: as `collection_plan`.
    """
    return collection_plan(record["kind"], record["plan"])
