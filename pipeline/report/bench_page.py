"""The learners' speeds as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets.files import write_bytes_durably
from pipeline.report.bench_charts import bench_panels
from pipeline.report.pages import page_template

PAGE_NAME = "bench.html"


def write_bench_page(record: Mapping[str, Any], out: Path) -> Path:
    """Write `bench.html` from the record of `bench_learners.json` and return its path.

    Raises:
        ValueError: the folder cannot be written.
    """
    template = page_template(PAGE_NAME)
    page = template.render(bench=record, bench_charts=bench_panels(record))
    try:
        write_bytes_durably(out / PAGE_NAME, page.encode())
    except OSError as error:
        raise ValueError(f"cannot write into {out}: {error.strerror}") from None
    return out / PAGE_NAME
