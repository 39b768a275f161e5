"""Import of another project's data into a store, with a record beside it.

Parts that are there already are not read again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gaitforge.datasets.dataset import open_store
from gaitforge.datasets.doctor.examine import quick_findings
from gaitforge.datasets.formats import find_format, importer_class
from gaitforge.datasets.formats.protocol import Report
from gaitforge.datasets.formats.transfer.importing import WORKERS, import_source
from gaitforge.flows.progress import Reporter, begun_later
from gaitforge.flows.records.logs import log_event
from gaitforge.flows.records.part_records import records_folder
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import digest, provenance, write_record


@dataclass(frozen=True)
class ImportPlan:
    """What to import, and how.

    Attributes:
        format: a name in `gaitforge.datasets.formats.FORMATS`.
        options: of the format's reader; absent ones have its defaults.
        workers: threads that read and write parts.
        drop_nan: leave out episodes with NaN or infinity.
    """

    format: str
    options: Mapping[str, object] = field(default_factory=dict)
    workers: int = WORKERS
    drop_nan: bool = False

    def __post_init__(self) -> None:
        find_format(self.format)
        if self.workers < 1:
            raise ValueError(f"{self.workers} workers: at least 1 is needed")


def run_import(
    plan: ImportPlan, source: Path | str, store: Path | str, reporter: Reporter
) -> Report:
    """Import a source into a store; interrupted, the same call imports the missing parts.

    The report's notes end with what the doctor finds in a sample of the store.

    Raises:
        ValueError: an unknown option, packages that are not installed, or a source or store that
            does not fit, in one line that names file and key; nothing was imported.
    """
    options = plan_from_tree(importer_class(plan.format).Options, dict(plan.options))
    arguments = (plan.format, source, store, asdict(options))
    workers = plan.workers
    with begun_later(reporter, "import") as begin:
        report = import_source(*arguments, begin, workers=workers, drop_nan=plan.drop_nan)
    findings = quick_findings(open_store(store).select())
    notes = [f"{finding.severity}, {finding.name}: {finding.text}" for finding in findings]
    notes += [f"gaitforge doctor {store} examines all of it"] * bool(notes)
    carried = replace(report.carried, notes=(*report.carried.notes, *notes))
    report = replace(report, carried=carried)
    records = records_folder(store)
    record = {"plan": asdict(plan), "report": asdict(report), **provenance()}
    write_record(records / f"import-{digest([plan, report.source])}.json", record)
    log_event(records, "info", "imported", format=plan.format, steps=report.steps)
    return report
