"""The README's commands are ones that the program and the Makefile know."""

import re
import shlex
from pathlib import Path

import pytest

from pipeline.cli.main import build_parser

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = "\n".join(re.findall(r"```\n(.*?)```", README, flags=re.S))
COMMANDS = [line for line in BLOCKS.splitlines() if line.startswith("gaitforge ")]
TARGETS = re.findall(r"^make ([a-z-]+)", BLOCKS, flags=re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_readme_parses(command):
    arguments = shlex.split(command, comments=True)[1:]
    parsed = build_parser().parse_args(arguments)
    assert parsed.command == arguments[0]


def test_make_targets_of_the_readme_exist():
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert TARGETS
    assert set(TARGETS) <= set(rules)


def test_readme_links_to_files_that_exist():
    links = re.findall(r"\]\(([^):]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
