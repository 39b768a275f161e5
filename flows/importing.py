"""Import of other projects' data as a Prefect flow."""

from dataclasses import asdict

from gaitforge.datasets.formats import importer_class
from gaitforge.flows import forms
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.runners.artifacts import last_name, show_table, tag_run
from gaitforge.flows.runners.prefect import deployed_flow, named_after, retried_task, shown_progress
from gaitforge.flows.settings import override
from gaitforge.flows.stages.importing import ImportPlan, run_import

import_source = retried_task("import", "import {source}")(run_import)


@deployed_flow("import", named_after("import into", "store"))
def import_data(
    format: forms.DataFormat,
    source: forms.Place,
    store: forms.Place,
    settings: forms.Settings = forms.NONE,
) -> None:
    """Import data of another project's format into a store.

    Args:
        format: of the source.
        source: a file or folder of that format, as the worker sees it.
        store: a folder, or s3://bucket/prefix; created if absent.
        settings: options of the format's reader, NAME=VALUE.
    """
    options = override(importer_class(format).Options(), settings)
    plan = ImportPlan(format, asdict(options))
    tag_run(store=last_name(store))
    report = import_source(plan, source, store_address(store), shown_progress())
    rows = [
        {"what": what, "line": line}
        for what, lines in asdict(report.carried).items()
        for line in lines
    ]
    show_table("imported", rows, "what was carried over, and what was not", source)
