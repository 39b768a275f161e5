"""What an experiment that ships is: the product's, and those that plug-ins bring by entry points.

    [project.entry-points."gaitforge.presets"]
    long-walks = "walkers.entries:LONG_WALKS"

Quick to import; what makes the plan loads when it is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gaitforge.common.extensions import Registered, own_function
from gaitforge.flows.experiments.kinds import PlanKind

if TYPE_CHECKING:
    from gaitforge.flows.experiments.plan import Experiment
    from gaitforge.flows.experiments.staged_plan import StagedPlan

_PAGES = "gaitforge.pipeline.report.experiment"

EXPERIMENT = PlanKind(
    "gaitforge.pipeline.presets.experiment_plan:ExperimentPlan",
    page=f"{_PAGES}:rewrite_report",
    rows="gaitforge.pipeline.report.results:result_rows",
    beside=f"{_PAGES}:shown_beside",
)
"""The kind of plan of the product's own experiments, an entry point."""


@dataclass(frozen=True)
class Preset:
    """An experiment that ships.

    Attributes:
        plan: makes it; with `full=True` at the papers' size, where it has one. A function or a
            class, or its "module:name".
        shows: what it shows, in a line.
        hours: of two cores, at its small size and with given stores: measured, or estimated from
            the cost of its updates where it ran on a GPU; None where the stores or the user decide.
        full: whether it has a full size.
        places: argument of `plan` that takes the stores or runs of the command line; "" for an
            `Experiment`, whose stages get them, or if it takes none.
    """

    plan: "str | Callable[..., Experiment | StagedPlan]"
    shows: str
    hours: float | None = None
    full: bool = False
    places: str = ""

    def make(self, **settings: Any) -> "Experiment | StagedPlan":
        """Its plan; settings: `full`, and the argument that `places` names."""
        plan = own_function(self.plan, "plan") if isinstance(self.plan, str) else self.plan
        return plan(**settings)


COMPARE = "compare"
DAGGER = "dagger"
DEMO = "demo"
_HERE = "gaitforge.pipeline.presets.experiments"
PRESETS = Registered(
    "preset",
    Preset,
    {
        DEMO: Preset(
            f"{_HERE}:demo",
            "collects a small dataset, corrects a policy, trains four learners",
            0.23,
        ),
        COMPARE: Preset(
            f"{_HERE}:compare", "models with equal settings on a store, on held-out episodes, too"
        ),
        "d4rl": Preset(
            f"{_HERE}:d4rl", "FCNet's Table 2: offline learners on D4RL's sets", 5.0, full=True
        ),
        "legged-mixed": Preset(
            f"{_HERE}:legged_mixed",
            "imitation, conditions and values on data of mixed quality",
            5.0,
        ),
        DAGGER: Preset(f"{_HERE}:dagger", "rounds of corrections beside plain imitation"),
    },
)
