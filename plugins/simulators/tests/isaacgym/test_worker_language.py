"""The Isaac Gym worker runs where Isaac Gym does: in Python 3.6 to 3.8 with torch and numpy.

What Python 3.8 lacks, test_types.py finds.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitforge.plugins.simulators.isaacgym import worker as isaacgym_worker

FILES = sorted(Path(isaacgym_worker.__file__).parent.glob("*.py"))
OLDEST = (3, 6)
STANDARD = {"contextlib", "json", "mmap", "os", "select", "shutil", "sys", "time", "traceback"}
ALLOWED = {"isaacgym", "numpy", "torch", "typing", *STANDARD, *(path.stem for path in FILES)}


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of all modules that are imported anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a script has no package"
            assert node.module is not None
            yield node.module.split(".")[0]


def test_the_worker_is_of_the_oldest_language_and_imports_what_is_there_isaac_gym_first() -> None:
    trees = {
        path.stem: ast.parse(path.read_text("utf-8"), feature_version=OLDEST) for path in FILES
    }
    assert {"worker", "simulation"} <= set(trees)
    names = {stem: list(imported(tree)) for stem, tree in trees.items()}
    for stem, found in names.items():
        assert set(found) <= ALLOWED, stem
        first = [name for name in found if name in {"isaacgym", "torch"}]
        if stem == "simulation":
            assert first[0] == "isaacgym"
        elif "torch" in first:
            # Imported by it alone, after Isaac Gym.
            assert {other for other in names if stem in names[other]} <= {"simulation"}


@pytest.mark.parametrize("newer", ["if (n := 3):\n    pass\n", "def f(a, /):\n    pass\n"])
def test_newer_syntax_would_be_noticed(newer: str) -> None:
    with pytest.raises(SyntaxError):
        ast.parse(newer, feature_version=OLDEST)
