"""Further evaluations of an experiment's policies: the same episodes, driven with other settings.

    {"cleared": {"reset_every": "context"}}

scores every policy once more with a memory that is cleared as often as its network's context is
long. The numbers are measures of the run: "cleared score", "cleared return".
"""

import re
from collections.abc import Mapping
from typing import Any

from gaitforge.common.errors import listed
from gaitforge.flows.tasks.evaluation import OF_THE_POLICY
from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.objectives import OBJECTIVES

Evaluations = Mapping[str, Mapping[str, Any]]
"""Name -> settings in place of those of the first evaluation; `OF_SETS`, settings of some sets."""

OF_SETS = "sets"
CONTEXT = "context"
"""As `reset_every`: the steps of context of the run's network."""
MEASURES = ("score", "return", "success", "survival")
"""Numbers of a further evaluation that are measures of its run."""
OF_KEPT = ("highest", "mean")
"""First words of a run's measures over all policies that it kept."""
_FILES_OF_A_RUN = re.compile(r"(.*-)?(asked-\d+|step-\d+|train)")
"""Ends of the names of other files of a run, see `LearnerRun.score`."""


def check_settings(evaluations: Evaluations, sets: Mapping[str, str]) -> None:
    """Raise ValueError for settings that no further evaluation has, and for names of a run's files.

    Args:
        sets: those of the experiment, by name.
    """
    for name, settings in evaluations.items():
        if _FILES_OF_A_RUN.fullmatch(name):
            raise ValueError(
                f"evaluations: '{name}' cannot be a name; a run has files of this name"
            )
        of_sets = settings.get(OF_SETS, {})
        if not isinstance(of_sets, Mapping):
            raise ValueError(f"evaluations: {name}: '{OF_SETS}' needs settings of each set")
        for set_name in of_sets:
            if set_name not in sets:
                raise ValueError(
                    f"evaluations: {name}: no set '{set_name}'; allowed: {listed(sets)}; for other "
                    "sets first take the evaluations away: --set evaluations={}"
                )
        own = [key for key in settings if key != OF_SETS]
        for key in (*own, *(key for values in of_sets.values() for key in values)):
            if key not in OF_THE_POLICY:
                allowed = listed([*OF_THE_POLICY, OF_SETS])
                raise ValueError(
                    f"evaluations: {name} has no setting '{key}'; it is on the same episodes, and "
                    f"may change: {allowed}"
                )


def settings_of(
    evaluation: Mapping[str, Any], set_name: str, config: TrainConfig
) -> dict[str, Any]:
    """The settings with which a further evaluation drives the policy of a run.

    A policy without a condition has no target and no guidance; a network without a context has no
    memory that could be cleared, so `CONTEXT` is 0 for it.

    Args:
        set_name: the set that the run learns from; config: its training.
    """
    settings = {name: value for name, value in evaluation.items() if name != OF_SETS}
    settings |= evaluation.get(OF_SETS, {}).get(set_name, {})
    if settings.get("reset_every") == CONTEXT:
        network = preset(config.model, config.model_overrides).config
        settings["reset_every"] = getattr(network, "context_len", 0)
    if OBJECTIVES[config.objective].tokens != "return":
        settings = {name: value for name, value in settings.items() if name == "reset_every"}
    return settings


def measures_of(name: str, row: Mapping[str, Any]) -> dict[str, float]:
    """The measures of a run by a further evaluation, by their names in the run's row."""
    own = {measure: row[measure] for measure in MEASURES}
    return {f"{name} {measure}": value for measure, value in {**row["measures"], **own}.items()}
