"""Kinds of plans in stages that plug-ins and other packages bring, by entry points.

    [project.entry-points."gaitforge.plan_kinds"]
    endurance = "walkers.entries:ENDURANCE"

The name is the `kind` in a folder's plan.json. Quick to import, as `PlanKind` is what entry points
name: the modules of a kind load when they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.common.extensions import Registered, own_function
from gaitforge.flows.records.records import reading_files

if TYPE_CHECKING:
    from gaitforge.flows.progress import Reporter


@dataclass(frozen=True)
class PlanKind:
    """A kind of plan in stages beside `Experiment`.

    Attributes:
        plan: "module:class" of its plan, a `StagedPlan`.
        page: "module:function" that writes report.html of a folder, told what happens, and returns
            its path.
        rows: "module:function" of the table of a `summary.json`, as text.
    """

    plan: str
    page: str
    rows: str

    def write_page(self, out: Path, reporter: "Reporter") -> Path:
        """Write report.html of a folder; returns its path."""
        with reading_files(out):
            return own_function(self.page)(out, reporter)

    def summary_rows(self, out: Path, summary: Mapping[str, Any]) -> list[dict[str, str]]:
        """The table of the `summary.json` of a folder."""
        with reading_files(out):
            return own_function(self.rows)(summary)


PLAN_KINDS: Mapping[str, PlanKind] = Registered("plan_kind", PlanKind, {})
"""Kind -> what it is made of; `Experiment` is the product's own and not among them."""
