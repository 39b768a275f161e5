"""The Isaac Gym worker runs where Isaac Gym does: in Python 3.6 to 3.8 with torch and numpy."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitforge.collectors.physics.isaacgym import worker as isaacgym_worker

FOLDER = Path(isaacgym_worker.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))
OLDEST, NEWEST = (3, 6), (3, 8)
PACKAGES = {"isaacgym", "numpy", "torch"}
STANDARD = {
    "contextlib",
    "json",
    "mmap",
    "os",
    "select",
    "shutil",
    "sys",
    "time",
    "traceback",
    "typing",
}
SIBLINGS = {path.stem for path in FILES}
NEWER_METHODS = {"removeprefix", "removesuffix", "is_relative_to", "readlink", "bit_count"}
GENERIC = {"dict", "list", "tuple", "set", "frozenset", "type"}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of all modules that are imported anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a script has no package"
            assert node.module is not None
            yield node.module.split(".")[0]


def evaluated(node: ast.AST, in_function: bool = False) -> Iterator[ast.AST]:
    """All nodes whose value is computed, which annotations within functions are not."""
    yield node
    if isinstance(node, ast.AnnAssign) and in_function:
        parts = [node.target, *([node.value] if node.value else [])]
    else:
        parts = list(ast.iter_child_nodes(node))
    inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for part in parts:
        yield from evaluated(part, inside)


def test_there_is_a_program() -> None:
    assert "worker" in SIBLINGS
    assert len(FILES) > 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_language_is_old_enough(path: Path, version: tuple[int, int]) -> None:
    assert ast.parse(path.read_text(encoding="utf-8"), feature_version=version).body


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_else_is_imported(path: Path) -> None:
    assert set(imported(tree_of(path))) <= PACKAGES | STANDARD | SIBLINGS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_the_parser_lets_through_is_old_too(path: Path) -> None:
    """Subscripted built-in types (3.9), the walrus and newer methods fail when they are run."""
    for node in evaluated(tree_of(path)):
        where = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in GENERIC, where
        if isinstance(node, ast.Attribute):
            assert node.attr not in NEWER_METHODS, where
        if isinstance(node, ast.Call):
            keywords = {keyword.arg for keyword in node.keywords}
            assert not (isinstance(node.func, ast.Name) and "strict" in keywords), where
        assert not isinstance(node, ast.NamedExpr), where


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_isaac_gym_is_imported_before_torch(path: Path) -> None:
    names = [name for name in imported(tree_of(path)) if name in {"isaacgym", "torch"}]
    if path.stem in {"robots", "simulation"}:
        assert names[0] == "isaacgym"
        assert "torch" in names
    elif "torch" in names:
        # Imported by those alone, after Isaac Gym.
        importers = [other for other in FILES if path.stem in set(imported(tree_of(other)))]
        assert {other.stem for other in importers} <= {"robots", "simulation"}


@pytest.mark.parametrize(
    "newer",
    [
        "if (n := 3):\n    pass\n",
        "def f(a, /):\n    pass\n",
        "match 1:\n    case _:\n        pass\n",
        "with (open('a') as a, open('b') as b):\n    pass\n",
    ],
)
def test_newer_syntax_would_be_noticed(newer: str) -> None:
    with pytest.raises(SyntaxError):
        ast.parse(newer, feature_version=OLDEST)
