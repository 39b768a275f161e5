"""A source that is damaged or incomplete is refused with the reason of the format that it is of.

The doctor, which looks for the format itself, says what an import of that format says; an import as
another format names the right one.
"""

from pathlib import Path

import pytest

from gaitforge.datasets import DatasetError
from gaitforge.datasets.doctor.data import source_data
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
        with pytest.raises(DatasetError) as undiagnosed:
            source_data(str(source))
        said = str(undiagnosed.value)
        assert "\n" not in said
        assert reason in said, kind
        known = f"read as {name}: {reason}" in said
        assert known or kind == "half", kind
        if name != rows_format.NAME:
            with pytest.raises(DatasetError) as mistaken:
                import_source(rows_format.NAME, source, tmp_path / "again")
            assert known == (f"it seems to be of the format {name}" in str(mistaken.value)), kind
        assert not (tmp_path / "again").exists()
