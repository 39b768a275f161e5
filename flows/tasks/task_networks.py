"""Networks in PPO whose saved actor is the run of a task, from the first checkpoint on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import provenance, write_record
from gaitforge.flows.tasks.evaluation import EvaluationPlan
from gaitforge.learners.actor_critic import RegistryModel, RegistryNetworks


class TaskNetworks(RegistryNetworks):
    """See `RegistryNetworks`, which gets the other arguments.

    Args:
        evaluation: how the policy is evaluated if nothing else is said; robot: its robot's name or
            path, or the task's name.
    """

    def __init__(
        self, evaluation: EvaluationPlan, robot: str, *arguments: Any, **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self._record = {"task": evaluation.kind, "evaluation": evaluation, "robot": robot}

    def save(self, actor: RegistryModel, folder: Path, card: Mapping[str, Any]) -> Path:
        """See `RegistryNetworks.save`."""
        write_record(folder / PLAN, self._record | provenance())
        return super().save(actor, folder, card)
