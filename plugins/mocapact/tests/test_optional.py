"""Without the extra, importing costs nothing and using says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from gaitforge.plugins.mocapact.humanoid.walker import load_mocapact

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("package", ["dm_control", "h5py"])
def test_a_missing_package_is_named_with_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    missing = rf"the humanoid needs {package}, which is not installed: run .* -e '"
    with pytest.raises(ValueError, match=missing):
        load_mocapact(package)


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
