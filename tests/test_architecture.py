"""The floors of the house: which package may import which, read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# package -> the project's packages that it may import besides itself
ALLOWED = {
    "datasets": frozenset[str](),
    "collectors": frozenset({"datasets"}),
    "learners": frozenset({"datasets"}),
    "flows": frozenset({"collectors", "learners", "datasets"}),
    "pipeline": frozenset({"collectors", "learners", "datasets", "flows"}),
}
# The one module of datasets that may import torch.
TORCH_IN_DATASETS = Path("datasets/stream/window_stream.py")
# Unpickling runs whatever code a file holds.
FORBIDDEN_EVERYWHERE = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "shelve"})
# Isaac Gym lives in a Python of its own; only the program that runs there may import it.
ISAACGYM_WORKER = Path("collectors/physics/isaacgym/worker")


def imported_modules(source: str, package: str) -> Iterator[str]:
    """The absolute dotted name of every import in `source`, a module inside `package`.

    Imports inside functions and under `TYPE_CHECKING` count too: an arrow is an arrow.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - (node.level - 1)]
            yield ".".join([*base, node.module] if node.module else base)
        elif isinstance(node, ast.Call) and _is_import_call(node.func):
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    yield name


def _is_import_call(function: ast.expr) -> bool:
    """Whether a call's target is `__import__` or `import_module`, however it is spelled."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in {"__import__", "import_module"}
    return False


def violations(path: Path, source: str) -> list[str]:
    """What the module at `path` (relative to the root) imports against the rules, one line each."""
    package = ".".join(path.parts[:-1])
    floor = path.parts[0]
    found = []
    for module in imported_modules(source, package):
        top = module.split(".")[0]
        if top in ALLOWED and top != floor and top not in ALLOWED[floor]:
            allowed = ", ".join(sorted(ALLOWED[floor])) or "no other package of the project"
            found.append(f"{path} imports {module}; {floor} may import {allowed}")
        if top == "tests":
            found.append(f"{path} imports {module}; only tests import tests")
        if top in FORBIDDEN_EVERYWHERE:
            found.append(f"{path} imports {module}, which no module here may")
        if top == "isaacgym" and path.parent != ISAACGYM_WORKER:
            found.append(f"{path} imports {module}; only {ISAACGYM_WORKER} may")
        if top == "torch" and floor == "datasets" and path != TORCH_IN_DATASETS:
            found.append(f"{path} imports {module}; in datasets only {TORCH_IN_DATASETS} may")
    return found


def project_modules() -> list[Path]:
    return sorted(
        path.relative_to(ROOT) for package in ALLOWED for path in (ROOT / package).rglob("*.py")
    )


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_every_floor_exists_and_is_a_package(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file()


def test_imports_only_point_down() -> None:
    found = [
        line
        for path in project_modules()
        for line in violations(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("datasets/store.py", "import collectors.legged.environment"),
        ("datasets/store.py", "import torch"),
        ("datasets/store.py", "def f():\n    from torch.utils.data import IterableDataset"),
        ("datasets/stream/window_stream.py", "from learners.models import FCNet"),
        ("collectors/rollout.py", "from learners.models import FCNet"),
        (
            "learners/trainer.py",
            "import importlib\nimportlib.import_module('collectors.legged.rollout')",
        ),
        ("flows/demo.py", "from pipeline.config import DemoConfig"),
        ("flows/sub/demo.py", "from ...pipeline import config"),
        ("pipeline/cli.py", "from tests import conftest"),
        ("pipeline/cli.py", "import pickle"),
        ("collectors/physics/isaacgym.py", "from isaacgym import gymapi"),
    ],
)
def test_the_check_sees_each_forbidden_arrow(path: str, source: str) -> None:
    assert violations(Path(path), source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "datasets/stream/window_stream.py",
            "import torch\nfrom datasets.storage.store import Store",
        ),
        ("collectors/rollout.py", "from datasets.storage.store import Store\nimport torch"),
        ("collectors/physics/isaacgym/worker/world.py", "from isaacgym import gymapi"),
        (
            "learners/trainer.py",
            "from . import models\nfrom datasets.stream.window_stream import WindowStream",
        ),
        ("flows/demo.py", "from collectors.legged import rollout\nfrom learners import trainer"),
        ("pipeline/cli.py", "from flows.stages import demo\nfrom collectors import rollout"),
    ],
)
def test_the_check_lets_allowed_arrows_pass(path: str, source: str) -> None:
    assert not violations(Path(path), source)
