"""The tasks by name, and the trainers of experts on the tasks of plug-ins and other packages.

A plan's module is imported when it is needed: each brings a simulator.

Trainers come by entry points:

    [project.entry-points."gaitforge.expert_trainers"]
    gym = "gaitforge.plugins.gym.entries:TRAINER"

The entry point has the task's name. `gaitforge expert train` adds the trainers' options and asks
them before it trains a legged robot's expert; experiments of reinforcement learning find a trainer
by its setting. An `ExpertTrainer` lies in a module that is quick to import.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gaitforge.common.extensions import (
    Registered,
    extension,
    extension_names,
    named_extension,
    own_function,
)
from gaitforge.common.trust import UntrustedCodeError, naming
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.part_records import PlanRecord, plan_records
from gaitforge.flows.records.records import PLAN, plan_from_tree, read_record
from gaitforge.flows.tasks.interface import CollectionPlan

if TYPE_CHECKING:
    from gaitforge.datasets import Store
    from gaitforge.flows.tasks.evaluation import EvaluationPlan


# The tasks by name.
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
        allowed = ", ".join(dict.fromkeys([*TASKS, *extension_names("task")]))
        raise ValueError(f"unknown task '{kind}'; allowed: {allowed}, or module:Plan")
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
    """The evaluation that suits a training run, as its store's task gave it; None where unknown."""
    file = run / PLAN
    record = read_record(file) or {}
    if not record.get("task"):
        return None
    if "evaluation" not in record:
        raise ValueError(f"{file} lacks 'evaluation'")
    with naming(file):
        return plan_from_tree(evaluation_class(record["task"]), record["evaluation"])


def recorded_plan(record: PlanRecord) -> CollectionPlan:
    """The plan of a store's record.

    Raises:
        ValueError: as `collection_plan`.
    """
    return collection_plan(record["kind"], record["plan"])


# Trainers of experts, by entry points.
NetworkTraining = Callable[[Any, Path, Reporter], object]
"""(settings, folder, reporter) -> trains a network by PPO in the folder, or resumes there."""


@dataclass(frozen=True)
class ExpertTrainer:
    """What trains experts on a task.

    Attributes:
        option: of `gaitforge expert train`, which chooses this trainer: "--env".
        help, metavar: of the option.
        command: "module:function" that takes the command's arguments and gives its `CommandWork`.
        examples: command lines for the command's help.
        network_settings: "module:Class", a frozen dataclass like `PPOSettings` with the fields of
            `setting`, `model` and `model_overrides`; empty where no network is trained by PPO.
        network_training: "module:function", a `NetworkTraining` with these settings.
    """

    option: str
    help: str
    metavar: str
    command: str
    examples: tuple[str, ...] = ()
    network_settings: str = ""
    network_training: str = ""

    @property
    def setting(self) -> str:
        """The option as the name of a setting: "env"."""
        return self.option.lstrip("-").replace("-", "_")

    def begin(self, arguments: Any) -> Any:
        """The `CommandWork` of `gaitforge expert train` with this trainer's option."""
        return own_function(self.command)(arguments)

    def settings_class(self) -> type[Any]:
        """The class of `network_settings`."""
        return own_function(self.network_settings, "settings")  # type: ignore[return-value]

    def train_network(self, settings: Any, out: Path, reporter: Reporter) -> None:
        """Train a network by PPO in a folder, or resume the training there."""
        own_function(self.network_training)(settings, out, reporter)


TRAINERS = Registered("expert_trainer", ExpertTrainer, {})
"""Task -> its trainer."""


def network_trainer(settings: Mapping[str, Any]) -> tuple[str, ExpertTrainer] | None:
    """The task, and its trainer of networks, whose setting is among these; None without any.

    Raises:
        DatasetError: another package's trainer is broken.
    """
    for task, trainer in TRAINERS.items():
        if trainer.network_training and trainer.setting in settings:
            return task, trainer
    return None
