"""What all tests share, and which files are left out without the plug-ins that they are about."""

from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
ALL = (
    "baselines", "exchange", "gym", "mocapact", "offline_rl", "papers", "robots", "what_if",
)  # fmt: skip
NEEDS = {
    "benchmarks/test_bench_formats.py": ("exchange", "gym", "mocapact"),
    "benchmarks/test_bench_learners.py": ("baselines", "papers"),
    "benchmarks/test_bench_sim.py": ("papers",),
    "benchmarks/test_bench_store.py": ("papers", "robots"),
    "test_docs.py": ALL,  # the pages speak of all
    "test_docs_run.py": ALL,
}
"""File -> the plug-ins without which it cannot be."""

collect_ignore = [
    file
    for file, plugins in NEEDS.items()
    if any(not (PLUGINS / plugin / "__init__.py").is_file() for plugin in plugins)
]


@pytest.fixture
def rows_format() -> Iterator[str]:
    """The name of a format of the tests, which is known as if a package had brought it."""
    from tests.datasets.formats.rows_format import NAME, registered

    with registered():
        yield NAME
