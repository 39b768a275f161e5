"""The documentation is true: its commands parse, its links lead somewhere, its Python runs."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from benchmarks.__main__ import build_parser as benchmarks_parser
from gaitforge.collectors.legged.rewards import REWARDS
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from gaitforge.datasets.formats import find_format, format_names
from gaitforge.pipeline.cli.main import build_parser
from recipes.adroit.__main__ import build_parser as adroit_parser
from recipes.ship import build_parser as ship_parser

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
PLUGINS_PAGE = ROOT / "docs" / "howto" / "plugin.md"
ROOMS = (
    "benchmarks",
    "collectors",
    "common",
    "datasets",
    "flows",
    "learners",
    "pipeline",
    "plugins",
    "recipes",
    "release",
)
PAGES = [
    path
    for where in ("*", "docs/**/*", "plugins/*/*", "recipes/**/*")
    for path in ROOT.glob(f"{where}.md")
]
FENCED = re.compile(r"^```([a-z]*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
INDENTED = re.compile(r"^    .*$", re.M)


def commands(program: str) -> list[str]:
    """The lines of all pages' shell blocks, fenced or indented, that start with `program`."""
    found = []
    for page in PAGES:
        text = page.read_text()
        blocks = [code for language, _, code in FENCED.findall(text) if not language]
        blocks += [line[4:] for line in INDENTED.findall(FENCED.sub("", text))]
        lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
        found += [line for line in lines if line.startswith(f"{program} ")]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("command", commands("gaitforge"))
def test_command_parses(command):
    line = re.sub(r" > \S+$", "", command.removesuffix("&"))
    arguments = shlex.split(line, comments=True)[1:]
    assert build_parser(arguments).parse_args(arguments).command == arguments[0]


@pytest.mark.parametrize(
    ("command", "parser"),
    [
        *((each, benchmarks_parser) for each in commands("python -m benchmarks")),
        *((each, adroit_parser) for each in commands("python -m recipes.adroit")),
        *((each, ship_parser) for each in commands("python -m recipes.ship")),
    ],
)
def test_a_program_outside_parses(command, parser):
    assert parser().parse_args(shlex.split(command, comments=True)[3:])


def test_make_targets_exist():
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert {line.split()[1] for line in commands("make")} <= set(rules)


def test_links_lead_to_files():
    for page in PAGES:
        links = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", FENCED.sub("", page.read_text()))
        assert [link for link in links if not (page.parent / link).exists()] == [], page


def test_named_files_of_the_repository_exist():
    folders = "|".join((*ROOMS, "deploy", "docs", "tests"))
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            named = re.findall(rf"`((?:{folders})/(?!gaitforge`)[\w./-]*)`", page.read_text())
            assert [name for name in named if not (ROOT / name).exists()] == [], page


def test_files_and_names_of_the_architecture_exist():
    """Its roads and tables name files, some by their last folders alone, and names in these."""
    paths = [path for room in (*ROOMS, "tests") for path in (ROOT / room).rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)(?:: (\w+))?`", ARCHITECTURE.read_text())
    assert len(named) > 30
    for file, name in named:
        files = [path for path in paths if path.as_posix().endswith(f"/{file}")]
        assert files, file
        assert not name or any(name in path.read_text() for path in files), (file, name)


def test_every_plug_in_is_listed():
    for folder in (ROOT / "plugins").glob("*/__init__.py"):
        plugin = folder.parent.name
        assert f"`{plugin}`" in ARCHITECTURE.read_text(), plugin
        assert f"| `plugins/{plugin}/` |" in PLUGINS_PAGE.read_text(), plugin


def test_every_hook_is_listed_with_an_entry_point_as_its_example():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    row = r"^\| `gaitforge\.(\w+)` \| .* \| `([\w/]+)\.py: (\w+)` \|$"
    listed = re.findall(row, PLUGINS_PAGE.read_text(), re.M)
    groups = {f"gaitforge.{group}" for group, _, _ in listed}
    assert groups == project["entry-points"].keys()
    for group, file, name in listed:
        target = f"gaitforge.{file.replace('/', '.')}:{name}"
        assert target in project["entry-points"][f"gaitforge.{group}"].values()


def test_tables_have_a_column_for_every_cell():
    for page in PAGES:
        text = FENCED.sub("", page.read_text())
        for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
            rows = [row.replace(r"\|", "").count("|") for row in table.splitlines()]
            assert len(set(rows)) == 1, (page, table.splitlines()[0])


def test_extras_are_named_as_they_are_installed():
    """From a clone: no package index has a package of this name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {entry.extra for entry in map(find_format, format_names()) if entry.extra}
    sources = [code for room in ROOMS for code in (ROOT / room).rglob("*.py")]
    sources = [code for code in sources if "tests" not in code.relative_to(ROOT).parts]
    for page in [*PAGES, *sources]:
        text = page.read_text()
        assert page.name == "CHANGELOG.md" or "gaitforge[" not in text, page
        for pattern in (
            r"install_extra\(['\"](\w+)",
            r"missing_package\(.*, \"(\w+)\"\)",
            r"-e '\.\[(\w+)",
            r"xtra\]\([^)]*\) `(\w+)",
        ):
            named |= set(re.findall(pattern, text))
    assert len(named) > 9
    assert named <= set(project["optional-dependencies"])


def test_the_largest_return_is_as_documented():
    positive = sum(max(0.0, weight) for weight in REWARDS.values())
    largest = positive * EPISODE_STEPS * CONTROL_DT_S
    assert f"**{largest:.3f}**" in (ROOT / "docs" / "concepts.md").read_text()


def test_readme_and_architecture_are_short():
    assert len(README.read_text().splitlines()) <= 130
    assert len(ARCHITECTURE.read_text().splitlines()) <= 150
    assert len(ARCHITECTURE.read_text().split()) <= 1000
