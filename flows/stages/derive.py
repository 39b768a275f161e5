"""Fields that are added to a store: made by any runner, then committed by one edit."""

from collections.abc import Callable
from typing import Any

from gaitforge.datasets import open_store
from gaitforge.datasets.edits.fields import check_new_field
from gaitforge.flows.progress import Reporter
from gaitforge.flows.tasks.overlay import OverlayPlan


def add_by_plan(
    plan: OverlayPlan, runner: Callable[..., Any], reporter: Reporter, settings: Any = None
) -> Any:
    """Make the missing parts of a field, and add it to its store once all are there.

    Args:
        runner, settings: as in `gaitforge.flows.runners.registry`.

    Returns:
        What the runner returns; on Slurm the last task adds the field.

    Raises:
        ValueError: the field cannot be added (`check_new_field`), or what the runner raises.
    """
    store = open_store(plan.source)
    check_new_field(store, plan.field, plan.folder)
    made = runner(plan, plan.address, reporter, None, settings)
    if isinstance(made, list):
        plan.complete()
    return made
