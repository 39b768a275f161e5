"""Without the extra, importing costs nothing and using says what to install."""

import sys
from pathlib import Path

import pytest

from gaitforge.common.extensions import load_mocapact


@pytest.mark.parametrize("package", ["dm_control", "h5py"])
def test_a_missing_package_is_named_with_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package}, which is not installed: run .* -e '"):
        load_mocapact(package)


def test_a_package_that_does_not_load_is_no_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "oddly_broken.py").write_text("import math\nmath.no_such_function\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"another version of oddly_broken.*no_such_function"):
        load_mocapact("oddly_broken")
