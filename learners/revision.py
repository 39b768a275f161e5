"""The program's git revision, for records and checkpoints."""

import subprocess
from pathlib import Path


def git_revision() -> str:
    """The commit this program runs from, or "unknown" outside a checkout."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        here = Path(__file__).parent
        commit = subprocess.check_output(command, cwd=here, stderr=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip()
