"""Programs in processes of their own, which may be killed, limited or looked into."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start_program(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start Python code that finds the arguments in ``sys.argv[1:]``; its output is piped."""
    return subprocess.Popen(_command(code, arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True)


def run_program(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """As ``start_program``, to its end; what it printed is captured, errors too."""
    command = _command(code, arguments)
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def _command(code: str, arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]
