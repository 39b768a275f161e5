"""Of a source that no format reads the doctor says what an import says of it."""

from pathlib import Path

import pytest

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.formats import find_format, format_names
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.doctor.data import source_data
from tests.datasets.formats.cases import CASES
from tests.datasets.formats.format_stores import random_episodes


@pytest.mark.parametrize("name", [name for name in format_names() if name in CASES])
def test_the_reason_of_the_format_that_recognises_a_source_is_given(
    name: str, tmp_path: Path
) -> None:
    if missing := find_format(name).missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    store = CASES[name].make(tmp_path / "store", random_episodes(4))
    for case, damage in CASES[name].damages.items():
        source = tmp_path / case / "source"
        source.parent.mkdir()
        export_selection(name, store.select(), source)
        damage(source)
        with pytest.raises(DatasetError) as refused:
            import_source(name, source, tmp_path / "again")
        with pytest.raises(DatasetError) as undiagnosed:
            source_data(str(source))
        text = str(undiagnosed.value)
        assert "\n" not in text
        assert str(refused.value) in text, case
        assert f"read as {name}: {refused.value}" in text or case == "half", case
