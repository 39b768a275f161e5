"""What this plug-in brings, by the names of its entry points; loads none of its work."""

from gaitforge.flows.experiments.kinds import PlanKind
from gaitforge.pipeline.presets.preset import Preset

_HERE = "gaitforge.plugins.shift"

KIND = PlanKind(
    f"{_HERE}.benchmark:ShiftPlan",
    page=f"{_HERE}.page:write_page",
    rows=f"{_HERE}.page:summary_rows",
    beside=f"{_HERE}.page:shown_beside",
)
LEGGED_SHIFT_V1 = Preset(
    f"{_HERE}.benchmark:ShiftPlan",
    "a benchmark: nine offline learners under nominal draws, low friction and payload",
    1.2,
    places="data",
)
