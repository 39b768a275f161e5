"""What the product itself brings by entry points; loads none of its work."""

from gaitforge.flows.experiments.kinds import PlanKind

_PAGES = "gaitforge.pipeline.report.experiment"

EXPERIMENT = PlanKind(
    "gaitforge.pipeline.presets.experiment_plan:ExperimentPlan",
    page=f"{_PAGES}:rewrite_report",
    rows="gaitforge.pipeline.report.results:result_rows",
    beside=f"{_PAGES}:shown_beside",
)
