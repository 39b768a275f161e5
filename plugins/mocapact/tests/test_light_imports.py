"""Importing the humanoid costs nothing that it may not need."""

import subprocess
import sys


def test_importing_the_humanoid_does_not_import_dm_control() -> None:
    program = (
        "from gaitforge.plugins.mocapact.humanoid import environment, snippet_grid;"
        "from gaitforge.plugins.mocapact.humanoid.clips import motions, reference;"
        "from gaitforge.plugins.mocapact.humanoid.experts import experts, humanoid_batch;"
        "import gaitforge.plugins.mocapact.commands, sys; "
        "print([m for m in ('dm_control', 'h5py', 'torch') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
