"""A source that is damaged or incomplete is refused with the reason of the format that it is of.

An import as another format names the right one.
"""

from pathlib import Path

import pytest

from gaitforge.datasets import DatasetError
from gaitforge.datasets.formats import format_names
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats import rows_format
from tests.datasets.formats.cases import CASES
from tests.datasets.formats.format_stores import Case, random_episodes


def test_every_format_is_tried() -> None:
    assert set(CASES) == set(format_names())
    assert all(case.damages for case in CASES.values())


def test_the_reason_of_the_format_that_recognises_a_source_is_given(
    name: str, case: Case, tmp_path: Path
) -> None:
    store = case.make(tmp_path / "store", random_episodes(4))
    for kind, damage in case.damages.items():
        source = tmp_path / kind / "source"
        source.parent.mkdir()
        export_selection(name, store.select(), source)
        damage(source)
        with pytest.raises(DatasetError) as refused:
            import_source(name, source, tmp_path / "again")
        reason = str(refused.value)
        assert "\n" not in reason
        assert "it seems to be" not in reason, kind
        if name != rows_format.NAME:
            with pytest.raises(DatasetError) as mistaken:
                import_source(rows_format.NAME, source, tmp_path / "again")
            recognised = f"it seems to be of the format {name}" in str(mistaken.value)
            assert recognised or kind == "half", kind
        assert not (tmp_path / "again").exists()
