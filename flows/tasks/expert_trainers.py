"""Trainers of experts on the tasks of plug-ins and other packages, by entry points.

    [project.entry-points."gaitforge.expert_trainers"]
    hop = "walkers.entries:TRAINER"

The entry point has the task's name. `gaitforge expert train` adds the trainers' options and asks
them before it trains a legged robot's expert; experiments of reinforcement learning find a trainer
by its setting. An `ExpertTrainer` lies in a module that is quick to import.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaitforge.common.extensions import Registered, own_function
from gaitforge.flows.progress import Reporter

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
    """The task, and its trainer of networks, whose setting is among these; None without any."""
    for task, trainer in TRAINERS.usable().items():
        if trainer.network_training and trainer.setting in settings:
            return task, trainer
    return None
