"""Kinds of plans in stages, by entry points: the product's, and those of plug-ins and packages.

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
    """A kind of plan in stages.

    Attributes:
        plan: "module:class" of its plan, a `StagedPlan`, or another `FolderPlan`.
        page: "module:function" that writes report.html of a folder, told what happens, and returns
            its path.
        rows: "module:function" of the table of a `summary.json`, as text.
        beside: "module:function" of a folder and its summary: what a command shows beside the
            table, a title, lines, and Markdown texts by their titles; "" for nothing.
    """

    plan: str
    page: str
    rows: str
    beside: str = ""

    def write_page(self, out: Path, reporter: "Reporter") -> Path:
        """Write report.html of a folder; returns its path."""
        with reading_files(out):
            return own_function(self.page)(out, reporter)

    def summary_rows(self, out: Path, summary: Mapping[str, Any]) -> list[dict[str, str]]:
        """The table of the `summary.json` of a folder."""
        with reading_files(out):
            return own_function(self.rows)(summary)

    def shown_beside(self, out: Path, summary: Mapping[str, Any]) -> Mapping[str, Any]:
        """The `title`, `lines` and `texts` that a folder's kind shows; those that it has."""
        if not self.beside:
            return {}
        with reading_files(out):
            return own_function(self.beside)(out, summary)


PLAN_KINDS: Mapping[str, PlanKind] = Registered("plan_kind", PlanKind, {})
"""Kind -> what it is made of; the pipeline brings that of experiments on stores."""
