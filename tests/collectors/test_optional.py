"""Without the extra, importing costs nothing and using says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from gaitforge.common.extensions import load_extra

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("package", ["dm_control", "h5py"])
def test_a_missing_package_is_named_with_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package}, which is not installed: run .* -e '"):
        load_extra(package, "the humanoid", "mocapact")


def test_a_package_that_does_not_load_is_no_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "oddly_broken.py").write_text("import math\nmath.no_such_function\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"another version of oddly_broken.*no_such_function"):
        load_extra("oddly_broken", "the humanoid", "mocapact")


def test_importing_the_humanoid_does_not_import_dm_control() -> None:
    program = (
        "from gaitforge.plugins.mocapact.humanoid import environment, snippet_grid;"
        "from gaitforge.plugins.mocapact.humanoid.clips import motions, reference;"
        "from gaitforge.plugins.mocapact.humanoid.experts import experts, humanoid_batch;"
        "import gaitforge.plugins.mocapact.commands, sys; "
        "print([m for m in ('dm_control', 'h5py', 'torch') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
