"""Export of a policy as a Prefect flow."""

from pathlib import Path

from gaitforge.flows import forms
from gaitforge.flows.runners.artifacts import show_table
from gaitforge.flows.runners.prefect import deployed_flow, named_after, retried_task, shown_progress
from gaitforge.flows.settings import override
from gaitforge.flows.stages.export import ExportPlan, run_export
from gaitforge.learners.deploy.export import ExportOptions

export_run = retried_task("export", "export {run.name}")(run_export)


@deployed_flow("export", named_after("export", "run"))
def export(
    run: forms.Place,
    out: forms.Place,
    formats: forms.Formats = forms.NONE,
    checkpoint: forms.Checkpoint = "last",
    settings: forms.Settings = forms.NONE,
) -> None:
    """Write a trained policy as files for a robot's program.

    Args:
        run: folder of a training run.
        out: new folder of the files; the same export again changes nothing.
        formats: of the control step; empty for all.
        checkpoint: the last, or the one with the lowest validation loss.
        settings: any other settings of the plan, NAME=VALUE.
    """
    options = ExportOptions(formats=tuple(formats)) if formats else ExportOptions()
    plan = override(ExportPlan(checkpoint=checkpoint, options=options), settings)
    result = export_run(plan, Path(run), Path(out), shown_progress())
    rows = [{"file": name, "bytes": size} for name, size in result.sizes.items()]
    show_table("exported", rows, "files for a robot's program", out)
