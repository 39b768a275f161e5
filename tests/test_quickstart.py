"""The quickstart's notebook: its form. tests/test_packaging.py runs it on the wheel."""

import ast
import json
import re
import shlex
from pathlib import Path

import nbformat

from gaitforge.pipeline.cli.main import build_parser
from release.notebook_page import markdown_of

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs/quickstart.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
SOURCES = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
SHELL = re.compile(r"^!((?:.*\\\n)*.*)", re.M)


def test_it_has_twenty_cells_and_no_outputs() -> None:
    nbformat.validate(nbformat.read(NOTEBOOK, as_version=4))
    assert len(CELLS) == 20
    for cell in CELLS:
        assert not cell.get("outputs"), "clear the outputs before a commit"
        assert cell.get("execution_count") is None
        assert not cell["metadata"]


def test_its_python_compiles_and_its_commands_parse() -> None:
    commands = []
    for source in SOURCES:
        commands += [line.replace("\\\n", " ") for line in SHELL.findall(source)]
        ast.parse(SHELL.sub("", source))
    assert {shlex.split(command)[1] for command in commands} == {"query", "view"}
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "gaitforge"
        assert build_parser().parse_args(words).command == words[0]


def test_its_page_has_its_cells_and_leads_to_the_file() -> None:
    page = markdown_of(NOTEBOOK)
    assert page.startswith("# Quickstart")
    assert f"({NOTEBOOK.name})" in page
    assert page.count("```python\n") + page.count("```sh\n") == len(SOURCES)
    links = re.findall(r"\]\(([^):#]+)\)", page)
    assert all((NOTEBOOK.parent / link).is_file() for link in links)
