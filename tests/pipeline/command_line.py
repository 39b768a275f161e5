"""The command line in this process: its outcome, and what wrong input must look like."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from gaitforge.pipeline.cli.main import main

SMALL_MODEL = '{"hidden_dim":16,"decoder_dim":8,"n_layers":1,"n_modes":2,"context_len":8}'
TINY_GRID = ["--set", "grid.parts=1", "--set", "grid.episodes_per_part=4", "--level", "2"]
TINY_GRID += ["--terrain", "flat", "--skill", "stand,run", "--threads", "1", "--robots", "4"]

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


def tried(lines: str, table: str) -> list[str]:
    """The lines of a table, with those of the plug-ins that are here.

    A plug-in has them in `tests/command_lines.py`, under the table's name.
    """
    texts = [lines]
    for file in sorted(PLUGINS.glob("*/tests/command_lines.py")):
        module = import_module(f"gaitforge.plugins.{file.parents[1].name}.tests.command_lines")
        texts.append(getattr(module, table, ""))
    return [line for text in texts for line in text.splitlines() if line]


class Outcome(NamedTuple):
    """An exit code and what was printed."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def call(*arguments: str | Path) -> int:
    """`main` in this process, as a shell would see it end."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def assert_refused(outcome: Outcome, *complaints: str) -> None:
    """Exit code 2, nothing on standard output, one line on standard error that holds these."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("gaitforge")
    assert "error: " in outcome.err
    for complaint in complaints:
        assert complaint in outcome.err
